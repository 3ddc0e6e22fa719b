#include "coordinator/engine.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <future>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/step_codec.h"
#include "base/wakeup.h"
#include "coordinator/sequence.h"

namespace gyre {

class Engine::Impl {
 public:
  explicit Impl(EngineOptions options)
      : options_(std::move(options)), scheduler_(std::make_unique<Scheduler>(options_.scheduler)) {}

  void Start() {
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "engine");
      // The edge of the thread: whatever escapes ends every request with a sentence instead of the process.
      try {
        Loop();
      } catch (const std::exception& e) {
        const Status why = Internal("the engine stopped: {}", e.what());
        Refuse(why);
        OnLose(why);
      }
      RunCommands();
      EndAll(Cancelled{});
      ring_ = {};
    });
  }

  void Stop() {
    stopping_ = true;
    Post([] {});
    thread_.join();
  }

  StatusOr<SeqId> Submit(Request request, EventSink sink);
  void Post(std::function<void()> command) {
    {
      MutexLock lock(&mutex_);
      commands_.push_back(std::move(command));
      // A flag and a signal, no I/O on the link.
      if (waiting_ != nullptr) waiting_->Wake();
    }
    wake_.Set();
  }
  void Drain(std::function<void(std::vector<BlockId>)> drained) {
    Post([this, drained = std::move(drained)] {
      drain_started_ = Clock::now();
      drained_ = drained;
      draining_ = true;
    });
  }
  void Shrink(uint32_t num_blocks) {
    num_blocks_ = num_blocks;
    Post([this, num_blocks] {
      for (SeqId id : scheduler_->Shrink(num_blocks)) {
        Fail(*sequences_.at(id), ResourceExhausted("the KV cache was made smaller for the workers, to {} tokens, and holds these {} no more",
                                                   uint64_t{num_blocks} * options_.scheduler.block_size, sequences_.at(id)->tokens.size()));
      }
    });
  }
  // What Submit says changes at once, so that a request after Resume is never refused.
  void Resume(std::optional<Ring> ring) {
    if (ring) Refuse(absl::OkStatus());
    Post([this, ring = std::move(ring)] { OnResume(ring); });
  }
  void Lose(const Status& why) {
    Refuse(why);
    {
      // A stage that takes nothing in must not hold the loop up in a Send.
      MutexLock lock(&mutex_);
      if (sending_ != nullptr) sending_->Close();
    }
    Post([this, why] { OnLose(why); });
  }
  void Cancel(SeqId seq) {
    Post([this, seq] {
      if (Sequence* s = Find(seq)) End(*s, Cancelled{});
    });
  }
  EngineStats stats() const {
    MutexLock lock(&mutex_);
    return snapshot_;
  }
  Status CheckIntegrity() {
    auto answer = std::make_shared<std::promise<Status>>();
    auto future = answer->get_future();
    Post([this, answer] { answer->set_value(scheduler_->CheckIntegrity()); });
    return future.get();
  }

 private:
  void Refuse(const Status& why) {
    MutexLock lock(&mutex_);
    refusing_ = why;
  }
  void Loop();
  void RunCommands();
  void TakeResults();
  void ExpireDeadlines();
  void Launch();
  void CheckDrained();
  void PublishStats();
  void Wait();
  void StashResults();
  bool serving() const { return ring_.from_last != nullptr && !draining_; }
  void OnResume(const std::optional<Ring>& ring);
  void OnLose(const Status& why);
  Deadline NextDeadline() const;

  void OnFrame(const Frame& frame);
  void OnStepLanded(StepId step, const StepAnswer& answer);
  void OnStepFailed(StepId step, const StepError& error);
  void OnLogitsAnswer(LogitsAnswer answer);
  void OnAnswer(Sequence& s, const StepItem& item, const RowAnswer& answer);
  void Ask(Sequence& s, uint32_t position);
  void Emit(Sequence& s, const Draw& draw);
  RowRequest RequestFor(Sequence& s, const StepItem& item);
  Status SendStep(const StepPlan& plan);

  Sequence* Find(SeqId seq) {
    auto it = sequences_.find(seq);
    return it == sequences_.end() ? nullptr : it->second.get();
  }
  // Events reach their sinks after the next steps have been launched, so that what a sink does costs the ring nothing.
  void Deliver(const Sequence& s, Event event) { events_.push_back({s.sink(), s.id, std::move(event)}); }
  void HandOver();
  void Finish(Sequence& s, FinishReason reason);
  void Fail(Sequence& s, const Status& status) { End(s, Failed{status}); }
  void End(Sequence& s, const Event& terminal);
  void EndAll(const Event& terminal);
  void Break(const Status& why);

  // Positions of a sequence at most.
  uint64_t Room() const { return std::min<uint64_t>(options_.context, uint64_t{num_blocks_} * options_.scheduler.block_size); }

  const EngineOptions options_;
  std::atomic<uint32_t> num_blocks_{options_.scheduler.num_blocks};

  // Owned by the loop's thread.
  Ring ring_;               // without links: there is none, or it broke
  std::deque<Frame> stash_;  // results that came while a Send waited
  bool draining_ = false;
  std::function<void(std::vector<BlockId>)> drained_;
  Deadline drain_started_{};
  std::unique_ptr<Scheduler> scheduler_;
  std::unordered_map<SeqId, std::unique_ptr<Sequence>> sequences_;
  std::unordered_map<StepId, Deadline> watchdogs_;  // only with a step timeout
  size_t with_deadline_ = 0;
  EngineStats counts_;
  struct Delivery {
    std::shared_ptr<const EventSink> sink;
    SeqId seq{};
    Event event;
  };
  std::vector<Delivery> events_;
  StepBatch batch_;
  std::vector<TokenId> ids_;
  Encoder encoder_;

  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> next_seq_{1};
  WakeUp wake_;
  mutable Mutex mutex_;
  Status refusing_ GYRE_GUARDED_BY(mutex_) = Unavailable("no plan yet: the layers have no owners");
  Link* waiting_ GYRE_GUARDED_BY(mutex_) = nullptr;  // the loop is in its Recv
  std::shared_ptr<Link> sending_ GYRE_GUARDED_BY(mutex_);  // ring_.to_first
  std::vector<std::function<void()>> commands_ GYRE_GUARDED_BY(mutex_);
  EngineStats snapshot_ GYRE_GUARDED_BY(mutex_);
  std::thread thread_;
};

