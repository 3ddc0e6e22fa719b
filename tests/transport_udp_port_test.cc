// UDP links between ring ports: how they begin, where they are refused, and what unauthenticated peers can do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/ring_address.h"
#include "tests/testing/udp_pair.h"
#include "tests/testing/udp_relay.h"
#include "transport/ring_port.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

std::unique_ptr<RingPort> Open(Transport transport) {
  RingPortOptions o;
  o.listen = "127.0.0.1:0";
  o.transport = transport;
  auto port = RingPort::Open(o);
  EXPECT_TRUE(port.ok()) << port.status();
  (*port)->SetKey({.term = 5, .number = 1}, RingKey{1, 2, 3});
  return *std::move(port);
}

Hello HopOf(Transport preference, uint32_t hop = 1) {
  return {.epoch = {.term = 5, .number = 1}, .hop = hop, .key = {1, 2, 3}, .from = "a", .transport = preference};
}

struct Ends {
  StatusOr<std::unique_ptr<Link>> dialed, accepted;
};
Ends Connect(RingPort& from, RingPort& to, const std::string& address, Transport preference,
             Duration timeout = seconds(20)) {
  Ends ends{.dialed = Unavailable("never"), .accepted = Unavailable("never")};
  std::thread accepts([&] { ends.accepted = to.Accept(HopOf(preference), After(timeout)); });
  ends.dialed = from.Dial(address, HopOf(preference), After(timeout));
  to.Cancel({.term = 5, .number = ends.dialed.ok() ? 0u : 1u});
  accepts.join();
  return ends;
}

void FramesPass(Link& from, Link& to) {
  const std::vector<std::byte> payload(100000, std::byte{7});
  const ByteSpan parts[] = {payload};
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(from.Send({.kind = FrameKind::kHidden, .step = StepId{i}}, parts, After(seconds(20))).ok());
    const auto frame = to.Recv(After(seconds(20)));
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ(frame->header.step, StepId{i});
    EXPECT_EQ(frame->payload, payload);
  }
}

TEST(UdpPortTest, TheClustersWishOrEitherEndsIsEnough) {
  struct Case {
    Transport cluster, dialer, acceptor;
  };
  for (const Case& c : {Case{Transport::kUdp, Transport::kAuto, Transport::kAuto},
                        Case{Transport::kUdp, Transport::kUdp, Transport::kUdp},
                        Case{Transport::kAuto, Transport::kUdp, Transport::kAuto},
                        Case{Transport::kAuto, Transport::kAuto, Transport::kUdp}}) {
    auto a = Open(c.dialer), b = Open(c.acceptor);
    Ends ends = Connect(*a, *b, b->address(), c.cluster);
    ASSERT_TRUE(ends.dialed.ok()) << ends.dialed.status();
    ASSERT_TRUE(ends.accepted.ok()) << ends.accepted.status();
    EXPECT_EQ((*ends.dialed)->transport(), Transport::kUdp);
    EXPECT_EQ((*ends.accepted)->transport(), Transport::kUdp);
    FramesPass(**ends.dialed, **ends.accepted);
    FramesPass(**ends.accepted, **ends.dialed);
  }
}

TEST(UdpPortTest, AutoDoesNotTakeUdpByItself) {
  auto a = Open(Transport::kAuto), b = Open(Transport::kAuto);
  Ends ends = Connect(*a, *b, b->address(), Transport::kAuto);
  ASSERT_TRUE(ends.dialed.ok()) << ends.dialed.status();
  EXPECT_NE((*ends.dialed)->transport(), Transport::kUdp);
}

