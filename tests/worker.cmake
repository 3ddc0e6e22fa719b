if(GYRE_TESTS)
  gyre_test(worker_golden_test engine gyre_cli)
endif()
