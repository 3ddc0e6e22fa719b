if(GYRE_TESTS)
  gyre_tests(model_tests "unit;pure;asan"
    FILES model_arch_test model_hybrid_test model_tokenizer_test model_bpe_test model_bad_input_test model_unigram_test
          model_word_piece_test
          model_tokenizer_json_test model_unigram_files_test model_answer_test model_tool_reader_test model_chat_test model_jinja_test
          model_jinja_cases_test model_shared_test model_hf_config_test model_gguf_published_test model_hf_damage_test model_adapter_test
          model_rwkv_tokenizer_test
    DEPS gyre_model Boost::json)
  target_compile_definitions(model_tests PRIVATE GYRE_TEST_CASES="${CMAKE_CURRENT_SOURCE_DIR}/cases")
  gyre_tests(model_allocation_tests "unit;pure;asan" FILES model_gguf_test model_jinja_limits_test model_llama2c_test
    DEPS gyre_model Boost::json)
  target_sources(model_allocation_tests PRIVATE testing/largest_allocation.cc)
  gyre_tests(model_threaded_tests unit FILES model_quantize_test DEPS gyre_model)
  gyre_tests(model_command_tests "unit;process" FILES model_commands_test DEPS gyre_model Boost::json)
  target_compile_definitions(model_command_tests PRIVATE GYRE_BINARY="$<TARGET_FILE:gyre>"
                             GYRE_DEMO_MODEL="${PROJECT_SOURCE_DIR}/models/demo.gguf")
  add_dependencies(model_command_tests gyre)
endif()
if(GYRE_FUZZ)
  gyre_fuzz(fuzz_gguf gyre_model)
  gyre_fuzz(fuzz_llama2c gyre_model)
  gyre_fuzz(fuzz_adapter gyre_model)
  gyre_fuzz(fuzz_hf gyre_model)
  gyre_fuzz(fuzz_answer gyre_model)
  gyre_fuzz(fuzz_jinja gyre_model)
  gyre_fuzz(fuzz_tokenizer gyre_model)
endif()
