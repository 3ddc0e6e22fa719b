#include "worker/worker.h"

#include <pthread.h>

#include <atomic>
#include <deque>
#include <future>
#include <list>
#include <map>
#include <optional>
#include <thread>

#include "base/inbox.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/step_codec.h"
#include "worker/migration.h"
#include "worker/stage.h"
#include "worker/wire_rows.h"

namespace gyre {

using std::chrono::milliseconds;

class Worker::Impl : public StageControl {
 public:
  explicit Impl(WorkerOptions options) : options_(std::move(options)) {
    stage_thread_ = std::thread([this] { Guarded("stage", [this] { Loop(); }); });
    loader_thread_ = std::thread([this] { Guarded("loader", [this] { LoadLoop(); }); });
  }

  const std::string& name() const override { return options_.name; }
  void SetEventSink(EventSink sink) override {
    MutexLock lock(&mutex_);
    sink_ = std::move(sink);
  }
  void Prepare(const PrepareRequest& request) override {
    if (stopping_) return Say(request.plan.epoch, StageFault{Unavailable("it has stopped")});
    {
      MutexLock lock(&mutex_);
      asked_ = request.plan.epoch;
    }
    loads_.Push([this, request] { OnPrepare(request); });
  }
  void Move(Epoch epoch, const std::vector<BlockId>& blocks) override {
    loads_.Push([this, epoch, blocks] { OnMove(epoch, blocks); });
  }
  void Commit(Epoch epoch) override {
    Post([this, epoch] { OnCommit(epoch); });
  }
  void Release(Epoch epoch) override {
    Post([this, epoch] {
      if (running_ == nullptr || running_->epoch == epoch) Retire();
    });
  }
  void Abort(Epoch epoch) override {
    {
      MutexLock lock(&mutex_);
      aborted_ = epoch;
    }
    options_.port->Cancel(epoch);
    loads_.Push([this, epoch] {
      DropPrepared();
      Say(epoch, StageAborted{});
    });
  }
  void ServeBulk(std::unique_ptr<Link> link);
  void Reset();
  void SkipCopying() { skip_copying_ = true; }
  void BreakRunning() {
    Post([this] {
      if (running_ != nullptr && running_->stage != nullptr) BreakLinks(Unavailable("as the test asked"));
    });
  }

  void Stop() {
    if (stopping_.exchange(true)) return;
    loads_.Close();
    Post([] {});
    {
      MutexLock lock(&mutex_);
      if (running_out_ != nullptr) running_out_->Close();
      for (BulkServer& b : bulk_) b.link->Close();
    }
    stage_thread_.join();
    loader_thread_.join();
    std::list<BulkServer> bulk;
    {
      MutexLock lock(&mutex_);
      bulk.swap(bulk_);
    }
    for (BulkServer& b : bulk) b.thread.join();
  }

  const WorkerOptions& options() const { return options_; }
  WorkerStats stats() const { return {steps_, step_errors_, dropped_, pages_sent_, rows_sent_, row_bytes_sent_}; }
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
  // A stage of one plan with all that belongs to it.
  struct Prepared {
    Epoch epoch;
    int stage_index = -1;  // -1: no layers in this plan
    WireType wire = WireType::kF32;
    bool told_cut = false;  // that values were cut to what the type holds
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Stage> stage;
    std::shared_ptr<Link> in, out;
  };
  // The copying of pages for the prepared stage; the loader's.
  struct Copying {
    Epoch epoch;
    std::vector<std::unique_ptr<PagePuller>> pullers;
  };
  struct BulkServer {
    std::shared_ptr<Link> link;
    std::thread thread;
    bool done = false;
  };

  // The edge of a thread: no exception leaves it.
  template <typename Fn>
  void Guarded(const char* what, Fn fn) {
    pthread_setname_np(pthread_self(), (std::string(what) + " " + options_.name).substr(0, 15).c_str());
    try {
      fn();
    } catch (const std::exception& e) {
      Log(LogLevel::kError, "{}: the {} thread stopped: {}", options_.name, what, e.what());
      Say({}, StageFault{Internal("the {} thread stopped: {}", what, e.what())});
      MutexLock lock(&mutex_);
      if (running_out_ != nullptr) running_out_->Close();
    }
  }

