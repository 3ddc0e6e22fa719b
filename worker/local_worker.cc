#include "worker/local_worker.h"

#include <pthread.h>

#include <atomic>
#include <deque>
#include <optional>
#include <thread>

#include "base/inbox.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/step_codec.h"
#include "worker/stage.h"

namespace gyre {

class LocalWorker::Impl : public StageControl {
 public:
  explicit Impl(LocalWorkerOptions options) : options_(std::move(options)) {
    options_.in->SetNotify([this] { wake_.Set(); });
    stage_thread_ = std::thread([this] { Guarded("stage", [this] { Loop(); }); });
    loader_thread_ = std::thread([this] { Guarded("loader", [this] { LoadLoop(); }); });
  }

  const std::string& name() const override { return options_.name; }
  void SetEventSink(EventSink sink) override {
    MutexLock lock(&mutex_);
    sink_ = std::move(sink);
  }
  void Prepare(const PrepareRequest& request) override { loads_.Push(request); }
  void Commit(Epoch epoch) override { Post({.epoch = epoch, .commit = true}); }
  void Abort(Epoch epoch) override { Post({.epoch = epoch, .commit = false}); }

  void Stop() {
    if (stopping_.exchange(true)) return;
    loads_.Close();
    options_.in->Close();
    options_.out->Close();
    wake_.Set();
    stage_thread_.join();
    loader_thread_.join();
    options_.in->SetNotify({});
  }

  const LocalWorkerOptions& options() const { return options_; }
  WorkerStats stats() const { return {steps_, step_errors_, dropped_}; }
  Duration busy() const { return std::chrono::nanoseconds(busy_ns_.load()); }
  size_t weight_bytes() const { return weight_bytes_; }
  double TakeBusyShare() {
    MutexLock lock(&mutex_);
    const Deadline now = Clock::now();
    const Duration spent = busy() - shown_busy_, wall = now - shown_at_;
    shown_busy_ += spent;
    shown_at_ = now;
    return wall.count() > 0 ? static_cast<double>(spent.count()) / static_cast<double>(wall.count()) : 0;
  }
  void SetFaultHook(std::function<Status()> hook) {
    MutexLock lock(&mutex_);
    hook_ = std::move(hook);
    hooked_ = hook_ != nullptr;
  }

 private:
  struct Decision {
    Epoch epoch;
    bool commit = false;
  };
  struct Prepared {
    Epoch epoch;
    int stage_index = 0;
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Stage> stage;
  };

  // The edge of a thread: no exception leaves it.
  template <typename Fn>
  void Guarded(const char* what, Fn fn) {
    pthread_setname_np(pthread_self(), (std::string(what) + " " + options_.name).substr(0, 15).c_str());
    try {
      fn();
    } catch (const std::exception& e) {
      Log(LogLevel::kError, "{}: the {} thread stopped: {}", options_.name, what, e.what());
      options_.in->Close();
      options_.out->Close();
      Say({}, StageFault{Internal("the {} thread stopped: {}", what, e.what())});
    }
  }

  void Loop();
  void OnFrame(Frame& frame);
  void RunStep(const Frame& frame);
  Status TryStep(const Frame& frame);
  void OnQuestion(const Frame& frame);
  void TakeDecisions();
  void Decide(const Decision& decision);
  void Send(FrameHeader header, std::span<const ByteSpan> parts);

  void LoadLoop();
  Status Load(const PrepareRequest& request, std::unique_ptr<Prepared>* out);
  void Say(Epoch epoch, decltype(StageEvent::what) what) {
    EventSink sink;
    {
      MutexLock lock(&mutex_);
      sink = sink_;
    }
    if (sink) sink({.worker = options_.name, .epoch = epoch, .what = std::move(what)});
  }
  void Post(Decision decision) {
    {
      MutexLock lock(&mutex_);
      decisions_.push_back(decision);
    }
    wake_.Set();
  }

  const LocalWorkerOptions options_;
  std::atomic<bool> stopping_{false};
  WakeUp wake_;
  Inbox<PrepareRequest> loads_;

