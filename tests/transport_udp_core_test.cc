// UDP links in virtual time: what happens when the network changes, when a peer is slow, gone or hostile, and when keys
// wear out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/udp_network.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::UdpNetwork;
using testing::UdpPath;

std::byte At(uint64_t offset) { return static_cast<std::byte>((offset * 0x9E3779B97F4A7C15) >> 56); }

// Bytes that only their place decides, from one side to the other.
class Flow {
 public:
  Flow(UdpNetwork* net, int from) : net_(net), from_(from) {}
  uint64_t written() const { return written_; }
  uint64_t read() const { return read_; }
  bool ended() const { return ended_; }
  // As many as there is room for, up to n.
  size_t Write(size_t n) {
    const uint64_t before = written_, end = written_ + n;
    while (written_ < end) {
      std::vector<std::byte> bytes(std::min<size_t>(end - written_, 64 << 10));
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = At(written_ + i);
      const iovec part[] = {{bytes.data(), bytes.size()}};
      const auto taken = net_->core(from_).Write(part, net_->now());
      EXPECT_TRUE(taken.ok()) << taken.status();
      written_ += taken.value_or(0);
      if (taken.value_or(0) < bytes.size()) break;
    }
    net_->Send(from_);
    return written_ - before;
  }
  void Read(size_t most = ~size_t{0}) {
    std::vector<std::byte> bytes(64 << 10);
    while (most > 0) {
      const auto n = net_->core(1 - from_).Read(std::span(bytes).first(std::min(most, bytes.size())));
      ASSERT_TRUE(n.ok()) << n.status();
      ended_ = ended_ || *n == size_t{0};
      if (n->value_or(0) == 0) break;
      size_t same = 0;
      while (same < **n && bytes[same] == At(read_ + same)) ++same;
      ASSERT_EQ(same, **n) << "the byte at " << read_ + same << " is another";
      read_ += **n;
      most -= **n;
    }
    net_->Send(1 - from_);
  }
  // Until all that was written is read; how long it took.
  Duration Drain(Duration limit = seconds(60)) {
    const Deadline start = net_->now();
    for (Read(); read_ < written_; Read()) {
      if (!net_->Step() || net_->now() - start > limit) {
        ADD_FAILURE() << "only " << read_ << " of " << written_ << " bytes came";
        return limit;
      }
    }
    return net_->now() - start;
  }

 private:
  UdpNetwork* const net_;
  const int from_;
  uint64_t written_ = 0, read_ = 0;
  bool ended_ = false;
};

void Pass(UdpNetwork& net, Duration time) {
  const Deadline end = net.now() + time;
  while (net.now() < end && net.Step()) {
  }
}

UdpPath Path(Duration delay = milliseconds(10)) {
  UdpPath path{.delay = delay};
  path.largest = 1472;
  return path;
}