// The main loop.
void Engine::Impl::Loop() {
  while (!stopping_) {
    RunCommands();
    TakeResults();
    ExpireDeadlines();
    CheckDrained();
    Launch();
    HandOver();
    PublishStats();
    Wait();
  }
}

// For a result, a command, or a deadline.
void Engine::Impl::Wait() {
  if (ring_.from_last == nullptr) {
    wake_.Wait(NextDeadline());
    return;
  }
  Deadline deadline = NextDeadline();
  {
    MutexLock lock(&mutex_);
    if (!commands_.empty()) return;
    waiting_ = ring_.from_last.get();
  }
  StatusOr<Frame> frame = ring_.from_last->Recv(deadline);
  {
    MutexLock lock(&mutex_);
    waiting_ = nullptr;
  }
  if (frame.ok()) {
    stash_.push_back(*std::move(frame));
  } else if (!absl::IsDeadlineExceeded(frame.status()) && !absl::IsCancelled(frame.status())) {
    Break(Annotate(frame.status(), "the ring"));
  }
}

// A ring whose hops all wait to send stands still, so results are taken in while a Send waits.
void Engine::Impl::StashResults() {
  for (;;) {
    StatusOr<Frame> frame = ring_.from_last->Recv(Clock::now());
    if (!frame.ok()) return;  // an end shows again in TakeResults
    stash_.push_back(*std::move(frame));
  }
}

