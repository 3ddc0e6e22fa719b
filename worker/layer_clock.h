// The time that a stage has spent in its present layer, compared with earlier layers: it tells a stage that is stuck
// from one that is slow.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

#include "base/clock.h"

namespace gyre {

// Begin and End on one thread, Read on any.
class LayerClock {
 public:
  void Begin(size_t rows, Deadline now = Clock::now()) {
    rows_ = rows;
    began_ = now.time_since_epoch().count();
  }
  // The layer is done, well or not; what failed is not measured.
  void End(bool well, Deadline now = Clock::now()) {
    const Duration::rep took = now.time_since_epoch().count() - began_;
    began_ = 0;
    if (!well || rows_ == 0) return;
    // The slowest counts, and is forgotten slowly: a row alone takes longer than one of many, so that the estimate for
    // many rows is on the safe side.
    const auto per_row = took / static_cast<Duration::rep>(rows_.load());
    per_row_ = std::max({per_row, per_row_ - per_row_ / 1024, Duration::rep{1}});
  }
  struct Reading {
    Duration in_layer{};  // 0: it is in none
    Duration estimate{};  // for that layer; 0: nothing was measured
  };
  Reading Read(Deadline now = Clock::now()) const {
    const Duration::rep began = began_;
    if (began == 0) return {};
    return {Duration(std::max<Duration::rep>(1, now.time_since_epoch().count() - began)),
            Duration(per_row_ * static_cast<Duration::rep>(rows_.load()))};
  }

 private:
  std::atomic<Duration::rep> began_{0};  // 0: in no layer
  std::atomic<size_t> rows_{0};
  std::atomic<Duration::rep> per_row_{0};
};

// One layer, from here to the end of its life.
class TimedLayer {
 public:
  TimedLayer(LayerClock* clock, size_t rows) : clock_(clock), exceptions_(std::uncaught_exceptions()) {
    if (clock_ != nullptr) clock_->Begin(rows);
  }
  ~TimedLayer() {
    if (clock_ != nullptr) clock_->End(std::uncaught_exceptions() == exceptions_);
  }
  TimedLayer(const TimedLayer&) = delete;
  TimedLayer& operator=(const TimedLayer&) = delete;

 private:
  LayerClock* const clock_;
  const int exceptions_;
};

}  // namespace gyre
