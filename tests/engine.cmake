if(GYRE_TESTS)
  gyre_test(engine_ring_test engine gyre_cli)
  gyre_test(engine_stories_test engine gyre_cli)
endif()
