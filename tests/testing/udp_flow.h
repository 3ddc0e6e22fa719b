// Bytes that are written and read over a UdpNetwork.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "tests/testing/udp_network.h"

namespace gyre::testing {

// Bytes that only their place decides, from one side to the other.
class UdpFlow {
 public:
  UdpFlow(UdpNetwork* net, int from) : net_(net), from_(from) {}
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
  Duration Drain(Duration limit = std::chrono::seconds(60)) {
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
  static std::byte At(uint64_t offset) { return static_cast<std::byte>((offset * 0x9E3779B97F4A7C15) >> 56); }

  UdpNetwork* const net_;
  const int from_;
  uint64_t written_ = 0, read_ = 0;
  bool ended_ = false;
};

inline void Pass(UdpNetwork& net, Duration time) {
  const Deadline end = net.now() + time;
  while (net.now() < end && net.Step()) {
  }
}

// A path whose largest datagram is Ethernet's.
inline PacketPath EthernetPath(Duration delay = std::chrono::milliseconds(10)) {
  PacketPath path{.delay = delay};
  path.largest = 1472;
  return path;
}

}  // namespace gyre::testing
