// The engine's counts, and the copy of them that other threads read.
#pragma once

#include <chrono>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "coordinator/engine/engine.h"

namespace gyre {

// The engine's thread owns it; only Read is for any thread.
class StatsBoard {
 public:
  EngineStats counts;  // without `sequences`

  // The list of sequences differs from the published one.
  void Stale() { stale_ = true; }
  // Whether Publish takes a new list: it is copied at most every 50 ms, as with a thousand requests it costs more than
  // a step.
  bool WantsList(Deadline now) const { return stale_ && now - listed_ >= kInterval; }
  // When Publish is to be called again for the list's sake.
  Deadline next() const { return stale_ ? listed_ + kInterval : kNoDeadline; }
  void PublishList(std::vector<SequenceStats> list, Deadline now) {
    stale_ = false;
    listed_ = now;
    MutexLock lock(&mutex_);
    published_ = counts;
    published_.sequences = std::move(list);
  }
  void Publish() {
    MutexLock lock(&mutex_);
    std::vector<SequenceStats> list = std::move(published_.sequences);
    published_ = counts;
    published_.sequences = std::move(list);
  }
  EngineStats Read() const {
    MutexLock lock(&mutex_);
    return published_;
  }

 private:
  static constexpr Duration kInterval = std::chrono::milliseconds(50);
  bool stale_ = false;
  Deadline listed_{};
  mutable Mutex mutex_;
  EngineStats published_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace gyre
