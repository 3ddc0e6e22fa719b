// The gRPC port and those who connect to it: silent ones, too many, other protocols; addresses that can't be bound.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/convert.h"
#include "tests/testing/grpc_server_test.h"
#include "tests/testing/ring_ports.h"
#include "transport/tcp_link.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

class GrpcPortTest : public testing::GrpcServerTest {};

// A connection that says what it is told to, which may be nothing.
class Silent {
 public:
  explicit Silent(const std::string& address) : Silent(*ConnectTcp(address, After(seconds(5)))) {}
  explicit Silent(int fd) : fd_(fd) {}
  ~Silent() { close(fd_); }
  void Say(const std::string& text) { (void)!send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  bool Ended(milliseconds time) const {
    pollfd p{.fd = fd_, .events = POLLIN | POLLRDHUP, .revents = 0};
    char byte;
    const Deadline end = After(time);
    while (Clock::now() < end && poll(&p, 1, static_cast<int>(time.count())) > 0) {
      if (recv(fd_, &byte, 1, MSG_DONTWAIT) <= 0) return true;
    }
    return false;
  }

 private:
  const int fd_;
};

TEST_F(GrpcPortTest, SilentConnectionsEnd) {
  Serve({}, {.address = "127.0.0.1:0", .hello_timeout = milliseconds(300)});
  Silent silent(server_->address()), half(server_->address()), preface(server_->address()), http(server_->address());
  half.Say("PRI * HT");
  preface.Say("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");  // and no settings
  http.Say("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  for (const Silent* s : {&silent, &half, &preface, &http}) EXPECT_TRUE(s->Ended(seconds(20)));
  // Connections that have sent something stay.
  grpc::ClientContext context;
  v1::ModelReply reply;
  EXPECT_TRUE(inference_->Model(&context, {}, &reply).ok());
}

TEST_F(GrpcPortTest, AnIdleConnectionEndsAndItsClientComesBack) {
  Serve({}, {.address = "127.0.0.1:0", .idle_timeout = milliseconds(300)});
  auto call = [&] {
    grpc::ClientContext context;
    v1::ModelReply reply;
    return inference_->Model(&context, {}, &reply).ok();
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(call());
    EXPECT_EQ(channel_->GetState(false), GRPC_CHANNEL_READY);
    EXPECT_TRUE(testing::Eventually([&] { return channel_->GetState(false) != GRPC_CHANNEL_READY; }));
  }
}

TEST_F(GrpcPortTest, ManySilentConnectionsKeepNobodyOut) {
  Serve({}, {.address = "127.0.0.1:0", .hello_timeout = seconds(1000)});
  std::vector<std::unique_ptr<Silent>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<Silent>(server_->address()));
  EXPECT_TRUE(silent.front()->Ended(seconds(20)));
  EXPECT_FALSE(silent.back()->Ended(milliseconds(50)));
  grpc::ClientContext context;
  v1::ModelReply reply;
  EXPECT_TRUE(inference_->Model(&context, {}, &reply).ok());
}

TEST_F(GrpcPortTest, ConnectionsLeaveDescriptorsToOthers) {
  const testing::FewDescriptors few(200);
  Serve({}, {.address = "127.0.0.1:0", .hello_timeout = seconds(1000)});
  // Both ends are in this process: some 70 connections take what connections may take.
  std::vector<std::unique_ptr<Silent>> connections;
  for (int i = 0; i < 90; ++i) {
    const StatusOr<int> fd = ConnectTcp(server_->address(), After(seconds(5)));
    ASSERT_TRUE(fd.ok()) << i << ": " << fd.status();
    connections.push_back(std::make_unique<Silent>(*fd));
    connections.back()->Say("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  }
  EXPECT_TRUE(connections.back()->Ended(seconds(20)));
  EXPECT_FALSE(connections.front()->Ended(milliseconds(50)));
  for (int i = 0; i < 30; ++i) {
    const int fd = dup(0);
    ASSERT_GE(fd, 0) << "the limit of open files is reached by connections";
    connections.push_back(std::make_unique<Silent>(fd));
  }
}

TEST_F(GrpcPortTest, AddressesThatCannotBeBoundHaveTheirSentence) {
  Serve();
  auto refused = [&](const std::string& address) {
    const auto server = GrpcServer::Open({.address = address}, *model_, *real_, *cluster_, *service_);
    return server.ok() ? "bound" : Message(server.status());
  };
  EXPECT_THAT(refused(server_->address()), HasSubstr("another program has the port"));
  EXPECT_THAT(refused("127.0.0.1:99999"), HasSubstr("the port is 99999"));
  EXPECT_THAT(refused("nonsense"), HasSubstr("expected HOST:PORT"));
  EXPECT_THAT(refused("192.0.2.1:0"), HasSubstr("this machine has no such address"));
  EXPECT_THAT(refused("no-such-host.invalid:1"), HasSubstr("cannot listen at no-such-host.invalid:1"));
}

TEST_F(GrpcPortTest, ADeadCoordinatorIsSaidToBeGone) {
  Serve();
  const std::string address = server_->address();
  v1::GenerateRequest request;
  request.add_ids(1);
  const auto reader = Generate(request);
  cluster_->Stop();
  server_->Stop();
  EXPECT_FALSE(reader->Finish().ok());
  grpc::ClientContext context;
  v1::ModelReply reply;
  const auto stub = v1::Inference::NewStub(*MakeChannel(address, {.own_connection = true}));
  EXPECT_THAT(Message(FromGrpcAt(stub->Model(&context, {}, &reply), address)),
              HasSubstr("no coordinator answers at " + address));
}

}  // namespace
}  // namespace gyre