StatusOr<SeqId> Engine::Impl::Submit(Request request, EventSink sink) {
  {
    MutexLock lock(&mutex_);
    GYRE_RETURN_IF_ERROR(refusing_);
  }
  if (request.prompt.empty()) return InvalidArgument("the prompt is empty, at least one token is needed");
  for (TokenId id : request.prompt) {
    if (id < 0 || id >= options_.vocab) {
      return InvalidArgument("token id {} of the prompt is out of range, the vocabulary has 0-{}", id,
                             options_.vocab - 1);
    }
  }
  GYRE_RETURN_IF_ERROR(request.sampling.Validate(options_.vocab));
  const uint64_t room = Room();
  if (request.prompt.size() > room) {
    return ResourceExhausted("the prompt has {} tokens, the context and the KV cache hold {}", request.prompt.size(),
                             room);
  }
  const SeqId seq{next_seq_++};
  auto s = std::make_shared<std::unique_ptr<Sequence>>(
      std::make_unique<Sequence>(seq, std::move(request), std::move(sink)));
  Post([this, s] {
    Sequence& sequence = **s;
    Status refused;
    {
      MutexLock lock(&mutex_);
      refused = refusing_;
    }
    if (!refused.ok()) return Deliver(sequence, Failed{refused});
    ++counts_.requests;
    const Request& r = sequence.request;
    const uint64_t room = Room();  // it may have shrunk meanwhile
    SequenceParams params{.tokens = sequence.tokens,
                          .max_positions = static_cast<uint32_t>(std::max<uint64_t>(
                              r.prompt.size(), std::min<uint64_t>(room, uint64_t{r.prompt.size()} + r.max_new_tokens))),
                          .needs_all_rows = r.prompt_logits,
                          .priority = r.priority,
                          .salt = options_.salt};
    const SeqId id = sequence.id;
    sequences_[id] = std::move(*s);
    if (r.deadline != kNoDeadline) ++with_deadline_;
    if (Status status = scheduler_->Add(id, std::move(params)); !status.ok()) Fail(sequence, status);
  });
  return seq;
}

void Engine::Impl::RunCommands() {
  std::vector<std::function<void()>> commands;
  {
    MutexLock lock(&mutex_);
    commands.swap(commands_);
  }
  for (auto& command : commands) command();
}

void Engine::Impl::TakeResults() {
  while (ring_.from_last != nullptr) {
    if (!stash_.empty()) {
      const Frame frame = std::move(stash_.front());
      stash_.pop_front();
      OnFrame(frame);
      continue;
    }
    StatusOr<Frame> frame = ring_.from_last->Recv(Clock::now());
    if (frame.ok()) {
      OnFrame(*frame);
    } else if (!absl::IsCancelled(frame.status())) {
      if (!absl::IsDeadlineExceeded(frame.status())) Break(Annotate(frame.status(), "the ring"));
      return;
    }
  }
}

void Engine::Impl::CheckDrained() {
  if (!draining_ || !drained_ || ring_.from_last == nullptr || scheduler_->stats().in_flight > 0) return;
  for (const auto& [id, s] : sequences_) {
    if (s->question) return;
  }
  const auto drained = std::move(drained_);
  drained_ = {};
  drained(scheduler_->LiveBlocks());
}

void Engine::Impl::OnResume(const std::optional<Ring>& ring) {
  const bool was_broken = ring_.from_last == nullptr;
  if (ring) {
    ring_ = *ring;
    stash_.clear();
    {
      MutexLock lock(&mutex_);
      sending_ = ring_.to_first;
    }
    // One more step than stages hides the coordinator's turn; a lone stage takes everything in one step.
    scheduler_->SetStages(ring->stages == 1 ? 1 : ring->stages + 1, ring->stages);
    if (was_broken) {
      scheduler_->LoseFlights();
      watchdogs_.clear();
      // What was asked is sent again with the row: its hidden state may be gone.
      for (auto& [id, s] : sequences_) {
        if (!s->question) continue;
        s->question.reset();
        s->wants_full_logits = true;
        scheduler_->Repeat(id);
      }
    }
  }
  if (draining_) {
    ++counts_.pauses;
    counts_.last_pause = Clock::now() - drain_started_;
    counts_.longest_pause = std::max(counts_.longest_pause, counts_.last_pause);
    for (const auto& [id, s] : sequences_) {
      const uint32_t positions = scheduler_->Positions(id);
      counts_.held_in_prefill += positions > 0 && scheduler_->State(id) == SeqState::kPrefill;
      counts_.held_in_partial_block += positions % options_.scheduler.block_size != 0;
    }
  }
  draining_ = false;
  drained_ = {};
}

void Engine::Impl::OnLose(const Status& why) {
  {
    MutexLock lock(&mutex_);
    sending_ = nullptr;
  }
  ring_ = {};
  stash_.clear();
  watchdogs_.clear();
  draining_ = false;
  drained_ = {};
  EndAll(Failed{why});
  scheduler_ = std::make_unique<Scheduler>(options_.scheduler);
}

