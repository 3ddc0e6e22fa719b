// KV pages that the prepared stage pulls from other members.
#include <chrono>
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

Status StageLoader::StartCopying(const PrepareRequest& request, const PreparedStage& prepared) {
  copying_ = {.epoch = request.plan.epoch, .queue = options_.device->NewBackend(), .pullers = {}};
  next_word_ = After(std::chrono::seconds(1));
  const StageParts& parts = prepared.stage->parts();
  for (const LayerSource& source : request.sources) {
    if (skip_copying_) break;
    if (source.layers.begin < parts.range.begin || source.layers.end > parts.range.end || source.layers.size() <= 0) {
      return InvalidArgument("pages of layers {} are to be copied, the stage has {}", FormatRange(source.layers),
                             FormatRange(parts.range));
    }
    // A mirror that this member holds itself is read over a link within the process.
    const std::string& address = source.worker == options_.name ? options_.port->address() : source.address;
    StatusOr<std::unique_ptr<Link>> link =
        options_.port->Dial(address, BulkHello(request.plan, options_.name, source.worker), kNoDeadline);
    if (!link.ok()) return Annotate(link.status(), fmt::format("the bulk link to {}", source.worker));
    std::vector<std::shared_ptr<Layer>> layers;
    for (int i = source.layers.begin; i < source.layers.end; ++i) {
      const auto& layer = parts.layers[static_cast<size_t>(i - parts.range.begin)];
      if (layer->pages != nullptr) layers.push_back(layer);
    }
    const MemoryCounts counts{
        .num_blocks = request.num_blocks, .num_slots = request.num_slots, .window_blocks = request.window_blocks};
    copying_.pullers.push_back(std::make_unique<PagePuller>(*std::move(link), source.worker, *copying_.queue,
                                                            std::move(layers), counts, source.mirror));
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

void StageLoader::OnMove(Epoch epoch, const std::vector<BlockId>& blocks) {
  {
    MutexLock lock(&mutex_);
    if (prepared_ == nullptr || prepared_->epoch != epoch) return;
  }
  StageMoved moved;
  StatusOr<uint64_t> last = CatchExhausted([&] { return CopyRound(&blocks); });
  if (!last.ok()) {
    copying_ = {};
    return worker_.say(epoch, StageFault{last.status()});
  }
  moved.last_pages = *last;
  for (auto& puller : copying_.pullers) {
    moved.pages += puller->pages();
    moved.bytes += puller->bytes();
  }
  copying_ = {};
  worker_.say(epoch, moved);
}

// Orders the mirror of another member's stage, if the plan asks for one. Its link is dialed when the plan serves.
void StageLoader::PrepareMirror(const PrepareRequest& request) {
  const StagePlan* source = nullptr;
  for (const StagePlan& s : request.plan.stages) {
    if (s.mirrored_by == options_.name) source = &s;
  }
  if (source == nullptr) return;
  const ModelSpec& spec = options_.model->spec();
  const CacheSize size{.num_blocks = request.num_blocks,
                       .block_size = request.block_size,
                       .type = request.kv_type,
                       .num_slots = request.num_slots,
                       .window_blocks = request.window_blocks};
  MirrorOrder order{.epoch = request.plan.epoch, .source = source->worker(), .layers = {}};
  for (int i = source->layers.begin; i < source->layers.end; ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    const size_t bytes = PagePool::PageBytesOf(layer, spec.dim, size);
    if (bytes == 0) continue;
    order.layers[static_cast<uint32_t>(i)] = {
        .pages = layer.kv_group == kSlotGroup ? size.num_slots : size.PagesOf(layer),
        .page_bytes = static_cast<uint32_t>(bytes)};
  }
  if (order.layers.empty()) return;
  mirror_->Await(std::move(order), [port = options_.port, address = source->members[0].address,
                                    hello = BulkHello(request.plan, options_.name, source->worker())] {
    return port->Dial(address, hello, After(std::chrono::seconds(3)));
  });
}

Status StageLoader::CheckPull(const std::string& peer, Epoch epoch, const PullPages& request) {
  const auto layer = static_cast<int>(request.layer);
  MutexLock lock(&mutex_);
  if (request.kind == PullKind::kFull) {
    for (const auto& [plan, holder] : mirrored_by_) {
      if (plan == epoch && holder == peer) return absl::OkStatus();
    }
    return FailedPrecondition("plan {} does not let {} mirror this stage", epoch.number, peer);
  }
  if (asked_ == epoch && aborted_ != epoch) {
    for (const StagePlan& stage : asked_stages_) {
      if (stage.worker() == peer && layer >= stage.layers.begin && layer < stage.layers.end) return absl::OkStatus();
    }
  }
  return FailedPrecondition("plan {} does not give layer {} to {}", epoch.number, layer, peer);
}

}  // namespace gyre
