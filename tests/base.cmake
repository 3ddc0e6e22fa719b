if(GYRE_TESTS)
  gyre_tests(base_tests unit FILES base_cpus_test base_mask_codec_test base_memory_test base_range_test base_sha256_test base_unix_time_test
    DEPS gyre_base gyre_kernels)
  gyre_tests(measured_tests unit FILES limits_machine_speed_test transport_probe_test DEPS gyre_limits gyre_transport)
  # The plots in docs/ are what docs/performance.json gives, and their figures stand in docs/performance.md.
  add_test(NAME plot_performance COMMAND ${PROJECT_SOURCE_DIR}/scripts/plot_performance --check)
  add_test(NAME plot_performance_self_test COMMAND ${PROJECT_SOURCE_DIR}/scripts/plot_performance --self-test)
  set_tests_properties(plot_performance plot_performance_self_test PROPERTIES LABELS "unit;pure")
  add_test(NAME check_includes COMMAND ${PROJECT_SOURCE_DIR}/scripts/check_includes)
  add_test(NAME check_includes_self_test COMMAND ${PROJECT_SOURCE_DIR}/scripts/check_includes --self-test)
  add_test(NAME check_format COMMAND ${PROJECT_SOURCE_DIR}/scripts/check_format)
  add_test(NAME check_page COMMAND ${PROJECT_SOURCE_DIR}/scripts/check_page)
  add_test(NAME check_page_self_test COMMAND ${PROJECT_SOURCE_DIR}/scripts/check_page --self-test)
  add_test(NAME check_threats COMMAND ${PROJECT_SOURCE_DIR}/scripts/check_threats)
  add_test(NAME check_threats_self_test COMMAND ${PROJECT_SOURCE_DIR}/scripts/check_threats --self-test)
  set_tests_properties(check_threats check_threats_self_test check_includes check_includes_self_test check_page
                       check_page_self_test check_format PROPERTIES LABELS "unit;pure")
endif()
