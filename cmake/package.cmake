# cpack -G DEB: one package with the program, the library, units, completions, the man page and deploy files.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME gyre)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "Gyre <gyre@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "inference of large language models on a ring of machines")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION " Each machine computes some of a model's layers. Layers move between machines
 while texts are written, and texts outlive the loss of a machine. Clients
 speak OpenAI's API, Anthropic's or gRPC.")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_SOURCE_DIR}/deploy/debian/conffiles)
# The units name the program where it will be, so the package's paths are those of the system from the start.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
if(CMAKE_CROSSCOMPILING)
  # dpkg-shlibdeps knows this machine's packages only: the names and versions are those of the package for this machine.
  set(GYRE_PACKAGE_DEPENDS "" CACHE STRING "Depends of a package for another architecture")
  set(CPACK_DEBIAN_PACKAGE_DEPENDS ${GYRE_PACKAGE_DEPENDS})
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
  endif()
else()
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
endif()
include(CPack)

# For the system itself, and never over what is there.
install(CODE "
  if(\"\${CMAKE_INSTALL_PREFIX}\" STREQUAL /usr)
    foreach(file serve worker)
      if(NOT EXISTS \"\$ENV{DESTDIR}/etc/gyre/\${file}.env\")
        file(INSTALL \"${PROJECT_SOURCE_DIR}/deploy/\${file}.env\" DESTINATION /etc/gyre)
      endif()
    endforeach()
  endif()")
