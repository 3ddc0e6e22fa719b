// How a worker's plan changes: what the coordinator asks, the loader's loop, the next plan's stage, and the swap.
#include <algorithm>
#include <future>
#include <utility>

#include "base/log.h"
#include "worker/worker_state.h"

namespace gyre {

using std::chrono::milliseconds;

void Worker::Impl::Prepare(const PrepareRequest& request) {
  if (stopping_) return Say(request.plan.epoch, StageFault{Unavailable("it has stopped")});
  uint64_t reset = 0;
  std::optional<Epoch> before;
  {
    MutexLock lock(&mutex_);
    before = std::exchange(asked_, request.plan.epoch);
    asked_stages_ = request.plan.stages;
    reset = resets_;
  }
  // The loader may wait for neighbors of the plan that this one replaces.
  const Epoch now = request.plan.epoch;
  if (before && before->term == now.term && before->number < now.number) options_.port->Cancel(*before);
  // At once: the neighbours' links are checked by it as soon as they come.
  options_.port->SetKey(request.plan.epoch, request.plan.key);
  loads_.Push([this, request, reset] {
    {
      MutexLock lock(&mutex_);
      if (reset != resets_) return;
    }
    OnPrepare(request);
  });
}

void Worker::Impl::Move(Epoch epoch, const std::vector<BlockId>& blocks) {
  loads_.Push([this, epoch, blocks] { OnMove(epoch, blocks); });
}

void Worker::Impl::Commit(Epoch epoch) {
  uint64_t reset = 0;
  {
    MutexLock lock(&mutex_);
    reset = resets_;
    // All steps have landed, or their ring is given up: a Send that still waits is for a stage that is gone.
    if (sending_ && running_out_ != nullptr) running_out_->Close();
  }
  Post([this, epoch, reset] { OnCommit(epoch, reset); });
}

void Worker::Impl::Release(Epoch epoch) {
  options_.port->Cancel(epoch);
  Post([this, epoch] {
    if (running_ == nullptr || running_->epoch == epoch) Retire();
  });
}

void Worker::Impl::Abort(Epoch epoch) {
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

void Worker::Impl::Reset() {
  std::optional<Epoch> asked;
  {
    MutexLock lock(&mutex_);
    ++resets_;
    if (running_parts_ != nullptr) Keep(*running_parts_);
    running_parts_ = nullptr;
    if (running_out_ != nullptr) running_out_->Close();
    running_out_ = running_in_ = nullptr;
    // The stage that is being prepared may wait for a neighbour that nobody will send.
    asked = aborted_ = asked_;
  }
  if (asked) options_.port->Cancel(*asked);
  loads_.Push([this] {
    {
      MutexLock lock(&mutex_);
      if (kept_weights_ == nullptr && prepared_ != nullptr && prepared_->stage != nullptr)
        Keep(prepared_->stage->parts());
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

void Worker::Impl::AwaitTakeover() {
  std::optional<Epoch> asked;
  {
    MutexLock lock(&mutex_);
    asked = aborted_ = asked_;
  }
  if (asked) options_.port->Cancel(*asked);
  loads_.Push([this] { DropPrepared(); });
}

LayerRange Worker::Impl::running_layers() {
  MutexLock lock(&mutex_);
  return running_parts_ != nullptr ? running_parts_->range : LayerRange{};
}

void Worker::Impl::Keep(const StageParts& parts) {
  auto kept = std::make_shared<StageParts>(parts);
  for (auto& layer : kept->layers) layer = layer->Weights();
  kept_weights_ = kept;
}

// What is kept of the plan's weights. The rest goes before more are loaded: the coordinator counts on its memory.
std::shared_ptr<const StageParts> Worker::Impl::TrimKept(const StagePlan& plan) {
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

bool Worker::Impl::Aborted(Epoch epoch) {
  MutexLock lock(&mutex_);
  return AbortedLocked(epoch);
}

void Worker::Impl::LoadLoop() {
  for (;;) {
    // While a prepared stage waits for its Move, pages are copied in rounds.
    std::optional<std::function<void()>> load =
        loads_.Pop(copying_.pullers.empty() ? kNoDeadline : After(milliseconds(20)));
    if (stopping_) break;
    if (load) {
      (*load)();
    } else if (StatusOr<uint64_t> round = CatchExhausted([this] { return CopyRound(nullptr); }); !round.ok()) {
      Say(copying_.epoch, StageFault{round.status()});
      copying_ = {};
    }
  }
  DropPrepared();
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
    if (request.stage >= 0) {
      status = LoadStage(request, prepared.get());
      EndTeamThreads();  // those that packed
      if (status.ok()) status = Wire(request, prepared.get());
      if (status.ok()) status = StartCopying(request, *prepared);
    }
  } catch (const OutOfDeviceMemory& e) {
    EndTeamThreads();
    status = ResourceExhausted("no memory for its layers of plan {}: {}", epoch.number, e.what());
  } catch (const std::bad_alloc&) {
    EndTeamThreads();
    status = ResourceExhausted("no memory for its layers of plan {}", epoch.number);
  } catch (const DeviceFailed& e) {
    EndTeamThreads();
    status = Internal("its layers of plan {}: {}", epoch.number, e.what());
  } catch (const std::system_error& e) {
    EndTeamThreads();
    status = ResourceExhausted("no thread for plan {}: {}", epoch.number, e.what());
  }
  // After the answer, as the end of a fetch may wait for a source that does not answer.
  const std::unique_ptr<WeightLoading> loading = std::move(loading_);
  if (!status.ok()) {
    copying_ = {};
    if (!Aborted(epoch)) Say(epoch, StageFault{status});
    return;
  }
  {
    MutexLock lock(&mutex_);
    if (AbortedLocked(epoch)) return;
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
    return InvalidArgument("a plan for {} layers, the model has {}", request.plan.num_layers,
                           model.spec().layers.size());
  }
  if (request.plan.model_hash != model.content_hash()) return FailedPrecondition("the plan is for another model file");
  const std::shared_ptr<const StageParts> kept = TrimKept(plan);
  std::shared_ptr<const StageParts> running;
  {
    MutexLock lock(&mutex_);
    running = running_parts_;
  }
  for (int i = plan.layers.begin; i < plan.layers.end; ++i) {
    const AttentionSpec* a = model.spec().layers[static_cast<size_t>(i)].attention();
    if (a == nullptr || a->kv_layer < 0 || a->kv_layer >= plan.layers.begin) continue;
    return InvalidArgument("layer {} reads the keys and values of layer {}, which is in an earlier stage", i,
                           a->kv_layer);
  }
  prepared->queue = options_.device->NewBackend();
  GYRE_ASSIGN_OR_RETURN(size_t total, EndBytes(model, plan.first, plan.last));
  for (int i = plan.layers.begin; i < plan.layers.end; ++i) {
    GYRE_ASSIGN_OR_RETURN(const size_t bytes, LayerBytes(model, i));
    total += bytes;
  }
  size_t done = 0;
  auto said = [&] {
    progress_ = {.done = done, .total = total};
    if (loading_ != nullptr) {
      progress_.fetched = loading_->fetched_bytes();
      progress_.to_fetch = loading_->to_fetch_bytes();
    }
    next_word_ = After(std::chrono::seconds(1));
    Say(request.plan.epoch, progress_);
  };
  progress_ = {.done = 0, .total = total};
  const BytesDone progress = [&](size_t bytes) {
    done += bytes;
    said();
  };
  // Weights that are on their way are no silence for the coordinator; a fetch that stands still is.
  uint64_t activity = 0;
  const auto cancelled = [&] {
    const uint64_t now = loading_ == nullptr ? activity + 1 : loading_->activity();
    if (now != activity && Clock::now() >= next_word_) {
      activity = now;
      said();
    }
    return Aborted(request.plan.epoch);
  };
  auto find = [](const std::shared_ptr<const StageParts>& parts, int i) -> std::shared_ptr<Layer> {
    if (parts == nullptr || i < parts->range.begin || i >= parts->range.end) return nullptr;
    return parts->layers[static_cast<size_t>(i - parts->range.begin)];
  };
  const CacheSize size{.num_blocks = request.num_blocks,
                       .block_size = request.block_size,
                       .type = request.kv_type,
                       .num_slots = request.num_slots,
                       .window_blocks = request.window_blocks};
  StageParts parts{.model = options_.model,
                   .model_id = request.plan.model,
                   .range = plan.layers,
                   .first = plan.first,
                   .last = plan.last,
                   .layers = {},
                   .ends = {}};
  const std::shared_ptr<const StageParts> before = running ? running : kept;
  const bool ends_here = before != nullptr && before->first >= plan.first && before->last >= plan.last;
  if (options_.weights != nullptr) {
    LoadingRequest wanted{.range = plan.layers,
                          .layers = {},
                          .first = plan.first,
                          .last = plan.last,
                          .tied_head = model.spec().tied_head,
                          .ends = !ends_here,
                          .in_use = before != nullptr ? before->range : LayerRange{},
                          .sources = request.weight_sources,
                          .name = options_.name,
                          .transport = request.plan.transport,
                          // Beside a stage that computes, hashing takes little.
                          .threads = running != nullptr ? std::max(1, options_.threads / 8) : options_.threads};
    for (int i = plan.layers.begin; i < plan.layers.end; ++i) {
      if (find(running, i) == nullptr && find(kept, i) == nullptr) wanted.layers.push_back(i);
    }
    GYRE_ASSIGN_OR_RETURN(loading_, options_.weights->Begin(wanted, cancelled));
    if (loading_->to_fetch_bytes() > 0) said();
  }
  int loaded = 0;
  for (int i = plan.layers.begin; i < plan.layers.end; ++i) {
    if (Aborted(request.plan.epoch)) return absl::CancelledError("the plan was given up");
    std::shared_ptr<Layer> layer = find(running, i);
    if (layer != nullptr && layer->pages != nullptr) {
      const bool same = layer->pages->Fits(layer->spec, size) && !request.fresh;
      if (!same) layer = layer->Weights();
    } else if (layer == nullptr && (layer = find(kept, i)) != nullptr) {
      layer = layer->Weights();
    } else if (layer == nullptr) {
      if (loading_ != nullptr) GYRE_RETURN_IF_ERROR(loading_->WaitForLayer(i, cancelled));
      GYRE_ASSIGN_OR_RETURN(layer, LoadLayer(model, i, *prepared->queue, progress));
      ++loaded;
    }
    if (layer->pages == nullptr) {
      GYRE_ASSIGN_OR_RETURN(layer->pages, PagePool::For(layer->spec, model.spec().dim, size, *options_.device));
    }
    parts.layers.push_back(std::move(layer));
  }
  Log(LogLevel::kInfo, "{}: plan {}: {} of the {} layers were loaded, the others were here", options_.name,
      request.plan.epoch.number, loaded, plan.layers.size());
  if (ends_here) {
    parts.ends = before->ends;
  } else {
    if (loading_ != nullptr) GYRE_RETURN_IF_ERROR(loading_->WaitForEnds(cancelled));
    GYRE_ASSIGN_OR_RETURN(parts.ends, LoadEnds(model, plan.first, plan.last, *prepared->queue, progress));
  }
  prepared->stage = std::make_unique<Stage>(std::move(parts), *prepared->queue, options_.exact, request.plan.wire);
  progress_ = {.done = total, .total = total};
  Say(request.plan.epoch, progress_);
  return absl::OkStatus();
}

Status Worker::Impl::Wire(const PrepareRequest& request, Prepared* prepared) {
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
  auto out = std::async(std::launch::async, [&, hello] {
    auto link = options_.port->Dial(request.plan.HopAddress(stage + 1), hello, kNoDeadline);
    if (!link.ok()) options_.port->Cancel(request.plan.epoch);
    return link;
  });
  hello.hop = stage;
  hello.from = stage == 0 ? kCoordinatorName : request.plan.stages[stage - 1].worker();
  hello.to = options_.name;
  StatusOr<std::unique_ptr<Link>> in = options_.port->Accept(hello, kNoDeadline);
  if (!in.ok()) options_.port->Cancel(request.plan.epoch);
  StatusOr<std::unique_ptr<Link>> dialed = out.get();
  // The side that was cancelled failed because of the other one.
  if (!dialed.ok() && (in.ok() || absl::IsCancelled(in.status()))) {
    return Annotate(dialed.status(), kLinkToNextStage);
  }
  if (!in.ok()) return Annotate(in.status(), kLinkFromStageBefore);
  prepared->in = *std::move(in);
  prepared->out = *std::move(dialed);
  return absl::OkStatus();
}

void Worker::Impl::DropPrepared() {
  copying_ = {};
  std::shared_ptr<Prepared> dropped;
  MutexLock lock(&mutex_);
  dropped = std::move(prepared_);
  prepared_ = nullptr;
}

void Worker::Impl::OnCommit(Epoch epoch, uint64_t reset) {
  std::shared_ptr<Prepared> prepared;
  {
    MutexLock lock(&mutex_);
    if (reset != resets_) return;  // its coordinator is lost; nothing of its term may stay
    if (prepared_ != nullptr && prepared_->epoch == epoch) prepared = std::move(prepared_);
    if (prepared != nullptr) {
      kept_weights_ = nullptr;
      running_parts_ = prepared->stage ? std::make_shared<StageParts>(prepared->stage->parts()) : nullptr;
      running_out_ = prepared->out;
      running_in_ = prepared->in;
      running_plan_ = epoch.number;
      step_taken_ = 0;
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
  // Unmapping pages takes long, so the loader's thread does it.
  loads_.Push([dropped = std::move(retired_)] {});
  retired_ = nullptr;
}

}  // namespace gyre
