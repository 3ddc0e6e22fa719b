if(GYRE_TESTS)
  gyre_tests(grammar_tests "unit;asan"
    FILES grammar_regex_test grammar_gbnf_test grammar_masks_test grammar_schema_test grammar_schema_cases_test grammar_tool_calls_test
    DEPS gyre_grammar Boost::json)
endif()
if(GYRE_FUZZ)
  gyre_fuzz(fuzz_grammar_schema gyre_grammar)
  gyre_fuzz(fuzz_grammar_regex gyre_grammar)
  gyre_fuzz(fuzz_grammar_gbnf gyre_grammar)
endif()
