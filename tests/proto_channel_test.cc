// Addresses and errors between Gyre and gRPC.
#include "proto/channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/convert.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;

TEST(ChannelTest, NonsenseIsRefusedWithASentence) {
  const std::pair<const char*, const char*> wrong[] = {{"127.0.0.1:99999", "the port is 99999, expected 0 to 65535"},
                                                       {"127.0.0.1:0", "the port is 0"},
                                                       {"nowhere", "'nowhere': expected HOST:PORT"},
                                                       {"", "expected HOST:PORT"},
                                                       {"::1:80", "in brackets"},
                                                       {"http://127.0.0.1:80", "is a URL: expected HOST:PORT"},
                                                       {"a b:80", "spaces"},
                                                       {"unix:/tmp/x", "expected HOST:PORT"}};
  for (const auto& [address, sentence] : wrong) {
    const auto channel = MakeChannel(address);
    ASSERT_FALSE(channel.ok()) << address;
    EXPECT_TRUE(absl::IsInvalidArgument(channel.status()));
    EXPECT_THAT(Message(channel.status()), HasSubstr(sentence));
  }
  EXPECT_TRUE(MakeChannel("127.0.0.1:80").ok());
  EXPECT_TRUE(MakeChannel("[::1]:80").ok());
}

TEST(ChannelTest, AnAbsentCoordinatorIsNamed) {
  auto said = [](const char* text) {
    return Message(FromGrpcAt(grpc::Status(grpc::StatusCode::UNAVAILABLE, text), "h:1"));
  };
  EXPECT_EQ(said("Socket closed"), "the coordinator at h:1 is gone");
  EXPECT_EQ(said("Connection reset by peer"), "the coordinator at h:1 is gone");
  EXPECT_EQ(said("failed to connect to all addresses; last error: UNKNOWN: ipv4:1.2.3.4:1: Connection refused"),
            "no coordinator answers at h:1: Connection refused");
  const std::string failed = "failed to connect to all addresses; last error: UNKNOWN: ipv4:1.2.3.4:1: ";
  const auto meant = [&](const char* cause) { return said((failed + cause).c_str()); };
  EXPECT_EQ(meant("Ssl handshake failed: SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify failed"),
            "the coordinator at h:1: its certificate is by another CA than that of this side's --identity or --token");
  EXPECT_EQ(meant("Ssl handshake failed: SSL_ERROR_SSL: error:0A00010B:SSL routines::wrong version number"),
            "the coordinator at h:1: it speaks without TLS, and this side has an --identity");
  EXPECT_EQ(meant("recvmsg:Connection reset by peer"),
            "the coordinator at h:1: it ends the connection; if it uses TLS, this side needs an --identity of its CA "
            "that is not revoked");
  EXPECT_EQ(WhyNotReached(grpc::Status(grpc::StatusCode::UNAVAILABLE, failed + "Connection refused")),
            "Connection refused");
  EXPECT_EQ(said("no plan yet"), "no plan yet");
  // Another server's port.
  EXPECT_EQ(meant("Trying to connect an http1.x server"),
            "the coordinator at h:1: it is an HTTP server's port; expected the address of `gyre serve --cluster`");
  EXPECT_THAT(meant("Failed parsing HTTP/2"), HasSubstr("it speaks another protocol"));
  const auto no_grpc = [&](const std::string& cause) {
    return SpeaksNoGrpc(grpc::Status(grpc::StatusCode::UNAVAILABLE, failed + cause));
  };
  EXPECT_TRUE(no_grpc("Trying to connect an http1.x server"));
  EXPECT_TRUE(no_grpc("Failed parsing HTTP/2"));
  EXPECT_FALSE(no_grpc("Connection refused"));
  EXPECT_TRUE(FromGrpcAt(grpc::Status::OK, "h:1").ok());
}

TEST(ConvertTest, LongErrorsAreCutBetweenCharacters) {
  EXPECT_EQ(CutUtf8("abc", 3), "abc");
  EXPECT_EQ(CutUtf8("abcd", 3), "abc...");
  EXPECT_EQ(CutUtf8("ab\xC3\xA4", 3), "ab...");  // before a character of two bytes
  EXPECT_EQ(CutUtf8("ab\xC3\xA4z", 4), "ab\xC3\xA4...");
  EXPECT_EQ(CutUtf8("\xF0\x9F\xA6\x8A", 3), "...");
  std::string foxes;
  for (int i = 0; i < 5000; ++i) foxes += "\xF0\x9F\xA6\x8A";
  const grpc::Status status = ToGrpc(InvalidArgument("{}", foxes));
  EXPECT_EQ(status.error_message(), foxes.substr(0, kMaxStatusText) + "...");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace gyre
