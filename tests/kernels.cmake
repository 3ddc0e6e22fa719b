if(GYRE_TESTS)
  gyre_test(kernels_ops_test unit gyre_kernels)
endif()
