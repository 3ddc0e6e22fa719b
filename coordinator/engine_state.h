// The engine's state. Only engine*.cc include this.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/step_codec.h"
#include "base/trace.h"
#include "coordinator/engine.h"
#include "coordinator/sequence.h"
#include "transport/link_inbox.h"

namespace gyre {

class Engine::Impl {
 public:
  explicit Impl(EngineOptions options)
      : options_(std::move(options)),
        found_(options_.cache.units),
        generation_(options_.generation),
        scheduler_(std::make_unique<Scheduler>(options_.scheduler)) {}

  void Start();
  void Stop();
  // Any thread.
  StatusOr<SeqId> Submit(Request request, EventSink sink);
  void Cancel(SeqId seq);
  void Hold(SeqId seq);
  void Unhold(SeqId seq);
  void Drain(std::function<void(std::vector<BlockId>)> drained);
  void Shrink(uint32_t num_blocks);
  void Grow(uint32_t num_blocks);
  void BreakRing(Epoch epoch, const Status& why);
  RingProgress progress() const;
  void Resume(std::optional<Ring> ring);
  void Await(const Status& why, bool crashed, bool mirrored);
  void Recall(std::optional<uint64_t> step, std::function<void(UnitList)> recalled);
  void Lose(const Status& why);
  EngineStats stats() const;
  Status CheckIntegrity();

 private:
  struct Delivery {
    std::shared_ptr<const EventSink> sink;
    SeqId seq{};
    Event event;
  };
  // Asks the last stage for the full logits of a row whose candidates did not decide the draw.
  struct OpenQuestion {
    LogitsQuestion question;
    bool sent = false;
  };

  // Any thread.
  void Post(LinkInbox::Command command) { inbox_.Push(std::move(command)); }
  void Refuse(const Status& why);
  Status CheckBlamed(const std::vector<TokenId>& prompt);
  void PostDrop(LinkInbox::Command command);
  bool SendIsVain() const;
  // Positions of a sequence at most.
  uint64_t ContextLimit() const {
    return std::min<uint64_t>(options_.context, uint64_t{num_blocks_} * options_.scheduler.block_size);
  }
  Deadline Now() const { return options_.now ? options_.now() : Clock::now(); }
  // The same moment on the clock that threads wait on.
  Deadline RealTime(Deadline d) const {
    return !options_.now || d == kNoDeadline ? d : Clock::now() + (d - options_.now());
  }

  void Trace(TraceKind kind, uint64_t id, uint32_t rows = 0) {
    if (options_.tracer == nullptr || !options_.tracer->on()) return;
    options_.tracer->Add({.kind = kind, .rows = rows, .id = id, .at = Now()});
  }

  // The loop and what it does in turn (engine.cc).
  void Loop();
  void RunCommands();
  void TakeResults();
  void Launch();
  void HandOver();
  void PublishStats();
  void PublishCache();
  void Wait();
  Deadline NextDeadline() const;
  bool serving() const { return ring_.from_last != nullptr && !draining_; }

  // Requests from their beginning to their end (engine_requests.cc).
  void OnSubmit(std::unique_ptr<Sequence> sequence);
  std::optional<FinishReason> TakeGenerated(Sequence& s, uint32_t positions, uint32_t* behind);
  void ExpireDeadlines();
  void CheckWhenIdle();
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

  // Rings that come, go and fall silent (engine_ring.cc).
  void CheckDrained();
  void OnShrink(uint32_t num_blocks);
  void ForgetCache(uint32_t num_blocks);
  void OnResume(const std::optional<Ring>& ring);
  void OnAwait(const Status& why, bool crashed, bool mirrored);
  void FailSuspects();
  void Blame(Sequence& s, const std::string& why);
  void OnLose(const Status& why);
  void DropRing();
  void Break(const Status& why);
  void LoseFlights(const Status& why);
  void CheckSilence();
  bool OwesResults() const { return scheduler_->in_flight() > 0 || !questions_.empty(); }
  // When a ring that owes results and gives none counts as broken.
  Deadline SilenceDeadline() const {
    const bool never = options_.step_timeout > kNoDeadline - quiet_since_;
    return never ? kNoDeadline : quiet_since_ + options_.step_timeout;
  }