void Engine::Impl::ExpireDeadlines() {
  if (with_deadline_ > 0) {
    const Deadline now = Clock::now();
    std::vector<Sequence*> late;
    for (auto& [id, s] : sequences_) {
      if (s->request.deadline <= now) late.push_back(s.get());
    }
    for (Sequence* s : late) Fail(*s, DeadlineExceeded("the request's deadline passed"));
  }
  for (const auto& [step, deadline] : watchdogs_) {
    if (deadline > Clock::now()) continue;
    Break(Unavailable("step {} did not come back round the ring in time", static_cast<uint64_t>(step)));
    break;
  }
}

void Engine::Impl::Launch() {
  while (serving()) {
    std::optional<StepPlan> plan = scheduler_->Next();
    if (!plan) return;
    if (Status status = SendStep(*plan); !status.ok()) Break(Annotate(status, "the ring"));
  }
}

Deadline Engine::Impl::NextDeadline() const {
  Deadline next = kNoDeadline;
  if (with_deadline_ > 0) {
    for (const auto& [id, s] : sequences_) next = std::min(next, s->request.deadline);
  }
  for (const auto& [step, deadline] : watchdogs_) next = std::min(next, deadline);
  return next;
}

void Engine::Impl::PublishStats() {
  counts_.scheduler = scheduler_->stats();
  counts_.sequences.clear();
  for (const auto& [id, s] : sequences_) {
    counts_.sequences.push_back({.id = id,
                                 .state = scheduler_->State(id).value_or(SeqState::kWaiting),
                                 .prompt = static_cast<uint32_t>(s->request.prompt.size()),
                                 .generated = s->generated()});
  }
  MutexLock lock(&mutex_);
  snapshot_ = counts_;
}

RowRequest Engine::Impl::RequestFor(Sequence& s, const StepItem& item) {
  if (s.request.prompt_logits && item.row_class == RowClass::kPrompt) {
    return {.first = 0, .count = item.count, .mode = RowMode::kFullLogits, .touched = {}, .mask = {}};
  }
  RowRequest request;
  if (options_.candidates_path && !s.wants_full_logits) {
    request = MakeRowRequest(s.request.sampling, s.History(), {}, options_.candidates);
  } else {
    request.mode = RowMode::kFullLogits;
  }
  request.first = item.count - 1;
  request.count = 1;
  s.row_request = request;
  return request;
}

Status Engine::Impl::SendStep(const StepPlan& plan) {
  batch_.seqs.clear();
  ids_.clear();
  for (const StepItem& item : plan.items) {
    Sequence* s = Find(item.seq);
    if (s == nullptr) return Internal("step {} names an unknown sequence", static_cast<uint64_t>(plan.step));
    SeqRows rows{.seq = item.seq,
                 .incarnation = item.incarnation,
                 .model = options_.model,
                 .adapter = 0,
                 .row_class = item.row_class,
                 .first_position = item.first_position,
                 .row_count = item.count,
                 .blocks = {item.blocks},
                 .requests = {}};
    if (item.sample_last || (s->request.prompt_logits && item.row_class == RowClass::kPrompt)) {
      rows.requests.push_back(RequestFor(*s, item));
    }
    const auto first = s->tokens.begin() + item.first_position;
    ids_.insert(ids_.end(), first, first + item.count);
    batch_.seqs.push_back(std::move(rows));
  }
  if (options_.step_timeout != Duration::max()) watchdogs_[plan.step] = After(options_.step_timeout);
  encoder_.Reset();
  EncodeStepPrefix(batch_, &encoder_);
  const ByteSpan parts[] = {encoder_.bytes(), std::as_bytes(std::span(ids_))};
  return ring_.to_first->Send({.kind = FrameKind::kTokens,
                               .dtype = WireType::kI32,
                               .epoch = ring_.epoch,
                               .step = plan.step,
                               .rows = static_cast<uint32_t>(ids_.size())},
                              parts, kNoDeadline, [this] { StashResults(); });
}

