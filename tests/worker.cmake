if(GYRE_TESTS)
  gyre_test(worker_states_test unit gyre_worker)
  gyre_test(worker_golden_test engine gyre_cli)
endif()