TEST(UdpPortTest, ContradictionsAreRefusedWithTheReason) {
  auto udp = Open(Transport::kUdp), tcp = Open(Transport::kTcp);
  Ends ends = Connect(*tcp, *udp, udp->address(), Transport::kAuto);
  EXPECT_THAT(Message(ends.dialed.status()), HasSubstr("it comes over tcp, this end takes udp only (--transport)"));
  udp = Open(Transport::kUdp), tcp = Open(Transport::kTcp);  // that plan was given up there
  ends = Connect(*udp, *tcp, tcp->address(), Transport::kAuto);
  EXPECT_THAT(Message(ends.dialed.status()), HasSubstr("takes no datagrams"));
  udp = Open(Transport::kUdp), tcp = Open(Transport::kTcp);
  ends = Connect(*udp, *tcp, tcp->address() + ",udp:9", Transport::kAuto);
  EXPECT_THAT(Message(ends.dialed.status()), HasSubstr("it comes over udp, this end takes tcp only (--transport)"));
}

TEST(UdpPortTest, WhereNoDatagramPassesTheDialFailsAndSaysSo) {
  auto a = Open(Transport::kUdp), b = Open(Transport::kUdp);
  RingAddress to = *ParseRingAddress(b->address());
  const UdpSocket silent = *UdpSocket::Open("127.0.0.1:0");
  to.udp = silent.port();
  const Deadline start = Clock::now();
  Ends ends = Connect(*a, *b, FormatRingAddress(to), Transport::kUdp);
  EXPECT_THAT(Message(ends.dialed.status()), HasSubstr("is UDP blocked on the way?"));
  EXPECT_TRUE(absl::IsUnavailable(ends.dialed.status()));
  EXPECT_LT(Clock::now() - start, seconds(15));
}

TEST(UdpPortTest, AWrongKeyIsRefusedBeforeAnyDatagram) {
  auto a = Open(Transport::kUdp), b = Open(Transport::kUdp);
  Hello wrong = HopOf(Transport::kUdp);
  wrong.key[0] ^= 1;
  const auto link = a->Dial(b->address(), wrong, After(seconds(20)));
  EXPECT_FALSE(link.ok());
  EXPECT_EQ(b->stats().refused, 1u);
}

// A port that ends takes its links' time with it; a peer learns it by the connection that stayed open.
TEST(UdpPortTest, APortThatEndsEndsItsLinks) {
  auto a = Open(Transport::kUdp), b = Open(Transport::kUdp);
  Ends ends = Connect(*a, *b, b->address(), Transport::kUdp);
  ASSERT_TRUE(ends.dialed.ok() && ends.accepted.ok());
  b = nullptr;
  EXPECT_TRUE(absl::IsUnavailable((*ends.accepted)->Recv(After(seconds(5))).status()));
  EXPECT_TRUE(absl::IsUnavailable((*ends.accepted)->Send({.kind = FrameKind::kAnswer}, {}, After(seconds(5)))));
  ends.accepted = Unavailable("gone");
  EXPECT_TRUE(absl::IsUnavailable((*ends.dialed)->Recv(After(seconds(10))).status()));
}

// The connection that hello and answer went over, when it is one of TLS: its bytes mean nothing, its end does.
TEST(UdpPortTest, APeersDeathIsNoticedByTheEndOfItsConnectionAndNotByItsBytes) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  Fd peers(ends[1]);
  auto host = *UdpHost::Open("127.0.0.1:0"), other = *UdpHost::Open("127.0.0.1:0");
  auto [there, here] = testing::UdpStreams(*other, *host, 0, Fd(ends[0]));
  auto out = *MakeFramedLink(std::move(there), "here"), in = *MakeFramedLink(std::move(here), "there");
  FramesPass(*out, *in);
  // As the peer's TLS does when it is taken down, or where it sends a new session.
  const std::byte goodbye[24] = {std::byte{0x17}, std::byte{3}, std::byte{3}, std::byte{0}, std::byte{19}};
  ASSERT_EQ(send(peers.get(), goodbye, sizeof goodbye, MSG_NOSIGNAL), ssize_t{sizeof goodbye});
  std::this_thread::sleep_for(milliseconds(1100));  // longer than an end takes to be believed
  FramesPass(*out, *in);
  // Its process is killed: the kernel ends the connection, and no datagram says anything.
  peers = Fd();
  const Deadline began = Clock::now();
  EXPECT_TRUE(absl::IsUnavailable(in->Recv(After(seconds(10))).status()));
  EXPECT_LT(Clock::now() - began, seconds(5)) << "silence alone is believed after 35 s";
}

