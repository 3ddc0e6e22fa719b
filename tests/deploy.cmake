# What is in deploy/, and the package. They skip where a tool is missing (scripts/setup --deploy).
if(GYRE_TESTS AND NOT GYRE_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  add_test(NAME deploy_kubernetes COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/deploy/check_manifests
                                          ${PROJECT_SOURCE_DIR}/deploy/kubernetes/gyre.yaml)
  add_test(NAME deploy_slurm COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/deploy/slurm_run $<TARGET_FILE:gyre>
                                     ${PROJECT_SOURCE_DIR}/models/demo.gguf ${PROJECT_SOURCE_DIR}/deploy/slurm/gyre.sbatch)
  add_test(NAME deploy_package COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/deploy/check_package ${PROJECT_BINARY_DIR})
  if(NOT GYRE_STATIC)
    add_library(static_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/static_fmt.cc)
    target_link_libraries(static_fmt PRIVATE fmt::fmt)
    add_dependencies(other_tests static_fmt)
    add_test(NAME deploy_static_fmt COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/deploy/check_static_fmt $<TARGET_FILE:gyre>
                                            $<TARGET_FILE:static_fmt>)
  endif()
  set_tests_properties(deploy_kubernetes deploy_slurm PROPERTIES LABELS "engine;process" TIMEOUT 180 SKIP_RETURN_CODE 77)
  add_test(NAME deploy_arm64_ring COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/deploy/arm64_ring $<TARGET_FILE:gyre>
                                          ${PROJECT_SOURCE_DIR}/models/demo.gguf ${PROJECT_SOURCE_DIR})
  add_test(NAME deploy_deb COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/deploy/check_deb ${PROJECT_BINARY_DIR})
  add_test(NAME deploy_dockerfile COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/deploy/check_dockerfile ${PROJECT_SOURCE_DIR})
  set_tests_properties(deploy_package deploy_arm64_ring PROPERTIES LABELS slow TIMEOUT 180 SKIP_RETURN_CODE 77)
  set_tests_properties(deploy_deb PROPERTIES LABELS slow TIMEOUT 600 SKIP_RETURN_CODE 77)  # it fetches a Debian
  # This one fetches two and compiles the program once more.
  add_test(NAME deploy_static COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/deploy/check_static ${PROJECT_SOURCE_DIR})
  set_tests_properties(deploy_static PROPERTIES LABELS slow TIMEOUT 3600 SKIP_RETURN_CODE 77)
  # So does this one, and compiles all of Gyre.
  set_tests_properties(deploy_dockerfile PROPERTIES LABELS slow TIMEOUT 3600 SKIP_RETURN_CODE 77)
endif()
