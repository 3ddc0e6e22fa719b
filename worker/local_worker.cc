#include "worker/local_worker.h"

#include <pthread.h>

#include <atomic>
#include <deque>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/step_codec.h"
#include "base/wakeup.h"
#include "worker/local_control.h"

namespace gyre {
namespace {

// Frames of a newer epoch that wait; with so many nothing more is taken in, and the sender waits too.
constexpr size_t kMaxHeldFrames = 256;

using FaultHook = std::function<Status()>;

}  // namespace

class LocalWorker::Impl {
 public:
  explicit Impl(LocalWorkerOptions options)
      : options_(std::move(options)),
        backend_(MakeBackend(options_.isa, options_.threads)),
        control_({.name = options_.name,
                  .model = options_.model,
                  .isa = options_.isa,
                  .threads = options_.threads,
                  .exact = options_.exact,
                  .backend = backend_.get(),
                  .wake = [wake = wake_] { wake->Set(); }}) {
    options_.in->SetNotify([wake = wake_] { wake->Set(); });
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), options_.name.substr(0, 15).c_str());
      Serve();
    });
  }
  ~Impl() { Stop(); }

  void Stop() {
    options_.in->Close();
    options_.out->Close();
    wake_->Set();
    if (thread_.joinable()) thread_.join();
    options_.in->SetNotify({});
    control_.Stop();
  }

  const LocalWorkerOptions& options() const { return options_; }
  LocalControl& control() { return control_; }
  WorkerStats stats() const { return {steps_, step_errors_, dropped_, held_count_}; }
  Duration busy() const { return std::chrono::nanoseconds(busy_ns_.load(std::memory_order_relaxed)); }
  size_t weight_bytes() const { return weight_bytes_; }

  double TakeBusyShare() {
    MutexLock lock(&mutex_);
    const Deadline now = Clock::now();
    const Duration spent = busy() - shown_busy_, wall = now - shown_at_;
    shown_busy_ += spent;
    shown_at_ = now;
    return wall.count() > 0 ? static_cast<double>(spent.count()) / static_cast<double>(wall.count()) : 0;
  }

  void SetFaultHook(FaultHook hook) {
    MutexLock lock(&mutex_);
    hook_ = hook ? std::make_shared<const FaultHook>(std::move(hook)) : nullptr;
    hooked_ = hook_ != nullptr;
  }

 private:
  void Serve();
  void TakeCommits();
  void OnFrame(Frame&& frame);
  void Dispatch(const Frame& frame);
  void RunStep(const Frame& frame);
  Status TryStep(const Frame& frame);
  Status CallFaultHook();
  void AnswerQuestion(const Frame& frame);
  void PassOn(const Frame& frame);
  Status Send(const FrameHeader& header, std::span<const ByteSpan> parts);
  void Drop(const Frame& frame, const std::string& why);
  template <typename Fn>
  auto Timed(Fn fn) {
    const Deadline start = Clock::now();
    auto result = fn();
    busy_ns_.fetch_add(std::chrono::nanoseconds(Clock::now() - start).count(), std::memory_order_relaxed);
    return result;
  }

  const LocalWorkerOptions options_;
  const std::shared_ptr<WakeUp> wake_ = std::make_shared<WakeUp>();  // shared with callbacks that may come late
  const std::unique_ptr<Backend> backend_;
  LocalControl control_;

  // The stage's thread alone.
  std::shared_ptr<EpochStage> running_;
  std::deque<Frame> held_;
  Status broken_;  // why the loop ends
  Encoder encoder_;
  StepAnswer answer_;

  std::atomic<uint64_t> steps_{0}, step_errors_{0}, dropped_{0}, held_count_{0};
  std::atomic<int64_t> busy_ns_{0};
  std::atomic<size_t> weight_bytes_{0};

  Mutex mutex_;
  std::shared_ptr<const FaultHook> hook_ GYRE_GUARDED_BY(mutex_);
  std::atomic<bool> hooked_{false};
  Duration shown_busy_ GYRE_GUARDED_BY(mutex_){};
  Deadline shown_at_ GYRE_GUARDED_BY(mutex_) = Clock::now();

  std::thread thread_;
};

