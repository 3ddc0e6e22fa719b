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
  target_compile_options(${name} PRIVATE -O2 -ffp-contract=off -Wno-unknown-pragmas ${seen})
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
                      ${cuda}/experts/experts.cu ${cuda}/rows/wire.cu ${cuda}/state/state.cu)
# The device "cuda-emulated".
add_library(cuda_emulated STATIC testing/cuda_emulated.cc)
target_link_libraries(cuda_emulated PUBLIC gyre_cuda emulated_kernels far_device)

option(GYRE_CUDA "Compile the GPU kernels with nvcc in the tests" OFF)
if(GYRE_TESTS AND GYRE_CUDA)
  find_program(NVCC nvcc REQUIRED)
  add_test(NAME cuda_compiles COMMAND ${PROJECT_SOURCE_DIR}/scripts/check_cuda --nvcc ${NVCC})
  set_tests_properties(cuda_compiles PROPERTIES LABELS slow TIMEOUT 1200)
endif()
if(GYRE_TESTS)
  gyre_tests(simt_tests "unit;pure" FILES simt_checks_test simt_counts_test DEPS planted_kernels)
  gyre_tests(cuda_tests "unit;pure" FILES cuda_attention_test cuda_products_test cuda_row_products_test cuda_rows_test cuda_sampling_test
             DEPS emulated_kernels gyre_kernels)
  gyre_tests(cuda_device_tests "unit;pure" FILES cuda_device_test DEPS cuda_emulated gyre_worker)
  # Engines on this device: one test always, more of them with the label "slow".
  target_sources(engine_tests PRIVATE testing/cuda_kind.cc)
  target_link_libraries(engine_tests PRIVATE cuda_emulated)
  # ThreadSanitizer does not know of the emulator's fibers.
  if(NOT GYRE_SANITIZE STREQUAL thread)
    add_test(NAME engine_on_emulated_gpu COMMAND engine_tests --gtest_filter=EngineTest.PenaltiesAndBiasReachTheDraw)
    string(JOIN ":" ring EngineTest.GenerationEndsAtTheContext EngineTest.PromptLogitsComeOnceEachAlsoAfterAPreemption
                    EngineTest.AFailedStepIsSentAgainAndTheTextStaysTheSame)
    add_test(NAME engine_ring_on_emulated_gpu COMMAND engine_tests --gtest_filter=${ring})
    set_tests_properties(engine_on_emulated_gpu engine_ring_on_emulated_gpu PROPERTIES LABELS engine TIMEOUT 600
                         ENVIRONMENT GYRE_TEST_DEVICE=cuda-emulated FAIL_REGULAR_EXPRESSION "Running 0 tests")
    set_property(TEST engine_ring_on_emulated_gpu PROPERTY LABELS slow)
  endif()
endif()
