// Hops between processes: who may claim which.
#include "transport/ring_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "tests/testing/ring_ports.h"
#include "tests/testing/tcp_pair.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

using testing::OpenPort;
using testing::SampleHello;

TEST(HelloTest, RoundTripsAndRefusesEveryCut) {
  Hello hello = SampleHello();
  hello.to = "w2";
  const auto bytes = EncodeHello(hello);
  EXPECT_EQ(*DecodeHello(bytes), hello);
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(DecodeHello(std::span(bytes).first(n)).ok()) << n;
  auto longer = bytes;
  longer.resize(longer.size() + 5);
  EXPECT_TRUE(DecodeHello(longer).ok()) << "a later protocol may put more behind it";
  hello.from = "a\nb\x1b[31m";
  EXPECT_EQ(DecodeHello(EncodeHello(hello))->from, "a?b?[31m") << "names reach logs";
  auto role = bytes;
  role[2] = std::byte{9};
  EXPECT_FALSE(DecodeHello(role).ok());
  const HelloReply reply{.refusal = "no"};
  EXPECT_EQ(*DecodeHelloReply(EncodeHelloReply(reply)), reply);
  const auto answer = EncodeHelloReply(reply);
  for (size_t n = 0; n < answer.size(); ++n) EXPECT_FALSE(DecodeHelloReply(std::span(answer).first(n)).ok());
}

TEST(HelloTest, TheTypeOfActivationsIsAByteThatOlderVersionsLeaveZero) {
  for (WireType type : {WireType::kF32, WireType::kF16, WireType::kQ8}) {
    Hello hello = SampleHello();
    hello.wire = type;
    auto bytes = EncodeHello(hello);
    EXPECT_EQ(bytes[3], static_cast<std::byte>(type));
    EXPECT_EQ(DecodeHello(bytes)->wire, type);
    bytes[3] = std::byte{0};
    EXPECT_EQ(DecodeHello(bytes)->wire, WireType::kF32);
    for (int other : {1, 5, 9, 255}) {
      bytes[3] = static_cast<std::byte>(other);
      EXPECT_THAT(Message(DecodeHello(bytes).status()), HasSubstr("expected f32, f16 or q8"));
    }
    hello.role = LinkRole::kBulk;
    EXPECT_EQ(EncodeHello(hello)[3], std::byte{0}) << "no activations travel there";
  }
}

using testing::Connect;

void ExpectCarries(Link& a, Link& b) {
  const std::byte payload[] = {std::byte{1}, std::byte{2}};
  const ByteSpan parts[] = {payload};
  ASSERT_TRUE(a.Send({.kind = FrameKind::kTokens, .step = StepId{9}}, parts, After(seconds(1))).ok());
  const auto frame = b.Recv(After(seconds(1)));
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->header.step, StepId{9});
  EXPECT_EQ(frame->payload.size(), 2u);
}

TEST(RingPortTest, AHopWithinTheProcessStaysInMemory) {
  auto port = RingPort::Open({});
  ASSERT_TRUE(port.ok());
  EXPECT_EQ((*port)->address(), "");
  auto out = (*port)->Dial("", SampleHello(), After(seconds(1)));
  auto in = (*port)->Accept(SampleHello(), After(seconds(1)));
  ASSERT_TRUE(out.ok() && in.ok());
  ExpectCarries(**out, **in);
}

TEST(RingPortTest, AHopBetweenProcessesIsClaimedByItsName) {
  auto a = OpenPort(), b = OpenPort();
  Hello second = SampleHello();
  second.hop = 2;
  // Dialed before anybody waits for it, and in the other order.
  auto early = std::async(std::launch::async, [&] { return a->Dial(b->address(), second, After(seconds(5))); });
  auto [out, in] = Connect(*a, *b, SampleHello(), SampleHello());
  ASSERT_TRUE(out.ok() && in.ok()) << out.status() << in.status();
  auto in2 = b->Accept(second, After(seconds(5)));
  auto out2 = early.get();
  ASSERT_TRUE(in2.ok() && out2.ok());
  ExpectCarries(**out, **in);
  ExpectCarries(**out2, **in2);
}

TEST(RingPortTest, AnotherKeyOrModelIsRefusedAndTheRightOneStillComes) {
  auto a = OpenPort(), b = OpenPort();
  Hello wrong = SampleHello();
  wrong.key[3] ^= 1;
  EXPECT_FALSE(a->Dial(b->address(), wrong, After(seconds(2))).ok()) << "refused before it waits";
  Hello other = SampleHello();
  other.model_hash = 78;
  auto refused = std::async(std::launch::async, [&] { return a->Dial(b->address(), other, After(seconds(5))); });
  while (b->stats().waiting == 0) std::this_thread::sleep_for(milliseconds(1));
  auto [out, in] = Connect(*a, *b, SampleHello(), SampleHello());
  EXPECT_TRUE(out.ok() && in.ok()) << out.status() << in.status();
  const Status status = refused.get().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(Message(status), HasSubstr("model"));
  EXPECT_GE(b->stats().refused, 1u);
}

TEST(RingPortTest, AnotherTypeOfActivationsIsRefusedWithBothNames) {
  auto a = OpenPort(), b = OpenPort();
  Hello expected = SampleHello(), other = SampleHello();
  expected.wire = WireType::kQ8;
  auto refused = std::async(std::launch::async, [&] { return a->Dial(b->address(), other, After(seconds(5))); });
  while (b->stats().waiting == 0) std::this_thread::sleep_for(milliseconds(1));
  auto [out, in] = Connect(*a, *b, expected, expected);
  ASSERT_TRUE(out.ok() && in.ok()) << out.status() << in.status();
  ExpectCarries(**out, **in);
  const Status status = refused.get().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(Message(status),
              HasSubstr("hop 1 of plan 3: its activations would come as f32, the plan's are q8 (--wire)"));
}

