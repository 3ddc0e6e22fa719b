#include "coordinator/engine/engine.h"

#include <algorithm>
#include <cstdlib>
#include <future>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "coordinator/engine/engine_state.h"

namespace gyre {

// The main loop.
void Engine::Impl::Loop() {
  for (;;) {
    RunCommands();
    if (stopping_) return;  // Stop posts one command to wake this thread; it has run, so another Wait would not end
    TakeResults();
    ExpireDeadlines();
    CheckSilence();
    SendFullLogitsRequests();
    CheckPools();
    CheckWhenIdle();
    CheckDrained();
    Launch();
    HandOver();
    PublishStats();
    // Until the first ring the stored index is the previous process's.
    if (!awaited_) cache_.Report(scheduler_.get(), Clock::now());
    Wait();
  }
}

void Engine::Impl::RunCommands() {
  inbox_.TakeAll(&commands_);
  if (!commands_.empty()) board_.Stale();
  for (auto& command : commands_) command();
  commands_.clear();
}

void Engine::Impl::TakeResults() {
  while (ring_.linked()) {
    const StatusOr<Frame> frame = ring_.TryRecv();
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
    full_logits_.DropStale([this](SeqId seq) { return scheduler_->Incarnation(seq); });  // of preempted sequences
    if (!CheckPools() || !plan) return;
    board_.Stale();
    if (Status status = SendStep(*plan); !status.ok()) {
      Break(Annotate(status, "the ring"));
      return;
    }
    for (const StepItem& item : plan->items) {
      if (!item.samples()) continue;
      if (Sequence* s = Find(item.seq)) speculator_.GoOn(s, scheduler_.get());
    }
  }
}

void Engine::Impl::HandOver() {
  // A sink may not call back into this thread's work, only post to it.
  for (Delivery& d : events_) (*d.sink)(d.seq, d.event);
  events_.clear();
}

void Engine::Impl::PublishStats() {
  counts_.scheduler = scheduler_->stats();
  ring_.NoteOwed(OwesResults());
  const Deadline now = Clock::now();
  if (!board_.WantsList(now)) return board_.Publish();
  std::vector<SequenceStats> list;
  list.reserve(sequences_.size());
  for (const auto& [id, s] : sequences_) {
    list.push_back({.id = id,
                    .state = scheduler_->State(id).value_or(SeqState::kWaiting),
                    .prompt = static_cast<uint32_t>(s->request.prompt.size()),
                    .generated = s->generated()});
  }
  board_.PublishList(std::move(list), now);
}

// For a result, a command, or a deadline.
void Engine::Impl::Wait() {
  Deadline deadline = std::min(RealTime(NextDeadline()), board_.next());
  if (!awaited_) deadline = std::min(deadline, cache_.next(*scheduler_));
  if (const Status status = ring_.Wait(&inbox_, deadline); !status.ok()) Break(Annotate(status, "the ring"));
}

Deadline Engine::Impl::NextDeadline() const {
  Deadline next = kNoDeadline;
  if (with_deadline_ > 0) {
    for (const auto& [id, s] : sequences_) next = std::min(next, s->request.deadline);
  }
  if (unchecked_ && scheduler_->idle()) next = std::min(next, next_check_);
  if (ring_.linked() && OwesResults()) next = std::min(next, ring_.silence_deadline());
  return next;
}

Status Engine::Impl::Start() {
  StatusOr<std::thread> started = StartThread("engine", [this] {
    // The edge of the thread: without it the process would look alive and answer nobody.
    try {
      Loop();
      RunCommands();
      EndAll(Cancelled{});
    } catch (const std::exception& e) {
      Log(LogLevel::kError, "the engine's thread failed, so this process ends: {}", e.what());
      std::abort();
    }
    ring_.Drop();
  });
  GYRE_RETURN_IF_ERROR(started.status());
  thread_ = *std::move(started);
  return absl::OkStatus();
}

void Engine::Impl::Stop() {
  stopping_ = true;
  if (!thread_.joinable()) return;
  Post([] {});
  thread_.join();
  speculator_.Stop();
  guide_.Stop();  // what its threads find goes into the inbox
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
  const uint32_t windowed = o.memory[kWindowGroup];
  if (o.memory[kPageGroup] == 0 || o.block_size == 0) {
    return InvalidArgument("the engine needs KV blocks, got {} of {} positions", o.memory[kPageGroup], o.block_size);
  }
  if (windowed > 0 && (o.window == 0 || windowed < std::min(o.memory[kPageGroup], o.window / o.block_size + 2))) {
    return InvalidArgument("a window of {} positions can't go on with {} blocks of {}", o.window, windowed,
                           o.block_size);
  }
  if (options.step_timeout <= Duration::zero()) {
    return InvalidArgument("the engine needs a step timeout above 0, got {} ns", options.step_timeout.count());
  }
  auto impl = std::make_unique<Impl>(std::move(options));
  GYRE_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

StatusOr<SeqId> Engine::Submit(Request request, EventSink sink) {
  return impl_->Submit(std::move(request), std::move(sink));
}
void Engine::Cancel(SeqId seq) { impl_->Cancel(seq); }
void Engine::Hold(SeqId seq) { impl_->Hold(seq); }
void Engine::Unhold(SeqId seq) { impl_->Unhold(seq); }
void Engine::Drain(std::function<void(std::vector<BlockId> live)> drained) { impl_->Drain(std::move(drained)); }
void Engine::Shrink(uint32_t num_blocks, bool whole) { impl_->Shrink(num_blocks, whole); }
RingProgress Engine::progress() const { return impl_->progress(); }
void Engine::BreakRing(Epoch epoch, const Status& why) { impl_->BreakRing(epoch, why); }
void Engine::Grow(uint32_t num_blocks) { impl_->Grow(num_blocks); }
void Engine::Resume(std::optional<Ring> ring) { impl_->Resume(std::move(ring)); }
void Engine::Await(const Status& why, bool crashed, bool replicated, std::optional<Deadline> since) {
  impl_->Await(why, crashed, replicated, since);
}
void Engine::Restore(std::optional<uint64_t> step, std::function<void(UnitList)> restored) {
  impl_->Restore(step, std::move(restored));
}
void Engine::Lose(const Status& why) { impl_->Lose(why); }
EngineStats Engine::stats() const { return impl_->stats(); }
Status Engine::CheckIntegrity() { return impl_->CheckIntegrity(); }

}  // namespace gyre
