// What a stage tells about the steps that it has computed: their times, the share of the time that they take, and the
// trace of those since it was last asked for one. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/histogram.h"
#include "base/mutex.h"
#include "base/stage_control.h"
#include "base/trace.h"

namespace gyre {

class StepRecord {
 public:
  // A step has been computed in this time, and its result is sent now.
  void AddBusy(Duration computed) {
    busy_ns_ += static_cast<uint64_t>(std::chrono::nanoseconds(computed).count());
    ++steps_;
  }
  // Its result has been sent.
  void Add(const StageSpan& span);

  uint64_t steps() const { return steps_; }
  Duration busy() const { return std::chrono::nanoseconds(busy_ns_.load()); }
  // Returns the share of the time since the last call that computing took.
  double TakeBusyShare();
  LatencyHistogram times();
  // The spans since the last call; they are recorded for some seconds more.
  StageTrace TakeTrace(Deadline asked);

 private:
  std::atomic<uint64_t> steps_{0}, busy_ns_{0};
  Mutex mutex_;
  LatencyHistogram times_ GYRE_GUARDED_BY(mutex_);
  std::vector<StageSpan> spans_ GYRE_GUARDED_BY(mutex_);  // since the last TakeTrace
  Deadline trace_until_ GYRE_GUARDED_BY(mutex_) = Deadline::min();
  Duration shown_busy_ GYRE_GUARDED_BY(mutex_){};
  Deadline shown_at_ GYRE_GUARDED_BY(mutex_) = Clock::now();
};

}  // namespace gyre
