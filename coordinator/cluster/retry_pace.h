// When an automatic plan is tried next, and when members that leave may give their layers away again; and whether
// members die so often that a request may be the cause. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>

#include "base/clock.h"

namespace gyre {

// Not thread-safe.
class RetryPace {
 public:
  // `pause`: after the first failure; doubles with each one more, up to `longest`.
  RetryPace(Duration pause, Duration longest) : first_(pause), longest_(longest), pause_(pause) {}

  // The time of the next automatic plan; kNoDeadline: none is tried before something happens.
  Deadline next() const { return next_; }
  void SetNext(Deadline at) { next_ = at; }
  void NotLaterThan(Deadline at) { next_ = std::min(next_, at); }
  // Members have come or gone: what failed before may be possible now.
  void MembersChanged(Deadline now) {
    next_ = now;
    pause_ = first_;
  }
  // A plan failed, and nobody is known to be at fault.
  void Failed(Deadline now) {
    next_ = now + pause_;
    pause_ = std::min(2 * pause_, longest_);
  }
  void Served() { pause_ = first_; }

  // Before this time members that leave keep their layers.
  Deadline leave_at() const { return leave_at_; }
  void MayLeave(Deadline now) { leave_at_ = now; }
  void LeaveFailed(Deadline now) { leave_at_ = now + pause_; }

  // The process of a member with layers died.
  void Crashed(Deadline now) {
    crashes_.push_back(now);
    if (crashes_.size() > kSuspiciousCrashes) crashes_.pop_front();
  }
  // Enough members died lately that a request may be the cause.
  bool Suspicious(Deadline now) const {
    return crashes_.size() >= kSuspiciousCrashes && now - crashes_.front() < kSuspiciousTime;
  }

 private:
  static constexpr size_t kSuspiciousCrashes = 2;
  static constexpr Duration kSuspiciousTime = std::chrono::minutes(10);

  const Duration first_, longest_;
  Duration pause_;
  Deadline next_{};
  Deadline leave_at_{};
  std::deque<Deadline> crashes_;
};

}  // namespace gyre
