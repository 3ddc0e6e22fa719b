// The time of a simulated world. It stands still until the world lets it pass. What was put off to a moment happens
// when the world asks for it: in the order of the moments, and of equal ones in the order in which it was put off.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <utility>

#include "base/clock.h"

namespace gyre::testing {

class VirtualTime {
 public:
  explicit VirtualTime(Deadline begin = Deadline{} + std::chrono::hours(1)) : now_(begin) {}
  Deadline now() const { return now_; }
  void At(Deadline when, std::function<void()> what) { todo_.emplace(when, std::move(what)); }
  void After(Duration d, std::function<void()> what) { At(now_ + d, std::move(what)); }
  // The moment of what happens next; kNoDeadline: nothing was put off.
  Deadline next() const { return todo_.empty() ? kNoDeadline : todo_.begin()->first; }
  // It is at least `when` now. Nothing happens by that.
  void PassTo(Deadline when) { now_ = std::max(now_, when); }
  // Does the first of what is due now. False: nothing is.
  bool DoNext() {
    if (todo_.empty() || next() > now_) return false;
    const auto first = todo_.extract(todo_.begin());  // it may put off more
    first.mapped()();
    return true;
  }
  // Does all that is due now, and what that puts off to this moment.
  void DoDue() {
    while (DoNext()) {
    }
  }

 private:
  Deadline now_;
  std::multimap<Deadline, std::function<void()>> todo_;
};

}  // namespace gyre::testing
