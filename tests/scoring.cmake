if(GYRE_TESTS)
  gyre_tests(scoring_tests "unit;asan"
    FILES scoring_arrow_test scoring_measures_test batch_files_test
    DEPS gyre_scoring gyre_batch Boost::json)
endif()

# A training loop's client, with the demo model as the teacher. It skips where numpy is missing.
if(GYRE_TESTS AND NOT GYRE_SANITIZE AND Python3_FOUND)
  add_test(NAME gkd_example
           COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/gkd_example.py --start $<TARGET_FILE:gyre>
                   --model ${PROJECT_SOURCE_DIR}/models/demo.gguf --steps 12 --check)
  set_tests_properties(gkd_example PROPERTIES LABELS "engine;process" TIMEOUT 300 SKIP_RETURN_CODE 77)
endif()
