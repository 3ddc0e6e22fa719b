// UDP links in virtual time, against who changes the network or breaks the protocol: other addresses, worn keys,
// datagrams that are not what they should be.
#include <gtest/gtest.h>

#include "tests/testing/udp_flow.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::EthernetPath;
using testing::PacketPath;
using testing::Pass;
using testing::UdpNetwork;
using Flow = testing::UdpFlow;

TEST(UdpSecurityTest, TheAcceptorFollowsADialerToAnotherAddress) {
  UdpNetwork net(EthernetPath(), 1);
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

TEST(UdpSecurityTest, WhoForwardsPacketsDoesNotMoveTheLink) {
  UdpNetwork net(EthernetPath(), 1);
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

TEST(UdpSecurityTest, KeysAreRenewedOnTheWay) {
  PacketPath path = EthernetPath();
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
TEST(UdpSecurityTest, KeysAreRenewedAfterATime) {
  UdpNetwork net(EthernetPath(), 1, {.key_life = milliseconds(30000)});
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

TEST(UdpSecurityTest, AKeyThatIsWornOutIsNotUsedFurther) {
  UdpNetwork net(EthernetPath(), 1, {.packets_a_key = 50});
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