  Mutex mutex_;
  EventSink sink_ GYRE_GUARDED_BY(mutex_);
  std::vector<Decision> decisions_ GYRE_GUARDED_BY(mutex_);
  std::unique_ptr<Prepared> prepared_ GYRE_GUARDED_BY(mutex_);
  std::optional<Epoch> aborted_ GYRE_GUARDED_BY(mutex_);  // the last one: its loading may still be under way
  // What the running stage is made of, for a Prepare that shares layers with it.
  std::shared_ptr<const StageParts> running_parts_ GYRE_GUARDED_BY(mutex_);
  std::function<Status()> hook_ GYRE_GUARDED_BY(mutex_);
  std::atomic<bool> hooked_{false};
  Duration shown_busy_ GYRE_GUARDED_BY(mutex_){};
  Deadline shown_at_ GYRE_GUARDED_BY(mutex_) = Clock::now();

  // Owned by the stage's thread.
  std::unique_ptr<Prepared> running_;
  std::deque<Frame> held_;  // of a newer number in the same term, until its commit
  Encoder encoder_;
  StepAnswer answer_;

  std::atomic<uint64_t> steps_{0}, step_errors_{0}, dropped_{0}, busy_ns_{0};
  std::atomic<size_t> weight_bytes_{0};
  std::thread stage_thread_, loader_thread_;
};

// The worker's main loop: decisions between steps, then frames in order.
void LocalWorker::Impl::Loop() {
  while (!stopping_) {
    TakeDecisions();
    StatusOr<Frame> frame = options_.in->Recv(Clock::now());
    if (frame.ok()) {
      OnFrame(*frame);
    } else if (absl::IsDeadlineExceeded(frame.status())) {
      wake_.Wait(kNoDeadline);
    } else {
      if (!stopping_) Log(LogLevel::kInfo, "{}: the link before it ended: {}", options_.name, Message(frame.status()));
      options_.out->Close();
      return;
    }
  }
}

void LocalWorker::Impl::OnFrame(Frame& frame) {
  const Epoch epoch = frame.header.epoch;
  const bool runs = running_ != nullptr;
  if (runs && epoch == running_->epoch) {
    switch (frame.header.kind) {
      case FrameKind::kTokens:
      case FrameKind::kHidden: return RunStep(frame);
      case FrameKind::kLogitsQuestion: return OnQuestion(frame);
      default: {  // a step that an earlier stage failed, passed on in its place
        const ByteSpan parts[] = {frame.payload};
        return Send(frame.header, parts);
      }
    }
  }
  if (!runs || (epoch.term == running_->epoch.term && epoch.number > running_->epoch.number)) {
    held_.push_back(std::move(frame));
    return;
  }
  ++dropped_;
}

void LocalWorker::Impl::RunStep(const Frame& frame) {
  const Status status = TryStep(frame);
  if (status.ok()) return;
  ++step_errors_;
  encoder_.Reset();
  EncodeStepError({.stage = static_cast<uint32_t>(running_->stage_index), .message = Message(status)}, &encoder_);
  const ByteSpan parts[] = {encoder_.bytes()};
  Send({.kind = FrameKind::kStepError, .epoch = frame.header.epoch, .step = frame.header.step}, parts);
}

Status LocalWorker::Impl::TryStep(const Frame& frame) {
  if (hooked_) {
    std::function<Status()> hook;
    {
      MutexLock lock(&mutex_);
      hook = hook_;
    }
    if (hook) GYRE_RETURN_IF_ERROR(hook());
  }
  Stage& stage = *running_->stage;
  const FrameKind expected = stage.parts().first ? FrameKind::kTokens : FrameKind::kHidden;
  if (frame.header.kind != expected) {
    return InvalidArgument("a frame of kind {}, this stage takes {}", static_cast<int>(frame.header.kind),
                           static_cast<int>(expected));
  }
  GYRE_ASSIGN_OR_RETURN(const StepPayload step, DecodeStepPayload(frame.payload, stage.input_width()));
  answer_.rows.clear();
  const Deadline start = Clock::now();
  try {
    GYRE_RETURN_IF_ERROR(stage.Run(step.batch, step.rows, &answer_));
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a step of {} rows", step.batch.TotalRows());
  }
  busy_ns_ += static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now() - start).count());
  ++steps_;
  FrameHeader header{.epoch = frame.header.epoch, .step = frame.header.step, .rows = step.batch.TotalRows()};
  encoder_.Reset();
  if (stage.parts().last) {
    EncodeStepAnswer(answer_, &encoder_);
    header.kind = FrameKind::kAnswer;
    const ByteSpan parts[] = {encoder_.bytes()};
    Send(header, parts);
  } else {
    // The descriptor goes on as it came.
    header.kind = FrameKind::kHidden;
    header.dtype = WireType::kF32;
    const ByteSpan prefix = ByteSpan(frame.payload).first(frame.payload.size() - step.rows.size());
    const ByteSpan parts[] = {prefix, std::as_bytes(stage.hidden())};
    Send(header, parts);
  }
  return absl::OkStatus();
}

