#include "coordinator/engine.h"

#include <pthread.h>

#include <algorithm>
#include <future>
#include <utility>

#include "base/log.h"
#include "coordinator/engine_state.h"

namespace gyre {

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

void Engine::Impl::CheckDrained() {
  if (!draining_ || !drained_ || ring_.from_last == nullptr || scheduler_->stats().in_flight > 0) return;
  for (const auto& [id, s] : sequences_) {
    if (s->question) return;
  }
  const auto drained = std::move(drained_);
  drained_ = {};
  drained(scheduler_->LiveBlocks());
}

void Engine::Impl::Launch() {
  while (serving()) {
    std::optional<StepPlan> plan = scheduler_->Next();
    if (!plan) return;
    if (Status status = SendStep(*plan); !status.ok()) Break(Annotate(status, "the ring"));
  }
}

void Engine::Impl::HandOver() {
  // A sink may not call back into this thread's work, only post to it.
  for (Delivery& d : events_) (*d.sink)(d.seq, d.event);
  events_.clear();
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

Deadline Engine::Impl::NextDeadline() const {
  Deadline next = kNoDeadline;
  if (with_deadline_ > 0) {
    for (const auto& [id, s] : sequences_) next = std::min(next, s->request.deadline);
  }
  for (const auto& [step, deadline] : watchdogs_) next = std::min(next, deadline);
  return next;
}

void Engine::Impl::Start() {
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

void Engine::Impl::Stop() {
  stopping_ = true;
  Post([] {});
  thread_.join();
}

void Engine::Impl::Post(std::function<void()> command) {
  {
    MutexLock lock(&mutex_);
    commands_.push_back(std::move(command));
    // A flag and a signal, no I/O on the link.
    if (waiting_ != nullptr) waiting_->Wake();
  }
  wake_.Set();
}

void Engine::Impl::Refuse(const Status& why) {
  MutexLock lock(&mutex_);
  refusing_ = why;
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
  auto s =
      std::make_shared<std::unique_ptr<Sequence>>(std::make_unique<Sequence>(seq, std::move(request), std::move(sink)));
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

void Engine::Impl::Cancel(SeqId seq) {
  Post([this, seq] {
    if (Sequence* s = Find(seq)) End(*s, Cancelled{});
  });
}

void Engine::Impl::Drain(std::function<void(std::vector<BlockId>)> drained) {
  Post([this, drained = std::move(drained)] {
    drain_started_ = Clock::now();
    drained_ = drained;
    draining_ = true;
  });
}

void Engine::Impl::Shrink(uint32_t num_blocks) {
  num_blocks_ = num_blocks;
  Post([this, num_blocks] {
    for (SeqId id : scheduler_->Shrink(num_blocks)) {
      Fail(*sequences_.at(id),
           ResourceExhausted("the KV cache was made smaller for the workers, to {} tokens, and holds these {} no more",
                             uint64_t{num_blocks} * options_.scheduler.block_size, sequences_.at(id)->tokens.size()));
    }
  });
}

// What Submit says changes at once, so that a request after Resume is never refused.
void Engine::Impl::Resume(std::optional<Ring> ring) {
  if (ring) Refuse(absl::OkStatus());
  Post([this, ring = std::move(ring)] { OnResume(ring); });
}

void Engine::Impl::Lose(const Status& why) {
  Refuse(why);
  {
    // A stage that takes nothing in must not hold the loop up in a Send.
    MutexLock lock(&mutex_);
    if (sending_ != nullptr) sending_->Close();
  }
  Post([this, why] { OnLose(why); });
}

EngineStats Engine::Impl::stats() const {
  MutexLock lock(&mutex_);
  return snapshot_;
}

Status Engine::Impl::CheckIntegrity() {
  auto answer = std::make_shared<std::promise<Status>>();
  auto future = answer->get_future();
  Post([this, answer] { answer->set_value(scheduler_->CheckIntegrity()); });
  return future.get();
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
    scheduler_->SetRing(ring->stages == 1 ? 1 : ring->stages + 1, ring->stages, ring->prefill_matches_decode);
    if (was_broken) {
      scheduler_->LoseFlights(true);
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
