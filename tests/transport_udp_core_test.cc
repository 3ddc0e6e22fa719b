// UDP links in virtual time: what happens when the network changes, and when a peer is slow or gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/udp_flow.h"
#include "tests/testing/worlds.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::EthernetPath;
using ::testing::HasSubstr;
using testing::PacketPath;
using testing::Pass;
using testing::UdpNetwork;
using Flow = testing::UdpFlow;

TEST(UdpCoreTest, BothDirectionsAtOnce) {
  UdpNetwork net(EthernetPath(), 1);
  Flow there(&net, 0), back(&net, 1);
  Pass(net, milliseconds(50));
  for (int i = 0; i < 20; ++i) {
    there.Write(100000);
    back.Write(70000);
    there.Drain();
    back.Drain();
  }
  EXPECT_EQ(there.read(), 2000000u);
  EXPECT_EQ(back.read(), 1400000u);
  EXPECT_EQ(net.core(0).stats().lost + net.core(1).stats().lost, 0u);
}

TEST(UdpCoreTest, TheLargestSizeThatPassesIsFound) {
  for (const auto& [largest, found] : {std::pair<size_t, size_t>{1200, 1200},
                                       {1250, 1200},
                                       {1400, 1400},
                                       {1460, 1452},
                                       {1472, 1472},
                                       {9000, 8952},
                                       {65507, 65000}}) {
    PacketPath path{.delay = milliseconds(1)};
    path.largest = largest;
    UdpNetwork net(path, 1);
    Flow flow(&net, 0);
    flow.Write(5000);
    flow.Drain();
    Pass(net, seconds(14));
    EXPECT_EQ(net.core(0).datagram_size(), found);
  }
}

TEST(UdpCoreTest, ABlackHoleIsLeftWithinASecond) {
  UdpNetwork net(EthernetPath(), 1);
  Flow flow(&net, 0);
  flow.Write(3000000);
  flow.Drain();
  ASSERT_EQ(net.core(0).datagram_size(), 1472u);
  net.path(0).largest = 1250;  // without a word
  flow.Write(1000000);
  EXPECT_LT(flow.Drain(), seconds(2));
  EXPECT_EQ(net.core(0).datagram_size(), kUdpBaseSize);
  net.path(0).largest = 1472;
  Pass(net, seconds(70));
  EXPECT_EQ(net.core(0).datagram_size(), 1472u) << "it is tried again";
}

TEST(UdpCoreTest, SmallPacketsThatPassDoNotHideABlackHole) {
  UdpNetwork net(EthernetPath(), 1);
  Flow flow(&net, 0);
  flow.Write(3000000);
  flow.Drain();
  net.path(0).largest = 1250;
  for (int i = 0; i < 40; ++i) {
    flow.Write(20000);
    for (int small = 0; small < 5; ++small) {
      flow.Write(100);
      Pass(net, milliseconds(3));
    }
  }
  EXPECT_LT(flow.Drain(), seconds(2));
  EXPECT_EQ(net.core(0).datagram_size(), kUdpBaseSize);
}

TEST(UdpCoreTest, ABurstThatIsDroppedIsNoBlackHole) {
  UdpNetwork net(EthernetPath(), 1);
  Flow flow(&net, 0);
  flow.Write(3000000);
  flow.Drain();
  for (int i = 0; i < 20; ++i) {
    net.path(0).burst = 1;
    net.path(0).burst_length = 30;
    flow.Write(30 * 1300);
    net.path(0).burst = 0;
    flow.Write(60000);
    flow.Drain();
    EXPECT_EQ(net.core(0).datagram_size(), 1472u);
  }
}

TEST(UdpCoreTest, WhatComesAfterTheEndIsNotRead) {
  UdpNetwork net(EthernetPath(), 1);
  Flow flow(&net, 0);
  net.core(1).Close(net.now());
  ASSERT_GT(flow.Write(1000), 0u);
  Pass(net, milliseconds(100));
  std::vector<std::byte> bytes(100);
  const auto got = net.core(1).Read(bytes);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, std::optional<size_t>(0));
}

TEST(UdpCoreTest, AReaderThatStopsStopsTheWriterAndNothingIsLost) {
  UdpNetwork net(EthernetPath(), 1);
  Flow flow(&net, 0);
  while (flow.Write(1 << 20) > 0 || net.now() < Deadline(std::chrono::hours(1)) + seconds(20)) {
    if (!net.Step()) break;
  }
  EXPECT_EQ(flow.written(), uint64_t{8} << 20) << "4 MiB at each end";
  EXPECT_FALSE(net.core(0).Writable());
  // For minutes: the link lives.
  Pass(net, seconds(300));
  ASSERT_TRUE(net.core(1).Readable());
  // The window that opens again is lost several times.
  net.path(1).loss = 1;
  flow.Read(3 << 20);
  Pass(net, milliseconds(300));
  net.path(1).loss = 0;
  EXPECT_LT(flow.Drain(), seconds(10));
  EXPECT_EQ(flow.read(), uint64_t{8} << 20);
}

TEST(UdpCoreTest, OutagesShorterThanTheSilenceAreSurvived) {
  UdpNetwork net(EthernetPath(), 1);
  Flow flow(&net, 0);
  for (int seconds_out : {1, 5, 20, 30}) {
    flow.Write(100000);
    Pass(net, milliseconds(5));
    net.Cut(true);
    Pass(net, seconds(seconds_out));
    net.Cut(false);
    EXPECT_LT(flow.Drain(), seconds(4)) << "a probe leaves every 2 s";
  }
}

