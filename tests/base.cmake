if(GYRE_TESTS)
  gyre_tests(base_tests unit FILES base_cpus_test base_range_test DEPS gyre_base gyre_kernels)
  add_test(NAME check_includes COMMAND ${PROJECT_SOURCE_DIR}/scripts/check_includes)
  add_test(NAME check_includes_self_test COMMAND ${PROJECT_SOURCE_DIR}/scripts/check_includes --self-test)
  # The plots in docs/ are what docs/performance.json gives, and their figures stand in docs/performance.md.
  add_test(NAME plot_performance COMMAND ${PROJECT_SOURCE_DIR}/scripts/plot_performance --check)
  add_test(NAME plot_performance_self_test COMMAND ${PROJECT_SOURCE_DIR}/scripts/plot_performance --self-test)
  set_tests_properties(check_includes check_includes_self_test plot_performance plot_performance_self_test
    PROPERTIES LABELS "unit;pure")
endif()
