// A fake engine that records a service's calls; the test sends the events.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "coordinator/service/event_stream.h"

namespace gyre::testing {

// Thread-safe. Outlives the sinks that it got.
class FakeEngine {
 public:
  EngineCalls Calls() {
    return {.submit = [this](Request r, EventSink sink) -> StatusOr<SeqId> {
              std::lock_guard lock(mutex_);
              if (!refusal.ok()) return refusal;
              const SeqId id{++last_};
              requests_.push_back(std::move(r));
              sinks_[id] = std::move(sink);
              return id;
            },
            .cancel =
                [this](SeqId id) {
                  std::lock_guard lock(mutex_);
                  cancelled_.insert(id);
                },
            .hold = [this](SeqId id) { Mark(id, true); },
            .unhold = [this](SeqId id) { Mark(id, false); }};
  }
  // Sends an event as the engine's thread does, to the nth submitted request, from 1.
  void Send(uint64_t n, const Event& event) {
    EventSink sink;
    {
      std::lock_guard lock(mutex_);
      sink = sinks_.at(SeqId{n});
    }
    sink(SeqId{n}, event);
  }
  std::vector<Request> requests() {
    std::lock_guard lock(mutex_);
    return requests_;
  }
  bool cancelled(uint64_t n) {
    std::lock_guard lock(mutex_);
    return cancelled_.count(SeqId{n}) > 0;
  }
  bool held(uint64_t n) {
    std::lock_guard lock(mutex_);
    return held_.count(SeqId{n}) > 0;
  }
  Status refusal;  // what every Submit answers; set before calls

 private:
  void Mark(SeqId id, bool held) {
    std::lock_guard lock(mutex_);
    if (held) {
      held_.insert(id);
    } else {
      held_.erase(id);
    }
  }

  std::mutex mutex_;
  uint64_t last_ = 0;
  std::vector<Request> requests_;
  std::map<SeqId, EventSink> sinks_;
  std::set<SeqId> cancelled_, held_;
};

}  // namespace gyre::testing