TEST(UdpCoreTest, APeerThatVanishedIsFoundAfter35Seconds) {
  for (const bool busy : {false, true}) {
    UdpNetwork net(EthernetPath(), 1);
    Flow flow(&net, 0);
    flow.Write(1000);
    flow.Drain();
    Pass(net, milliseconds(100));
    net.Cut(true);
    if (busy) flow.Write(100000);
    const Deadline start = net.now();
    while (net.Step() && net.core(0).Write({}, net.now()).ok()) {
    }
    EXPECT_GE(net.now() - start, seconds(34));
    EXPECT_LE(net.now() - start, seconds(36));
    EXPECT_THAT(Message(net.core(0).Write({}, net.now()).status()), HasSubstr("nothing came for 35 s"));
    std::byte byte[1];
    Pass(net, seconds(3));
    EXPECT_TRUE(absl::IsUnavailable(net.core(1).Read(byte).status()));
  }
}

TEST(UdpCoreTest, AnIdleLinkLivesAndCostsLittle) {
  UdpNetwork net(EthernetPath(), 1);
  Flow flow(&net, 0);
  flow.Write(1000);
  flow.Drain();
  Pass(net, seconds(10));
  const uint64_t before = net.core(0).stats().sent + net.core(1).stats().sent;
  Pass(net, std::chrono::hours(1));
  EXPECT_LT(net.core(0).stats().sent + net.core(1).stats().sent - before, 1200u);
  flow.Write(1000);
  flow.Drain();
}

TEST(UdpCoreTest, WhatWasWrittenBeforeCloseArrivesThroughLoss) {
  testing::PlayWorlds({.count = 20, .first = 0}, [](uint64_t seed) {
    PacketPath path = EthernetPath();
    path.loss = 0.3;
    UdpNetwork net(path, seed);
    Flow flow(&net, 0);
    flow.Write(300000);
    net.core(0).Close(net.now());
    net.Send(0);
    flow.Drain();
    while (!flow.ended() && net.Step()) flow.Read();
    EXPECT_TRUE(flow.ended());
    EXPECT_TRUE(absl::IsUnavailable(net.core(1).Write({}, net.now()).status()));
    net.core(1).Close(net.now());
    Pass(net, seconds(40));
    EXPECT_TRUE(net.core(0).done());
    EXPECT_TRUE(net.core(1).done());
    EXPECT_EQ(net.core(0).NextTimer(net.now()), kNoDeadline);
  });
}

TEST(UdpCoreTest, BothEndsMayCloseAtOnce) {
  UdpNetwork net(EthernetPath(), 1);
  Flow there(&net, 0), back(&net, 1);
  there.Write(50000);
  back.Write(50000);
  Pass(net, milliseconds(12));
  for (int side : {0, 1}) {
    net.core(side).Close(net.now());
    net.Send(side);
  }
  Pass(net, seconds(2));
  EXPECT_TRUE(net.core(0).done());
  EXPECT_TRUE(net.core(1).done());
}

TEST(UdpCoreTest, AProcessThatEndedIsNoticedAtOnceAndWhatItSentIsRead) {
  UdpNetwork net(EthernetPath(), 1);
  Flow flow(&net, 0);
  flow.Write(20000);
  net.core(1).OnPeerGone(net.now());
  flow.Drain();
  Pass(net, seconds(2));
  std::byte byte[1];
  const auto end = net.core(1).Read(byte);
  EXPECT_THAT(Message(end.status()), HasSubstr("process has ended"));
}

TEST(UdpCoreTest, AtLowUseLossCostsNoRoundTrip) {
  for (const bool copies : {false, true}) {
    PacketPath path = EthernetPath();
    path.loss = 0.05;
    UdpNetwork net(path, 3, {.copies = copies});
    Flow flow(&net, 0);
    int slow = 0;
    for (int i = 0; i < 1000; ++i) {
      flow.Write(16000);
      slow += flow.Drain() > milliseconds(20) ? 1 : 0;
      Pass(net, milliseconds(5));
    }
    if (copies) {
      EXPECT_LT(slow, 80);
    } else {
      EXPECT_GT(slow, 300);
    }
  }
}

TEST(UdpCoreTest, ALongSilenceDoesNotMakeTheNextBurstSlow) {
  PacketPath path{.bytes_per_second = 125e6, .delay = milliseconds(1)};
  path.largest = 1472;
  UdpNetwork net(path, 1);
  Flow flow(&net, 0);
  for (int i = 0; i < 40; ++i) {
    flow.Write(1 << 20);
    flow.Drain();
  }
  for (int i = 0; i < 500; ++i) {  // single small frames
    flow.Write(2000);
    flow.Drain();
    Pass(net, milliseconds(20));
  }
  flow.Write(4 << 20);
  EXPECT_LT(flow.Drain(), milliseconds(60)) << "33 ms at the network's rate";
}

// The receiver of a one-way link sends acknowledgements only. They must not grow with every loss.
TEST(UdpCoreTest, AcknowledgementsOfAOneWayLinkStaySmall) {
  PacketPath path = EthernetPath();
  path.loss = 0.02;
  UdpNetwork net(path, 1);
  Flow flow(&net, 0);
  for (int i = 0; i < 100; ++i) {
    flow.Write(400000);
    flow.Drain();
  }
  const uint64_t packets = net.core(1).stats().sent;
  EXPECT_LT(net.carried(1) / packets, 220u) << "bytes for each";
}

}  // namespace
}  // namespace gyre
