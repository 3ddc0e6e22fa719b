// Links and connects wait: some things end that, others must not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <atomic>
#include <future>
#include <thread>

#include "base/crc32c.h"
#include "tests/testing/ring_ports.h"
#include "tests/testing/tcp_pair.h"
#include "transport/frame.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::OpenPort;
using testing::SampleHello;

// A listener that answers no more SYN packets: its queue is full and nobody accepts.
class Unreachable {
 public:
  Unreachable() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 || listen(listener_, 0) != 0) std::abort();
    getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size);
    address_ = fmt::format("127.0.0.1:{}", ntohs(at.sin_port));
    for (int i = 0; i < 8; ++i) {
      auto fd = ConnectTcp(address_, After(milliseconds(200)));
      if (!fd.ok()) break;
      fillers_.push_back(*fd);
    }
  }
  ~Unreachable() {
    for (int fd : fillers_) close(fd);
    close(listener_);
  }
  const std::string& address() const { return address_; }

 private:
  const int listener_ = socket(AF_INET, SOCK_STREAM, 0);
  std::string address_;
  std::vector<int> fillers_;
};

TEST(ConnectTest, ACancelledPlanEndsADialThatNobodyAnswers) {
  const Unreachable host;
  ASSERT_TRUE(absl::IsDeadlineExceeded(ConnectTcp(host.address(), After(milliseconds(100))).status()));
  auto port = OpenPort();
  auto dial = std::async(std::launch::async,
                         [&] { return port->Dial(host.address(), SampleHello(), After(seconds(60))).status(); });
  EXPECT_EQ(dial.wait_for(milliseconds(100)), std::future_status::timeout);
  port->Cancel(SampleHello().epoch);
  const auto cancelled = Clock::now();
  EXPECT_TRUE(absl::IsCancelled(dial.get()));
  EXPECT_LT(Clock::now() - cancelled, seconds(5)) << "it takes 50 ms on an idle machine";
}

TEST(ConnectTest, NamesAreResolvedAndUnknownOnesAreAnError) {
  auto port = OpenPort();
  const std::string number = port->address().substr(port->address().rfind(':'));
  auto fd = ConnectTcp("localhost" + number, After(seconds(20)));
  ASSERT_TRUE(fd.ok()) << fd.status();
  close(*fd);
  bool asked = false;
  const Status stopped =
      ConnectTcp("no-such-host.invalid:1", After(seconds(60)), [&asked] { return asked = true; }).status();
  EXPECT_TRUE(absl::IsCancelled(stopped) || absl::IsUnavailable(stopped)) << stopped;
  EXPECT_FALSE(ConnectTcp("no-such-host.invalid:1", After(seconds(60))).ok());
}

// A stage that computes for longer than any limit in the transport: its neighbours' links stay, in both directions.
TEST(IdleTimeoutTest, ALongStepBreaksNoRingLink) {
  auto a = OpenPort(), b = OpenPort();
  auto [out, in] = testing::Connect(*a, *b, SampleHello(), SampleHello());
  ASSERT_TRUE(out.ok() && in.ok()) << out.status() << in.status();
  const auto [client, server] = testing::ConnectedSockets();
  auto half = *MakeTcpLink(server, "half a frame", {});
  int timeout = -1;
  socklen_t size = sizeof timeout;
  ASSERT_EQ(getsockopt(server, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, &size), 0);
  EXPECT_EQ(timeout, 0) << "it ends a connection whose living peer does not read";
  const auto header = EncodeHeader({.kind = FrameKind::kTokens, .length = 0, .payload_crc = Crc32c({})});
  testing::Put(client, std::span(header).first(20));
  // More than any socket's buffers hold: the sender stands in the middle of the frame.
  const std::vector<std::byte> big(size_t{64} << 20, std::byte{3});
  auto sent = std::async(std::launch::async, [&link = **out, &big] {
    const ByteSpan parts[] = {big};
    return link.Send({.kind = FrameKind::kHidden, .step = StepId{1}}, parts, After(seconds(120)));
  });
  const Deadline computes = After(milliseconds(10500));
  EXPECT_TRUE(absl::IsDeadlineExceeded(half->Recv(computes).status()));
  std::this_thread::sleep_until(computes);
  const auto frame = (*in)->Recv(After(seconds(60)));
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->payload.size(), big.size());
  EXPECT_TRUE(sent.get().ok());
  testing::Put(client, std::span(header).subspan(20));
  EXPECT_TRUE(half->Recv(After(seconds(60))).ok());
  close(client);
}

