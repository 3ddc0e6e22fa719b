// The size of a UDP link's datagrams: probing of the path (as in RFC 8899) and black holes. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "transport/udp_packet.h"

namespace gyre {

class UdpSize {
 public:
  UdpSize(size_t largest, Deadline now) : largest_(largest), probe_at_(now) {}

  size_t size() const { return kSizes[index_]; }
  // The size of a probe that is due now; 0 = none.
  size_t Probe(Deadline now) const { return !in_flight_ && now >= probe_at_ ? Next() : 0; }
  // The time of the next possible probe.
  Deadline NextProbe() const { return in_flight_ || Next() == 0 ? kNoDeadline : probe_at_; }
  void OnProbeSent() { in_flight_ = true; }
  void OnProbeAcked(size_t size, Deadline now) {
    in_flight_ = false;
    if (size != Next()) return;
    ++index_;
    failed_ = lost_in_a_row_ = 0;
    probe_at_ = Next() == 0 ? now + kAgain : now;
  }
  void OnProbeLost(Deadline now) {
    in_flight_ = false;
    if (++failed_ >= kTries) GiveUp(now);
  }
  // Called if the interface does not take a datagram of this size.
  void OnTooLarge(size_t size, Deadline now) {
    if (size > this->size()) {
      in_flight_ = false;
      GiveUp(now);
    } else if (size > kUdpBaseSize) {
      OnBlackHole(now);
    }
  }
  // Reports the fate of a packet that was no probe.
  void OnAcked(uint64_t number, size_t size) {
    if (size <= kUdpBaseSize) return;
    lost_in_a_row_ = 0;
    large_acked_ = std::max(large_acked_, number);
  }
  // A packet counts as lost when a later one arrived. If that was large too, the size is not the reason.
  void OnLost(uint64_t number, size_t size, Deadline now) {
    if (size > kUdpBaseSize && number > large_acked_ && ++lost_in_a_row_ >= kBlackHole) OnBlackHole(now);
  }
  void OnBlackHole(Deadline now) {
    if (index_ == 0) return;
    index_ = 0;
    failed_ = lost_in_a_row_ = 0;
    in_flight_ = false;
    probe_at_ = now + kAfterBlackHole;
  }

 private:
  static constexpr std::array<size_t, 6> kSizes = {kUdpBaseSize, 1400, 1452, 1472, 8952, kUdpLargest};
  static constexpr int kTries = 3, kBlackHole = 10;
  static constexpr auto kAgain = std::chrono::minutes(10), kAfterBlackHole = std::chrono::minutes(1);

  // The size after the current one; 0 = none.
  size_t Next() const {
    const size_t next = index_ + 1 < kSizes.size() ? kSizes[index_ + 1] : 0;
    return next <= largest_ ? next : 0;
  }
  void GiveUp(Deadline now) {
    failed_ = 0;
    probe_at_ = now + kAgain;
  }

  size_t largest_;
  size_t index_ = 0;
  bool in_flight_ = false;
  int failed_ = 0, lost_in_a_row_ = 0;
  uint64_t large_acked_ = 0;
  Deadline probe_at_;
};

}  // namespace gyre
