// The offset of another machine's steady clock, from questions that it answers (Cristian 1989). Pure.
#pragma once

#include <optional>

#include "base/clock.h"

namespace gyre {

// Not thread-safe.
class ClockOffset {
 public:
  // A question left at `asked`, was answered at `answered` of the other clock, and the answer came at `came`. The other
  // machine answered somewhere in between, so half of the round trip is the error at most. The shortest round trip of
  // the last seconds counts: an older one is worth little, as clocks run apart by some 0.05 ms a second.
  void Add(Deadline asked, Deadline answered, Deadline came) {
    constexpr Duration kAge = std::chrono::seconds(2);
    const Duration half = (came - asked) / 2;
    if (half < Duration::zero()) return;  // no answer to a question of ours
    if (came_ && half > error_ && came - *came_ < kAge) return;
    offset_ = answered - (asked + half);
    error_ = half;
    came_ = came;
  }
  Duration offset() const { return offset_; }
  Duration error() const { return error_; }

 private:
  Duration offset_{}, error_{};
  std::optional<Deadline> came_;
};

}  // namespace gyre