void LocalWorker::Impl::OnQuestion(const Frame& frame) {
  if (!running_->stage->parts().last) {
    const ByteSpan parts[] = {frame.payload};
    return Send(frame.header, parts);
  }
  StatusOr<LogitsQuestion> question = DecodeLogitsQuestion(frame.payload);
  if (!question.ok()) {
    ++dropped_;
    Log(LogLevel::kWarn, "{}: {}", options_.name, Message(question.status()));
    return;
  }
  encoder_.Reset();
  EncodeLogitsAnswer(running_->stage->Answer(*question), &encoder_);
  const ByteSpan parts[] = {encoder_.bytes()};
  Send({.kind = FrameKind::kLogitsAnswer, .epoch = frame.header.epoch}, parts);
}

void LocalWorker::Impl::Send(FrameHeader header, std::span<const ByteSpan> parts) {
  const Status status = options_.out->Send(header, parts, kNoDeadline);
  if (!status.ok() && !stopping_) Log(LogLevel::kDebug, "{}: {}", options_.name, Message(status));
}

void LocalWorker::Impl::TakeDecisions() {
  std::vector<Decision> decisions;
  {
    MutexLock lock(&mutex_);
    decisions.swap(decisions_);
  }
  for (const Decision& d : decisions) Decide(d);
}

void LocalWorker::Impl::Decide(const Decision& decision) {
  std::unique_ptr<Prepared> prepared;
  {
    MutexLock lock(&mutex_);
    if (prepared_ != nullptr && prepared_->epoch == decision.epoch) prepared = std::move(prepared_);
    if (!decision.commit) aborted_ = decision.epoch;
    if (decision.commit && prepared != nullptr) {
      running_parts_ = std::make_shared<StageParts>(prepared->stage->parts());
    }
  }
  if (!decision.commit) return Say(decision.epoch, StageAborted{});
  if (prepared == nullptr) {
    return Say(decision.epoch, StageFault{FailedPrecondition("commit of plan {}, which is not prepared here",
                                                             decision.epoch.number)});
  }
  running_ = std::move(prepared);
  size_t bytes = 0;
  for (const auto& layer : running_->stage->parts().layers) bytes += layer->weight_bytes();
  if (running_->stage->parts().last) bytes += running_->stage->parts().ends.output->bytes;
  weight_bytes_ = bytes;
  Say(decision.epoch, StageCommitted{});
  std::deque<Frame> held;
  held.swap(held_);
  for (Frame& frame : held) OnFrame(frame);
}

void LocalWorker::Impl::LoadLoop() {
  while (std::optional<PrepareRequest> request = loads_.Pop(kNoDeadline)) {
    std::unique_ptr<Prepared> prepared;
    Status status;
    try {
      status = Load(*request, &prepared);
    } catch (const std::bad_alloc&) {
      status = ResourceExhausted("no memory for layers {}-{}", request->plan.stages[0].layers.begin,
                                 request->plan.stages[0].layers.end - 1);
    }
    if (!status.ok()) {
      Say(request->plan.epoch, StageFault{status});
      continue;
    }
    {
      MutexLock lock(&mutex_);
      if (aborted_ == request->plan.epoch) continue;
      prepared_ = std::move(prepared);
    }
    Say(request->plan.epoch, StageReady{});
  }
}

