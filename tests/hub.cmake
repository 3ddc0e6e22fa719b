# Models by name, against a hub that stands in the test's process.
if(GYRE_TESTS)
  gyre_tests(hub_tests "unit;asan" FILES hub_cache_test hub_client_test hub_download_test hub_names_test hub_pull_test
    DEPS gyre_hub OpenSSL::SSL OpenSSL::Crypto Boost::json)
endif()