// On a host with several addresses, as 127.0.0.0/8 are: a dialer hears from no other one.
TEST(UdpPortTest, AnswersComeFromTheAddressThatWasAsked) {
  RingPortOptions any;
  any.listen = "0.0.0.0:0";
  any.transport = Transport::kUdp;
  auto b = *RingPort::Open(any);
  b->SetKey({.term = 5, .number = 1}, RingKey{1, 2, 3});
  auto a = Open(Transport::kUdp);
  RingAddress to = *ParseRingAddress(b->address());
  to.tcp = "127.0.0.5" + to.tcp;
  Ends ends = Connect(*a, *b, FormatRingAddress(to), Transport::kUdp);
  ASSERT_TRUE(ends.dialed.ok() && ends.accepted.ok()) << ends.dialed.status();
  FramesPass(**ends.dialed, **ends.accepted);
  FramesPass(**ends.accepted, **ends.dialed);
}

// A reader that is there reads its link's datagrams itself; while it computes, the port's thread does.
TEST(UdpPortTest, LinksGoOnWhileTheirReadersComputeAndWait) {
  auto a = Open(Transport::kUdp), b = Open(Transport::kUdp);
  Ends ends = Connect(*a, *b, b->address(), Transport::kUdp);
  ASSERT_TRUE(ends.dialed.ok() && ends.accepted.ok());
  Link &out = **ends.dialed, &in = **ends.accepted;
  const std::vector<std::byte> payload(3 << 20, std::byte{7});
  const ByteSpan parts[] = {payload};
  std::thread sender([&] {
    for (int i = 0; i < 22; ++i) EXPECT_TRUE(out.Send({.kind = FrameKind::kHidden}, parts, After(seconds(30))).ok());
  });
  for (int i = 0; i < 22; ++i) {
    const auto frame = in.Recv(After(seconds(30)));
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ(frame->payload.size(), payload.size());
    if (i % 6 == 3) std::this_thread::sleep_for(milliseconds(60));
  }
  sender.join();
  // Two frames fit into the buffers of both ends, and into one end's not: somebody takes in the first one.
  for (int i : {0, 1}) EXPECT_TRUE(out.Send({.kind = FrameKind::kHidden}, parts, After(seconds(5))).ok()) << i;
  for (int i : {0, 1}) EXPECT_TRUE(in.Recv(After(seconds(5))).ok()) << i;
  // Both ends wait, and one of them is woken by another thread.
  std::thread waker([&] {
    std::this_thread::sleep_for(milliseconds(50));
    in.Wake();
  });
  EXPECT_TRUE(absl::IsCancelled(in.Recv(After(seconds(20))).status()));
  waker.join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(in.Recv(After(milliseconds(20))).status()));
  std::thread closer([&] {
    std::this_thread::sleep_for(milliseconds(50));
    out.Close();
  });
  EXPECT_TRUE(absl::IsUnavailable(in.Recv(After(seconds(20))).status()));
  closer.join();
}

