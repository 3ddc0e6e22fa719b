if(GYRE_TESTS)
  gyre_tests(proto_tests "unit;pure;asan" FILES proto_control_codec_test proto_channel_test proto_status_json_test
             DEPS gyre_proto)
endif()
