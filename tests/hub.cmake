# Models by name, against a hub that stands in the test's process.
if(GYRE_TESTS)
  gyre_tests(hub_tests "unit;asan" FILES hub_client_test hub_download_test DEPS gyre_hub OpenSSL::SSL OpenSSL::Crypto Boost::json)
endif()
