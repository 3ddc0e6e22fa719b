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
#include "coordinator/engine/cache_reporter.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/full_logits_requests.h"
#include "coordinator/engine/grammar_guide.h"
#include "coordinator/engine/poison_prompts.h"
#include "coordinator/engine/ring_session.h"
#include "coordinator/engine/sequence.h"
#include "coordinator/engine/speculator.h"
#include "coordinator/engine/stats_board.h"
#include "transport/link_inbox.h"

namespace gyre {

class Engine::Impl {
 public:
  explicit Impl(EngineOptions options)
      : options_(std::move(options)),
        ring_(options_.step_timeout),
        cache_(options_.cache, options_.generation, options_.on_cache),
        scheduler_(std::make_unique<Scheduler>(options_.scheduler)),
        guide_({.tokenizer = options_.tokenizer,
                .vocab = options_.vocab,
                .post = [this](std::function<void()> work) { Post(std::move(work)); },
                .found = [this](SeqId seq, const Status& found, Duration took) { OnMask(seq, found, took); }}),
        speculator_({.speculation = options_.speculation,
                     .drafter = options_.drafter,
                     .draft_tokens = options_.draft_tokens,
                     .mtp = options_.mtp,
                     .vocab = options_.vocab,
                     .answered =
                         [this](SeqId seq, uint64_t question, std::vector<TokenId> drafts) {
                           Post([this, seq, question, drafts = std::move(drafts)] { OnDrafts(seq, question, drafts); });
                         }},
                    guide_) {}

  Status Start();
  void Stop();
  // Any thread.
  StatusOr<SeqId> Submit(Request request, EventSink sink);
  void Cancel(SeqId seq);
  void Hold(SeqId seq);
  void Unhold(SeqId seq);
  void Drain(std::function<void(std::vector<BlockId>)> drained);
  void Shrink(uint32_t num_blocks, bool whole);
  void Grow(uint32_t num_blocks);
  void BreakRing(Epoch epoch, const Status& why);
  RingProgress progress() const { return ring_.progress(); }
  void Resume(std::optional<Ring> ring);
  void Await(const Status& why, bool crashed, bool replicated, std::optional<Deadline> since);
  void Restore(std::optional<uint64_t> step, std::function<void(UnitList)> restored);
  void Lose(const Status& why);
  EngineStats stats() const { return board_.Read(); }
  Status CheckIntegrity();

 private:
  struct Delivery {
    std::shared_ptr<const EventSink> sink;
    SeqId seq{};
    Event event;
  };

  // Any thread.
  void Post(LinkInbox::Command command) { inbox_.Push(std::move(command)); }
  void Refuse(const Status& why);
  // Positions of a sequence at most.
  uint64_t ContextLimit() const {
    return std::min<uint64_t>(options_.context, uint64_t{num_blocks_} * options_.scheduler.block_size);
  }
  // Nothing more fits behind the sequence's tokens, and none of them may be dropped.
  bool ContextIsFull(const Sequence& s) const { return !options_.context_keep && s.tokens.size() >= ContextLimit(); }
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
  void Wait();
  Deadline NextDeadline() const;
  bool serving() const { return ring_.linked() && !draining_; }

  // Requests from their beginning to their end (engine_requests.cc).
  void OnSubmit(std::unique_ptr<Sequence> sequence);
  std::optional<FinishReason> TakeGenerated(Sequence& s, uint32_t positions, uint32_t* behind);
  void ExpireDeadlines();
  void CheckWhenIdle();
  bool CheckPools();
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
  void OnShrink(uint32_t num_blocks, bool whole);
  void ForgetCache(uint32_t num_blocks, bool whole = false);
  void OnResume(const std::optional<Ring>& ring);
  void OnAwait(const Status& why, bool crashed, bool replicated, Deadline since);
  void FailQuarantined();
  void Blame(Sequence& s, const std::string& why);
  void OnLose(const Status& why);
  void DropRing();
  void Break(const Status& why);
  void LoseFlights(const Status& why);
  void CheckSilence();
  bool OwesResults() const { return scheduler_->in_flight() > 0 || !full_logits_.empty(); }

