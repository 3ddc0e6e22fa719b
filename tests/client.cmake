# The other end of HTTP, against servers that a test writes.
if(GYRE_TESTS)
  gyre_tests(client_tests "unit;asan" FILES client_http_test client_load_test client_proxy_test DEPS gyre_client OpenSSL::SSL OpenSSL::Crypto Boost::json)
endif()