TEST(UdpCoreTest, BothDirectionsAtOnce) {
  UdpNetwork net(Path(), 1);
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
    UdpPath path{.delay = milliseconds(1)};
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
  UdpNetwork net(Path(), 1);
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
  UdpNetwork net(Path(), 1);
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
  UdpNetwork net(Path(), 1);
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
  UdpNetwork net(Path(), 1);
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
  UdpNetwork net(Path(), 1);
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

TEST(UdpCoreTest, TheAcceptorFollowsADialerToAnotherAddress) {
  UdpNetwork net(Path(), 1);
  Flow there(&net, 0), back(&net, 1);
  there.Write(500000);
  back.Write(500000);
  there.Drain();
  back.Drain();
  for (int address = 7; address < 10; ++address) {
    net.Move(address);
    there.Write(200000);
    back.Write(200000);
    EXPECT_LT(there.Drain(), seconds(2));
    EXPECT_LT(back.Drain(), seconds(3));
    EXPECT_EQ(net.core(1).peer().bytes[0], static_cast<std::byte>(address));
  }
}

TEST(UdpCoreTest, WhoForwardsPacketsDoesNotMoveTheLink) {
  UdpNetwork net(Path(), 1);
  Flow there(&net, 0);
  there.Write(50000);
  there.Drain();
  const UdpAddress before = net.core(1).peer();
  // A copy that is faster than the packet, from elsewhere, of everything that both ends send.
  net.Forward(9);
  for (int i = 0; i < 50; ++i) {
    there.Write(3000);
    there.Drain();
    Pass(net, milliseconds(50));
    EXPECT_EQ(net.core(1).peer(), before);
  }
}

TEST(UdpCoreTest, OutagesShorterThanTheSilenceAreSurvived) {
  UdpNetwork net(Path(), 1);
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
    UdpNetwork net(Path(), 1);
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
  UdpNetwork net(Path(), 1);
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
  for (uint64_t seed = 0; seed < 20; ++seed) {
    UdpPath path = Path();
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
  }
}

TEST(UdpCoreTest, BothEndsMayCloseAtOnce) {
  UdpNetwork net(Path(), 1);
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
  UdpNetwork net(Path(), 1);
  Flow flow(&net, 0);
  flow.Write(20000);
  net.core(1).OnPeerGone(net.now());
  flow.Drain();
  Pass(net, seconds(2));
  std::byte byte[1];
  const auto end = net.core(1).Read(byte);
  EXPECT_THAT(Message(end.status()), HasSubstr("process has ended"));
}

TEST(UdpCoreTest, KeysAreRenewedOnTheWay) {
  UdpPath path = Path();
  path.loss = 0.05;
  path.jitter = milliseconds(5);
  UdpNetwork net(path, 1, {.packets_a_key = 400});
  Flow there(&net, 0), back(&net, 1);
  for (int i = 0; i < 40; ++i) {
    there.Write(100000);
    back.Write(50000);
    there.Drain();
    back.Drain();
  }
  EXPECT_GT(net.core(0).stats().phase, 5);
  EXPECT_GT(net.core(1).stats().phase, 5);
}

// Also where next to nothing passes: a link that only keeps alive.
TEST(UdpCoreTest, KeysAreRenewedAfterATime) {
  UdpNetwork net(Path(), 1, {.key_life = milliseconds(30000)});
  Flow there(&net, 0), back(&net, 1);
  for (int i = 0; i < 10; ++i) {
    there.Write(1000);
    there.Drain();
    back.Write(1000);
    back.Drain();
    Pass(net, seconds(20));
  }
  for (int side : {0, 1}) {
    EXPECT_GE(net.core(side).stats().phase, 3);
    EXPECT_LE(net.core(side).stats().phase, 12);
  }
}

TEST(UdpCoreTest, AKeyThatIsWornOutIsNotUsedFurther) {
  UdpNetwork net(Path(), 1, {.packets_a_key = 50});
  Flow flow(&net, 0);
  flow.Write(1000);
  flow.Drain();
  net.Cut(true);
  for (int i = 0; i < 100; ++i) {
    net.core(0).OnTooLarge(1, net.now());
    if (!net.core(0).Write({}, net.now()).ok()) break;
    flow.Write(3000);
    Pass(net, milliseconds(500));
  }
  EXPECT_LE(net.core(0).stats().sent, 200u);
}

TEST(UdpCoreTest, AtLowUseLossCostsNoRoundTrip) {
  for (const bool copies : {false, true}) {
    UdpPath path = Path();
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
  UdpPath path{.bytes_per_second = 125e6, .delay = milliseconds(1)};
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
  UdpPath path = Path();
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

class Hostile : public ::testing::Test {
 protected:
  Hostile() {
    for (size_t i = 0; i < 32; ++i) keys_.send[i] = keys_.receive[i] = static_cast<std::byte>(i);
    at_.size = 16;
  }
  // A packet with this text, sealed by a peer that has the key.
  std::vector<std::byte> Packet(uint64_t number, const std::vector<std::byte>& text) {
    std::vector<std::byte> packet(kUdpHeader + text.size() + kSealTag);
    PutUdpHeader({.phase = 0, .link = 1, .number = number}, packet);
    std::copy(text.begin(), text.end(), packet.begin() + kUdpHeader);
    PacketSealer(keys_.receive).Seal(number, packet, kUdpHeader);
    return packet;
  }
  template <typename... T>
  static std::vector<std::byte> Text(T... values) {
    std::vector<std::byte> out;
    const auto put = [&out](auto v) {
      const auto* p = reinterpret_cast<const std::byte*>(&v);
      out.insert(out.end(), p, p + sizeof v);
    };
    (put(values), ...);
    return out;
  }
  UdpKeys keys_;
  UdpAddress at_;
  const Deadline now_ = Deadline(seconds(1000));
};

TEST_F(Hostile, WhoBreaksTheProtocolIsToldOnce) {
  const uint8_t ack = 2, chunk = 3, end = 5, one = 1;
  const std::vector<std::vector<std::byte>> bad = {
      Text(uint8_t{9}),                                              // no such type
      Text(uint8_t{255}),                                            //
      Text(uint8_t{0}, one),                                         // padding that is none
      Text(ack),                                                     // cut
      Text(ack, uint64_t{1}, 0u, uint16_t{0}),                       // no range
      Text(ack, uint64_t{1}, 0u, uint16_t{1}, 0u),                   // an empty one
      Text(ack, uint64_t{1}, 0u, uint16_t{1}, 2u),                   // below packet 1
      Text(ack, uint64_t{1000}, 0u, uint16_t{1}, 1u),                // never sent
      Text(ack, uint64_t{9}, 0u, uint16_t{2}, 1u, 0u, 1u),           // ranges that touch
      Text(ack, uint64_t{9}, 0u, uint16_t{2}, 1u, 8u, 1u),           // below packet 1
      Text(ack, uint64_t{9}, 0u, uint16_t{129}, 1u),                 // too many
      Text(chunk, uint64_t{0}, uint16_t{5}, one),                    // cut
      Text(chunk, uint64_t{3}, uint16_t{0}),                         // empty
      Text(chunk, uint64_t{4 << 20}, uint16_t{1}, one),              // beyond the window
      Text(chunk, ~uint64_t{0}, uint16_t{1}, one),                   // beyond 2^64
      Text(chunk, uint64_t{0}, uint16_t{1}, one, end, uint64_t{0}),  // an end before what came
      Text(end, uint64_t{3}, end, uint64_t{4}),                      // two ends
      Text(end, uint64_t{3}, chunk, uint64_t{3}, uint16_t{1}, one),  // beyond the end
      Text(uint8_t{4}, 1u),
      Text(uint8_t{6}),
      Text(uint8_t{7}, 1u),
      Text(uint8_t{8}, 1u),  // cut
  };
  for (size_t i = 0; i < bad.size(); ++i) {
    UdpCore core({}, keys_, 2, std::nullopt, now_);
    std::vector<std::byte> room(kUdpLargest);
    auto good = Packet(1, Text(uint8_t{1}));
    EXPECT_TRUE(core.OnDatagram(good, at_, now_));
    while (core.Next(room, now_).size > 0) {
    }
    auto packet = Packet(2, bad[i]);
    EXPECT_TRUE(core.OnDatagram(packet, at_, now_));
    EXPECT_TRUE(absl::IsUnavailable(core.Write({}, now_).status())) << "text " << i;
    EXPECT_GT(core.Next(room, now_).size, 0u) << "a reset";
    EXPECT_EQ(core.Next(room, now_).size, 0u);
    core.Close(now_);
    EXPECT_TRUE(core.done());
  }
}

TEST_F(Hostile, WhatDoesNotOpenChangesNothing) {
  UdpCore core({}, keys_, 2, std::nullopt, now_);
  const auto good = Packet(1, Text(uint8_t{3}, uint64_t{0}, uint16_t{1}, uint8_t{77}));
  // Every bit flipped, every cut.
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    auto packet = good;
    packet[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    // The link id is checked by who looks for the link.
    if (bit / 8 >= 4 && bit / 8 < 12) continue;
    EXPECT_FALSE(core.OnDatagram(packet, at_, now_)) << bit;
  }
  for (size_t size = 0; size < good.size(); ++size) {
    auto packet = good;
    EXPECT_FALSE(core.OnDatagram(std::span(packet).first(size), at_, now_));
  }
  std::byte room[1200];
  EXPECT_EQ(core.Next(room, now_).size, 0u) << "nobody is known who could be answered";
  EXPECT_FALSE(core.Readable());
  auto packet = good;
  EXPECT_TRUE(core.OnDatagram(packet, at_, now_));
  EXPECT_TRUE(core.Readable());
  packet = good;
  EXPECT_FALSE(core.OnDatagram(packet, at_, now_)) << "it came before";
  packet = Packet(1, Text(uint8_t{6}, uint8_t{1}));
  EXPECT_FALSE(core.OnDatagram(packet, at_, now_)) << "its number came before";
}

TEST_F(Hostile, TheLengthOfAnAcknowledgedRangeIsBounded) {
  ReceivedPackets packets;
  packets.AddRange(1, (uint64_t{1} << 32) + 5);
  const AckFrame ack = packets.Ack();
  ASSERT_EQ(ack.ranges.size(), 1u);
  EXPECT_EQ(ack.ranges[0].last, (uint64_t{1} << 32) + 4);
  EXPECT_EQ(ack.ranges[0].last - ack.ranges[0].first + 1, uint64_t{1} << 31);
}

}  // namespace
}  // namespace gyre
