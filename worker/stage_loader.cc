#include "worker/stage_loader.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/counted.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/thread.h"
#include "transport/queued_link.h"
#include "worker/catch_exhausted.h"

namespace gyre {

using std::chrono::milliseconds;

void StageLoader::Start() {
  thread_ = MakeThread("loader", [this] { worker_.guard("loader", [this] { Loop(); }); });
}

void StageLoader::Close() {
  stopping_ = true;
  jobs_.Close();
  std::optional<Epoch> asked;
  {
    MutexLock lock(&mutex_);
    asked = asked_;
  }
  // The loader may wait for a neighbour.
  if (asked) options_.port->Cancel(*asked);
}

void StageLoader::Prepare(const PrepareRequest& request) {
  if (stopping_) return worker_.say(request.plan.epoch, StageFault{Unavailable("it has stopped")});
  uint64_t reset = 0;
  std::optional<Epoch> before;
  {
    MutexLock lock(&mutex_);
    before = std::exchange(asked_, request.plan.epoch);
    asked_stages_ = request.plan.stages;
    const auto own = static_cast<size_t>(request.stage);
    const bool has_stage = request.stage >= 0 && own < request.plan.stages.size();
    replicated_by_.emplace_back(request.plan.epoch, has_stage ? request.plan.stages[own].replicated_by : "");
    // The running plan and this one count; those between them were given up.
    if (replicated_by_.size() > 16) replicated_by_.erase(replicated_by_.begin() + 1);
    reset = resets_;
  }
  // The loader may wait for neighbors of the plan that this one replaces.
  const Epoch now = request.plan.epoch;
  if (before && (before->term != now.term || before->number < now.number)) options_.port->Cancel(*before);
  // Before anybody can ask for its pages.
  const std::optional<uint64_t> replicated = request.restores != 0 ? replica_->Freeze(request.restores) : std::nullopt;
  // At once: the neighbours' links are checked by it as soon as they come.
  options_.port->SetKey(request.plan.epoch, request.plan.key);
  jobs_.Push([this, request, reset, replicated] {
    {
      MutexLock lock(&mutex_);
      if (reset != resets_) return;
    }
    OnPrepare(request, {.verb = ChangeVerb::kPrepare, .replicated = replicated});
  });
}

void StageLoader::Move(Epoch epoch, const UnitList& list) {
  jobs_.Push([this, epoch, list] { OnMove(epoch, list); });
}

void StageLoader::Abort(Epoch epoch) {
  {
    MutexLock lock(&mutex_);
    aborted_ = epoch;
  }
  options_.port->Cancel(epoch);
  jobs_.Push([this, epoch] {
    DropPrepared();
    worker_.say(epoch, StageDone{.verb = ChangeVerb::kAbort});
  });
}

void StageLoader::Release(Epoch epoch) {
  bool replicas = false;  // a replica may dial its source at any time
  {
    MutexLock lock(&mutex_);
    if (asked_ == epoch) {
      replicas = std::any_of(asked_stages_.begin(), asked_stages_.end(),
                             [](const StagePlan& s) { return !s.replicated_by.empty(); });
    }
  }
  if (replicas) {
    options_.port->Serves(epoch);
  } else {
    options_.port->Cancel(epoch);
  }
}

void StageLoader::Reset() {
  std::optional<Epoch> asked;
  std::shared_ptr<const StageParts> kept, running;  // go without the lock, as their memory may be large
  {
    MutexLock lock(&mutex_);
    ++resets_;
    if (running_parts_ != nullptr) kept = Keep(*running_parts_);
    running = std::exchange(running_parts_, nullptr);
    // The stage that is being prepared may wait for a neighbour that nobody will send.
    asked = aborted_ = asked_;
  }
  if (asked) options_.port->Cancel(*asked);
  jobs_.Push([this] {
    std::shared_ptr<const StageParts> kept_before;
    {
      MutexLock lock(&mutex_);
      if (kept_weights_ == nullptr && prepared_ != nullptr && prepared_->stage != nullptr)
        kept_before = Keep(prepared_->stage->parts());
    }
    DropPrepared();
  });
}

uint64_t StageLoader::ResetToken() {
  MutexLock lock(&mutex_);
  return resets_;
}

std::shared_ptr<PreparedStage> StageLoader::Take(Epoch epoch, uint64_t reset) {
  std::shared_ptr<const StageParts> kept, running;  // go without the lock
  MutexLock lock(&mutex_);
  if (reset != resets_ || prepared_ == nullptr || prepared_->epoch != epoch) return nullptr;
  std::shared_ptr<PreparedStage> taken = std::exchange(prepared_, nullptr);
  kept = std::exchange(kept_weights_, nullptr);
  running = std::exchange(running_parts_, nullptr);
  running_parts_ = taken->stage != nullptr ? std::make_shared<StageParts>(taken->stage->parts()) : nullptr;
  return taken;
}

void StageLoader::Dispose(std::shared_ptr<PreparedStage> stage) {
  jobs_.Push([stage = std::move(stage)] {});
}

void StageLoader::AwaitTakeover() {
  std::optional<Epoch> asked;
  {
    MutexLock lock(&mutex_);
    asked = aborted_ = asked_;
  }
  if (asked) options_.port->Cancel(*asked);
  jobs_.Push([this] { DropPrepared(); });
}

LayerRange StageLoader::running_layers() {
  MutexLock lock(&mutex_);
  return running_parts_ != nullptr ? running_parts_->range : LayerRange{};
}

std::shared_ptr<const StageParts> StageLoader::Keep(const StageParts& parts) {
  auto kept = std::make_shared<StageParts>(parts);
  for (auto& layer : kept->layers) layer = layer->Weights();
  return std::exchange(kept_weights_, kept);
}

// The kept part of the plan's weights. The rest is freed before more are loaded: the coordinator counts on its memory.
std::shared_ptr<const StageParts> StageLoader::TrimKept(const StagePlan& plan) {
  std::shared_ptr<const StageParts> all;
  {
    MutexLock lock(&mutex_);
    all = kept_weights_;
  }
  if (all == nullptr) return nullptr;
  const LayerRange common{std::max(all->range.begin, plan.layers.begin), std::min(all->range.end, plan.layers.end)};
  auto kept = std::make_shared<StageParts>(*all);
  kept->range = common.size() > 0 ? common : LayerRange{};
  kept->layers.clear();
  for (int i = kept->range.begin; i < kept->range.end; ++i)
    kept->layers.push_back(all->layers[static_cast<size_t>(i - all->range.begin)]);
  if (kept->first < plan.first || kept->last < plan.last) {
    kept->ends = {};
    kept->first = kept->last = false;
  }
  MutexLock lock(&mutex_);
  if (kept_weights_ == all) kept_weights_ = kept;
  return kept;  // `all` goes without the lock, as its weights may be many
}

bool StageLoader::Aborted(Epoch epoch) {
  MutexLock lock(&mutex_);
  return AbortedLocked(epoch);
}

void StageLoader::Loop() {
  for (;;) {
    // While a prepared stage waits for its Move, pages are copied in rounds.
    std::optional<std::function<void()>> load =
        jobs_.Pop(copying_.pullers.empty() ? kNoDeadline : After(milliseconds(20)));
    if (stopping_) break;
    if (load) {
      (*load)();
    } else if (StatusOr<uint64_t> round = CatchExhausted([this] { return CopyRound(nullptr); }); !round.ok()) {
      worker_.say(copying_.epoch, StageFault{round.status()});
      copying_ = {};
    }
  }
  DropPrepared();
}

void StageLoader::OnPrepare(const PrepareRequest& request, const StageDone& ready) {
  DropPrepared();
  const Epoch epoch = request.plan.epoch;
  auto prepared = std::make_shared<PreparedStage>();
  prepared->epoch = epoch;
  prepared->stage_index = request.stage;
  prepared->wire = request.plan.wire;
  prepared->fresh = request.fresh;
  const Status status = request.stage >= 0 ? TryPrepare(request, prepared.get()) : absl::OkStatus();
  // After the answer, as the end of a fetch may wait for a source that does not answer.
  const std::unique_ptr<WeightLoading> loading = std::move(loading_);
  if (!status.ok()) {
    copying_ = {};
    if (!Aborted(epoch)) worker_.say(epoch, StageFault{status});
    return;
  }
  {
    MutexLock lock(&mutex_);
    if (AbortedLocked(epoch)) return;
    prepared_ = std::move(prepared);
  }
  worker_.say(epoch, ready);
}

Status StageLoader::TryPrepare(const PrepareRequest& request, PreparedStage* prepared) {
  const Status loaded = CatchExhausted([&] { return LoadStage(request, prepared); });
  EndTeamThreads();  // those that packed
  if (absl::IsResourceExhausted(loaded)) {
    return Annotate(loaded, fmt::format("the layers of plan {}", request.plan.epoch.number));
  }
  GYRE_RETURN_IF_ERROR(loaded);
  return CatchExhausted([&]() -> Status {
    GYRE_RETURN_IF_ERROR(Wire(request, prepared));
    PrepareReplica(request);
    return StartCopying(request, *prepared);
  });
}

Status StageLoader::CheckRequest(const PrepareRequest& request) const {
  GYRE_RETURN_IF_ERROR(request.plan.Validate());
  if (static_cast<size_t>(request.stage) >= request.plan.stages.size()) {
    return InvalidArgument("stage {} of a plan with {}", request.stage, request.plan.stages.size());
  }
  if (request.block_size < 1 || request.memory[kPageGroup] == 0) {
    return InvalidArgument("{} KV blocks of {} positions", request.memory[kPageGroup], request.block_size);
  }
  const LayerRange& range = request.plan.stages[static_cast<size_t>(request.stage)].layers;
  const ModelSpec& spec = options_.model->spec();
  if (request.plan.num_layers != static_cast<int>(spec.layers.size())) {
    return InvalidArgument("a plan for {} layers, the model has {}", request.plan.num_layers, spec.layers.size());
  }
  if (request.plan.model_hash != options_.model->content_hash()) {
    return FailedPrecondition("the plan is for another model file");
  }
  for (int i = range.begin; i < range.end; ++i) {
    const int from = spec.JoinedFrom(i);
    if (from >= range.begin) continue;
    return InvalidArgument("layer {} reads {} of layer {}, which is in an earlier stage", i,
                           spec.layers[static_cast<size_t>(i)].same_input ? "the input" : "the keys and values", from);
  }
  return absl::OkStatus();
}

StatusOr<size_t> StageLoader::BytesToLoad(const StagePlan& plan, bool mtp) const {
  GYRE_ASSIGN_OR_RETURN(size_t total, EndBytes(*options_.model, plan.first, plan.last));
  if (mtp) {
    GYRE_ASSIGN_OR_RETURN(const size_t drafts, MtpBytes(*options_.model));
    total += drafts;
  }
  for (int i = plan.layers.begin; i < plan.layers.end; ++i) {
    GYRE_ASSIGN_OR_RETURN(const size_t bytes, LayerBytes(*options_.model, i));
    total += bytes;
  }
  return total;
}

std::shared_ptr<Layer> StageLoader::Present::Find(int layer) const {
  const auto in = [&](const std::shared_ptr<const StageParts>& parts) -> std::shared_ptr<Layer> {
    if (parts == nullptr || layer < parts->range.begin || layer >= parts->range.end) return nullptr;
    return parts->layers[static_cast<size_t>(layer - parts->range.begin)];
  };
  if (std::shared_ptr<Layer> found = in(running)) return found;
  const std::shared_ptr<Layer> found = in(kept);
  return found != nullptr ? found->Weights() : nullptr;
}

Status StageLoader::LoadStage(const PrepareRequest& request, PreparedStage* prepared) {
  GYRE_RETURN_IF_ERROR(CheckRequest(request));
  const Epoch epoch = request.plan.epoch;
  const StagePlan& plan = request.plan.stages[static_cast<size_t>(request.stage)];
  const Model& model = *options_.model;
  Present present{.running = {}, .kept = TrimKept(plan)};
  {
    MutexLock lock(&mutex_);
    present.running = running_parts_;
  }
  prepared->queue = options_.device->NewBackend();
  progress_ = {};
  activity_ = 0;
  const StageParts* before = present.ends();
  const bool mtp = request.mtp && plan.last;
  GYRE_ASSIGN_OR_RETURN(progress_.total, BytesToLoad(plan, mtp));
  const bool ends_here = before != nullptr && before->first >= plan.first && before->last >= plan.last &&
                         (!mtp || before->ends.mtp != nullptr);
  GYRE_RETURN_IF_ERROR(BeginFetch(request, present, ends_here));
  StageParts parts{.model = options_.model,
                   .model_id = request.plan.model,
                   .range = plan.layers,
                   .first = plan.first,
                   .last = plan.last,
                   .layers = {},
                   .ends = {}};
  GYRE_ASSIGN_OR_RETURN(parts.layers, LoadLayers(request, present, *prepared->queue));
  if (ends_here) {
    parts.ends = before->ends;
  } else {
    if (loading_ != nullptr) GYRE_RETURN_IF_ERROR(loading_->WaitForEnds([&] { return Cancelled(epoch); }));
    GYRE_ASSIGN_OR_RETURN(parts.ends, LoadEnds(model, plan.first, plan.last, *prepared->queue, Loaded(epoch)));
  }
  parts.ends.mtp = nullptr;
  if (mtp) {
    GYRE_ASSIGN_OR_RETURN(parts.ends.mtp,
                          LoadDrafter(request, before != nullptr ? &before->ends : nullptr, *prepared->queue));
  }
  prepared->stage = std::make_unique<Stage>(std::move(parts), *prepared->queue, options_.exact, request.plan.wire);
  if (options_.device->room()) {
    // The default of --max-rows; larger steps take more memory when they come.
    constexpr uint32_t kRows = 512;
    const PoolSizes size(request, *options_.device);
    const uint64_t positions = uint64_t{size.memory[kPageGroup]} * static_cast<uint64_t>(size.block_size);
    const auto end = static_cast<uint32_t>(std::min<uint64_t>(positions, Unsigned(model.spec().context)));
    prepared->stage->Reserve(std::min(kRows, end), end);
  }
  progress_ = {.done = progress_.total, .total = progress_.total};
  worker_.say(epoch, progress_);
  return absl::OkStatus();
}

// The layer for drafts, with pages that begin empty unless the running stage has them: nothing of them has to be
// right. Its weights are shared with that stage.
StatusOr<std::shared_ptr<const MtpHead>> StageLoader::LoadDrafter(const PrepareRequest& request, const Ends* before,
                                                                  Backend& queue) {
  const Model& model = *options_.model;
  const PoolSizes size(request, *options_.device);
  std::shared_ptr<MtpHead> head;
  if (before != nullptr && before->mtp != nullptr) {
    const Layer& layer = *before->mtp->layer;
    if (!request.fresh && layer.pages->Fits(layer.spec, size)) return before->mtp;
    head = std::make_shared<MtpHead>(*before->mtp);
  } else {
    GYRE_ASSIGN_OR_RETURN(head, LoadMtp(model, queue, Loaded(request.plan.epoch)));
  }
  std::shared_ptr<Layer> layer = head->layer->Weights();
  GYRE_ASSIGN_OR_RETURN(layer->pages, PagePool::For(layer->spec, model.spec().dim, size, *options_.device));
  head->layer = std::move(layer);
  return head;
}

Status StageLoader::BeginFetch(const PrepareRequest& request, const Present& present, bool ends_here) {
  if (options_.weights == nullptr) return absl::OkStatus();
  const StagePlan& plan = request.plan.stages[static_cast<size_t>(request.stage)];
  const StageParts* before = present.ends();
  LoadingRequest wanted{.range = plan.layers,
                        .layers = {},
                        .first = plan.first,
                        .last = plan.last,
                        .tied_head = options_.model->spec().tied_head,
                        .mtp = request.mtp,
                        .per_block = options_.model->spec().layers_per_block,
                        .ends = !ends_here,
                        .in_use = before != nullptr ? before->range : LayerRange{},
                        .sources = request.weight_sources,
                        .name = options_.name,
                        .transport = request.plan.transport,
                        // Beside a stage that computes, hashing takes little.
                        .threads = present.running != nullptr ? std::max(1, options_.threads / 8) : options_.threads};
  for (int i = plan.layers.begin; i < plan.layers.end; ++i) {
    if (present.Find(i) == nullptr) wanted.layers.push_back(i);
  }
  const Epoch epoch = request.plan.epoch;
  GYRE_ASSIGN_OR_RETURN(loading_, options_.weights->Begin(wanted));
  if (loading_->to_fetch_bytes() > 0) SayProgress(epoch);
  return absl::OkStatus();
}

StatusOr<std::vector<std::shared_ptr<Layer>>> StageLoader::LoadLayers(const PrepareRequest& request,
                                                                      const Present& present, Backend& queue) {
  const Epoch epoch = request.plan.epoch;
  const LayerRange& range = request.plan.stages[static_cast<size_t>(request.stage)].layers;
  const Model& model = *options_.model;
  const PoolSizes size(request, *options_.device);
  int loaded = 0;
  std::vector<std::shared_ptr<Layer>> layers;
  for (int i = range.begin; i < range.end; ++i) {
    if (Aborted(epoch)) return absl::CancelledError("the plan was given up");
    std::shared_ptr<Layer> layer = present.Find(i);
    if (layer == nullptr) {
      if (loading_ != nullptr) GYRE_RETURN_IF_ERROR(loading_->WaitForLayer(i, [&] { return Cancelled(epoch); }));
      GYRE_ASSIGN_OR_RETURN(layer, LoadLayer(model, i, queue, Loaded(epoch), options_.exact));
      ++loaded;
    } else if (layer->pages != nullptr && (request.fresh || !layer->pages->Fits(layer->spec, size))) {
      layer = layer->Weights();
    }
    if (layer->pages == nullptr) {
      GYRE_ASSIGN_OR_RETURN(std::shared_ptr<PagePool> pages,
                            PagePool::For(layer->spec, model.spec().dim, size, *options_.device));
      // A layer without memory has none in any plan; the running stage reads it meanwhile.
      if (pages != nullptr) layer->pages = std::move(pages);
    }
    layers.push_back(std::move(layer));
  }
  const auto all = static_cast<uint64_t>(range.size());
  const char* const rest = static_cast<uint64_t>(loaded) == all ? ""
                           : loaded == 0                        ? "; all were here already"
                                                                : "; the others were here already";
  Log(LogLevel::kInfo, "{}: plan {}: loaded {} of {}{}", options_.name, epoch.number, loaded, Counted(all, "layer"),
      rest);
  return layers;
}

BytesDone StageLoader::Loaded(Epoch epoch) {
  return [this, epoch](size_t bytes) {
    progress_.done += bytes;
    SayProgress(epoch);
  };
}

void StageLoader::SayProgress(Epoch epoch) {
  if (loading_ != nullptr) {
    progress_.fetched = loading_->fetched_bytes();
    progress_.to_fetch = loading_->to_fetch_bytes();
  }
  next_word_ = After(std::chrono::seconds(1));
  worker_.say(epoch, progress_);
}

bool StageLoader::Cancelled(Epoch epoch) {
  const uint64_t now = loading_ == nullptr ? activity_ + 1 : loading_->activity();
  if (now != activity_ && Clock::now() >= next_word_) {
    activity_ = now;
    SayProgress(epoch);
  }
  return Aborted(epoch);
}

Status StageLoader::Wire(const PrepareRequest& request, PreparedStage* prepared) {
  if (Aborted(request.plan.epoch)) return absl::CancelledError("the plan was given up");
  const auto stage = static_cast<uint32_t>(request.stage);
  Hello hello{
      .role = LinkRole::kRing,
      .epoch = request.plan.epoch,
      .hop = stage + 1,
      .model_hash = request.plan.model_hash,
      .key = request.plan.key,
      .from = options_.name,
      .to = stage + 1 == request.plan.stages.size() ? kCoordinatorName : request.plan.stages[stage + 1].worker(),
      .wire = request.plan.wire,
      .transport = request.plan.transport};
  // No time limit: the neighbors may load for hours, and a plan that is given up is aborted or replaced.
  // Dial and accept run at once: a dialer is answered only when the next stage claims the hop, and that stage may
  // itself wait for its own next one.
  StatusOr<std::unique_ptr<Link>> dialed = absl::UnknownError("not dialed");
  GYRE_ASSIGN_OR_RETURN(std::thread dialer, StartThread("dialer", [&, hello] {
                          dialed = CatchExhausted([&] {
                            return options_.port->Dial(request.plan.HopAddress(stage + 1), hello, kNoDeadline);
                          });
                          if (!dialed.ok()) options_.port->Cancel(request.plan.epoch);
                        }));
  hello.hop = stage;
  hello.from = stage == 0 ? kCoordinatorName : request.plan.stages[stage - 1].worker();
  hello.to = options_.name;
  StatusOr<std::unique_ptr<Link>> in = CatchExhausted([&] { return options_.port->Accept(hello, kNoDeadline); });
  if (!in.ok()) options_.port->Cancel(request.plan.epoch);
  dialer.join();
  // The side that was cancelled failed because of the other one.
  if (!dialed.ok() && (in.ok() || absl::IsCancelled(in.status()))) {
    return Annotate(dialed.status(), kLinkToNextStage);
  }
  if (!in.ok()) return Annotate(in.status(), kLinkFromStageBefore);
  prepared->in = *std::move(in);
  prepared->out = MakeQueuedLink(*std::move(dialed), options_.queued_bytes);
  return absl::OkStatus();
}

void StageLoader::DropPrepared() {
  copying_ = {};
  replica_->Forget();
  std::shared_ptr<PreparedStage> dropped;
  MutexLock lock(&mutex_);
  dropped = std::move(prepared_);
  prepared_ = nullptr;
}

}  // namespace gyre
