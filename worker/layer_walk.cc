#include "worker/layer_walk.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "model/mapped_file.h"
#include "worker/catch_exhausted.h"
#include "worker/stage.h"

namespace gyre {
namespace {

constexpr uint32_t kBlockSize = 16;

// The layer whose keys and values this one reads; -1: its own.
int KvLayerOf(const LayerSpec& spec) {
  const AttentionSpec* a = spec.attention();
  return a == nullptr ? -1 : a->kv_layer;
}

const BytesDone kNothing = [](size_t) {};

}  // namespace

StatusOr<std::unique_ptr<LayerWalk>> LayerWalk::Make(std::shared_ptr<const Model> model, std::shared_ptr<Device> device,
                                                     const LayerWalkOptions& options, std::vector<TokenId> ids) {
  const ModelSpec& spec = model->spec();
  if (spec.encoder) return Unimplemented("{}: an encoder is not computed layer by layer", model->path());
  if (ids.empty()) return InvalidArgument("there are no tokens, expected one or more");
  if (spec.most_context > 0 && ids.size() > static_cast<size_t>(spec.most_context))
    return InvalidArgument("{} tokens, texts of this model have at most {}", ids.size(), spec.most_context);
  for (const TokenId id : ids) {
    if (id < 0 || id >= spec.vocab) return InvalidArgument("token id {}, the vocabulary has 0-{}", id, spec.vocab - 1);
  }
  for (const LayerSpec& layer : spec.layers) GYRE_RETURN_IF_ERROR(CheckKvType(options.kv_type, layer));
  return std::unique_ptr<LayerWalk>(new LayerWalk(std::move(model), std::move(device), options, std::move(ids)));
}

LayerWalk::LayerWalk(std::shared_ptr<const Model> model, std::shared_ptr<Device> device,
                     const LayerWalkOptions& options, std::vector<TokenId> ids)
    : model_(std::move(model)),
      device_(std::move(device)),
      options_(options),
      ids_(std::move(ids)),
      backend_(device_->NewBackend()),
      pages_(static_cast<uint32_t>((ids_.size() + kBlockSize - 1) / kBlockSize)) {}

void LayerWalk::Unload() {
  head_ = nullptr;
  ends_ = {};
  // What was multiplied in its file would stay in memory until the system needs it.
  for (const auto& layer : loaded_) {
    for (const auto& file : model_->files())
      ForEachMatrix(layer->weights, [&](const WeightView& v) { file->Drop({v.data, v.bytes()}); });
  }
  loaded_.clear();
}

Status LayerWalk::LoadEmbedding() {
  Unload();
  return CatchExhausted([&]() -> Status {
    GYRE_ASSIGN_OR_RETURN(ends_, LoadEnds(*model_, true, false, *backend_, kNothing));
    backend_->Finish();
    return absl::OkStatus();
  });
}

Status LayerWalk::LoadLayer(int layer) {
  Unload();
  return CatchExhausted([&]() -> Status {
    const int first = HasSameInput(layer) ? layer - 1 : layer;
    for (int i = first; i <= layer; ++i) {
      GYRE_ASSIGN_OR_RETURN(auto loaded, gyre::LoadLayer(*model_, i, *backend_, kNothing, options_.exact));
      loaded_.push_back(std::move(loaded));
    }
    return absl::OkStatus();
  });
}

Status LayerWalk::LoadHead() {
  Unload();
  return CatchExhausted([&]() -> Status {
    GYRE_ASSIGN_OR_RETURN(ends_, LoadEnds(*model_, false, true, *backend_, kNothing));
    head_ = std::make_unique<Forward>(*backend_, spec().dim, options_.exact);
    return absl::OkStatus();
  });
}

Status LayerWalk::Embed(WalkedRows* rows) { return RunStage({}, rows); }

Status LayerWalk::Run(WalkedRows* rows) {
  return CatchExhausted([&]() -> Status {
    std::vector<std::shared_ptr<Layer>> layers;
    for (const auto& loaded : loaded_) {
      const std::shared_ptr<Layer> layer = layers.emplace_back(loaded->Weights());
      GYRE_ASSIGN_OR_RETURN(layer->pages, PagesFor(*layer, rows));
      if (AttentionSpec* a = std::get_if<AttentionSpec>(&layer->spec.mixer); a != nullptr && a->kv_layer >= 0) {
        // Its stage does not have that layer, so the pages that it reads are given to itself. It writes none.
        a->kv_layer = layer->index;
      }
    }
    const int layer = loaded_.back()->index;
    if (HasSameInput(layer)) rows->rows = rows->input;
    if (HasSameInput(layer + 1)) rows->input = rows->rows;
    return RunStage(std::move(layers), rows);
  });
}

bool LayerWalk::HasSameInput(int layer) const {
  return layer < layers() && spec().layers[static_cast<size_t>(layer)].same_input;
}

StatusOr<std::shared_ptr<PagePool>> LayerWalk::PagesFor(const Layer& layer, WalkedRows* rows) const {
  if (const int from = KvLayerOf(layer.spec); from >= 0) {
    const auto found = rows->shared.find(from);
    if (found == rows->shared.end())
      return Internal("layer {} reads the keys and values of layer {}, which are not kept", layer.index, from);
    return found->second;
  }
  const PoolSizes sizes(
      {.block_size = kBlockSize, .memory = {.units = {pages_, 1, pages_}}, .kv_type = options_.kv_type});
  GYRE_ASSIGN_OR_RETURN(std::shared_ptr<PagePool> pages, PagePool::For(layer.spec, spec().dim, sizes, *device_));
  const bool read_later = std::any_of(spec().layers.begin(), spec().layers.end(),
                                      [&](const LayerSpec& s) { return KvLayerOf(s) == layer.index; });
  if (read_later) rows->shared[layer.index] = pages;
  return pages;
}

Status LayerWalk::RunStage(std::vector<std::shared_ptr<Layer>> layers, WalkedRows* rows) {
  return CatchExhausted([&]() -> Status {
    StageParts parts{.model = model_, .first = layers.empty(), .ends = layers.empty() ? ends_ : Ends{}};
    if (!layers.empty()) {
      parts.range = {layers.front()->index, layers.back()->index + 1};
      parts.layers = std::move(layers);
    }
    const bool first = parts.first;
    const auto dim = static_cast<size_t>(spec().RowElems());
    Stage stage(std::move(parts), *backend_, options_.exact, WireType::kF32);
    if (first) rows->rows.resize(ids_.size() * dim);
    std::vector<std::byte> in;
    uint64_t step = 0;
    for (size_t at = 0; at < ids_.size(); at += options_.chunk) {
      const size_t count = std::min<size_t>(options_.chunk, ids_.size() - at);
      const auto ids = std::as_bytes(std::span(ids_).subspan(at, count));
      const std::span<float> part = std::span(rows->rows).subspan(at * dim, count * dim);
      in.clear();
      if (!first) {
        const auto values = std::as_bytes(part);
        in.insert(in.end(), values.begin(), values.end());
      }
      if (first || spec().per_layer_width > 0) in.insert(in.end(), ids.begin(), ids.end());
      StepBatch batch;
      SeqRows& s = batch.seqs.emplace_back();
      s.seq = SeqId{1};
      s.row_class = options_.row_class;
      s.first_position = static_cast<uint32_t>(at);
      s.row_count = static_cast<uint32_t>(count);
      StepTables tables;
      for (BlockId b = 0; b < pages_; ++b) tables.blocks.push_back(b);
      tables.slots.slot = 0;
      tables.window.blocks = tables.blocks;
      MemoryCounts of{.units = {pages_, spec().has_slots ? 1u : 0u, spec().window > 0 ? pages_ : 0u}};
      s.blocks = tables.Entries(of);
      StepAnswer none;
      GYRE_RETURN_IF_ERROR(stage.Run(batch, in, ++step, &none));
      std::memcpy(part.data(), stage.rows().data(), part.size_bytes());
    }
    return absl::OkStatus();
  });
}

Status LayerWalk::Logits(std::span<const float> rows, std::vector<float>* logits) {
  return CatchExhausted([&]() -> Status {
    const auto dim = static_cast<size_t>(spec().dim), vocab = static_cast<size_t>(spec().vocab);
    const size_t count = rows.size() / static_cast<size_t>(spec().RowElems());
    backend_->Recycle();
    float* normed = x_.EnsureCapacity(*device_, count * dim);
    float* out = logits_.EnsureCapacity(*device_, count * vocab);
    head_->FinalNorm(backend_->Upload(rows).data(), count, ends_, spec(), normed);
    head_->Head(normed, count, ends_, spec(), out);
    const auto values = backend_->Download(static_cast<const float*>(out), count * vocab);
    backend_->Finish();
    logits->assign(values.begin(), values.end());
    return absl::OkStatus();
  });
}

}  // namespace gyre