  void Loop();
  bool RunJob();
  void OnFrame(Frame& frame);
  void RunStep(const Frame& frame);
  Status TryStep(const Frame& frame);
  ByteSpan RowsToSend(const Stage& stage);
  void OnQuestion(const Frame& frame);
  void OnCommit(Epoch epoch);
  void Retire();
  void BreakLinks(const Status& why);
  void Send(FrameHeader header, std::span<const ByteSpan> parts);

  void LoadLoop();
  void OnPrepare(const PrepareRequest& request);
  Status LoadStage(const PrepareRequest& request, Prepared* prepared);
  Status Wire(const PrepareRequest& request, Prepared* prepared);
  Status StartCopying(const PrepareRequest& request, const Prepared& prepared);
  StatusOr<uint64_t> CopyRound(const std::vector<BlockId>* blocks);
  void OnMove(Epoch epoch, const std::vector<BlockId>& blocks);
  void DropPrepared();
  void Keep(const StageParts& parts) GYRE_REQUIRES(mutex_) {
    auto kept = std::make_shared<StageParts>(parts);
    for (auto& layer : kept->layers) layer = layer->Weights();
    kept_weights_ = kept;
  }
  bool Aborted(Epoch epoch) {
    MutexLock lock(&mutex_);
    return stopping_ || aborted_ == epoch;
  }

  void ServePulls(Link& link);
  Status AnswerPull(Link& link, const Frame& frame);

  void Say(Epoch epoch, decltype(StageEvent::what) what) {
    EventSink sink;
    {
      MutexLock lock(&mutex_);
      sink = sink_;
    }
    if (sink) sink({.worker = options_.name, .epoch = epoch, .what = std::move(what)});
  }
  // Runs `job` on the stage's thread, between steps.
  void Post(std::function<void()> job) {
    MutexLock lock(&mutex_);
    jobs_.push_back(std::move(job));
    // A wake is a flag and a signal, no I/O on the link.
    if (waiting_ != nullptr) waiting_->Wake();
    wake_.Set();
  }

  const WorkerOptions options_;
  std::atomic<bool> stopping_{false};
  WakeUp wake_;
  Inbox<std::function<void()>> loads_;  // for the loader's thread

  Mutex mutex_;
  EventSink sink_ GYRE_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> jobs_ GYRE_GUARDED_BY(mutex_);
  Link* waiting_ GYRE_GUARDED_BY(mutex_) = nullptr;            // the stage's thread is in its Recv
  std::shared_ptr<Link> running_out_ GYRE_GUARDED_BY(mutex_);  // so that Stop can end a Send
  std::shared_ptr<Prepared> prepared_ GYRE_GUARDED_BY(mutex_);
  std::optional<Epoch> asked_ GYRE_GUARDED_BY(mutex_);    // of the last Prepare
  std::optional<Epoch> aborted_ GYRE_GUARDED_BY(mutex_);  // the last one: its loading may still be under way
  // What the running stage is made of, for a Prepare that shares layers with it.
  std::shared_ptr<const StageParts> running_parts_ GYRE_GUARDED_BY(mutex_);
  std::shared_ptr<const StageParts> kept_weights_ GYRE_GUARDED_BY(mutex_);  // after Reset
  std::list<BulkServer> bulk_ GYRE_GUARDED_BY(mutex_);
  std::function<Status()> hook_ GYRE_GUARDED_BY(mutex_);
  std::atomic<bool> hooked_{false};
  std::atomic<bool> skip_copying_{false};
  Duration shown_busy_ GYRE_GUARDED_BY(mutex_){};
  Deadline shown_at_ GYRE_GUARDED_BY(mutex_) = Clock::now();

  // Owned by the stage's thread.
  std::shared_ptr<Prepared> running_;
  std::shared_ptr<Prepared> retired_;  // of the plan before, until every participant has committed
  bool broken_ = false;                // the running stage's links ended
  uint64_t step_count_ = 0;
  Encoder encoder_;
  std::vector<std::byte> sent_rows_;
  StepAnswer answer_;

  Copying copying_;  // the loader's