TEST(RingPortTest, WaitsEndByDeadlineAndByCancel) {
  auto a = OpenPort(), b = OpenPort();
  EXPECT_TRUE(absl::IsDeadlineExceeded(b->Accept(SampleHello(), After(milliseconds(20))).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(a->Dial(b->address(), SampleHello(), After(milliseconds(50))).status()));
  std::thread canceller([&] {
    std::this_thread::sleep_for(milliseconds(20));
    a->Cancel({.term = 5, .number = 3});
    b->Cancel({.term = 5, .number = 3});
  });
  EXPECT_TRUE(absl::IsCancelled(b->Accept(SampleHello(), After(seconds(20))).status()));
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(a->Dial(b->address(), SampleHello(), After(seconds(20))).status()));
  Hello next = SampleHello();
  next.epoch.number = 4;
  auto [out, in] = Connect(*a, *b, next, next);
  EXPECT_TRUE(out.ok() && in.ok()) << "the next plan is another matter";
  EXPECT_TRUE(absl::IsUnavailable(a->Dial("127.0.0.1:1", next, After(seconds(2))).status()));
  EXPECT_FALSE(a->Dial("nonsense", next, After(seconds(2))).ok());
}

TEST(RingPortTest, ALinkOfAnotherPlanIsNotClaimed) {
  auto a = OpenPort(), b = OpenPort();
  Hello next = SampleHello();
  next.epoch.number = 4;
  auto dialed = std::async(std::launch::async, [&] { return a->Dial(b->address(), next, After(seconds(20))); });
  while (b->stats().waiting == 0) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(b->Accept(SampleHello(), After(milliseconds(50))).status()));
  EXPECT_EQ(b->stats().waiting, 1u);
  auto in = b->Accept(next, After(seconds(20)));
  auto out = dialed.get();
  ASSERT_TRUE(in.ok() && out.ok()) << in.status() << out.status();
  ExpectCarries(**out, **in);
}

TEST(RingPortTest, BulkLinksReachTheWorkerTheyName) {
  auto a = OpenPort(), b = OpenPort();
  std::promise<std::unique_ptr<Link>> arrived;
  b->SetBulkHandler("w2", [&](std::unique_ptr<Link> link) { arrived.set_value(std::move(link)); });
  Hello hello = SampleHello();
  hello.role = LinkRole::kBulk;
  hello.to = "nobody";
  EXPECT_THAT(Message(a->Dial(b->address(), hello, After(seconds(5))).status()), HasSubstr("no worker nobody"));
  hello.to = "w2";
  auto out = a->Dial(b->address(), hello, After(seconds(5)));
  ASSERT_TRUE(out.ok()) << out.status();
  auto in = arrived.get_future().get();
  ExpectCarries(**out, *in);
  hello.epoch.term = 4;
  EXPECT_FALSE(a->Dial(b->address(), hello, After(seconds(5))).ok()) << "an old term";
  b->SetBulkHandler("w2", {});
}

TEST(HostPortTest, ParsesAndRefuses) {
  EXPECT_EQ(ParseHostPort("a.b:70")->port, 70);
  EXPECT_EQ(ParseHostPort("[::1]:70")->host, "::1");
  EXPECT_EQ(FormatHostPort("::1", 70), "[::1]:70");
  for (const char* bad : {"", "a", "a:", ":1", "a:x", "a:70000", "a:-1", "::1:70", "a:1 "})
    EXPECT_FALSE(ParseHostPort(bad).ok()) << bad;
  EXPECT_TRUE(IsLoopback("localhost") && IsLoopback("127.0.0.5") && IsLoopback("::1"));
  EXPECT_FALSE(IsLoopback("0.0.0.0") || IsLoopback("10.0.0.1") || IsLoopback("example.com") || IsLoopback("::"));
}

// A peer that stands still within a frame, or lies about one.
TEST(TcpLinkTest, HalfFramesHugeLengthsAndWrongChecksumsEndTheLink) {
  auto send = [](std::span<const std::byte> bytes, const TcpOptions& options) {
    const auto [client, server] = testing::ConnectedSockets();
    auto link = *MakeTcpLink(server, "the client", options);
    (void)!write(client, bytes.data(), bytes.size());
    const Status status = link->Recv(After(seconds(5))).status();
    close(client);
    return status;
  };
  TcpOptions options;
  options.silence = milliseconds(50);
  options.max_payload = 1000;
  const FrameHeader header{.kind = FrameKind::kTokens, .length = 10};
  const auto good = EncodeHeader(header);
  EXPECT_THAT(Message(send(std::span(good).first(20), options)), HasSubstr("stands still"));
  EXPECT_THAT(Message(send(good, options)), HasSubstr("stands still"));
  std::vector<std::byte> whole(good.begin(), good.end());
  whole.resize(whole.size() + 10, std::byte{1});
  EXPECT_THAT(Message(send(whole, options)), HasSubstr("checksum"));
  const auto huge = EncodeHeader({.kind = FrameKind::kTokens, .length = 1001});
  EXPECT_TRUE(absl::IsDataLoss(send(huge, options)));
  const std::vector<std::byte> noise(200, std::byte{'x'});
  EXPECT_TRUE(absl::IsDataLoss(send(noise, options)));
}

}  // namespace
}  // namespace gyre
