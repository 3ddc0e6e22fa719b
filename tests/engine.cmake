if(GYRE_TESTS)
  gyre_tests(engine_tests "engine;tsan"
    FILES engine_faults_test engine_grammar_test engine_requests_test engine_soak_test engine_state_test engine_ring_test engine_resize_test
          engine_survive_test engine_classes_test engine_switches_test engine_context_shift_test engine_wire_test
          runtime_kv_choice_test engine_speculation_test engine_mtp_test engine_prompts_test engine_score_test
          engine_reattach_test engine_window_test engine_adapter_test engine_speculation_families_test
          engine_grammar_beside_test
    DEPS gyre_runtime far_device Boost::json)
  # Arithmetic, not threads: ThreadSanitizer would find nothing more in them.
  set_tests_properties(engine_speculation_families_test engine_adapter_test engine_mtp_test engine_context_shift_test
                       engine_window_test engine_classes_test engine_score_test PROPERTIES LABELS engine)
  target_sources(engine_tests PRIVATE testing/far_kind.cc testing/isa_environment.cc testing/emulated_isa.cc)
  add_dependencies(other_tests engine_tests)  # with other instruction sets, and on a far device
  gyre_tests(golden_tests "engine;openmp"
    FILES engine_families_test engine_stories_test model_hf_test model_hf_families_test model_hf_tokenizer_test
          model_hf_values_test worker_golden_encoder_test worker_golden_state_test worker_golden_quantized_test worker_golden_test
          worker_kv_rounding_test worker_scalar_families_test worker_scalar_forward_test worker_scalar_state_test
    DEPS gyre_runtime far_device Boost::json)
  target_compile_definitions(golden_tests PRIVATE GYRE_DEMO_MODEL="${PROJECT_SOURCE_DIR}/models/demo.gguf")
  target_sources(golden_tests PRIVATE testing/far_kind.cc testing/hf_folder.cc testing/isa_environment.cc
                                      testing/emulated_isa.cc)
  gyre_tests(cli_tests "engine;pure"
    FILES cli_active_waiting_test cli_bench_test cli_progress_test cli_share_cores_test cli_tables_test cli_word_wrap_test
    DEPS gyre_cli Boost::json)
  gyre_tests(ring_tests "engine;process"
    FILES ring_local_test ring_processes_test ring_survive_test ring_trace_test ring_refusals_test ring_storm_test
          ring_connections_test ring_fault_test ring_join_test ring_locks_test ring_lossy_test ring_replica_test
          ring_namespaces_test ring_rebalance_test
          ring_chaos_test ring_grammar_test ring_restart_test ring_transport_test ring_weights_test ring_drafts_test
    DEPS gyre_runtime Boost::json)
  target_sources(ring_tests PRIVATE testing/equal_machines.cc testing/isa_environment.cc testing/emulated_isa.cc)
  target_compile_definitions(ring_tests PRIVATE GYRE_BINARY="$<TARGET_FILE:gyre>"
                                               GYRE_DEMO_MODEL="${PROJECT_SOURCE_DIR}/models/demo.gguf")
  add_executable(faulty_worker faulty_worker.cc testing/emulated_isa.cc)
  target_link_libraries(faulty_worker PRIVATE gyre_runtime gyre_worker)
  target_compile_definitions(ring_tests PRIVATE GYRE_FAULTY_WORKER="$<TARGET_FILE:faulty_worker>")
  add_dependencies(ring_tests gyre faulty_worker)
  # A thread that stands still is noticed after ten seconds.
  add_test(NAME ring_stuck COMMAND ring_tests --gtest_filter=RingFaultTest.*Stuck*)
  set_tests_properties(ring_stuck PROPERTIES LABELS slow TIMEOUT 600 ENVIRONMENT GYRE_SLOW_TESTS=1)
  gyre_tests(standby_tests "engine;process" FILES ring_standby_test ring_etcd_test ring_partition_test DEPS gyre_runtime)
  target_sources(standby_tests PRIVATE testing/equal_machines.cc testing/isa_environment.cc testing/emulated_isa.cc)
  target_compile_definitions(standby_tests PRIVATE GYRE_BINARY="$<TARGET_FILE:gyre>"
                                                   GYRE_DEMO_MODEL="${PROJECT_SOURCE_DIR}/models/demo.gguf")
  add_dependencies(standby_tests gyre)
  # A leader that is cut off: leases and pings end, which takes seconds.
  add_test(NAME ring_partition COMMAND standby_tests --gtest_filter=PartitionTest.*)
  set_tests_properties(ring_partition PROPERTIES LABELS slow TIMEOUT 600 ENVIRONMENT GYRE_SLOW_TESTS=1)
  # A worker that stands still for a minute.
  add_test(NAME ring_stopped COMMAND ring_tests --gtest_filter=SurvivingProcessesTest.AStoppedWorker*)
  set_tests_properties(ring_stopped PROPERTIES LABELS slow TIMEOUT 600 ENVIRONMENT GYRE_STOP_SECONDS=60)
  # Chaos for longer than a run of all tests has time for: 200 faults, and an hour.
  add_test(NAME ring_chaos_faults COMMAND ring_tests --gtest_filter=SurvivingChaosTest.*)
  set_tests_properties(ring_chaos_faults PROPERTIES LABELS slow TIMEOUT 600 ENVIRONMENT GYRE_CHAOS_FAULTS=200)
  add_test(NAME ring_chaos COMMAND ring_tests --gtest_filter=SurvivingChaosTest.*)
  set_tests_properties(ring_chaos PROPERTIES LABELS slow TIMEOUT 7200 ENVIRONMENT GYRE_CHAOS_SECONDS=3600)
  # What tshark records of insecure and of secured rings; skipped without it.
  find_package(Python3 COMPONENTS Interpreter)
  add_test(NAME ring_capture COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/capture/run $<TARGET_FILE:gyre>
                                     ${PROJECT_SOURCE_DIR}/models/demo.gguf)
  set_tests_properties(ring_capture PROPERTIES LABELS slow TIMEOUT 600 SKIP_RETURN_CODE 77)

  # The program with what only tests compute with: a device whose memory the host can't touch, and instruction sets in
  # emulation.
  add_executable(gyre_for_tests testing/far_kind.cc testing/emulated_isa.cc $<TARGET_OBJECTS:gyre>)
  target_link_libraries(gyre_for_tests PRIVATE gyre_cli far_device)
  set(program_for_tests "GYRE_TEST_PROGRAM=$<TARGET_FILE:gyre_for_tests>")

  # Only that program has tiles in emulation; where prompts are rounded, `run` says so.
  set(ask run ${PROJECT_SOURCE_DIR}/models/demo.gguf -p "What is Gyre?" -n 1 -t 1)
  add_test(NAME gyre_has_no_emulation COMMAND gyre ${ask})
  add_test(NAME run_says_that_prompts_are_rounded COMMAND gyre_for_tests ${ask})
  add_test(NAME run_says_nothing_with_exact COMMAND gyre_for_tests ${ask} --exact)
  set_tests_properties(gyre_has_no_emulation run_says_that_prompts_are_rounded run_says_nothing_with_exact PROPERTIES
                       ENVIRONMENT GYRE_ISA=amx-emulated LABELS "engine;process" TIMEOUT 120
                       SKIP_REGULAR_EXPRESSION "this CPU has no amx-emulated")
  set_property(TEST gyre_has_no_emulation PROPERTY PASS_REGULAR_EXPRESSION "amx-emulated not in")
  set_property(TEST run_says_that_prompts_are_rounded PROPERTY PASS_REGULAR_EXPRESSION "prompt are rounded to bf16")
  set_property(TEST run_says_nothing_with_exact PROPERTY FAIL_REGULAR_EXPRESSION "rounded to bf16")

  # Once more with other instruction sets than the processor's best, as no text and no plan of a test may depend on the
  # processor (docs/kernels.md): engines and some of the rings always, all rings with the label "isa" (scripts/test
  # --only isa). AddressSanitizer sees only the tiles: those with the label
  # "other-isa" would tell sanitizers nothing new.
  set(engine_files engine_faults_test engine_requests_test engine_soak_test engine_resize_test engine_survive_test
                   engine_classes_test engine_switches_test engine_context_shift_test engine_wire_test engine_adapter_test
                   engine_prompts_test engine_score_test engine_reattach_test engine_window_test)
  set(isa_properties SKIP_REGULAR_EXPRESSION "not run with this instruction set")
  foreach(isa avx2 avx512vnni amx-emulated)
    set(environment "GYRE_TEST_ISA=${isa};${program_for_tests}")
    foreach(file ${engine_files} engine_ring_test engine_state_test)
      set(labels "engine;other-isa")
      if(isa STREQUAL amx-emulated AND file MATCHES "ring|resize|prompts|state" AND NOT GYRE_SANITIZE MATCHES thread)
        set(labels engine)
      endif()
      gyre_test_entry(${file}_${isa} engine_tests ${file} "${labels}")
      set_tests_properties(${file}_${isa} PROPERTIES ${isa_properties} ENVIRONMENT "${environment}")
    endforeach()
    string(JOIN ":" moves LocalTest.TheCoordinatorsLayersMove* SurvivingProcessesTest.AKilledWorker*
                    NamespacesTest.HostsThatShareOnlyASwitch* NamespacesTest.ATextGoesOnWhereTwoWorkers*)
    add_test(NAME ring_moves_${isa} COMMAND ring_tests --gtest_filter=${moves})
    add_test(NAME ring_chaos_${isa} COMMAND ring_tests --gtest_filter=SurvivingChaosTest.*)
    set_tests_properties(ring_moves_${isa} ring_chaos_${isa} PROPERTIES ${isa_properties} LABELS "engine;process;other-isa" TIMEOUT 600
                         ENVIRONMENT "${environment};GYRE_CHAOS_SECONDS=4")
    foreach(file ring_local_test ring_processes_test ring_survive_test ring_trace_test ring_refusals_test
                 ring_storm_test ring_connections_test ring_fault_test ring_join_test ring_locks_test ring_lossy_test
                 ring_replica_test ring_namespaces_test ring_rebalance_test ring_chaos_test ring_restart_test
                 ring_transport_test ring_weights_test)
      gyre_test_entry(${file}_${isa} ring_tests ${file} isa)
      set_tests_properties(${file}_${isa} PROPERTIES ${isa_properties} ENVIRONMENT "${environment}")
    endforeach()
  endforeach()

  # Once more where a host that touches the device's memory crashes (docs/device.md): some of them always, all of them
  # with the label "far" (scripts/test --only far).
  function(gyre_far_entry name program file label)
    gyre_test_entry(${name} ${program} ${file} ${label})
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "GYRE_TEST_DEVICE=far;${program_for_tests}")
  endfunction()
  foreach(file engine_ring_test engine_state_test)
    gyre_far_entry(${file}_on_far_device engine_tests ${file} engine)
  endforeach()
  foreach(file worker_states_test worker_pages_test worker_slots_test worker_stage_test worker_logit_rows_test)
    gyre_far_entry(${file}_far worker_tests ${file} far)
  endforeach()
  foreach(file ${engine_files})
    gyre_far_entry(${file}_far engine_tests ${file} far)
  endforeach()
  foreach(file engine_families_test engine_stories_test worker_golden_encoder_test worker_golden_state_test worker_golden_test
               worker_scalar_forward_test worker_scalar_state_test model_hf_families_test)
    gyre_far_entry(${file}_far golden_tests ${file} far)
  endforeach()
  foreach(file ring_local_test ring_processes_test ring_survive_test ring_trace_test ring_transport_test
               ring_weights_test)
    gyre_far_entry(${file}_far ring_tests ${file} far)
  endforeach()
  # Some hundred tokens over a network that loses packets.
  add_test(NAME ring_lossy_long COMMAND ring_tests --gtest_filter=RingLossyTest.*)
  set_tests_properties(ring_lossy_long PROPERTIES LABELS slow TIMEOUT 900 ENVIRONMENT GYRE_LOSSY_TOKENS=500)
endif()
