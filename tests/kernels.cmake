# Tests of kernels: gyre_test(...) inside if(GYRE_TESTS), gyre_fuzz(...) inside if(GYRE_FUZZ).
if(GYRE_TESTS)
  gyre_test(kernels_matmul_test unit gyre_kernels)
endif()
