// The index of the KV cache as it outlives this process: what the process before had, and what changes
// (docs/restart.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "coordinator/engine/cache_index.h"
#include "coordinator/engine/scheduler.h"

namespace gyre {

// Not thread-safe: the engine's loop owns it.
class CacheReporter {
 public:
  // `report`: empty if nobody keeps the index. `generation`: of the index that this process begins.
  CacheReporter(CacheIndex found, uint64_t generation, std::function<void(CacheNews)> report)
      : found_(std::move(found)), generation_(generation), report_(std::move(report)) {}

  // The index of the process before, once: from then on this process goes on with it. Empty: there is none, or it was
  // void.
  std::vector<CachedUnit> TakeFound() {
    if (!found_.units.empty()) generation_ = found_.generation;
    return std::exchange(found_.units, {});
  }
  bool has_found() const { return !found_.units.empty(); }
  // The units of the process before mean nothing any more.
  void DropFound() { found_.units.clear(); }
  // All that was reported is void.
  void BeginAnew() { ++generation_; }

  // When Report has something to do; kNoDeadline: nothing has changed.
  Deadline next(const Scheduler& scheduler) const {
    return report_ && scheduler.cache_changed() ? reported_ + kInterval : kNoDeadline;
  }
  void Report(Scheduler* scheduler, Deadline now) {
    constexpr size_t kMost = 1024;
    if (now < next(*scheduler)) return;
    reported_ = now;
    report_({.generation = generation_, .changes = scheduler->TakeCacheChanges(kMost)});
  }

 private:
  static constexpr Duration kInterval = std::chrono::milliseconds(50);
  CacheIndex found_;
  uint64_t generation_;
  const std::function<void(CacheNews)> report_;
  Deadline reported_{};
};

}  // namespace gyre
