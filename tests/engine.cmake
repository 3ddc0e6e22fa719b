if(GYRE_TESTS)
  gyre_tests(engine_tests "engine;asan"
    FILES engine_faults_test engine_requests_test engine_soak_test engine_state_test engine_ring_test engine_resize_test
          engine_survive_test engine_classes_test engine_switches_test engine_context_shift_test engine_wire_test
          runtime_kv_choice_test engine_prompts_test engine_window_test
    DEPS gyre_runtime Boost::json)
  gyre_tests(golden_tests engine
    FILES engine_families_test engine_stories_test model_hf_test worker_golden_state_test worker_golden_test
          worker_scalar_forward_test worker_scalar_state_test
    DEPS gyre_runtime Boost::json)
  gyre_tests(cli_tests engine
    FILES cli_active_waiting_test cli_bench_test cli_progress_test cli_share_cores_test
    DEPS gyre_cli Boost::json)
  # Once more with two classes of rows: tiles for prompts, in emulation where there are none (docs/kernels.md).
  foreach(name engine_ring_test engine_resize_test engine_prompts_test engine_state_test)
    gyre_test_entry(${name}_with_tiles engine_tests ${name} engine)
    set_tests_properties(${name}_with_tiles PROPERTIES ENVIRONMENT GYRE_ISA=amx-emulated)
  endforeach()
  gyre_tests(ring_tests "engine;process"
    FILES ring_local_test ring_processes_test ring_survive_test ring_trace_test ring_refusals_test ring_storm_test
          ring_connections_test ring_join_test ring_locks_test ring_namespaces_test ring_transport_test
          ring_weights_test
    DEPS gyre_runtime Boost::json)
  target_compile_definitions(ring_tests PRIVATE GYRE_BINARY="$<TARGET_FILE:gyre>"
                                               GYRE_DEMO_MODEL="${PROJECT_SOURCE_DIR}/models/demo.gguf")
  add_dependencies(ring_tests gyre)
endif()