  std::atomic<uint64_t> steps_{0}, step_errors_{0}, dropped_{0}, busy_ns_{0}, pages_sent_{0}, rows_sent_{0}, row_bytes_sent_{0};
  std::atomic<size_t> weight_bytes_{0};
  std::thread stage_thread_, loader_thread_;
};

// The worker's main loop: jobs between steps, then frames in order.
void Worker::Impl::Loop() {
  while (!stopping_) {
    const bool ran = RunJob();
    if (running_ == nullptr || running_->stage == nullptr || broken_) {
      if (!ran) wake_.Wait(kNoDeadline);
      continue;
    }
    Link& in = *running_->in;
    // Steps and jobs, a long copy say, take turns.
    Deadline deadline = kNoDeadline;
    {
      MutexLock lock(&mutex_);
      if (jobs_.empty()) waiting_ = &in;
      else deadline = Clock::now();
    }
    StatusOr<Frame> frame = in.Recv(deadline);
    {
      MutexLock lock(&mutex_);
      waiting_ = nullptr;
    }
    if (frame.ok()) {
      OnFrame(*frame);
    } else if (!absl::IsCancelled(frame.status()) && !absl::IsDeadlineExceeded(frame.status())) {
      BreakLinks(frame.status());
    }
  }
  running_ = retired_ = nullptr;
}

// The oldest job. False: there was none.
bool Worker::Impl::RunJob() {
  std::function<void()> job;
  {
    MutexLock lock(&mutex_);
    if (jobs_.empty()) return false;
    job = std::move(jobs_.front());
    jobs_.pop_front();
  }
  job();
  return true;
}

// An end at one side goes round the ring: the coordinator sees it at its own end.
void Worker::Impl::BreakLinks(const Status& why) {
  if (!stopping_) Log(LogLevel::kInfo, "{}: a link of plan {} ended: {}", options_.name, running_->epoch.number, Message(why));
  running_->in->Close();
  running_->out->Close();
  broken_ = true;
}

void Worker::Impl::OnFrame(Frame& frame) {
  // A link carries one plan's frames; the next plan's wait in its own links.
  if (frame.header.epoch != running_->epoch) {
    ++dropped_;
    return;
  }
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

void Worker::Impl::RunStep(const Frame& frame) {
  const Status status = TryStep(frame);
  if (status.ok()) return;
  ++step_errors_;
  encoder_.Reset();
  EncodeStepError({.stage = static_cast<uint32_t>(running_->stage_index), .message = Message(status)}, &encoder_);
  const ByteSpan parts[] = {encoder_.bytes()};
  Send({.kind = FrameKind::kStepError, .epoch = frame.header.epoch, .step = frame.header.step}, parts);
}

Status Worker::Impl::TryStep(const Frame& frame) {
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
  const WireType type = stage.parts().first ? WireType::kI32 : running_->wire;
  if (frame.header.dtype != type) {
    return InvalidArgument("rows of {} came, this plan's are {}", WireTypeName(frame.header.dtype), WireTypeName(type));
  }
  GYRE_ASSIGN_OR_RETURN(const StepPayload step, DecodeStepPayload(frame.payload, stage.input_width()));
  answer_.rows.clear();
  const Deadline start = Clock::now();
  const bool last = stage.parts().last;
  ByteSpan rows;
  try {
    GYRE_RETURN_IF_ERROR(stage.Run(step.batch, step.rows, ++step_count_, &answer_));
    if (!last) rows = RowsToSend(stage);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a step of {} rows", step.batch.TotalRows());
  }
  busy_ns_ += static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now() - start).count());
  ++steps_;
  FrameHeader header{.epoch = frame.header.epoch, .step = frame.header.step, .rows = step.batch.TotalRows()};
  encoder_.Reset();
  if (last) {
    EncodeStepAnswer(answer_, &encoder_);
    header.kind = FrameKind::kAnswer;
    const ByteSpan parts[] = {encoder_.bytes()};
    Send(header, parts);
  } else {
    // The descriptor goes on as it came.
    header.kind = FrameKind::kHidden;
    header.dtype = running_->wire;
    const ByteSpan prefix = ByteSpan(frame.payload).first(frame.payload.size() - step.rows.size());
    const ByteSpan parts[] = {prefix, rows};
    rows_sent_ += header.rows;
    row_bytes_sent_ += kFrameHeaderBytes + prefix.size() + rows.size();
    Send(header, parts);
  }
  return absl::OkStatus();
}