// The worker's main loop: commits between steps, then frames in order.
void LocalWorker::Impl::Serve() {
  while (broken_.ok()) {
    try {
      TakeCommits();
      StatusOr<Frame> frame = DeadlineExceeded("too many frames wait for a commit");
      if (held_.size() < kMaxHeldFrames) frame = options_.in->Recv(Clock::now());
      if (frame.ok()) {
        OnFrame(*std::move(frame));
      } else if (absl::IsDeadlineExceeded(frame.status())) {
        wake_->Wait(kNoDeadline);
      } else {
        broken_ = frame.status();
      }
    } catch (const std::exception& e) {  // a frame is lost, so the ring is broken
      broken_ = Internal("{}", e.what());
    }
  }
  Log(LogLevel::kInfo, "{}: the stage ends: {}", options_.name, Message(broken_));
  options_.in->Close();
  options_.out->Close();
  control_.Close(Unavailable("the ring link of {} is gone: {}", options_.name, Message(broken_)));
}

void LocalWorker::Impl::TakeCommits() {
  bool changed = false;
  while (const std::optional<Epoch> epoch = control_.NextCommit()) {
    StatusOr<std::shared_ptr<EpochStage>> taken = control_.Take(*epoch);
    if (!taken.ok()) {
      control_.Report(*epoch, StageFault{taken.status()});
      continue;
    }
    if (*taken != running_) {
      if (running_ != nullptr) control_.Retire(std::move(running_));
      running_ = *std::move(taken);
      weight_bytes_ = running_->stage->parts().weight_bytes();
      changed = true;
    }
    control_.Report(*epoch, StageCommitted{});
  }
  if (!changed) return;
  std::deque<Frame> held;
  held.swap(held_);
  for (Frame& frame : held) OnFrame(std::move(frame));
}

// A frame of this epoch is for now, of a newer number in the same term for later, any other for never.
void LocalWorker::Impl::OnFrame(Frame&& frame) {
  const Epoch epoch = frame.header.epoch;
  if (running_ != nullptr && epoch == running_->epoch) return Dispatch(frame);
  const bool newer = running_ != nullptr ? epoch.term == running_->epoch.term && epoch.number > running_->epoch.number
                                         : control_.Awaits(epoch.term);
  if (!newer) return Drop(frame, "of another epoch");
  held_.push_back(std::move(frame));
  ++held_count_;
}

void LocalWorker::Impl::Dispatch(const Frame& frame) {
  switch (frame.header.kind) {
    case FrameKind::kTokens:
    case FrameKind::kHidden:
      return RunStep(frame);
    case FrameKind::kLogitsQuestion:
      return running_->stage->parts().last ? AnswerQuestion(frame) : PassOn(frame);
    case FrameKind::kStepError:
    case FrameKind::kAnswer:
    case FrameKind::kLogitsAnswer:
      return PassOn(frame);
    case FrameKind::kHello:
      break;
  }
  Drop(frame, "of no use to a stage");
}

void LocalWorker::Impl::RunStep(const Frame& frame) {
  Status status;
  try {
    status = TryStep(frame);
  } catch (const std::bad_alloc&) {
    status = ResourceExhausted("no memory for a step of {} rows", frame.header.rows);
  } catch (const std::exception& e) {
    status = Internal("{}", e.what());
  }
  if (status.ok()) return;
  ++step_errors_;
  encoder_.Reset();
  EncodeStepError({.stage = running_->index, .message = Message(status)}, &encoder_);
  const ByteSpan parts[] = {encoder_.bytes()};
  broken_.Update(Send({.kind = FrameKind::kStepError, .epoch = frame.header.epoch, .step = frame.header.step}, parts));
}

