// Requests' events on their way to readers that may be slow: bounded for each stream and for all of them. A sequence
// whose reader falls behind is held back; a reader that stands still is given up.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "coordinator/engine/engine.h"

namespace gyre {

// The functions of an engine that streams need: Engine's, or a test's. Every call is thread-safe and returns at once.
struct EngineCalls {
  std::function<StatusOr<SeqId>(Request, EventSink)> submit;
  std::function<void(SeqId)> cancel;
  // Between them no new step has a row of the sequence.
  std::function<void(SeqId)> hold, unhold;
};
EngineCalls CallsOf(Engine& engine);

struct StreamLimits {
  size_t streams = 1024;  // at once
  // Those with all logits of their prompts: each may have SchedulerOptions::sequence_answer_bytes beyond its limit.
  size_t scoring_streams = 32;
  size_t stream_bytes = size_t{4} << 20;      // above, the sequence is held back until half of it was read
  size_t total_bytes = size_t{1} << 30;       // above, a stream that is over its own limit is dropped
  Duration stall = std::chrono::seconds(60);  // a reader that takes nothing for so long is given up
};

struct StreamOptions {
  // Called when the next event is there after TryNext found none, and when the stream is dropped. On the engine's or
  // the watcher's thread; must not block.
  std::function<void()> ready = [] {};
  bool may_stall = false;  // the reader belongs to this process: it is never given up
};

class EventStreams;
class StateKeeper;

// The reader's end. One thread at a time reads; Cancel and dropped are thread-safe.
class EventStream {
 public:
  // Cancels a request that runs; one that is kept can be reattached. No call of `ready` begins afterwards.
  ~EventStream();
  // The next event; nullopt: none is there yet. After the terminal event nothing comes.
  std::optional<Event> TryNext();
  // The same, and waits for it.
  std::optional<Event> Next(Deadline deadline);
  // The request ends in Cancelled, which comes behind what is queued.
  void Cancel();
  // The reader was given up: it was too slow. TryNext gives the Failed event that says so.
  bool dropped() const;

 private:
  friend class EventStreams;
  class State;
  explicit EventStream(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State> state_;
};

// Thread-safe. The engine and the keeper outlive it and its streams; it outlives its streams.
class EventStreams {
 public:
  // keeper: null = no request is kept.
  EventStreams(EngineCalls engine, const StreamLimits& limits, StateKeeper* keeper = nullptr);
  ~EventStreams();
  // Engine::Submit's errors, and kResourceExhausted: too many streams. Nothing is read of a request that can be taken
  // up before it is stored.
  StatusOr<std::unique_ptr<EventStream>> Submit(Request request, StreamOptions options);
  // A stream of a request that is kept, by its reattach_id and tenant: all its events from the first one on. Whoever
  // read it until now gets an error: another connection has it now. StateKeeper::Reattach's errors and Submit's.
  StatusOr<std::unique_ptr<EventStream>> Reattach(const std::string& id, uint64_t tenant, StreamOptions options);
  bool keeps() const;
  size_t streams() const;
  // Bytes of all events that nobody has read yet.
  size_t queued_bytes() const;

 private:
  friend class EventStream;
  void Watch();
  StatusOr<std::unique_ptr<EventStream>> Open(Request request, StreamOptions options, uint64_t reader, bool begins);

  struct Shared;
  const std::shared_ptr<Shared> shared_;
  std::thread watcher_;
};

}  // namespace gyre
