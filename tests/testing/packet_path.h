// A way that packets take in one direction, as a model: a rate with a queue, a delay, loss, bursts of loss, reordering,
// duplicates. It has no clock and carries nothing itself: it says when what was sent arrives.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "tests/testing/draw.h"

namespace gyre::testing {

struct PacketPath {
  double bytes_per_second = 12.5e6;
  size_t queue = 1 << 20;  // bytes that wait; what comes on top is lost
  Duration delay{};
  Duration jitter{};  // a packet takes up to so much longer, and others overtake it
  double loss = 0, duplicate = 0;
  double reorder = 0;  // the share of packets that take `late` longer
  Duration late = std::chrono::milliseconds(2);
  double flip = 0;   // the share of packets that come with a wrong bit
  double burst = 0;  // how often a burst of loss begins, of all packets
  int burst_length = 0;
  size_t largest = 65507;  // bytes without those of the network's headers
};

// Not thread-safe.
class PacketQueue {
 public:
  // A packet of `bytes`, with all headers, is sent. Calls arrives(when) for each copy of it that arrives.
  template <typename Arrives>
  void Send(const PacketPath& path, size_t bytes, Deadline now, RandomBits& random, Arrives arrives) {
    const auto took = [&path](double of) {
      return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(of / path.bytes_per_second));
    };
    const Deadline begin = std::max(now, free_);
    if (std::chrono::duration<double>(begin - now).count() * path.bytes_per_second > static_cast<double>(path.queue)) {
      ++full_;
      return;
    }
    free_ = begin + took(static_cast<double>(bytes));
    carried_ += bytes;
    if (path.burst > 0 && Chance(random, path.burst)) burst_ = path.burst_length;
    if (burst_ > 0 ? burst_-- > 0 : Chance(random, path.loss)) {
      ++lost_;
      return;
    }
    for (int copies = Chance(random, path.duplicate) ? 2 : 1; copies > 0; --copies) {
      Deadline at = free_ + path.delay;
      if (path.reorder > 0 && Chance(random, path.reorder)) at += path.late;
      if (path.jitter > Duration::zero()) {
        const double part = std::uniform_real_distribution<double>(0, 1)(random);
        at += std::chrono::duration_cast<Duration>(std::chrono::duration<double>(path.jitter) * part);
      }
      arrives(at);
    }
  }
  uint64_t carried() const { return carried_; }  // bytes
  uint64_t full() const { return full_; }        // packets for which the queue had no room
  uint64_t lost() const { return lost_; }        // on the way

 private:
  Deadline free_{};  // when the last packet has left
  int burst_ = 0;    // packets of a burst that are still to be lost
  uint64_t carried_ = 0, full_ = 0, lost_ = 0;
};

}  // namespace gyre::testing