Status LocalWorker::Impl::TryStep(const Frame& frame) {
  if (hooked_) GYRE_RETURN_IF_ERROR(CallFaultHook());
  Stage& stage = *running_->stage;
  const bool first = stage.parts().first, last = stage.parts().last;
  const FrameKind kind = first ? FrameKind::kTokens : FrameKind::kHidden;
  const WireType dtype = first ? WireType::kI32 : WireType::kF32;
  if (frame.header.kind != kind || frame.header.dtype != dtype) {
    return InvalidArgument("a frame of kind {} and type {}, this stage takes kind {} and type {}",
                           static_cast<int>(frame.header.kind), static_cast<int>(frame.header.dtype),
                           static_cast<int>(kind), static_cast<int>(dtype));
  }
  GYRE_ASSIGN_OR_RETURN(const StepPayload step, DecodeStepPayload(frame.payload, stage.input_width()));
  GYRE_RETURN_IF_ERROR(Timed([&] { return stage.Run(step.batch, step.rows, &answer_); }));
  ++steps_;
  FrameHeader header{.kind = FrameKind::kAnswer, .epoch = frame.header.epoch, .step = frame.header.step};
  header.rows = step.batch.TotalRows();
  if (last) {
    encoder_.Reset();
    EncodeStepAnswer(answer_, &encoder_);
    const ByteSpan parts[] = {encoder_.bytes()};
    return Send(header, parts);
  }
  header.kind = FrameKind::kHidden;
  header.dtype = WireType::kF32;
  // The descriptor goes on as it came.
  const ByteSpan prefix = ByteSpan(frame.payload).first(frame.payload.size() - step.rows.size());
  const ByteSpan parts[] = {prefix, std::as_bytes(stage.hidden())};
  return Send(header, parts);
}

Status LocalWorker::Impl::CallFaultHook() {
  std::shared_ptr<const FaultHook> hook;
  {
    MutexLock lock(&mutex_);
    hook = hook_;
  }
  return hook != nullptr ? (*hook)() : absl::OkStatus();
}

void LocalWorker::Impl::AnswerQuestion(const Frame& frame) {
  StatusOr<LogitsQuestion> question = DecodeLogitsQuestion(frame.payload);
  if (!question.ok()) return Drop(frame, Message(question.status()));
  const LogitsAnswer answer = Timed([&] { return running_->stage->Answer(*question); });
  encoder_.Reset();
  EncodeLogitsAnswer(answer, &encoder_);
  const ByteSpan parts[] = {encoder_.bytes()};
  broken_.Update(
      Send({.kind = FrameKind::kLogitsAnswer, .epoch = frame.header.epoch, .step = frame.header.step}, parts));
}

void LocalWorker::Impl::PassOn(const Frame& frame) {
  const ByteSpan parts[] = {frame.payload};
  broken_.Update(Send(frame.header, parts));
}

// kInvalidArgument: no frame holds it. A link that is gone ends the loop.
Status LocalWorker::Impl::Send(const FrameHeader& header, std::span<const ByteSpan> parts) {
  const Status status = options_.out->Send(header, parts, kNoDeadline);
  if (status.ok() || absl::IsInvalidArgument(status)) return status;
  broken_.Update(status);
  return absl::OkStatus();
}

void LocalWorker::Impl::Drop(const Frame& frame, const std::string& why) {
  ++dropped_;
  Log(LogLevel::kDebug, "{}: a frame of kind {} of epoch {}.{} is dropped: {}", options_.name,
      static_cast<int>(frame.header.kind), frame.header.epoch.term, frame.header.epoch.number, why);
}

LocalWorker::LocalWorker(LocalWorkerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
LocalWorker::~LocalWorker() = default;
StageControl& LocalWorker::control() {
  return impl_->control();
}
int LocalWorker::threads() const {
  return impl_->options().threads;
}
WorkerStats LocalWorker::stats() const {
  return impl_->stats();
}
Duration LocalWorker::busy_time() const {
  return impl_->busy();
}
double LocalWorker::TakeBusyShare() {
  return impl_->TakeBusyShare();
}
size_t LocalWorker::weight_bytes() const {
  return impl_->weight_bytes();
}
void LocalWorker::SetFaultHook(std::function<Status()> hook) {
  impl_->SetFaultHook(std::move(hook));
}
void LocalWorker::Stop() {
  impl_->Stop();
}

}  // namespace gyre
