// A text through a model one layer at a time, so that a model larger than the memory can be looked into (docs/diff.md).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/kv_type.h"
#include "base/status.h"
#include "kernels/device.h"
#include "model/weights.h"
#include "worker/forward.h"
#include "worker/layer.h"

namespace gyre {

struct LayerWalkOptions {
  KvType kv_type = KvType::kF16;
  bool exact = false;                      // f32 activations with quantized weights
  RowClass row_class = RowClass::kPrompt;  // of all rows
  uint32_t chunk = 256;                    // rows that are computed at once
};

// The rows of one sequence on their way through the layers, and the keys and values that later layers read.
struct WalkedRows {
  std::vector<float> rows;  // [tokens][ModelSpec::RowElems()]: the residual stream behind the last layer
  std::map<int, std::shared_ptr<PagePool>> shared;  // of layers whose keys and values a later layer reads
  std::vector<float> input;  // of the last layer, where the next one has the same (LayerSpec::same_input)
};

// Holds the weights of one layer at most, or of two that have one input. Its calls go embedding, each layer in turn,
// head. Used by one thread.
class LayerWalk {
 public:
  // `ids`: one sequence from position 0 on. kInvalidArgument: there is none, one is not in the vocabulary, or they are
  // more than the model's texts may have.
  static StatusOr<std::unique_ptr<LayerWalk>> Make(std::shared_ptr<const Model> model, std::shared_ptr<Device> device,
                                                   const LayerWalkOptions& options, std::vector<TokenId> ids);

  const ModelSpec& spec() const { return model_->spec(); }
  int layers() const { return static_cast<int>(spec().layers.size()); }
  size_t tokens() const { return ids_.size(); }

  // Loads the embedding, a layer or the output matrix in place of what is loaded, whose memory goes first. Errors of
  // the file's lookups; kResourceExhausted: no memory.
  Status LoadEmbedding();
  Status LoadLayer(int layer);
  Status LoadHead();
  void Unload();

  // The embedding, which is loaded: rows = the residual stream before layer 0.
  Status Embed(WalkedRows* rows);
  // The layer that is loaded: takes the rows through it, in place.
  Status Run(WalkedRows* rows);
  // The head, which is loaded: logits [count][vocab] of `rows` [count][ModelSpec::RowElems()].
  Status Logits(std::span<const float> rows, std::vector<float>* logits);

 private:
  LayerWalk(std::shared_ptr<const Model> model, std::shared_ptr<Device> device, const LayerWalkOptions& options,
            std::vector<TokenId> ids);
  bool HasSameInput(int layer) const;
  StatusOr<std::shared_ptr<PagePool>> PagesFor(const Layer& layer, WalkedRows* rows) const;
  // These layers, or with none the embedding alone, over all rows.
  Status RunStage(std::vector<std::shared_ptr<Layer>> layers, WalkedRows* rows);

  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<Device> device_;
  const LayerWalkOptions options_;
  const std::vector<TokenId> ids_;
  const std::unique_ptr<Backend> backend_;
  uint32_t pages_ = 0;  // blocks of the whole sequence
  // What is loaded. Before a layer that has the same input as the one before it comes that one, which runs again.
  std::vector<std::shared_ptr<Layer>> loaded_;
  Ends ends_;
  std::unique_ptr<Forward> head_;
  DeviceBuffer<float> x_, logits_;
};

}  // namespace gyre
