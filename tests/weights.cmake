if(GYRE_TESTS)
  gyre_tests(weights_tests "unit;tsan"
    FILES weights_cache_test weights_fetch_policy_test weights_fetch_test weights_manifest_test
    DEPS gyre_weights Boost::json)
endif()
if(GYRE_FUZZ)
  gyre_fuzz(fuzz_manifest gyre_weights)
endif()
