// What the engine keeps. For engine*.cc only.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/step_codec.h"
#include "base/wakeup.h"
#include "coordinator/engine.h"
#include "coordinator/sequence.h"

namespace gyre {

class Engine::Impl {
 public:
  explicit Impl(EngineOptions options)
      : options_(std::move(options)), scheduler_(std::make_unique<Scheduler>(options_.scheduler)) {}

  void Start();
  void Stop();
  // Any thread.
  StatusOr<SeqId> Submit(Request request, EventSink sink);
  void Cancel(SeqId seq);
  void Drain(std::function<void(std::vector<BlockId>)> drained);
  void Shrink(uint32_t num_blocks);
  void Resume(std::optional<Ring> ring);
  void Lose(const Status& why);
  EngineStats stats() const;
  Status CheckIntegrity();

 private:
  struct Delivery {
    std::shared_ptr<const EventSink> sink;
    SeqId seq{};
    Event event;
  };

  // Any thread.
  void Post(std::function<void()> command);
  void Refuse(const Status& why);
  // Positions of a sequence at most.
  uint64_t Room() const {
    return std::min<uint64_t>(options_.context, uint64_t{num_blocks_} * options_.scheduler.block_size);
  }

  // The loop and what it does in turn (engine.cc).
  void Loop();
  void RunCommands();
  void TakeResults();
  void ExpireDeadlines();
  void CheckDrained();
  void Launch();
  void HandOver();
  void PublishStats();
  void Wait();
  Deadline NextDeadline() const;
  bool serving() const { return ring_.from_last != nullptr && !draining_; }

  // Rings that come and go, sequences that end (engine.cc).
  void OnResume(const std::optional<Ring>& ring);
  void OnLose(const Status& why);
  void Break(const Status& why);
  Sequence* Find(SeqId seq) {
    auto it = sequences_.find(seq);
    return it == sequences_.end() ? nullptr : it->second.get();
  }
  // Events reach their sinks after the next steps have been launched, so that what a sink does costs the ring nothing.
  void Deliver(const Sequence& s, Event event) { events_.push_back({s.sink(), s.id, std::move(event)}); }
  void Finish(Sequence& s, FinishReason reason);
  void Fail(Sequence& s, const Status& status) { End(s, Failed{status}); }
  void End(Sequence& s, const Event& terminal);
  void EndAll(const Event& terminal);

  // Steps and questions go round the ring, tokens come of it (engine_steps.cc).
  Status SendStep(const StepPlan& plan);
  RowRequest RequestFor(Sequence& s, const StepItem& item);
  void StashResults();
  void OnFrame(const Frame& frame);
  void OnStepLanded(StepId step, const StepAnswer& answer);
  void OnStepFailed(StepId step, const StepError& error);
  void OnAnswer(Sequence& s, const StepItem& item, const RowAnswer& answer);
  void Ask(Sequence& s, uint32_t position);
  void OnLogitsAnswer(LogitsAnswer answer);
  void Emit(Sequence& s, const Draw& draw);

  const EngineOptions options_;
  std::atomic<uint32_t> num_blocks_{options_.scheduler.num_blocks};

  // Owned by the loop's thread.
  Ring ring_;                // without links: there is none, or it broke
  std::deque<Frame> stash_;  // results that came while a Send waited
  bool draining_ = false;
  std::function<void(std::vector<BlockId>)> drained_;
  Deadline drain_started_{};
  std::unique_ptr<Scheduler> scheduler_;
  std::unordered_map<SeqId, std::unique_ptr<Sequence>> sequences_;
  std::unordered_map<StepId, Deadline> watchdogs_;  // only with a step timeout
  size_t with_deadline_ = 0;
  EngineStats counts_;
  std::vector<Delivery> events_;
  StepBatch batch_;
  std::vector<TokenId> ids_;
  Encoder encoder_;

  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> next_seq_{1};
  WakeUp wake_;
  mutable Mutex mutex_;
  Status refusing_ GYRE_GUARDED_BY(mutex_) = Unavailable("no plan yet: the layers have no owners");
  Link* waiting_ GYRE_GUARDED_BY(mutex_) = nullptr;        // the loop is in its Recv
  std::shared_ptr<Link> sending_ GYRE_GUARDED_BY(mutex_);  // ring_.to_first
  std::vector<std::function<void()>> commands_ GYRE_GUARDED_BY(mutex_);
  EngineStats snapshot_ GYRE_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace gyre
