if(GYRE_TESTS)
  gyre_tests(worker_tests "unit;tsan"
    FILES worker_states_test worker_life_test worker_replica_test worker_node_membership_test worker_pages_test
          worker_restore_test worker_resident_test worker_slots_test worker_stage_test worker_wire_rows_test
          worker_logit_rows_test worker_mtp_test worker_device_test worker_attacks_test
    DEPS gyre_worker far_device)
  set_tests_properties(worker_mtp_test PROPERTIES LABELS unit)  # arithmetic, not threads
  add_dependencies(other_tests worker_tests)
  gyre_tests(worker_process_tests "unit;process" FILES worker_node_rules_test worker_node_test DEPS gyre_worker far_device)
endif()
