# gyre_library(NAME DEPS... SOURCES...): one static library per folder, gyre_<folder>.
function(gyre_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  add_library(gyre_${name} STATIC ${A_SOURCES})
  target_include_directories(gyre_${name} PUBLIC ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/..)
  target_link_libraries(gyre_${name} PUBLIC ${A_DEPS})
endfunction()

# A compiler's cache takes a precompiled header for what is in it, not for when it was written.
set(GYRE_TIMELESS "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")

# gyre_precompile(TARGET HEADER...): what most of its files include, parsed once. Only in sanitized builds, which compile
# everything a second and a third time; the others show which includes are missing.
function(gyre_precompile target)
  if(NOT GYRE_SANITIZE)
    return()
  endif()
  target_precompile_headers(${target} PRIVATE <algorithm> <functional> <string> <vector> ${PROJECT_SOURCE_DIR}/base/status.h ${ARGN})
  target_compile_options(${target} PRIVATE ${GYRE_TIMELESS})
endfunction()