TEST(IdleTimeoutTest, SilenceWithinAFrameEndsABulkLinkAndNoRingLink) {
  RingPortOptions options;
  options.bulk_silence = milliseconds(100);
  auto port = OpenPort(options);
  std::promise<std::unique_ptr<Link>> arrived;
  port->SetBulkHandler("w2", [&](std::unique_ptr<Link> link) { arrived.set_value(std::move(link)); });
  Hello hello = SampleHello();
  const int ring = testing::CallWith(*port, hello);
  hello.role = LinkRole::kBulk;
  hello.to = "w2";
  const int bulk = testing::CallWith(*port, hello);
  auto served = arrived.get_future().get();
  auto hop = port->Accept(SampleHello(), After(seconds(20)));
  ASSERT_TRUE(hop.ok()) << hop.status();
  const auto header = EncodeHeader({.kind = FrameKind::kPullPages, .length = 10});
  for (int fd : {bulk, ring}) testing::Put(fd, std::span(header).first(30));
  EXPECT_THAT(Message(served->Recv(After(seconds(20))).status()), HasSubstr("stands still in the middle"));
  EXPECT_TRUE(absl::IsDeadlineExceeded((*hop)->Recv(After(milliseconds(300))).status()));
  port->SetBulkHandler("w2", {});
  for (int fd : {bulk, ring}) close(fd);
}

TEST(IdleTimeoutTest, ABulkLinkTakesNoLargeRequest) {
  auto port = OpenPort();
  std::promise<std::unique_ptr<Link>> arrived;
  port->SetBulkHandler("w2", [&](std::unique_ptr<Link> link) { arrived.set_value(std::move(link)); });
  Hello hello = SampleHello();
  hello.role = LinkRole::kBulk;
  hello.to = "w2";
  const int fd = testing::CallWith(*port, hello);
  auto served = arrived.get_future().get();
  testing::Put(fd, EncodeHeader({.kind = FrameKind::kPullPages, .length = uint64_t{512} << 20}));
  EXPECT_TRUE(absl::IsDataLoss(served->Recv(After(seconds(20))).status()));
  port->SetBulkHandler("w2", {});
  close(fd);
}

// A handler that is being called returns before it is taken back, and no lock is held meanwhile.
TEST(IdleTimeoutTest, ABulkHandlerIsCalledWithoutALock) {
  auto a = OpenPort(), b = OpenPort();
  std::atomic<bool> called{false}, go{false}, returned{false};
  b->SetBulkHandler("slow", [&](std::unique_ptr<Link>) {
    called = true;
    while (!go) std::this_thread::sleep_for(milliseconds(1));
    returned = true;
  });
  Hello hello = SampleHello();
  hello.role = LinkRole::kBulk;
  hello.to = "slow";
  auto out = a->Dial(b->address(), hello, After(seconds(20)));
  ASSERT_TRUE(out.ok()) << out.status();
  while (!called) std::this_thread::sleep_for(milliseconds(1));
  b->SetBulkHandler("other", [](std::unique_ptr<Link>) {});  // with a lock over the call it would wait for `go`
  auto taken = std::async(std::launch::async, [&] { b->SetBulkHandler("slow", {}); });
  EXPECT_EQ(taken.wait_for(milliseconds(50)), std::future_status::timeout);
  go = true;
  taken.get();
  EXPECT_TRUE(returned);
}

}  // namespace
}  // namespace gyre
