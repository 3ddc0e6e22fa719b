#include "coordinator/engine.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <utility>

#include "base/log.h"
#include "coordinator/engine_state.h"

namespace gyre {
namespace {

// The list of sequences is copied no more often than this: with a thousand requests it costs more than a step.
constexpr Duration kListInterval = std::chrono::milliseconds(50);

}  // namespace

// The main loop.
void Engine::Impl::Loop() {
  for (;;) {
    RunCommands();
    if (stopping_) return;  // the command that ends a wait has run, so nothing would end the next one
    TakeResults();
    ExpireDeadlines();
    CheckSilence();
    SendQuestions();
    CheckWhenIdle();
    CheckDrained();
    Launch();
    HandOver();
    PublishStats();
    PublishCache();
    Wait();
  }
}

void Engine::Impl::RunCommands() {
  inbox_.TakeAll(&commands_);
  sequences_stale_ |= !commands_.empty();
  for (auto& command : commands_) command();
  commands_.clear();
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

void Engine::Impl::Launch() {
  while (serving()) {
    std::optional<StepPlan> plan = scheduler_->Next(Now());
    DropStaleQuestions();  // of sequences that were preempted for the step
    if (!plan) return;
    sequences_stale_ = true;
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
  std::vector<SequenceStats> list;
  const Deadline now = Clock::now();
  const bool lists = sequences_stale_ && now - sequences_published_ >= kListInterval;
  if (lists) {
    list.reserve(sequences_.size());
    for (const auto& [id, s] : sequences_) {
      list.push_back({.id = id,
                      .state = scheduler_->State(id).value_or(SeqState::kWaiting),
                      .prompt = static_cast<uint32_t>(s->request.prompt.size()),
                      .generated = s->generated()});
    }
    sequences_stale_ = false;
    sequences_published_ = now;
  }
  MutexLock lock(&mutex_);
  if (!lists) list.swap(snapshot_.sequences);
  snapshot_ = counts_;
  snapshot_.sequences.swap(list);
}

// Before there is a ring, the index is that of the process before.
void Engine::Impl::PublishCache() {
  constexpr size_t kMost = 1024;
  if (!options_.on_cache || awaited_ || !scheduler_->cache_changed()) return;
  const Deadline now = Clock::now();
  if (now - cache_published_ < kListInterval) return;
  cache_published_ = now;
  options_.on_cache({.generation = generation_, .changes = scheduler_->TakeCacheChanges(kMost)});
}

// For a result, a command, or a deadline.
void Engine::Impl::Wait() {
  Deadline deadline = RealTime(NextDeadline());
  if (sequences_stale_) deadline = std::min(deadline, sequences_published_ + kListInterval);
  if (options_.on_cache && !awaited_ && scheduler_->cache_changed()) {
    deadline = std::min(deadline, cache_published_ + kListInterval);
  }
  if (ring_.from_last == nullptr) {
    inbox_.Wait(deadline);
    return;
  }
  StatusOr<Frame> frame = inbox_.Recv(*ring_.from_last, deadline, LinkInbox::IfCommands::kReturn);
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
  if (unchecked_ && scheduler_->idle()) next = std::min(next, next_check_);
  if (ring_.from_last != nullptr && OwesResults()) next = std::min(next, SilenceDeadline());
  return next;
}

void Engine::Impl::Start() {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "engine");
    // The edge of the thread: without it the process would look alive and answer nobody.
    try {
      Loop();
      RunCommands();
      EndAll(Cancelled{});
    } catch (const std::exception& e) {
      Log(LogLevel::kError, "the engine's thread failed, so this process ends: {}", e.what());
      std::abort();
    }
    ring_ = {};
  });
}

void Engine::Impl::Stop() {
  stopping_ = true;
  Post([] {});
  thread_.join();
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

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() { impl_->Stop(); }

StatusOr<std::unique_ptr<Engine>> Engine::Start(EngineOptions options) {
  if (options.vocab <= 0 || options.context == 0) {
    return InvalidArgument("the engine needs a vocabulary and a context, got {} and {}", options.vocab,
                           options.context);
  }
  const SchedulerOptions& o = options.scheduler;
  if (o.window_blocks > 0 && (o.window == 0 || o.window_blocks < std::min(o.num_blocks, o.window / o.block_size + 2))) {
    return InvalidArgument("a window of {} positions can't go on with {} blocks of {}", o.window, o.window_blocks,
                           o.block_size);
  }
  if (options.scheduler.num_blocks == 0 || options.scheduler.block_size == 0) {
    return InvalidArgument("the engine needs KV blocks, got {} of {} positions", options.scheduler.num_blocks,
                           options.scheduler.block_size);
  }
  if (options.step_timeout <= Duration::zero()) {
    return InvalidArgument("the engine needs a step timeout above 0, got {} ns", options.step_timeout.count());
  }
  auto impl = std::make_unique<Impl>(std::move(options));
  impl->Start();
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

StatusOr<SeqId> Engine::Submit(Request request, EventSink sink) {
  return impl_->Submit(std::move(request), std::move(sink));
}
void Engine::Cancel(SeqId seq) { impl_->Cancel(seq); }
void Engine::Hold(SeqId seq) { impl_->Hold(seq); }
void Engine::Unhold(SeqId seq) { impl_->Unhold(seq); }
void Engine::Drain(std::function<void(std::vector<BlockId> live)> drained) { impl_->Drain(std::move(drained)); }
void Engine::Shrink(uint32_t num_blocks) { impl_->Shrink(num_blocks); }
RingProgress Engine::progress() const { return impl_->progress(); }
void Engine::BreakRing(Epoch epoch, const Status& why) { impl_->BreakRing(epoch, why); }
void Engine::Grow(uint32_t num_blocks) { impl_->Grow(num_blocks); }
void Engine::Resume(std::optional<Ring> ring) { impl_->Resume(std::move(ring)); }
void Engine::Await(const Status& why, bool crashed, bool mirrored) { impl_->Await(why, crashed, mirrored); }
void Engine::Recall(std::optional<uint64_t> step, std::function<void(UnitList)> recalled) {
  impl_->Recall(step, std::move(recalled));
}
void Engine::Lose(const Status& why) { impl_->Lose(why); }
EngineStats Engine::stats() const { return impl_->stats(); }
Status Engine::CheckIntegrity() { return impl_->CheckIntegrity(); }

}  // namespace gyre