void Engine::Impl::OnFrame(const Frame& frame) {
  const FrameHeader& h = frame.header;
  if (h.epoch != ring_.epoch) {
    ++counts_.discarded_results;
    return;
  }
  switch (h.kind) {
    case FrameKind::kAnswer: {
      StatusOr<StepAnswer> answer = DecodeStepAnswer(frame.payload);
      if (!answer.ok()) return Break(Annotate(answer.status(), "an answer of the last stage"));
      return OnStepLanded(h.step, *answer);
    }
    case FrameKind::kStepError: {
      StatusOr<StepError> error = DecodeStepError(frame.payload);
      if (!error.ok()) return Break(Annotate(error.status(), "a step error"));
      return OnStepFailed(h.step, *error);
    }
    case FrameKind::kLogitsAnswer: {
      StatusOr<LogitsAnswer> answer = DecodeLogitsAnswer(frame.payload);
      if (!answer.ok()) return Break(Annotate(answer.status(), "a logits answer"));
      return OnLogitsAnswer(*std::move(answer));
    }
    default:
      return Break(DataLoss("the last stage sent a frame of kind {}, which is no answer", static_cast<int>(h.kind)));
  }
}

void Engine::Impl::OnStepLanded(StepId step, const StepAnswer& answer) {
  watchdogs_.erase(step);
  const LandedStep landed = scheduler_->Land(step, true);
  // Answers stand in the order of the step's items; an item whose rows were only computed has none.
  auto next = answer.rows.begin();
  for (const StepItem& item : landed.valid) {
    auto row = std::find_if(next, answer.rows.end(), [&item](const RowAnswer& r) { return r.seq == item.seq; });
    bool sampled = false;
    for (; row != answer.rows.end() && row->seq == item.seq; next = ++row) {
      Sequence* s = Find(item.seq);
      if (s == nullptr) continue;
      sampled |= row->position == item.first_position + item.count - 1;
      OnAnswer(*s, item, *row);
    }
    if (Sequence* s = Find(item.seq); s != nullptr && item.sample_last && !sampled) {
      Fail(*s, Internal("the last stage gave no answer for position {}", item.first_position + item.count - 1));
    }
  }
}

void Engine::Impl::OnStepFailed(StepId step, const StepError& error) {
  ++counts_.step_errors;
  watchdogs_.erase(step);
  Log(LogLevel::kWarn, "stage {} failed step {}: {}", error.stage, static_cast<uint64_t>(step), error.message);
  for (SeqId seq : scheduler_->Land(step, false).failed) {
    if (Sequence* s = Find(seq)) Fail(*s, Internal("stage {} failed repeatedly: {}", error.stage, error.message));
  }
}

void Engine::Impl::OnAnswer(Sequence& s, const StepItem& item, const RowAnswer& answer) {
  const bool last = item.sample_last && answer.position == item.first_position + item.count - 1;
  if (s.request.prompt_logits && item.row_class == RowClass::kPrompt && answer.position == s.scored) {
    ++s.scored;
    Deliver(s, LogitsEvent{.position = answer.position, .logits = answer.values});
  }
  if (!last) return;
  if (s.request.max_new_tokens == 0) return Finish(s, FinishReason::kLength);
  if (answer.mode == RowMode::kFullLogits) {
    s.wants_full_logits = false;
    StatusOr<Draw> draw = SampleFull(s.request.sampling, s.History(), {}, answer.values, answer.position);
    return draw.ok() ? Emit(s, *draw) : Fail(s, draw.status());
  }
  StatusOr<std::optional<Draw>> draw =
      SampleCandidates(s.request.sampling, s.History(), s.row_request, answer, options_.vocab);
  if (!draw.ok()) return Fail(s, draw.status());
  return draw->has_value() ? Emit(s, **draw) : Ask(s, answer.position);
}

void Engine::Impl::Ask(Sequence& s, uint32_t position) {
  ++counts_.full_logits_questions;
  s.question = LogitsQuestion{.seq = s.id,
                              .incarnation = scheduler_->Incarnation(s.id),
                              .model = options_.model,
                              .position = position};
  encoder_.Reset();
  EncodeLogitsQuestion(*s.question, &encoder_);
  const ByteSpan parts[] = {encoder_.bytes()};
  Status status = ring_.to_first->Send({.kind = FrameKind::kLogitsQuestion, .epoch = ring_.epoch}, parts,
                                       kNoDeadline, [this] { StashResults(); });
  if (!status.ok()) Break(Annotate(status, "the ring"));
}

