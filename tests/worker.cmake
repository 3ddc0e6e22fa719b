# Tests of worker: gyre_test(...) inside if(GYRE_TESTS), gyre_fuzz(...) inside if(GYRE_FUZZ).
if(GYRE_TESTS)
  gyre_test(worker_forward_test "unit" gyre_worker)
  gyre_test(worker_golden_test "unit;pure" gyre_worker)
  gyre_test(worker_local_test "unit" gyre_worker)
  gyre_test(worker_stage_test "unit;pure" gyre_worker)
endif()