// Datagrams of several sizes and addresses in one batch, where the kernel cuts messages into datagrams and where it
// does not.
TEST(UdpSocketTest, EveryDatagramOfABatchArrives) {
  for (const bool kernel_cuts : {true, false}) {
    const UdpSocket from = *UdpSocket::Open("127.0.0.1:0"), to = *UdpSocket::Open("127.0.0.1:0"),
                    other = *UdpSocket::Open("127.0.0.1:0");
    // Without checksums it refuses to cut.
    const int no_checksums = kernel_cuts ? 0 : 1;
    ASSERT_EQ(setsockopt(from.fd(), SOL_SOCKET, SO_NO_CHECK, &no_checksums, sizeof no_checksums), 0);
    std::vector<size_t> sizes(80, 1200);
    for (size_t more : {700, 1300, 1300, 200, 9, 1200, 40000}) sizes.push_back(more);
    UdpBatch batch;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto room = batch.Room();
      ASSERT_FALSE(room.empty());
      std::fill_n(room.begin(), sizes[i], static_cast<std::byte>(i));
      batch.Add(sizes[i], testing::LoopbackUdp(to.port()));
    }
    batch.Add(77, testing::LoopbackUdp(other.port()));
    from.Send(batch, [](size_t size) { ADD_FAILURE() << size << " bytes are too large for loopback"; });
    UdpReceiver receiver;
    std::vector<size_t> came;
    const auto take = [&](std::span<std::byte> datagram, const UdpAddress&) {
      EXPECT_EQ(datagram.front(), static_cast<std::byte>(came.size()));
      EXPECT_EQ(datagram.back(), datagram.front());
      came.push_back(datagram.size());
    };
    while (receiver.Receive(to, take)) {
    }
    EXPECT_EQ(came, sizes) << kernel_cuts;
    size_t others = 0;
    receiver.Receive(other, [&](std::span<std::byte> datagram, const UdpAddress&) { others = datagram.size(); });
    EXPECT_EQ(others, 77u);
  }
}

TEST(UdpSocketTest, WhatTheInterfaceDoesNotTakeIsToldAndTheRestArrives) {
  const UdpSocket from = *UdpSocket::Open("127.0.0.1:0"), to = *UdpSocket::Open("127.0.0.1:0");
  UdpBatch batch;
  for (const size_t size : {size_t{1000}, size_t{65520}, size_t{500}}) {
    ASSERT_FALSE(batch.Room().empty());
    batch.Add(size, testing::LoopbackUdp(to.port()));
  }
  std::vector<size_t> refused, came;
  from.Send(batch, [&](size_t size) { refused.push_back(size); });
  UdpReceiver receiver;
  while (receiver.Receive(to,
                          [&](std::span<std::byte> datagram, const UdpAddress&) { came.push_back(datagram.size()); })) {
  }
  EXPECT_EQ(refused, (std::vector<size_t>{65520}));
  EXPECT_EQ(came, (std::vector<size_t>{1000, 500}));
}

TEST(UdpPortTest, UnauthenticatedPeersDatagramsChangeNothing) {
  auto a = Open(Transport::kUdp), b = Open(Transport::kUdp);
  Ends ends = Connect(*a, *b, b->address(), Transport::kUdp);
  ASSERT_TRUE(ends.dialed.ok() && ends.accepted.ok());
  const UdpSocket unauthenticated = *UdpSocket::Open("127.0.0.1:0");
  const UdpAddress to = testing::LoopbackUdp(ParseRingAddress(b->address())->udp);
  std::mt19937 random(1);
  UdpBatch batch;
  for (int i = 0; i < 2000; ++i) {
    const auto room = batch.Room();
    const size_t size = 1 + random() % 1400;
    for (size_t at = 0; at < size; ++at) room[at] = static_cast<std::byte>(random());
    if (i % 2 == 0) room[0] = std::byte{4}, room[std::min<size_t>(1, size - 1)] = std::byte{1};
    batch.Add(size, to);
    unauthenticated.Send(batch, [](size_t) {});
    batch.Clear();
  }
  FramesPass(**ends.dialed, **ends.accepted);
  UdpReceiver receiver;
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(receiver.Receive(unauthenticated, [](std::span<std::byte>, const UdpAddress&) {})) << "nobody answers";
}

TEST(UdpPortTest, FramesPassARelayThatLosesAndSwaps) {
  auto a = Open(Transport::kUdp), b = Open(Transport::kUdp);
  RingAddress to = *ParseRingAddress(b->address());
  testing::UdpRelay relay(to.udp, 0.05);
  to.udp = relay.port();
  Ends ends = Connect(*a, *b, FormatRingAddress(to), Transport::kUdp);
  ASSERT_TRUE(ends.dialed.ok() && ends.accepted.ok()) << ends.dialed.status();
  for (int i = 0; i < 5; ++i) {
    FramesPass(**ends.dialed, **ends.accepted);
    FramesPass(**ends.accepted, **ends.dialed);
  }
}

}  // namespace
}  // namespace gyre
