// Events for traces: a ring buffer of small events that costs one atomic read while nobody traces.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace gyre {

enum class TraceKind : uint8_t {
  kStepLaunched,  // id: the step
  kStepLanded,
  kStepFailed,
  kRequestCame,      // id: the sequence
  kRequestBegan,     // its first rows were launched
  kRequestAnswered,  // its first token
  kRequestEnded,
  kStageStep,  // id: the step, computed by a member of the cluster; `at` is when it was taken up
};

struct TraceEvent {
  TraceKind kind{};
  uint32_t rows = 0;  // of a step that is launched or computed
  uint64_t id = 0;
  Deadline at{};
  // These are for kStageStep only.
  uint32_t member = 0, stage = 0;  // member: its place among Session::Members
  bool last = false;               // it was the last stage of its plan
  Duration computed{}, sent{};     // since `at`: the step was computed; it was handed to the link
};

// A step on a stage, by the clock of the stage's machine.
struct StageSpan {
  uint64_t step = 0;
  uint32_t stage = 0, rows = 0;
  bool last = false;
  Deadline began{};
  Duration computed{}, sent{};  // as in TraceEvent
  bool operator==(const StageSpan&) const = default;
};

struct TraceMember {
  std::string name;
  Duration clock_error{};  // its times may be wrong by so much
};

// Thread-safe. Keeps the last `capacity` events.
class Tracer {
 public:
  explicit Tracer(size_t capacity = size_t{1} << 16) : capacity_(capacity) {}

  bool on() const { return sessions_.load(std::memory_order_relaxed) > 0; }
  // Does nothing while tracing is off. Allocates nothing.
  void Add(const TraceEvent& event);
  // Adds a member's computed steps, by this machine's clock up to `clock_error`.
  void AddSpans(const std::string& member, const std::vector<StageSpan>& spans, Duration clock_error);

  // Events are recorded while a session exists. The tracer outlives it.
  class Session {
   public:
    explicit Session(Tracer& tracer);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    // The session's events, oldest first, as far as the buffer still has them.
    std::vector<TraceEvent> Events() const;
    // The members whose spans were added, in the order of their first spans.
    std::vector<TraceMember> Members() const;

   private:
    Tracer& tracer_;
    uint64_t from_ = 0;
  };

 private:
  const size_t capacity_;
  std::atomic<int> sessions_{0};
  mutable Mutex mutex_;
  std::vector<TraceEvent> events_
      GYRE_GUARDED_BY(mutex_);                  // event n is at n % capacity_; empty before the first session
  uint64_t count_ GYRE_GUARDED_BY(mutex_) = 0;  // events that were ever added
  std::vector<TraceMember> members_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace gyre
