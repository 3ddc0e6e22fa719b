#include "worker/layer.h"

#include <algorithm>
#include <array>

namespace gyre {
namespace {

constexpr std::array kViews = {&LayerWeights::q,    &LayerWeights::k,  &LayerWeights::v,   &LayerWeights::o,
                               &LayerWeights::gate, &LayerWeights::up, &LayerWeights::down};
constexpr std::array kMatrices = {&LayerParams::q,    &LayerParams::k,  &LayerParams::v,   &LayerParams::o,
                                  &LayerParams::gate, &LayerParams::up, &LayerParams::down};

uint64_t SourceBytes(const WeightView& w) {
  const DTypeInfo& info = Info(w.type);
  return uint64_t{w.n} * (w.k / info.block_elems) * info.block_bytes;
}

bool SamePlace(const WeightView& a, const WeightView& b) {
  return a.data == b.data && a.type == b.type && a.n == b.n && a.k == b.k;
}

// Packs a stage, matrix by matrix. First it lists what is to be packed, so that the total is known before the work.
class Loader {
 public:
  Loader(std::shared_ptr<const Model> model, const LoadOptions& options, Backend& backend)
      : options_(options), backend_(backend) {
    parts_.model = std::move(model);
    parts_.range = options.range;
    parts_.first = options.first;
    parts_.last = options.last;
  }

  StatusOr<StageParts> Load() {
    for (int i = options_.range.begin; i < options_.range.end; ++i) GYRE_RETURN_IF_ERROR(AddLayer(i));
    GYRE_RETURN_IF_ERROR(AddEnds());
    Report();
    for (const Work& work : work_) {
      if (options_.cancelled && options_.cancelled()) return absl::CancelledError("no longer wanted");
      Pack(work);
    }
    for (const auto& [alias, of] : aliases_) *alias = *of;
    return std::move(parts_);
  }

 private:
  using Slot = std::shared_ptr<const PackedWeight>;
  struct Work {
    WeightView view;
    Slot* slot;
  };

  void Add(const WeightView& view, Slot* slot) {
    work_.push_back({view, slot});
    total_ += SourceBytes(view);
  }

  Status AddLayer(int index) {
    auto layer = std::make_shared<Layer>();
    layer->spec = parts_.model->spec().layers[static_cast<size_t>(index)];
    const Layer* old = Running(index);
    if (old != nullptr) {
      layer->params = old->params;
      if (options_.share_kv && old->pages->shape() == options_.kv) layer->pages = old->pages;
    } else {
      auto params = std::make_shared<LayerParams>();
      GYRE_ASSIGN_OR_RETURN(params->vectors, parts_.model->Layer(index));
      for (size_t i = 0; i < kViews.size(); ++i) Add(params->vectors.*kViews[i], &(params.get()->*kMatrices[i]));
      layer->params = std::move(params);
    }
    if (layer->pages == nullptr) {
      GYRE_ASSIGN_OR_RETURN(layer->pages, KvPages::Make(options_.kv, layer->spec.kv_heads, layer->spec.head_dim));
    }
    parts_.layers.push_back(std::move(layer));
    return absl::OkStatus();
  }

  const Layer* Running(int index) const {
    const StageParts* old = options_.reuse;
    if (old == nullptr || old->model != parts_.model || index < old->range.begin || index >= old->range.end) {
      return nullptr;
    }
    return old->layers[static_cast<size_t>(index - old->range.begin)].get();
  }

  Status AddEnds() {
    Ends& ends = parts_.ends;
    if (parts_.first) {
      GYRE_ASSIGN_OR_RETURN(ends.embedding_view, parts_.model->Embedding());
      AddEnd(ends.embedding_view, &ends.embedding);
    }
    if (parts_.last) {
      GYRE_ASSIGN_OR_RETURN(HeadWeights head, parts_.model->Head());
      ends.final_norm = std::move(head.final_norm);
      ends.output_view = head.output;
      if (parts_.first && SamePlace(ends.embedding_view, ends.output_view)) {
        aliases_.push_back({&ends.output, &ends.embedding});
      } else {
        AddEnd(ends.output_view, &ends.output);
      }
    }
    return absl::OkStatus();
  }

  void AddEnd(const WeightView& view, Slot* slot) {
    if (const StageParts* old = options_.reuse; old != nullptr && old->model == parts_.model) {
      if (old->first && SamePlace(old->ends.embedding_view, view)) *slot = old->ends.embedding;
      if (old->last && SamePlace(old->ends.output_view, view)) *slot = old->ends.output;
    }
    if (*slot == nullptr) Add(view, slot);
  }

  void Pack(const Work& work) {
    const uint64_t end = done_ + SourceBytes(work.view);
    *work.slot = backend_.Pack(work.view, [&](size_t bytes) {
      done_ = std::min(end, done_ + bytes);
      Report();
    });
    if (done_ != end) {
      done_ = end;
      Report();
    }
  }

  void Report() {
    if (options_.progress) options_.progress(done_, total_);
  }

  const LoadOptions& options_;
  Backend& backend_;
  StageParts parts_;
  std::vector<Work> work_;
  std::vector<std::pair<Slot*, const Slot*>> aliases_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

}  // namespace

size_t Layer::weight_bytes() const {
  size_t sum = 0;
  for (const auto matrix : kMatrices) sum += (params.get()->*matrix)->bytes;
  return sum;
}

size_t StageParts::weight_bytes() const {
  size_t sum = 0;
  for (const auto& layer : layers) sum += layer->weight_bytes();
  if (last) sum += ends.output->bytes;
  return sum;
}

StatusOr<StageParts> LoadStageParts(std::shared_ptr<const Model> model, const LoadOptions& options, Backend& backend) {
  return Loader(std::move(model), options, backend).Load();
}

}  // namespace gyre
