if(GYRE_TESTS)
  gyre_tests(coordinator_tests "unit;pure"
    FILES coordinator_plan_change_test coordinator_planner_test coordinator_cluster_state_test
          coordinator_cluster_soak_test coordinator_cluster_loss_test coordinator_cluster_detach_test
          coordinator_scheduler_soak_test coordinator_scheduler_window_test coordinator_sampler_test
          coordinator_sampler_paths_test
          coordinator_text_stream_test coordinator_scheduler_test coordinator_scheduler_isolation_test
          coordinator_scheduler_load_test coordinator_scheduler_policy_test coordinator_step_budget_test
          coordinator_steps_in_flight_test coordinator_speculation_test
          coordinator_cluster_asks_test coordinator_cluster_local_test coordinator_unit_pool_test coordinator_kv_cache_test
          coordinator_replicas_test
          coordinator_cluster_adopt_test coordinator_cluster_explore_test coordinator_cluster_memory_test
          coordinator_cluster_members_test coordinator_cluster_handover_test coordinator_leadership_test
          coordinator_sampling_options_test
    DEPS gyre_coordinator simulated_worlds)
  add_test(NAME coordinator_cluster_explore_deep COMMAND coordinator_tests --gtest_filter=ClusterExploreTest.*)
  set_tests_properties(coordinator_cluster_explore_deep PROPERTIES LABELS slow TIMEOUT 1200 ENVIRONMENT
               GYRE_EXPLORE_DEPTH=4)
  gyre_tests(coordinator_rebalance_tests "unit;pure"
    FILES coordinator_balance_test coordinator_cluster_rebalance_test coordinator_rebalance_policy_test
    DEPS gyre_coordinator simulated_worlds)
  gyre_tests(coordinator_parts_tests "unit;pure"
    FILES coordinator_roster_test coordinator_speeds_test coordinator_ring_watch_test coordinator_kv_restore_test
    DEPS gyre_coordinator)
  gyre_tests(coordinator_journal_tests "unit;pure;asan" FILES coordinator_request_journal_test coordinator_response_journal_test
    DEPS gyre_coordinator)
  gyre_tests(coordinator_threaded_tests "unit;tsan" FILES coordinator_cluster_test coordinator_remote_drafter_test DEPS gyre_coordinator)
  gyre_tests(service_tests "unit;tsan"
    FILES coordinator_changing_lines_test coordinator_service_test coordinator_state_test coordinator_option_docs_test
    DEPS gyre_coordinator Boost::json)
  gyre_tests(grpc_tests "unit;process"
    FILES coordinator_service_grpc_test coordinator_service_port_test
    DEPS gyre_coordinator)
  gyre_tests(http_tests "unit;asan"
    FILES http_seam_test http_page_test http_metrics_text_test http_trace_test http_event_ids_test
    DEPS gyre_http)
  gyre_tests(http_server_tests "unit;asan;tsan"
    FILES http_server_test http_server_access_test http_server_hostile_test http_arrivals_test
    DEPS gyre_http)
  gyre_tests(http_apis_tests engine
    FILES http_apis_test http_ollama_test http_openai_test http_openai_errors_test http_openai_logprobs_test http_openai_reasoning_test http_tools_test
          http_openai_responses_test http_score_test http_adapter_test http_rerank_test http_metrics_test http_progress_test http_turns_test
    DEPS gyre_http gyre_runtime Boost::json)
  gyre_tests(http_batches_tests "engine;tsan" FILES http_batches_test DEPS gyre_http gyre_runtime Boost::json)
  # An agent's sessions of 30,000 tokens, with their figures.
  add_test(NAME http_turns_full COMMAND http_apis_tests --gtest_filter=*TurnsTest.*)
  set_tests_properties(http_turns_full PROPERTIES LABELS slow TIMEOUT 1200 ENVIRONMENT GYRE_TURNS_FULL=1)
  gyre_tests(http_cluster_tests "engine;tsan" FILES http_cluster_test DEPS gyre_http gyre_runtime Boost::json)
  gyre_tests(http_live_tests engine
    FILES http_description_test http_grammar_reasoning_test http_grammar_test http_malformed_test http_storm_test http_tool_grammar_test
    DEPS gyre_http gyre_runtime Boost::json)
  foreach(program service_tests grpc_tests http_tests http_apis_tests http_batches_tests http_live_tests)
    target_compile_definitions(${program} PRIVATE GYRE_DEMO_MODEL="${PROJECT_SOURCE_DIR}/models/demo.gguf")
  endforeach()
endif()
if(GYRE_FUZZ)
  gyre_fuzz(fuzz_http gyre_http Boost::json)
  target_compile_definitions(fuzz_http PRIVATE GYRE_DEMO_MODEL="${PROJECT_SOURCE_DIR}/models/demo.gguf")
endif()
