if(GYRE_TESTS)
  gyre_tests(identity_tests "unit;asan" FILES identity_folder_test identity_verify_test identity_token_test DEPS gyre_identity)
endif()