// The stage's hidden states as they travel; good until the next step.
ByteSpan Worker::Impl::RowsToSend(const Stage& stage) {
  if (running_->wire == WireType::kF32) return std::as_bytes(stage.hidden());
  const auto dim = static_cast<size_t>(stage.parts().model->spec().dim);
  const size_t cut = EncodeRows(running_->wire, stage.hidden(), dim, &sent_rows_);
  if (cut > 0 && !running_->told_cut) {
    running_->told_cut = true;
    Log(LogLevel::kWarn, "{}: activations of plan {} are beyond what {} holds and are cut to it ({} in one step); --wire f32 has room",
        options_.name, running_->epoch.number, WireTypeName(running_->wire), cut);
  }
  return sent_rows_;
}

void Worker::Impl::OnQuestion(const Frame& frame) {
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

void Worker::Impl::Send(FrameHeader header, std::span<const ByteSpan> parts) {
  // The next stage may be busy with a long step; one that takes nothing in for so long is gone.
  const Status status = running_->out->Send(header, parts, After(std::chrono::minutes(2)));
  if (!status.ok()) BreakLinks(status);
}

void Worker::Impl::OnCommit(Epoch epoch) {
  std::shared_ptr<Prepared> prepared;
  {
    MutexLock lock(&mutex_);
    if (prepared_ != nullptr && prepared_->epoch == epoch) prepared = std::move(prepared_);
    if (prepared != nullptr) {
      kept_weights_ = nullptr;
      running_parts_ = prepared->stage ? std::make_shared<StageParts>(prepared->stage->parts()) : nullptr;
      running_out_ = prepared->out;
    }
  }
  if (prepared == nullptr) {
    return Say(epoch, StageFault{FailedPrecondition("commit of plan {}, which is not prepared here", epoch.number)});
  }
  Retire();
  retired_ = std::move(running_);
  running_ = std::move(prepared);
  broken_ = false;
  size_t bytes = 0;
  if (running_->stage) {
    for (const auto& layer : running_->stage->parts().layers) bytes += layer->weight_bytes();
    if (running_->stage->parts().last) bytes += running_->stage->parts().ends.output->bytes;
  }
  weight_bytes_ = bytes;
  Say(epoch, StageCommitted{});
}

void Worker::Impl::Retire() {
  if (retired_ == nullptr) return;
  // Unmapping pages takes its time: not here.
  loads_.Push([dropped = std::move(retired_)] {});
  retired_ = nullptr;
}

void Worker::Impl::Reset() {
  std::optional<Epoch> asked;
  {
    MutexLock lock(&mutex_);
    if (running_parts_ != nullptr) Keep(*running_parts_);
    running_parts_ = nullptr;
    if (running_out_ != nullptr) running_out_->Close();
    running_out_ = nullptr;
    // What is being prepared may wait for a neighbour that nobody will tell to come.
    asked = aborted_ = asked_;
  }
  if (asked) options_.port->Cancel(*asked);
  loads_.Push([this] {
    {
      MutexLock lock(&mutex_);
      if (kept_weights_ == nullptr && prepared_ != nullptr && prepared_->stage != nullptr) Keep(prepared_->stage->parts());
    }
    DropPrepared();
  });
  Post([this] {
    Retire();
    retired_ = std::move(running_);
    running_ = nullptr;
    broken_ = false;
    Retire();
    weight_bytes_ = 0;
  });
}

void Worker::Impl::LoadLoop() {
  for (;;) {
    // While a prepared stage waits for its Move, pages are copied in rounds.
    std::optional<std::function<void()>> load =
        loads_.Pop(copying_.pullers.empty() ? kNoDeadline : After(milliseconds(20)));
    if (stopping_) break;
    if (load) {
      (*load)();
    } else if (StatusOr<uint64_t> round = CopyRound(nullptr); !round.ok()) {
      Say(copying_.epoch, StageFault{round.status()});
      copying_ = {};
    }
  }
  DropPrepared();
}

void Worker::Impl::DropPrepared() {
  copying_ = {};
  std::shared_ptr<Prepared> dropped;
  MutexLock lock(&mutex_);
  dropped = std::move(prepared_);
  prepared_ = nullptr;
}

void Worker::Impl::OnPrepare(const PrepareRequest& request) {
  DropPrepared();
  const Epoch epoch = request.plan.epoch;
  auto prepared = std::make_shared<Prepared>();
  prepared->epoch = epoch;
  prepared->stage_index = request.stage;
  prepared->wire = request.plan.wire;
  Status status;
  try {
    options_.port->SetKey(epoch.term, request.plan.key);
    if (request.stage >= 0) {
      status = LoadStage(request, prepared.get());
      if (status.ok()) status = Wire(request, prepared.get());
      if (status.ok()) status = StartCopying(request, *prepared);
    }
  } catch (const std::bad_alloc&) {
    status = ResourceExhausted("no memory for its layers of plan {}", epoch.number);
  }
  if (!status.ok()) {
    copying_ = {};
    if (!Aborted(epoch)) Say(epoch, StageFault{status});
    return;
  }
  {
    MutexLock lock(&mutex_);
    if (aborted_ == epoch) return;
    prepared_ = std::move(prepared);
  }
  Say(epoch, StageReady{});
}

Status Worker::Impl::LoadStage(const PrepareRequest& request, Prepared* prepared) {
  GYRE_RETURN_IF_ERROR(request.plan.Validate());
  if (static_cast<size_t>(request.stage) >= request.plan.stages.size()) {
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
  if (request.plan.model_hash != model.content_hash()) return FailedPrecondition("the plan is for another model file");
  std::shared_ptr<const StageParts> running, kept;
  {
    MutexLock lock(&mutex_);
    running = running_parts_;
    kept = kept_weights_;
  }
  prepared->backend = MakeBackend(options_.isa, options_.threads, options_.cpus);
  GYRE_ASSIGN_OR_RETURN(size_t total, EndBytes(model, plan.first, plan.last));
  for (int i = plan.layers.begin; i < plan.layers.end; ++i) {
    GYRE_ASSIGN_OR_RETURN(const size_t bytes, LayerBytes(model, i));
    total += bytes;
  }
  size_t done = 0;
  const BytesDone progress = [&](size_t bytes) {
    done += bytes;
    Say(request.plan.epoch, StageProgress{.done = done, .total = total});
  };
  auto find = [](const std::shared_ptr<const StageParts>& parts, int i) -> std::shared_ptr<Layer> {
    if (parts == nullptr || i < parts->range.begin || i >= parts->range.end) return nullptr;
    return parts->layers[static_cast<size_t>(i - parts->range.begin)];
  };
  StageParts parts{.model = options_.model,
                   .model_id = request.plan.model,
                   .range = plan.layers,
                   .first = plan.first,
                   .last = plan.last,
                   .layers = {},
                   .ends = {}};
  for (int i = plan.layers.begin; i < plan.layers.end; ++i) {
    if (Aborted(request.plan.epoch)) return absl::CancelledError("the plan was given up");
    std::shared_ptr<Layer> layer = find(running, i);
    if (layer != nullptr) {
      const KvView& v = layer->pages->view();
      const bool same = v.block_size == request.block_size && layer->pages->num_blocks() == request.num_blocks &&
                        v.type == request.kv_type;
      if (!same) layer = layer->Weights();
    } else if (layer = find(kept, i); layer != nullptr) {
      layer = layer->Weights();
    } else {
      GYRE_ASSIGN_OR_RETURN(layer, LoadLayer(model, i, *prepared->backend, progress));
    }
    if (layer->pages == nullptr) {
      GYRE_ASSIGN_OR_RETURN(layer->pages,
                            PagePool::Make(layer->spec, request.num_blocks, request.block_size, request.kv_type));
    }
    parts.layers.push_back(std::move(layer));
  }
  const std::shared_ptr<const StageParts> before = running ? running : kept;
  if (before != nullptr && before->first >= plan.first && before->last >= plan.last) {
    parts.ends = before->ends;
  } else {
    GYRE_ASSIGN_OR_RETURN(parts.ends, LoadEnds(model, plan.first, plan.last, *prepared->backend, progress));
  }
  prepared->stage = std::make_unique<Stage>(std::move(parts), *prepared->backend, options_.exact, request.plan.wire);
  return absl::OkStatus();
}

Status Worker::Impl::Wire(const PrepareRequest& request, Prepared* prepared) {
  const auto stage = static_cast<uint32_t>(request.stage);
  Hello hello{.role = LinkRole::kRing,
              .epoch = request.plan.epoch,
              .hop = stage + 1,
              .model_hash = request.plan.model_hash,
              .key = request.plan.key,
              .from = options_.name,
              .wire = request.plan.wire};
  const Deadline deadline = After(options_.wire_timeout);
  // Both at once: the dialer is answered when the next stage claims the hop, which may wait for its own next.
  auto out = std::async(std::launch::async, [&, hello] {
    auto link = options_.port->Dial(request.plan.HopAddress(stage + 1), hello, deadline);
    if (!link.ok()) options_.port->Cancel(request.plan.epoch);
    return link;
  });
  hello.hop = stage;
  StatusOr<std::unique_ptr<Link>> in = options_.port->Accept(hello, deadline);
  if (!in.ok()) options_.port->Cancel(request.plan.epoch);
  StatusOr<std::unique_ptr<Link>> dialed = out.get();
  // The one that was cancelled failed because of the other.
  if (!dialed.ok() && (in.ok() || absl::IsCancelled(in.status()))) {
    return Annotate(dialed.status(), "the link to the next stage");
  }
  if (!in.ok()) return Annotate(in.status(), "the link from the stage before");
  prepared->in = *std::move(in);
  prepared->out = *std::move(dialed);
  return absl::OkStatus();
}

Status Worker::Impl::StartCopying(const PrepareRequest& request, const Prepared& prepared) {
  copying_ = {.epoch = request.plan.epoch, .pullers = {}};
  const StageParts& parts = prepared.stage->parts();
  for (const LayerSource& source : request.sources) {
    if (skip_copying_) break;
    if (source.layers.begin < parts.range.begin || source.layers.end > parts.range.end || source.layers.size() <= 0) {
      return InvalidArgument("pages of layers {} are to be copied, the stage has {}", FormatRange(source.layers),
                             FormatRange(parts.range));
    }
    const Hello hello{.role = LinkRole::kBulk,
                      .epoch = request.plan.epoch,
                      .model_hash = request.plan.model_hash,
                      .key = request.plan.key,
                      .from = options_.name,
                      .to = source.worker};
    StatusOr<std::unique_ptr<Link>> link =
        options_.port->Dial(source.address, hello, After(options_.wire_timeout));
    if (!link.ok()) return Annotate(link.status(), fmt::format("the bulk link to {}", source.worker));
    std::vector<std::shared_ptr<Layer>> layers;
    for (int i = source.layers.begin; i < source.layers.end; ++i) {
      layers.push_back(parts.layers[static_cast<size_t>(i - parts.range.begin)]);
    }
    copying_.pullers.push_back(std::make_unique<PagePuller>(*std::move(link), std::move(layers)));
  }
  // Ready when little is left to copy, or little by little comes in as fast as it goes out.
  for (int round = 0; round < 8 && !copying_.pullers.empty(); ++round) {
    GYRE_ASSIGN_OR_RETURN(const uint64_t pages, CopyRound(nullptr));
    if (pages <= 64) break;
  }
  return absl::OkStatus();
}

StatusOr<uint64_t> Worker::Impl::CopyRound(const std::vector<BlockId>* blocks) {
  uint64_t pages = 0;
  for (auto& puller : copying_.pullers) {
    GYRE_ASSIGN_OR_RETURN(const uint64_t n, puller->Round(copying_.epoch, blocks, After(std::chrono::seconds(60)),
                                                          [this] { return Aborted(copying_.epoch); }));
    pages += n;
  }
  return pages;
}

void Worker::Impl::OnMove(Epoch epoch, const std::vector<BlockId>& blocks) {
  {
    MutexLock lock(&mutex_);
    if (prepared_ == nullptr || prepared_->epoch != epoch) return;
  }
  StageMoved moved;
  StatusOr<uint64_t> last = CopyRound(&blocks);
  if (!last.ok()) {
    copying_ = {};
    return Say(epoch, StageFault{last.status()});
  }
  moved.last_pages = *last;
  for (auto& puller : copying_.pullers) {
    moved.pages += puller->pages();
    moved.bytes += puller->bytes();
  }
  copying_ = {};
  Say(epoch, moved);
}

void Worker::Impl::ServeBulk(std::unique_ptr<Link> link) {
  constexpr size_t kMaxServers = 32;
  std::list<BulkServer> finished;
  {
    MutexLock lock(&mutex_);
    for (auto it = bulk_.begin(); it != bulk_.end();) {
      const auto next = std::next(it);
      if (it->done) finished.splice(finished.end(), bulk_, it);
      it = next;
    }
    if (stopping_ || bulk_.size() >= kMaxServers) {
      link->Close();
    } else {
      BulkServer& server = bulk_.emplace_back();
      server.link = std::move(link);
      server.thread = std::thread([this, &server] {
        Guarded("bulk", [&] { ServePulls(*server.link); });
        server.link->Close();
        MutexLock done(&mutex_);
        server.done = true;
      });
    }
  }
  for (BulkServer& b : finished) b.thread.join();
}

void Worker::Impl::ServePulls(Link& link) {
  while (!stopping_) {
    StatusOr<Frame> frame = link.Recv(After(std::chrono::minutes(5)));
    if (!frame.ok()) return;
    const Status status = AnswerPull(link, *frame);
    if (status.ok()) continue;
    const std::string text = Message(status);
    const ByteSpan parts[] = {std::as_bytes(std::span(text))};
    if (!link.Send({.kind = FrameKind::kPullError, .epoch = frame->header.epoch}, parts, After(milliseconds(1000))).ok()) {
      return;
    }
  }
}

Status Worker::Impl::AnswerPull(Link& link, const Frame& frame) {
  if (frame.header.kind != FrameKind::kPullPages) {
    return DataLoss("a frame of kind {} came, expected a request for pages", static_cast<int>(frame.header.kind));
  }
  GYRE_ASSIGN_OR_RETURN(const PullPages request, DecodePullPages(frame.payload));
  // Pages are read where they are written: on the stage's thread, between steps. What the job needs outlives this call,
  // should the worker stop meanwhile.
  struct Export {
    PullPages request;
    std::vector<std::byte> data;
    std::promise<StatusOr<Pages>> pages;
  };
  auto job = std::make_shared<Export>();
  job->request = request;
  auto future = job->pages.get_future();
  Post([this, job] {
    const auto layer = static_cast<int>(job->request.layer);
    if (running_ == nullptr || running_->stage == nullptr || layer < running_->stage->parts().range.begin ||
        layer >= running_->stage->parts().range.end) {
      return job->pages.set_value(FailedPrecondition("{} does not run layer {}", options_.name, layer));
    }
    const StageParts& parts = running_->stage->parts();
    job->pages.set_value(ExportPages(*parts.layers[static_cast<size_t>(layer - parts.range.begin)], job->request,
                                     step_count_, &job->data));
  });
  while (future.wait_for(milliseconds(200)) != std::future_status::ready) {
    // The stage's thread has ended and will not run the job.
    if (stopping_) return Unavailable("{} stops", options_.name);
  }
  GYRE_ASSIGN_OR_RETURN(const Pages pages, future.get());
  pages_sent_ += pages.ids.size();
  Encoder head;
  EncodePagesHead(pages, &head);
  const ByteSpan parts[] = {head.bytes(), job->data};
  return link.Send({.kind = FrameKind::kPages, .epoch = frame.header.epoch}, parts, After(std::chrono::seconds(30)));
}

Worker::Worker(WorkerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Worker::~Worker() { impl_->Stop(); }
StageControl& Worker::control() { return *impl_; }
void Worker::ServeBulk(std::unique_ptr<Link> link) { impl_->ServeBulk(std::move(link)); }
void Worker::Reset() { impl_->Reset(); }
int Worker::threads() const { return impl_->options().threads; }
WorkerStats Worker::stats() const { return impl_->stats(); }
Duration Worker::busy_time() const { return impl_->busy(); }
double Worker::TakeBusyShare() { return impl_->TakeBusyShare(); }
size_t Worker::weight_bytes() const { return impl_->weight_bytes(); }
void Worker::SetFaultHook(std::function<Status()> hook) { impl_->SetFaultHook(std::move(hook)); }
void Worker::SkipCopyingForTest() { impl_->SkipCopying(); }
void Worker::BreakLinksForTest() { impl_->BreakRunning(); }
void Worker::Stop() { impl_->Stop(); }

}  // namespace gyre
