# gyre_library(NAME DEPS... SOURCES...): one static library per folder, gyre_<folder>.
function(gyre_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  add_library(gyre_${name} STATIC ${A_SOURCES})
  target_include_directories(gyre_${name} PUBLIC ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/..)
  target_link_libraries(gyre_${name} PUBLIC ${A_DEPS})
endfunction()
