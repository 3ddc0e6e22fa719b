# Tests of coordinator: gyre_test(...) inside if(GYRE_TESTS), gyre_fuzz(...) inside if(GYRE_FUZZ).
if(GYRE_TESTS)
  gyre_test(coordinator_plan_change_test "unit;pure" gyre_coordinator)
  gyre_test(coordinator_scheduler_soak_test "unit;pure" gyre_coordinator)
  gyre_test(coordinator_sampler_test "unit;pure" gyre_coordinator)
  gyre_test(coordinator_sampler_paths_test "unit;pure" gyre_coordinator)
  gyre_test(coordinator_text_stream_test "unit;pure" gyre_coordinator)
  gyre_test(coordinator_scheduler_test "unit;pure" gyre_coordinator)
endif()