  // Steps and questions go round the ring, tokens come of it (engine_steps.cc).
  Status SendStep(const StepPlan& plan);
  // The settings for the token behind `generated` generated ones. `only_ends`: nothing but an end may come.
  const SamplingParams& SamplingOf(Sequence& s, uint32_t generated, bool only_ends) const;
  const SamplingParams& SamplingNow(Sequence& s) const { return SamplingOf(s, s.generated(), guide_.OnlyEnds(s.id)); }
  // The rows whose answers a request wants of its prompt; bytes_each 0: none.
  static RowAnswers AnswersOf(const Request& r, const EngineOptions& options);
  void AskMtp(Sequence& s, const StepItem& item, SeqRows* rows) const;
  void AskSamples(Sequence& s, const StepItem& item, StepId step, std::vector<RowRequest>* requests);
  void SendFullLogitsRequests();
  void OnFrame(const Frame& frame);
  void NoteMtp(const LandedStep& landed, const StepAnswer& answer);
  void OnStepLanded(StepId step, const StepAnswer& answer, const StepTimes& times);
  // Fails a sequence whose step has landed without the answer that it waits for. Null: it has ended.
  void CheckAnswered(Sequence* s);
  void OnStepFailed(StepId step, const StepError& error);
  void OnAnswer(Sequence& s, const StepItem& item, const RowAnswer& answer);
  void OnSampledRow(Sequence& s, const RowAnswer& answer);
  void Ask(const Sequence& s, uint32_t position);
  void OnLogitsAnswer(const LogitsAnswer& answer);
  void SampleFrom(Sequence& s, const std::vector<float>& logits, uint32_t position);
  void Emit(Sequence& s, const Draw& draw, float raw_logit);
  void OnDrafts(SeqId seq, uint64_t question, std::vector<TokenId> drafts);
  // Tells the sink of a token. False: it ended the text.
  bool Accept(Sequence& s, const Draw& draw, float raw_logit);
  bool ShiftContext(Sequence& s);
  // Moves the window on, and the tokens that stand in it. REQUIRES: options_.context_keep, a full context.
  void ShiftWindow(Sequence& s) const;
  static std::vector<TokenId> ContextOf(const Sequence& s);
  Status CheckFull(const std::vector<float>& logits, uint32_t position) const;

  // Where the text's grammar needs a mask that is not known yet, the sequence gets no rows meanwhile.
  void Guide(Sequence& s, const Status& status);
  void OnMask(SeqId seq, const Status& found, Duration took);
  void ForceTokens(Sequence& s);
  Status SendMasks();

  // The answers for a prompt's own rows that a request asks for (engine_prompts.cc).
  void AskRows(Sequence& s, const StepItem& item, StepId step, std::vector<RowRequest>* requests);
  Status TakePromptRow(Sequence& s, const StepItem& item, const RowAnswer& answer);
  Status TakeHidden(Sequence& s, const RowAnswer& answer);
  Status EndPrompt(Sequence& s);
  void TellProgress(Sequence& s, const StepItem& item);

  const EngineOptions options_;
  std::atomic<uint32_t> num_blocks_{options_.scheduler.memory[kPageGroup]};
  std::atomic<uint64_t> accepted_{0};  // requests that have not ended

  // Owned by the loop's thread.
  RingSession ring_;
  bool draining_ = false;
  std::function<void(std::vector<BlockId>)> drained_;
  Deadline paused_since_{};        // by a drain, or by a ring that broke
  std::optional<Status> awaited_;  // why requests wait for a ring
  bool restorable_ = false;        // meanwhile the cache has what the lost ring had
  uint64_t ring_began_ = 0;        // the last step before the ring
  Deadline await_started_{};
  CacheReporter cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::optional<uint32_t> whole_blocks_;  // of the cache, where it was resized
  std::unordered_map<SeqId, std::unique_ptr<Sequence>> sequences_;
  FullLogitsRequests full_logits_;  // of running sequences' current incarnations
  size_t with_deadline_ = 0;
  bool unchecked_ = false;        // requests came since the last check of the KV bookkeeping
  bool distrusts_cache_ = false;  // blocks may be of two sequences: the next ring begins with none
  Deadline next_check_{};
  GrammarGuide guide_;
  Speculator speculator_;
  StatsBoard board_;
  EngineStats& counts_ = board_.counts;
  std::deque<LinkInbox::Command> commands_;  // that are being run
  std::vector<Delivery> events_;
  StepBatch batch_;
  std::vector<const StepItem*> order_;  // of a step's items in its frame
  std::vector<TokenId> ids_;
  Encoder encoder_;

  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> next_seq_{1};
  LinkInbox inbox_;
  PoisonPrompts poison_;
  Mutex mutex_;
  Status refusing_ GYRE_GUARDED_BY(mutex_) = Unavailable("no plan yet: the layers have no owners");
  std::thread thread_;
};

}  // namespace gyre