  // Steps and questions go round the ring, tokens come of it (engine_steps.cc).
  Status SendStep(const StepPlan& plan);
  RowRequest SampleRequest(Sequence& s, const StepItem& item);
  void SendQuestions();
  void DropStaleQuestions();
  void StashResults();
  void OnFrame(const Frame& frame);
  void Came(const FrameHeader& header);  // over from_last
  void OnStepLanded(StepId step, const StepAnswer& answer, const StepTimes& times);
  void OnStepFailed(StepId step, const StepError& error);
  void OnAnswer(Sequence& s, const StepItem& item, const RowAnswer& answer);
  void Ask(const Sequence& s, uint32_t position);
  void OnLogitsAnswer(const LogitsAnswer& answer);
  void SampleFrom(Sequence& s, const std::vector<float>& logits, uint32_t position);
  void Emit(Sequence& s, const Draw& draw, float raw_logit);
  bool ShiftContext(Sequence& s);
  // Moves the window on, and the tokens that stand in it. REQUIRES: options_.context_keep, a full context.
  void ShiftWindow(Sequence& s) const;
  static std::vector<TokenId> ContextOf(const Sequence& s);
  Status CheckFull(const std::vector<float>& logits, uint32_t position) const;

  // The answers for a prompt's own rows that a request asks for (engine_prompts.cc).
  void AskRows(Sequence& s, const StepItem& item, std::vector<RowRequest>* requests);
  Status TakePromptRow(Sequence& s, const StepItem& item, const RowAnswer& answer);
  Status TakeHidden(Sequence& s, const RowAnswer& answer);
  Status EndPrompt(Sequence& s);

  const EngineOptions options_;
  std::atomic<uint32_t> num_blocks_{options_.scheduler.num_blocks};
  std::atomic<uint64_t> accepted_{0};  // requests that have not ended

  // Owned by the loop's thread.
  Ring ring_;                // without links: there is none, or it broke
  Status broke_;             // why the last ring broke; OK: it did not
  Deadline quiet_since_{};   // the last result, or the last moment when none was owed
  std::deque<Frame> stash_;  // results that came while a Send waited
  bool draining_ = false;
  std::function<void(std::vector<BlockId>)> drained_;
  Deadline drain_started_{};
  std::optional<Status> awaited_;  // why requests wait for a ring
  bool recallable_ = false;        // meanwhile the cache has what the lost ring had
  uint64_t ring_began_ = 0;        // the last step before the ring
  Deadline await_started_{};
  std::vector<CachedUnit> found_;  // of the process before, until the first ring
  uint64_t generation_;            // of the cache's index
  Deadline cache_published_{};
  std::unique_ptr<Scheduler> scheduler_;
  std::unordered_map<SeqId, std::unique_ptr<Sequence>> sequences_;
  std::map<SeqId, OpenQuestion> questions_;  // of running sequences' current incarnations
  size_t with_deadline_ = 0;
  bool unchecked_ = false;  // requests came since the last check of the KV bookkeeping
  Deadline next_check_{};
  EngineStats counts_;            // without `sequences`
  bool sequences_stale_ = false;  // snapshot_.sequences may differ from what there is
  Deadline sequences_published_{};
  std::deque<LinkInbox::Command> commands_;  // that are being run
  std::vector<Delivery> events_;
  StepBatch batch_;
  std::vector<TokenId> ids_;
  Encoder encoder_;

  std::atomic<bool> stopping_{false};
  std::atomic<int> drops_{0};  // commands that wait and drop the ring
  std::atomic<uint64_t> next_seq_{1};
  LinkInbox inbox_;
  mutable Mutex mutex_;
  // Prompts of requests that were taken to be the cause of lost rings, by their hash, and until when.
  std::deque<std::pair<uint64_t, Deadline>> blamed_prompts_ GYRE_GUARDED_BY(mutex_);
  Status refusing_ GYRE_GUARDED_BY(mutex_) = Unavailable("no plan yet: the layers have no owners");
  std::optional<Epoch> to_break_ GYRE_GUARDED_BY(mutex_);    // the ring that BreakRing means
  std::shared_ptr<Link> receiving_ GYRE_GUARDED_BY(mutex_);  // ring_.from_last
  Epoch linked_epoch_ GYRE_GUARDED_BY(mutex_);               // its epoch
  std::atomic<uint64_t> step_sent_{0}, step_came_{0};        // over this ring
  EngineStats snapshot_ GYRE_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace gyre
