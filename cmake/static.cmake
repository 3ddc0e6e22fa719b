# With GYRE_STATIC the program has everything but glibc in itself: static libraries are looked for, and gyre_static_packages()
# corrects what a package found in spite of that. scripts/package static checks what came out.
if(GYRE_STATIC)
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
  set(PKG_CONFIG_ARGN --static)
  set(OPENSSL_USE_STATIC_LIBS ON)
  set(Boost_USE_STATIC_LIBS ON)
  set(Protobuf_USE_STATIC_LIBS ON)
  # A library that is given by its name alone is a static one, too. glibc comes first, as libbsd has functions of the same
  # names (the compiler would move a plain -lc to the end). GNU's linker reads each archive once, except in a group.
  add_link_options(-static-libstdc++ -static-libgcc)
  set(CMAKE_CXX_LINK_EXECUTABLE "<CMAKE_CXX_COMPILER> <FLAGS> <CMAKE_CXX_LINK_FLAGS> <LINK_FLAGS> <OBJECTS> -o <TARGET> \
-Wl,-Map=<TARGET>.map -Wl,-lc,-Bstatic,--start-group <LINK_LIBRARIES> -Wl,--end-group,-Bdynamic")
endif()

# Sets GYRE_FMT and GYRE_SPDLOG, the targets of these two libraries.
function(gyre_static_packages)
  set(GYRE_FMT fmt::fmt PARENT_SCOPE)
  set(GYRE_SPDLOG spdlog::spdlog PARENT_SCOPE)
  if(NOT GYRE_STATIC)
    return()
  endif()
  # Abseil's package knows its shared libraries only. The static ones lie beside them.
  get_property(targets DIRECTORY ${PROJECT_SOURCE_DIR} PROPERTY IMPORTED_TARGETS)
  list(FILTER targets INCLUDE REGEX "^absl::")
  foreach(target ${targets})
    get_target_property(type ${target} TYPE)
    if(type STREQUAL SHARED_LIBRARY)
      get_target_property(shared ${target} LOCATION)
      string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive "${shared}")
      if(NOT EXISTS "${archive}")
        message(FATAL_ERROR "${target}: there is no static library ${archive}")
      endif()
      set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_NONE "${archive}" IMPORTED_NO_SONAME ON)
    endif()
  endforeach()
  # Debian has no static library of fmt and spdlog, but all of their code is in their headers.
  add_library(gyre_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/static_fmt.cc)
  # Whatever includes fmt is compiled as for the shared library, so that a compiler cache has it already.
  get_target_property(definitions fmt::fmt INTERFACE_COMPILE_DEFINITIONS)
  target_compile_definitions(gyre_fmt PUBLIC ${definitions})
  set_target_properties(spdlog::spdlog_header_only PROPERTIES INTERFACE_LINK_LIBRARIES Threads::Threads)
  set(GYRE_FMT gyre_fmt PARENT_SCOPE)
  set(GYRE_SPDLOG spdlog::spdlog_header_only PARENT_SCOPE)
endfunction()
