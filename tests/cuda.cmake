# GPU kernels on the emulated GPU (docs/cuda.md). The compiler tells the emulator of each load and store through the calls of
# ThreadSanitizer, whose runtime is not linked: simt/hooks.cc has its functions. Where another sanitizer is on, nothing is told.
# Return addresses name the lines of faults, so no call may replace its caller.
set(seen -fno-omit-frame-pointer -fno-optimize-sibling-calls -g1)
if(NOT GYRE_SANITIZE)
  list(APPEND seen -fsanitize=thread -fno-threadsafe-statics)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    list(APPEND seen --param=tsan-instrument-func-entry-exit=0)
  else()
    list(APPEND seen "SHELL:-mllvm -tsan-instrument-func-entry-exit=0")
  endif()
endif()

# gyre_emulated_kernels(NAME FILES...): a library of .cu files.
function(gyre_emulated_kernels name)
  add_library(${name} STATIC ${ARGN})
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX)
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  # clang says where it doesn't unroll a loop, which only a GPU needs.
  target_compile_options(${name} PRIVATE -O2 -ffp-contract=off -Wno-unknown-pragmas $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed> ${seen})
  target_link_libraries(${name} PUBLIC simt)
endfunction()

add_library(simt STATIC testing/simt/block.cc testing/simt/fiber.cc testing/simt/global_memory.cc testing/simt/hooks.cc
            testing/simt/matrix.cc testing/simt/source_line.cc testing/simt/traffic.cc testing/simt/vocabulary.cc)
target_include_directories(simt PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/testing)
target_compile_definitions(simt PUBLIC GYRE_SIMT)
if(NOT GYRE_SANITIZE)
  target_compile_definitions(simt PUBLIC GYRE_SIMT_CHECKED)
endif()
target_compile_options(simt PRIVATE -O2)
target_link_libraries(simt PUBLIC gyre_base gyre_quant)
gyre_emulated_kernels(planted_kernels testing/simt/planted.cu)

set(cuda ${PROJECT_SOURCE_DIR}/kernels/cuda)
gyre_emulated_kernels(emulated_kernels ${cuda}/attention/few.cu ${cuda}/attention/split.cu ${cuda}/attention/store.cu
                      ${cuda}/attention/tiles.cu ${cuda}/products/exact.cu
  ${cuda}/products/float.cu ${cuda}/products/int8.cu ${cuda}/products/operand.cu ${cuda}/products/tiles.cu ${cuda}/weights/pack.cu
  ${cuda}/rows/elementwise.cu
                      ${cuda}/rows/norm.cu ${cuda}/rows/rope.cu ${cuda}/sampling/log_sum_exp.cu ${cuda}/sampling/top_k.cu
                      ${cuda}/experts/experts.cu ${cuda}/measure/measure.cu ${cuda}/rows/wire.cu ${cuda}/state/state.cu)
# The device "cuda-emulated".
add_library(cuda_emulated STATIC testing/cuda_emulated.cc)
target_link_libraries(cuda_emulated PUBLIC gyre_cuda emulated_kernels far_device)

find_program(NVCC nvcc HINTS /usr/local/cuda/bin)
if(GYRE_TESTS AND NVCC)
  add_test(NAME cuda_compiles COMMAND ${PROJECT_SOURCE_DIR}/scripts/check_cuda --nvcc ${NVCC})
  set_tests_properties(cuda_compiles PROPERTIES LABELS slow TIMEOUT 1200)
  if(NOT GYRE_SANITIZE)  # the emulator's compiler takes what nvcc does not: a host's function in a kernel
    add_test(NAME cuda_compiles_for_sm_80 COMMAND ${PROJECT_SOURCE_DIR}/scripts/check_cuda --nvcc ${NVCC} --arch 80)
    set_tests_properties(cuda_compiles_for_sm_80 PROPERTIES LABELS "unit;pure;full" TIMEOUT 600 PROCESSORS 2)
  endif()