Status LocalWorker::Impl::Load(const PrepareRequest& request, std::unique_ptr<Prepared>* out) {
  GYRE_RETURN_IF_ERROR(request.plan.Validate());
  if (request.stage < 0 || static_cast<size_t>(request.stage) >= request.plan.stages.size()) {
    return InvalidArgument("stage {} of a plan with {}", request.stage, request.plan.stages.size());
  }
  if (request.block_size < 1 || request.num_blocks == 0) {
    return InvalidArgument("{} KV blocks of {} positions", request.num_blocks, request.block_size);
  }
  const StagePlan& plan = request.plan.stages[static_cast<size_t>(request.stage)];
  const Model& model = *options_.model;
  if (request.plan.num_layers != static_cast<int>(model.spec().layers.size())) {
    return InvalidArgument("a plan for {} layers, the model has {}", request.plan.num_layers, model.spec().layers.size());
  }
  std::shared_ptr<const StageParts> running;
  {
    MutexLock lock(&mutex_);
    running = running_parts_;
  }
  auto prepared = std::make_unique<Prepared>();
  prepared->epoch = request.plan.epoch;
  prepared->stage_index = request.stage;
  prepared->backend = MakeBackend(options_.isa, options_.threads);
  GYRE_ASSIGN_OR_RETURN(const size_t total, StageBytes(model, plan.layers, plan.first, plan.last));
  size_t done = 0;
  const BytesDone progress = [&](size_t bytes) {
    done += bytes;
    Say(request.plan.epoch, StageProgress{.done = done, .total = total});
  };
  StageParts parts{.model = options_.model,
                   .model_id = request.plan.model,
                   .range = plan.layers,
                   .first = plan.first,
                   .last = plan.last,
                   .layers = {},
                   .ends = {}};
  for (int i = plan.layers.begin; i < plan.layers.end; ++i) {
    std::shared_ptr<Layer> layer;
    if (running != nullptr && i >= running->range.begin && i < running->range.end) {
      layer = running->layers[static_cast<size_t>(i - running->range.begin)];
      const KvView& v = layer->pages->view();
      const bool same = v.block_size == request.block_size && layer->pages->num_blocks() == request.num_blocks &&
                        v.half == (request.kv_type == KvType::kF16);
      if (!same) layer = nullptr;
    }
    if (layer == nullptr) {
      GYRE_ASSIGN_OR_RETURN(layer, LoadLayer(model, i, *prepared->backend, progress));
      GYRE_ASSIGN_OR_RETURN(layer->pages,
                            PagePool::Make(layer->spec, request.num_blocks, request.block_size, request.kv_type));
    }
    parts.layers.push_back(std::move(layer));
  }
  GYRE_ASSIGN_OR_RETURN(parts.ends, LoadEnds(model, plan.first, plan.last, *prepared->backend, progress));
  prepared->stage = std::make_unique<Stage>(std::move(parts), *prepared->backend, options_.exact);
  *out = std::move(prepared);
  return absl::OkStatus();
}

LocalWorker::LocalWorker(LocalWorkerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
LocalWorker::~LocalWorker() { impl_->Stop(); }
StageControl& LocalWorker::control() { return *impl_; }
int LocalWorker::threads() const { return impl_->options().threads; }
WorkerStats LocalWorker::stats() const { return impl_->stats(); }
Duration LocalWorker::busy_time() const { return impl_->busy(); }
double LocalWorker::TakeBusyShare() { return impl_->TakeBusyShare(); }
size_t LocalWorker::weight_bytes() const { return impl_->weight_bytes(); }
void LocalWorker::SetFaultHook(std::function<Status()> hook) { impl_->SetFaultHook(std::move(hook)); }
void LocalWorker::Stop() { impl_->Stop(); }

}  // namespace gyre
