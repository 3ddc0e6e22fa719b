if(GYRE_TESTS)
  gyre_tests(grammar_tests "unit;asan"
    FILES grammar_forced_test grammar_random_schemas_test grammar_regex_test grammar_gbnf_test grammar_masks_test grammar_schema_test grammar_schema_cases_test
          grammar_tool_calls_test
    DEPS gyre_grammar Boost::json)
  # Of what is in grammar/ only compiled grammars and their masks are shared by threads.
  set_property(TEST grammar_forced_test grammar_random_schemas_test grammar_regex_test grammar_gbnf_test grammar_schema_test
                    grammar_schema_cases_test grammar_tool_calls_test APPEND PROPERTY LABELS pure)
  target_compile_definitions(grammar_tests PRIVATE GYRE_DEMO_MODEL="${PROJECT_SOURCE_DIR}/models/demo.gguf")
endif()
if(GYRE_FUZZ)
  gyre_fuzz(fuzz_grammar_schema gyre_grammar)
  gyre_fuzz(fuzz_grammar_regex gyre_grammar)
  gyre_fuzz(fuzz_grammar_gbnf gyre_grammar)
  gyre_fuzz(fuzz_grammar_tools gyre_grammar Boost::json)
endif()