endif()
if(GYRE_TESTS)
  gyre_tests(simt_tests "unit;pure" FILES simt_checks_test simt_counts_test DEPS planted_kernels)
  gyre_tests(cuda_tests "unit;pure" FILES cuda_attention_test cuda_products_test cuda_row_products_test cuda_rows_test cuda_sampling_test
             DEPS emulated_kernels gyre_kernels)
  gyre_tests(cuda_device_tests "unit;pure" FILES cuda_device_test cuda_graphs_test cuda_host_test DEPS cuda_emulated gyre_worker)
  if(NOT GYRE_SANITIZE MATCHES thread)
    # The library for C, from its sources, as its shared object has no emulated GPU. ThreadSanitizer does not know of the emulator's fibers.
    gyre_tests(gpu_c_api_tests engine FILES cuda_c_api_test DEPS gyre_runtime cuda_emulated)
    target_sources(gpu_c_api_tests PRIVATE ${PROJECT_SOURCE_DIR}/runtime/c_api.cc testing/cuda_kind.cc)
    target_include_directories(gpu_c_api_tests PRIVATE ${PROJECT_SOURCE_DIR}/include)
    target_compile_definitions(gpu_c_api_tests PRIVATE GYRE_VERSION="${PROJECT_VERSION}"
                               GYRE_DEMO_MODEL="${PROJECT_SOURCE_DIR}/models/demo.gguf")
  endif()
  # Engines, rings and the program for tests on this device. The emulator checks each access itself, and a sanitizer's compiler takes
  # minutes for the kernels.
  if(NOT GYRE_SANITIZE)
    foreach(program engine_tests golden_tests ring_tests)
      target_sources(${program} PRIVATE testing/cuda_kind.cc)
      target_link_libraries(${program} PRIVATE cuda_emulated)
    endforeach()
    target_sources(gyre_for_tests PRIVATE testing/cuda_kind.cc)
    target_link_libraries(gyre_for_tests PRIVATE cuda_emulated)
    gyre_tests(gpu_process_tests "engine;process" FILES ring_gpu_test DEPS gyre_runtime)
    target_compile_definitions(gpu_process_tests PRIVATE GYRE_BINARY="$<TARGET_FILE:gyre_for_tests>")
    add_dependencies(gpu_process_tests gyre_for_tests)
    # The whole file takes minutes; some of it is in every run.
    set_property(TEST ring_gpu_test PROPERTY LABELS slow)
    string(JOIN ":" short GpuRingTest.AStateOfEachKindMovesToAGpuAndBack GpuRingTest.AKilledGpuWorkersPagesComeFromTheirCopies
                    GpuRingTest.ACacheThatIsCutForAGpuFitsIntoItsMemory GpuRunTest.DevicesAreListedAndMissingOnesHaveAReason)
    add_test(NAME ring_on_emulated_gpu COMMAND gpu_process_tests --gtest_filter=${short})
    set_tests_properties(ring_on_emulated_gpu PROPERTIES LABELS "engine;process" TIMEOUT 600 FAIL_REGULAR_EXPRESSION "Running 0 tests")
    add_test(NAME engine_on_emulated_gpu COMMAND engine_tests --gtest_filter=EngineTest.PenaltiesAndBiasReachTheDraw)
    string(JOIN ":" ring EngineTest.GenerationEndsAtTheContext EngineTest.PromptLogitsComeOnceEachAlsoAfterAPreemption
                    EngineTest.AFailedStepIsSentAgainAndTheTextStaysTheSame)
    add_test(NAME engine_ring_on_emulated_gpu COMMAND engine_tests --gtest_filter=${ring})
    set_tests_properties(engine_on_emulated_gpu engine_ring_on_emulated_gpu PROPERTIES LABELS engine TIMEOUT 600
                         ENVIRONMENT GYRE_TEST_DEVICE=cuda-emulated FAIL_REGULAR_EXPRESSION "Running 0 tests")
    set_property(TEST engine_ring_on_emulated_gpu PROPERTY LABELS slow)
    # All of them with the label "gpu" (scripts/test --only gpu).
    function(gyre_gpu_entry program file)
      gyre_test_entry(${file}_gpu ${program} ${file} gpu)
      set_tests_properties(${file}_gpu PROPERTIES TIMEOUT 3600 ENVIRONMENT "GYRE_TEST_DEVICE=cuda-emulated;${program_for_tests}")
    endfunction()
    foreach(file ${engine_files} engine_ring_test engine_state_test)
      gyre_gpu_entry(engine_tests ${file})
    endforeach()
    foreach(file engine_families_test engine_stories_test worker_golden_state_test worker_golden_quantized_test worker_golden_test)
      gyre_gpu_entry(golden_tests ${file})
    endforeach()
    foreach(file ring_local_test ring_processes_test ring_survive_test ring_trace_test ring_transport_test ring_weights_test
                 ring_replica_test ring_chaos_test)
      gyre_gpu_entry(ring_tests ${file})
    endforeach()
  endif()
  # What the program says of GPUs where it can be said without one.
  set(version_of_gpus "no CUDA")
  set(answer_without_gpu "this build has no CUDA")
  if(GYRE_HAS_CUDA)
    set(version_of_gpus "CUDA ${CUDAToolkit_VERSION_MAJOR}[.]${CUDAToolkit_VERSION_MINOR} [(]sm_")
    set(answer_without_gpu "no NVIDIA driver|no NVIDIA GPU|older than this build|compute capability")
  endif()
  add_test(NAME gyre_says_what_is_built_in COMMAND gyre --version)
  add_test(NAME gyre_lists_devices COMMAND gyre devices)
  set_tests_properties(gyre_says_what_is_built_in PROPERTIES PASS_REGULAR_EXPRESSION "${version_of_gpus}" LABELS "engine;process")
  set_tests_properties(gyre_lists_devices PROPERTIES PASS_REGULAR_EXPRESSION "cpu .*(${answer_without_gpu})" LABELS "engine;process")
endif()
