// Rates over the last seconds, from counters that rise. Pure: the clock value is given.
#pragma once

#include <cstdint>
#include <deque>

#include "base/clock.h"
#include "base/member_load.h"

namespace gyre {

// Samples of one counter. Not thread-safe.
class RateWindow {
 public:
  static constexpr Duration kSpan = std::chrono::seconds(5);
  // At rising times. A counter that falls begins anew.
  void Add(Deadline at, uint64_t value);
  // Between the oldest and the newest sample of the last kSpan; 0 where there are fewer than two.
  double PerSecond(Deadline now) const;

 private:
  struct Sample {
    Deadline at;
    uint64_t value;
  };
  std::deque<Sample> samples_;
};

struct MemberRates {
  double step_ms = 0;  // mean of the steps between its last two loads; 0 = there was none
  // Over the last seconds: activations to the next stage, or, of the last stage, answers to the coordinator.
  double rows_per_second = 0, bytes_per_second = 0;
};

// The loads that one member reported. Not thread-safe.
class LoadWindow {
 public:
  void Add(Deadline at, const MemberLoad& load);
  MemberRates Rates(Deadline now) const;

 private:
  MemberLoad last_;
  double step_ms_ = 0;
  RateWindow rows_, bytes_;
};

}  // namespace gyre