void Engine::Impl::OnLogitsAnswer(LogitsAnswer answer) {
  Sequence* s = Find(answer.question.seq);
  // Of a sequence that ended or was preempted meanwhile: its replay samples the row again.
  if (s == nullptr || s->question != answer.question ||
      scheduler_->Incarnation(answer.question.seq) != answer.question.incarnation) {
    ++counts_.discarded_results;
    return;
  }
  s->question.reset();
  if (answer.logits.empty()) {
    s->wants_full_logits = true;
    scheduler_->Repeat(s->id);
    return;
  }
  StatusOr<Draw> draw =
      SampleFull(s->request.sampling, s->History(), {}, answer.logits, answer.question.position);
  return draw.ok() ? Emit(*s, *draw) : Fail(*s, draw.status());
}

void Engine::Impl::Emit(Sequence& s, const Draw& draw) {
  ++counts_.tokens_generated;
  const Sequence::Accepted accepted = s.Accept(draw, options_.tokenizer);
  Deliver(s, TokenEvent{.token = draw.token, .probability = draw.probability, .text = accepted.text});
  if (accepted.stopped) return Finish(s, FinishReason::kStop);
  if (s.generated() >= s.request.max_new_tokens) return Finish(s, FinishReason::kLength);
  if (!scheduler_->Append(s.id, draw.token).ok()) Finish(s, FinishReason::kLength);
}

void Engine::Impl::Finish(Sequence& s, FinishReason reason) {
  ++counts_.finished;
  End(s, s.MakeFinished(reason, scheduler_->CachedPositions(s.id)));
}

void Engine::Impl::End(Sequence& s, const Event& terminal) {
  if (std::holds_alternative<Failed>(terminal)) ++counts_.failed;
  if (std::holds_alternative<Cancelled>(terminal)) ++counts_.cancelled;
  if (s.request.deadline != kNoDeadline) --with_deadline_;
  scheduler_->Remove(s.id);
  const auto node = sequences_.extract(s.id);  // `s` lives to the end of this function
  Deliver(s, terminal);
}

void Engine::Impl::EndAll(const Event& terminal) {
  while (!sequences_.empty()) End(*sequences_.begin()->second, terminal);
  HandOver();
  PublishStats();
}

void Engine::Impl::HandOver() {
  // A sink may not call back into this thread's work, only post to it.
  for (Delivery& d : events_) (*d.sink)(d.seq, d.event);
  events_.clear();
}

void Engine::Impl::Break(const Status& why) {
  if (ring_.from_last == nullptr) return;
  Log(LogLevel::kWarn, "plan {}: {}", ring_.epoch.number, Message(why));
  const Epoch epoch = ring_.epoch;
  ring_.to_first->Close();
  ring_.from_last->Close();
  ring_.to_first = ring_.from_last = nullptr;
  stash_.clear();
  watchdogs_.clear();
  if (options_.on_broken) {
    options_.on_broken(epoch, why);
  } else {
    Refuse(why);
    OnLose(why);
  }
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() { impl_->Stop(); }

StatusOr<std::unique_ptr<Engine>> Engine::Start(EngineOptions options) {
  if (options.vocab <= 0 || options.context == 0) {
    return InvalidArgument("the engine needs a vocabulary and a context, got {} and {}", options.vocab,
                           options.context);
  }
  if (options.scheduler.num_blocks == 0 || options.scheduler.block_size == 0) {
    return InvalidArgument("the engine needs KV blocks, got {} of {} positions", options.scheduler.num_blocks,
                           options.scheduler.block_size);
  }
  auto impl = std::make_unique<Impl>(std::move(options));
  impl->Start();
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

StatusOr<SeqId> Engine::Submit(Request request, EventSink sink) {
  return impl_->Submit(std::move(request), std::move(sink));
}
void Engine::Cancel(SeqId seq) { impl_->Cancel(seq); }
void Engine::Drain(std::function<void(std::vector<BlockId>)> drained) { impl_->Drain(std::move(drained)); }
void Engine::Shrink(uint32_t num_blocks) { impl_->Shrink(num_blocks); }
void Engine::Resume(std::optional<Ring> ring) { impl_->Resume(std::move(ring)); }
void Engine::Lose(const Status& why) { impl_->Lose(why); }
EngineStats Engine::stats() const { return impl_->stats(); }
Status Engine::CheckIntegrity() { return impl_->CheckIntegrity(); }

}  // namespace gyre
