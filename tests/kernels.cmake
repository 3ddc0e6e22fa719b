if(GYRE_TESTS)
  gyre_test(kernels_lowbit_test "unit;pure" gyre_kernels gyre_base)
  gyre_test(kernels_ops_test unit gyre_kernels)
endif()
