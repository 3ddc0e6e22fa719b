# include/gyre.h, from C and against the shared library, as its users have it.
if(GYRE_TESTS)
  add_executable(c_api_test c_api_test.c)
  set_target_properties(c_api_test PROPERTIES C_STANDARD 11)
  if(GYRE_SANITIZE)
    set_target_properties(c_api_test PROPERTIES LINKER_LANGUAGE CXX)  # UBSan's part for C++, which the library needs
  endif()
  target_link_libraries(c_api_test PRIVATE gyre_shared Threads::Threads)
  add_test(NAME c_api_test COMMAND c_api_test ${PROJECT_SOURCE_DIR}/models/demo.gguf)
  # As a program of its own, which ThreadSanitizer leaves out.
  set_tests_properties(c_api_test PROPERTIES LABELS "unit;process" TIMEOUT 600)
endif()

# An installed library is found by pkg-config, and a C program built against it runs.
find_program(PKG_CONFIG pkg-config)
if(GYRE_TESTS AND NOT GYRE_SANITIZE AND PKG_CONFIG)
  set(prefix ${CMAKE_CURRENT_BINARY_DIR}/installed_library)
  add_test(NAME installed_library
           COMMAND sh -c "'${CMAKE_COMMAND}' --install '${PROJECT_BINARY_DIR}' --prefix '${prefix}' >/dev/null && \
                          lib=$(dirname $(find '${prefix}' -name libgyre.so)) && \
                          flags=$(PKG_CONFIG_PATH=$lib/pkgconfig '${PKG_CONFIG}' --cflags --libs gyre) && \
                          '${CMAKE_C_COMPILER}' -pthread '${CMAKE_CURRENT_SOURCE_DIR}/c_api_test.c' $flags -o '${prefix}/c_api_test' && \
                          LD_LIBRARY_PATH=$lib '${prefix}/c_api_test' '${prefix}/share/gyre/demo.gguf'")
  set_tests_properties(installed_library PROPERTIES LABELS "engine;process" TIMEOUT 120)
endif()
