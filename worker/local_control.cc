#include "worker/local_control.h"

#include <pthread.h>

#include <exception>
#include <new>
#include <utility>

namespace gyre {
namespace {

std::string Name(Epoch epoch) {
  return fmt::format("{}.{}", epoch.term, epoch.number);
}

}  // namespace

LocalControl::LocalControl(LocalControlOptions options) : options_(std::move(options)) {
  loader_ = std::thread([this] {
    pthread_setname_np(pthread_self(), ("load " + options_.name).substr(0, 15).c_str());
    while (const std::optional<Job> job = jobs_.Pop(kNoDeadline)) (*job)();
  });
}

LocalControl::~LocalControl() {
  Stop();
}

void LocalControl::SetEventSink(EventSink sink) {
  auto shared = std::make_shared<const EventSink>(std::move(sink));
  MutexLock lock(&mutex_);
  sink_ = std::move(shared);
}

void LocalControl::Report(Epoch epoch, decltype(StageEvent::what) what) {
  std::shared_ptr<const EventSink> sink;
  {
    MutexLock lock(&mutex_);
    sink = sink_;
  }
  if (sink != nullptr && *sink) (*sink)({.worker = options_.name, .epoch = epoch, .what = std::move(what)});
}

void LocalControl::Prepare(const PrepareRequest& request) {
  Status closed;
  {
    MutexLock lock(&mutex_);
    closed = closed_;
    if (closed.ok()) {
      wanted_ = request.plan.epoch;
      if (aborted_ == wanted_) aborted_.reset();
      jobs_.Push([this, request] { OnPrepare(request); });
    }
  }
  if (!closed.ok()) Report(request.plan.epoch, StageFault{closed});
}

void LocalControl::Abort(Epoch epoch) {
  Status closed;
  {
    MutexLock lock(&mutex_);
    closed = closed_;
    if (closed.ok()) {
      if (wanted_ == epoch) wanted_.reset();
      aborted_ = epoch;
      jobs_.Push([this, epoch] { OnAbort(epoch); });
    }
  }
  if (!closed.ok()) Report(epoch, StageFault{closed});
}

void LocalControl::Commit(Epoch epoch) {
  Status closed;
  {
    MutexLock lock(&mutex_);
    closed = closed_;
    if (closed.ok()) commits_.push_back(epoch);
  }
  if (!closed.ok()) return Report(epoch, StageFault{closed});
  options_.wake();
}

std::optional<Epoch> LocalControl::NextCommit() {
  MutexLock lock(&mutex_);
  if (commits_.empty()) return std::nullopt;
  const Epoch epoch = commits_.front();
  commits_.pop_front();
  return epoch;
}

StatusOr<std::shared_ptr<EpochStage>> LocalControl::Take(Epoch epoch) {
  MutexLock lock(&mutex_);
  if (running_ != nullptr && running_->epoch == epoch) return running_;
  if (prepared_ == nullptr || prepared_->epoch != epoch || wanted_ != epoch) {
    return FailedPrecondition("commit of plan {}, but {} is prepared", Name(epoch),
                              prepared_ == nullptr ? "nothing" : "plan " + Name(prepared_->epoch));
  }
  running_ = std::exchange(prepared_, nullptr);
  wanted_.reset();
  return running_;
}

void LocalControl::Retire(std::shared_ptr<EpochStage> stage) {
  jobs_.Push([stage = std::move(stage)] {});  // freed with the job
}

bool LocalControl::Awaits(uint64_t term) {
  MutexLock lock(&mutex_);
  return wanted_.has_value() && wanted_->term == term;
}

bool LocalControl::Wanted(Epoch epoch) {
  MutexLock lock(&mutex_);
  return wanted_ == epoch;
}

void LocalControl::Close(const Status& why) {
  std::deque<Epoch> unanswered;
  {
    MutexLock lock(&mutex_);
    if (!closed_.ok()) return;
    closed_ = why;
    wanted_.reset();
    unanswered.swap(commits_);
    jobs_.Close();
  }
  for (const Epoch epoch : unanswered) Report(epoch, StageFault{why});
}

void LocalControl::Stop() {
  Close(Unavailable("{} is stopped", options_.name));
  if (loader_.joinable()) loader_.join();
}

void LocalControl::OnPrepare(const PrepareRequest& request) {
  const Epoch epoch = request.plan.epoch;
  StatusOr<std::shared_ptr<EpochStage>> loaded = Internal("not loaded");
  try {
    loaded = Load(request);
  } catch (const std::bad_alloc&) {
    loaded = ResourceExhausted("no memory for the weights of plan {}", Name(epoch));
  } catch (const std::exception& e) {
    loaded = Internal("loading for plan {}: {}", Name(epoch), e.what());
  }
  bool aborted = false;
  {
    MutexLock lock(&mutex_);
    aborted = aborted_ == epoch && closed_.ok();
    if (wanted_ != epoch) {
      loaded = closed_.ok() ? FailedPrecondition("plan {} gave way to a newer one", Name(epoch)) : closed_;
    } else if (loaded.ok()) {
      prepared_ = *std::move(loaded);
      loaded = std::shared_ptr<EpochStage>();
    } else {
      wanted_.reset();
    }
  }
  if (aborted) return;  // the Abort's own event, which follows, is the end of both
  if (!loaded.ok()) return Report(epoch, StageFault{loaded.status()});
  Report(epoch, StageReady{});
}

void LocalControl::OnAbort(Epoch epoch) {
  std::shared_ptr<EpochStage> dropped;  // freed outside of the lock
  bool runs = false;
  {
    MutexLock lock(&mutex_);
    runs = running_ != nullptr && running_->epoch == epoch;
    if (prepared_ != nullptr && prepared_->epoch == epoch) dropped.swap(prepared_);
  }
  if (runs) return Report(epoch, StageFault{FailedPrecondition("abort of plan {}, which is running", Name(epoch))});
  dropped.reset();
  Report(epoch, StageAborted{});
}

Status LocalControl::Check(const PrepareRequest& request, const EpochStage* running) const {
  const Plan& plan = request.plan;
  GYRE_RETURN_IF_ERROR(plan.Validate());
  const size_t layers = options_.model->spec().layers.size();
  if (static_cast<size_t>(plan.num_layers) != layers) {
    return InvalidArgument("a plan for {} layers, the model has {}", plan.num_layers, layers);
  }
  if (request.stage < 0 || static_cast<size_t>(request.stage) >= plan.stages.size()) {
    return InvalidArgument("stage {} of a plan of {}", request.stage, plan.stages.size());
  }
  const StagePlan& stage = plan.stages[static_cast<size_t>(request.stage)];
  if (stage.members.size() != 1 || stage.members[0].shards != 1) {
    return Unimplemented("stage {} is cut into shards, which this worker does not know", request.stage);
  }
  if (stage.members[0].worker != options_.name) {
    return InvalidArgument("stage {} is for {}, this is {}", request.stage, stage.members[0].worker, options_.name);
  }
  if (running != nullptr && plan.epoch <= running->epoch) {
    return FailedPrecondition("plan {} is not newer than {}, which is running", Name(plan.epoch), Name(running->epoch));
  }
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<EpochStage>> LocalControl::Load(const PrepareRequest& request) {
  const Epoch epoch = request.plan.epoch;
  std::shared_ptr<EpochStage> running, replaced;
  {
    MutexLock lock(&mutex_);
    running = running_;
    replaced.swap(prepared_);
  }
  replaced.reset();  // its memory, before the new one's
  GYRE_RETURN_IF_ERROR(Check(request, running.get()));
  const StagePlan& stage = request.plan.stages[static_cast<size_t>(request.stage)];
  uint64_t told = 0;
  LoadOptions load{.range = stage.layers,
                   .first = stage.first,
                   .last = stage.last,
                   .kv = {.type = request.kv_type, .block_size = request.block_size, .num_blocks = request.num_blocks},
                   .reuse = running != nullptr ? &running->stage->parts() : nullptr,
                   .share_kv = running != nullptr && running->epoch.term == epoch.term,
                   .progress = {},
                   .cancelled = {}};
  load.progress = [&](uint64_t done, uint64_t total) {
    if (done != 0 && done != total && done - told < total / 256) return;
    told = done;
    Report(epoch, StageProgress{.done = done, .total = total});
  };
  load.cancelled = [&] { return !Wanted(epoch); };
  const std::unique_ptr<Backend> packer = MakeBackend(options_.isa, options_.threads);
  GYRE_ASSIGN_OR_RETURN(StageParts parts, LoadStageParts(options_.model, load, *packer));
  auto made = std::make_shared<EpochStage>();
  made->epoch = epoch;
  made->index = static_cast<uint32_t>(request.stage);
  made->stage = std::make_unique<Stage>(
      std::move(parts), StageOptions{.model = request.plan.model, .exact = options_.exact}, *options_.backend);
  return made;
}

}  // namespace gyre
