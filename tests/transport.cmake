if(GYRE_TESTS)
  gyre_tests(transport_tests "unit;tsan"
    FILES transport_carrier_test transport_discovery_test transport_hostile_test transport_link_contract_test
          transport_link_inbox_test transport_link_test transport_idle_timeout_test transport_queued_link_test transport_ring_port_test transport_shm_test
          transport_tls_test transport_udp_port_test
    DEPS gyre_transport)
  gyre_tests(transport_udp_tests "unit;pure;asan"
    FILES transport_udp_core_test transport_udp_network_test transport_udp_security_test
    DEPS gyre_transport)
  gyre_tests(transport_allocation_tests "unit;pure;asan" FILES transport_allocation_test DEPS gyre_transport)
  target_sources(transport_allocation_tests PRIVATE testing/largest_allocation.cc)
  # A million frames for each network.
  add_test(NAME transport_udp_million COMMAND transport_udp_tests --gtest_filter=*UdpNetworkTest*)
  set_tests_properties(transport_udp_million PROPERTIES LABELS slow TIMEOUT 3600 ENVIRONMENT GYRE_UDP_FRAMES=1000000)
endif()
if(GYRE_FUZZ)
  gyre_fuzz(fuzz_frames gyre_transport)
  gyre_fuzz(fuzz_datagrams gyre_transport)
endif()
