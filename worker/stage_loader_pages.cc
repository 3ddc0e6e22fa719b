// KV pages that the prepared stage pulls from other members.
#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "base/log.h"
#include "worker/catch_exhausted.h"
#include "worker/stage_loader.h"

namespace gyre {
namespace {

// The hello of a link that carries pages to `from`.
Hello BulkHello(const Plan& plan, const std::string& from, const std::string& to) {
  return {.role = LinkRole::kBulk,
          .epoch = plan.epoch,
          .model_hash = plan.model_hash,
          .key = plan.key,
          .from = from,
          .to = to,
          .transport = plan.transport};
}

}  // namespace

StatusOr<std::unique_ptr<PagePuller>> StageLoader::PullerFor(const PrepareRequest& request, const LayerSource& source,
                                                             const StageParts& parts, Deadline deadline) {
  // A replica that this member holds itself is read over a link within the process.
  const std::string& address = source.worker == options_.name ? options_.port->address() : source.address;
  StatusOr<std::unique_ptr<Link>> link =
      options_.port->Dial(address, BulkHello(request.plan, options_.name, source.worker), deadline);
  if (!link.ok()) return Annotate(link.status(), fmt::format("the bulk link to {}", source.worker));
  std::vector<std::shared_ptr<Layer>> layers;
  for (int i = source.layers.begin; i < source.layers.end; ++i) {
    const auto& layer = parts.layers[static_cast<size_t>(i - parts.range.begin)];
    if (layer->pages != nullptr) layers.push_back(layer);
  }
  return std::make_unique<PagePuller>(*std::move(link), source.worker, *copying_.queue, std::move(layers),
                                      request.memory, source.replica);
}

Status StageLoader::StartCopying(const PrepareRequest& request, const PreparedStage& prepared) {
  copying_ = {.epoch = request.plan.epoch, .queue = options_.device->NewBackend(), .pullers = {}, .restore = {}};
  next_word_ = After(std::chrono::seconds(1));
  const StageParts& parts = prepared.stage->parts();
  for (const LayerSource& source : request.sources) {
    if (source.layers.begin < parts.range.begin || source.layers.end > parts.range.end || source.layers.size() <= 0) {
      return InvalidArgument("pages of {} are to be copied, the stage has {}", LayersText(source.layers),
                             FormatRange(parts.range));
    }
  }
  if (request.restores != 0) {
    copying_.restore = request;
    return absl::OkStatus();
  }
  for (const LayerSource& source : request.sources) {
    if (skip_copying_) break;
    GYRE_ASSIGN_OR_RETURN(std::unique_ptr<PagePuller> puller, PullerFor(request, source, parts, kNoDeadline));
    copying_.pullers.push_back(std::move(puller));
  }
  // The stage is ready when little is left to copy, or when pages are written as fast as they are copied.
  for (int round = 0; round < 8 && !copying_.pullers.empty(); ++round) {
    GYRE_ASSIGN_OR_RETURN(const uint64_t pages, CopyRound(nullptr));
    if (pages <= 64) break;
  }
  return absl::OkStatus();
}

StatusOr<uint64_t> StageLoader::CopyRound(const std::vector<BlockId>* blocks) {
  uint64_t pages = 0;
  // A long round is no silence for the coordinator.
  auto cancelled = [this] {
    if (Clock::now() >= next_word_) {
      next_word_ = After(std::chrono::seconds(1));
      worker_.say(copying_.epoch, progress_);
    }
    return Aborted(copying_.epoch);
  };
  for (auto& puller : copying_.pullers) {
    GYRE_ASSIGN_OR_RETURN(const uint64_t n, puller->Round(copying_.epoch, blocks, options_.bulk_silence, cancelled));
    pages += n;
  }
  return pages;
}

void StageLoader::OnMove(Epoch epoch, const UnitList& list) {
  std::shared_ptr<PreparedStage> prepared;
  {
    MutexLock lock(&mutex_);
    if (prepared_ == nullptr || prepared_->epoch != epoch) return;
    prepared = prepared_;
  }
  if (copying_.restore) {
    StageDone moved = Restore(prepared.get(), list);
    copying_ = {};
    return worker_.say(epoch, std::move(moved));
  }
  StageDone moved{.verb = ChangeVerb::kMove};
  StatusOr<uint64_t> last = CatchExhausted([&] { return CopyRound(&list.units); });
  if (!last.ok()) {
    copying_ = {};
    return worker_.say(epoch, StageFault{last.status()});
  }
  moved.last_pages = *last;
  for (auto& puller : copying_.pullers) {
    moved.pages += puller->pages();
    moved.bytes += puller->bytes();
    prepared->last_step = std::max(prepared->last_step, puller->last_written());
  }
  copying_ = {};
  worker_.say(epoch, moved);
}

// Copies the listed units, those that sequences wait for first, until a time limit. Missing ones are computed again, so
// an error here is no fault of the plan.
StageDone StageLoader::Restore(PreparedStage* prepared, const UnitList& list) {
  constexpr size_t kSlice = 256;  // units that come on all layers before the next ones
  const size_t needed = std::min<size_t>(list.needed, list.units.size());
  const PrepareRequest& request = *copying_.restore;
  const StageParts& parts = prepared->stage->parts();
  const Deadline give_up = After(options_.restore_limit);
  std::set<BlockId> missing;
  Status status = CatchExhausted([&]() -> Status {
    if (!list.steps.empty()) GYRE_RETURN_IF_ERROR(CheckStamps(*prepared, list, give_up, &missing));
    if (list.units.empty() || skip_copying_) return absl::OkStatus();
    for (const LayerSource& source : request.sources) {
      GYRE_ASSIGN_OR_RETURN(std::unique_ptr<PagePuller> puller,
                            PullerFor(request, source, parts, std::min(give_up, After(options_.restore_silence))));
      copying_.pullers.push_back(std::move(puller));
    }
    return absl::OkStatus();
  });
  size_t here = 0;  // the first of the list, which were asked for, and came if their sources have them
  Deadline limit = give_up;
  const auto cancelled = [&] { return Clock::now() >= limit || Aborted(request.plan.epoch); };
  while (status.ok() && here < list.units.size()) {
    if (here == needed) limit = std::min(give_up, After(options_.restore_rest));
    const size_t end = std::min(here + kSlice, here < needed ? needed : list.units.size());
    const auto at = list.units.begin();
    const std::vector<BlockId> slice(at + static_cast<std::ptrdiff_t>(here), at + static_cast<std::ptrdiff_t>(end));
    for (auto& puller : copying_.pullers) {
      const StatusOr<std::vector<BlockId>> lacks = CatchExhausted(
          [&] { return puller->Restore(request.plan.epoch, slice, options_.restore_silence, cancelled); });
      status = lacks.status();
      if (!status.ok()) break;
      missing.insert(lacks->begin(), lacks->end());
    }
    if (status.ok()) here = end;
  }
  missing.insert(list.units.begin() + static_cast<std::ptrdiff_t>(here), list.units.end());
  StageDone moved{.verb = ChangeVerb::kMove, .missing = {missing.begin(), missing.end()}};
  for (auto& puller : copying_.pullers) {
    moved.pages += puller->pages();
    moved.bytes += puller->bytes();
    prepared->last_step = std::max(prepared->last_step, puller->last_written());
  }
  if (!status.ok() && !Aborted(request.plan.epoch)) {
    Log(LogLevel::kWarn, "{}: {} of the {} units of plan {} that are restored are missing: {}", options_.name,
        missing.size(), list.units.size(), request.restores,
        absl::IsCancelled(status) ? "copying took too long" : Message(status));
  }
  return moved;
}

// A unit is missing if its page was never written, or was written by a later step than the list says.
Status StageLoader::CheckStamps(const PreparedStage& prepared, const UnitList& list, Deadline give_up,
                                std::set<BlockId>* missing) {
  const PrepareRequest& request = *copying_.restore;
  std::vector<std::vector<std::shared_ptr<const Layer>>> layers(kKvGroups);
  for (const auto& layer : prepared.stage->parts().layers) {
    if (layer->pages != nullptr) layers[static_cast<size_t>(layer->spec.kv_group)].push_back(layer);
  }
  // On the stage's thread after the ring has ended, so no stamp changes meanwhile.
  auto found = std::make_shared<std::promise<std::vector<BlockId>>>();
  std::future<std::vector<BlockId>> future = found->get_future();
  worker_.after_ring([found, counts = request.memory, list, layers] {
    std::vector<BlockId> stale;
    for (size_t i = 0; i < list.units.size(); ++i) {
      const auto place = counts.PlaceOf(list.units[i]);
      bool valid = place.has_value();
      for (size_t k = 0; valid && k < layers[static_cast<size_t>(place->group)].size(); ++k) {
        const PagePool& pool = *layers[static_cast<size_t>(place->group)][k]->pages;
        valid = place->number < pool.num_blocks() && pool.written(place->number) != 0 &&
                pool.written(place->number) <= list.steps[i];
      }
      if (!valid) stale.push_back(list.units[i]);
    }
    found->set_value(std::move(stale));
  });
  if (future.wait_until(give_up) != std::future_status::ready) {
    return DeadlineExceeded("the stage is in the middle of a step");
  }
  for (const BlockId unit : future.get()) missing->insert(unit);
  return absl::OkStatus();
}

// Orders the replica of another member's stage, if the plan asks for one. Its link is dialed when the plan serves.
void StageLoader::PrepareReplica(const PrepareRequest& request) {
  const StagePlan* source = nullptr;
  for (const StagePlan& s : request.plan.stages) {
    if (s.replicated_by == options_.name) source = &s;
  }
  if (source == nullptr) return;
  const ModelSpec& spec = options_.model->spec();
  const PoolSizes size(request);
  ReplicaOrder order{.epoch = request.plan.epoch, .source = source->worker(), .layers = {}};
  for (int i = source->layers.begin; i < source->layers.end; ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    const size_t bytes = PagePool::PageBytesOf(layer, spec.dim, size);
    if (bytes == 0) continue;
    order.layers[static_cast<uint32_t>(i)] = {.pages = size.UnitsOf(layer), .page_bytes = static_cast<uint32_t>(bytes)};
  }
  if (order.layers.empty()) return;
  replica_->Await(std::move(order), [port = options_.port, address = source->members[0].address,
                                     hello = BulkHello(request.plan, options_.name, source->worker())] {
    return port->Dial(address, hello, After(std::chrono::seconds(3)));
  });
}

Status StageLoader::CheckPull(const std::string& peer, Epoch epoch, const PullPages& request) {
  const auto layer = static_cast<int>(request.layer);
  MutexLock lock(&mutex_);
  if (request.kind == PullKind::kFull) {
    for (const auto& [plan, holder] : replicated_by_) {
      if (plan == epoch && holder == peer) return absl::OkStatus();
    }
    return FailedPrecondition("plan {} does not let {} replicate this stage", epoch.number, peer);
  }
  if (asked_ == epoch && aborted_ != epoch) {
    for (const StagePlan& stage : asked_stages_) {
      if (stage.worker() == peer && layer >= stage.layers.begin && layer < stage.layers.end) return absl::OkStatus();
    }
  }
  return FailedPrecondition("plan {} does not give layer {} to {}", epoch.number, layer, peer);
}

}  // namespace gyre
