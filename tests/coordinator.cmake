if(GYRE_TESTS)
  gyre_tests(coordinator_tests "unit;pure"
    FILES coordinator_plan_change_test coordinator_planner_test coordinator_cluster_state_test
          coordinator_cluster_soak_test coordinator_scheduler_soak_test coordinator_sampler_test coordinator_sampler_paths_test
          coordinator_text_stream_test coordinator_scheduler_test
    DEPS gyre_coordinator)
endif()
