find_package(Python3 COMPONENTS Interpreter)

# The program as a user starts it: on a terminal, through pipes, with settings; what it returns to the shell.
if(GYRE_TESTS)
  gyre_tests(cli_process_tests "engine;process"
    FILES cli_certify_test cli_chat_test cli_commands_test cli_diff_test cli_exit_code_test cli_export_test
          cli_grammar_check_test cli_parse_answer_test cli_pull_test
          cli_sampling_flags_test cli_score_test cli_settings_test cli_tools_test cli_url_test http_server_process_test
    DEPS gyre_cli Boost::json OpenSSL::SSL OpenSSL::Crypto util)
  target_compile_definitions(
    cli_process_tests PRIVATE GYRE_BINARY="$<TARGET_FILE:gyre>" GYRE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                              GYRE_DEMO_MODEL="${PROJECT_SOURCE_DIR}/models/demo.gguf")
  add_dependencies(cli_process_tests gyre)
endif()

# Commands that compute are started anew once: before anything is read, so that settings may come through a pipe.
if(GYRE_TESTS AND NOT GYRE_SANITIZE)
  set(run "'$<TARGET_FILE:gyre>' --config /dev/stdin run '${PROJECT_SOURCE_DIR}/models/demo.gguf' -p 'Tell me' -q")
  add_test(NAME settings_through_a_pipe
           COMMAND sh -c "printf '[run]\\nn-predict=1\\necho=true\\n' | ${run} | grep '^Tell me'")
  set_tests_properties(settings_through_a_pipe PROPERTIES LABELS "engine;process" TIMEOUT 120)
endif()

# An installed program runs the model that is installed with it.
if(GYRE_TESTS AND NOT GYRE_SANITIZE)
  set(prefix ${CMAKE_CURRENT_BINARY_DIR}/installed)
  add_test(NAME installed_program
           COMMAND sh -c "'${CMAKE_COMMAND}' --install '${PROJECT_BINARY_DIR}' --prefix '${prefix}' >/dev/null && \
                          grep -q '^ExecStart=${prefix}/bin/gyre ' '${prefix}'/lib/systemd/system/gyre-*.service && \
                          grep -q '^complete ' '${prefix}/share/bash-completion/completions/gyre' && \
                          grep -q '^.TH' '${prefix}/share/man/man1/gyre.1' && \
                          '${prefix}/bin/gyre' run '${prefix}/share/gyre/demo.gguf' -p 'Tell me' -n 1 -q --echo | \
                          grep '^Tell me'")
  set_tests_properties(installed_program PROPERTIES LABELS "engine;process" TIMEOUT 120)
endif()

# The alert rules and the dashboard, with Prometheus around a server. It skips where Prometheus is missing.
if(GYRE_TESTS AND NOT GYRE_SANITIZE)
  add_test(NAME metrics_in_prometheus COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/metrics/run $<TARGET_FILE:gyre>)
  set_tests_properties(metrics_in_prometheus PROPERTIES LABELS slow TIMEOUT 600 SKIP_RETURN_CODE 77)
endif()

# A model for tests in other languages.
if(GYRE_TESTS)
  add_executable(write_calling_model write_calling_model.cc)
  target_link_libraries(write_calling_model PRIVATE gyre_model)
endif()

# The web page in a browser. It skips where Node's packages or Chromium are missing.
if(GYRE_TESTS AND NOT GYRE_SANITIZE)
  add_test(NAME web_page COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/web/run $<TARGET_FILE:gyre>)
  # The browser and the ring: beside tests that compute, answers end before the browser has drawn them, or take
  # minutes.
  set_tests_properties(web_page PROPERTIES LABELS "engine;process" TIMEOUT 600 SKIP_RETURN_CODE 77 PROCESSORS 2)
  add_test(NAME web_page_looks COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/web/run $<TARGET_FILE:gyre>)
  set_tests_properties(web_page_looks PROPERTIES LABELS "engine;process;full" TIMEOUT 600 SKIP_RETURN_CODE 77 PROCESSORS 2
                       ENVIRONMENT "GYRE_ALL_LOOKS=1;GYRE_ONLY=axe-core")
endif()

# Many clients for some minutes. For the figures of docs/performance.md: --seconds 600, on a machine that does nothing
# else.
if(GYRE_TESTS AND NOT GYRE_SANITIZE AND Python3_FOUND)
  add_test(NAME http_soak
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/soak/run $<TARGET_FILE:gyre> --seconds 240)
  set_tests_properties(http_soak PROPERTIES LABELS slow TIMEOUT 600)
endif()

# The official clients of the APIs that Gyre answers. They skip where Node or its packages are missing.
if(GYRE_TESTS AND NOT GYRE_SANITIZE)
  add_test(NAME sdk COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/sdk/run $<TARGET_FILE:gyre>)
  set_tests_properties(sdk PROPERTIES LABELS "engine;process" TIMEOUT 300 SKIP_RETURN_CODE 77)
endif()

# Processes under limits of their address space and of their threads, and with a model in huge pages. With 40 limits
# instead of five it takes minutes.
if(GYRE_TESTS AND NOT GYRE_SANITIZE AND Python3_FOUND)
  set(limits ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/limits/run $<TARGET_FILE:gyre> $<TARGET_FILE:gyre_shared>
             ${PROJECT_SOURCE_DIR}/models/demo.gguf)
  add_test(NAME process_limits COMMAND ${limits} --limits 5)
  add_test(NAME process_limits_of_threads COMMAND ${limits} --of threads --limits 5)
  set_tests_properties(process_limits process_limits_of_threads PROPERTIES LABELS "engine;process" TIMEOUT 600)
  add_test(NAME process_limits_40 COMMAND ${limits})
  add_test(NAME process_limits_of_threads_40 COMMAND ${limits} --of threads)
  add_test(NAME process_limits_with_huge_pages_40 COMMAND ${limits} --large)
  set_tests_properties(process_limits_40 process_limits_of_threads_40 process_limits_with_huge_pages_40
                       PROPERTIES LABELS slow TIMEOUT 1200)
endif()

# What it needs it says in a sentence, wherever it is missing.
if(GYRE_TESTS AND NOT GYRE_SANITIZE AND Python3_FOUND)
  add_test(NAME parity_says_what_it_needs COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/parity
                                                  --gyre $<TARGET_FILE:gyre> ./nowhere)
  set_tests_properties(parity_says_what_it_needs PROPERTIES LABELS "engine;process" TIMEOUT 120 PASS_REGULAR_EXPRESSION
                       "parity: (No module named '[a-z]+', so nothing is compared|./nowhere: no such folder)")
endif()

# The demo model by what it was never trained on, in one process and through three workers.
if(GYRE_TESTS AND NOT GYRE_SANITIZE AND Python3_FOUND)
  add_test(NAME demo_model_evaluation
           COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/demo_model/evaluate.py $<TARGET_FILE:gyre>
                   ${PROJECT_SOURCE_DIR}/models/demo.gguf --ring 3)
  set_tests_properties(demo_model_evaluation PROPERTIES LABELS "engine;process;full" TIMEOUT 600)
elseif(GYRE_TESTS AND NOT Python3_FOUND)
  message(STATUS "no python3: the demo model is not evaluated")
endif()
