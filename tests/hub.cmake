# Models by name: what their names mean, and the cache that they lie in.
if(GYRE_TESTS)
  gyre_tests(hub_names_tests "unit;asan" FILES hub_names_test DEPS gyre_hub)
endif()
