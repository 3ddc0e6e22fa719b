# Models by name, against a hub that stands in the test's process.
if(GYRE_TESTS)
  gyre_tests(hub_tests unit
             FILES hub_cache_test hub_client_test hub_download_test hub_kill_test hub_names_test hub_policy_test hub_pull_test
                   hub_ranges_test
             DEPS gyre_hub gyre_transport OpenSSL::SSL OpenSSL::Crypto Boost::json)
  # The same with many more runs.
  add_test(NAME hub_kill_often COMMAND hub_tests --gtest_filter=HubKillTest.*)
  set_tests_properties(hub_kill_often PROPERTIES LABELS slow TIMEOUT 1800 ENVIRONMENT GYRE_HUB_KILLS=200)
endif()
