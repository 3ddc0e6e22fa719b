if(GYRE_TESTS)
  gyre_tests(kernels_tests unit
    FILES kernels_attention_test kernels_hadamard_test kernels_lowbit_test kernels_ops_test kernels_product_rows_test kernels_products_test
          kernels_recurrence_test kernels_experts_test
    DEPS gyre_kernels gyre_base)
endif()
