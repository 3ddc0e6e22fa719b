// A layer as the unit of ownership: its packed weights and its page pool; two plans can share it. And what the first
// and the last stage have besides.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "kernels/ops.h"
#include "model/weights.h"
#include "worker/kv_pages.h"

namespace gyre {

// Immutable.
struct LayerParams {
  LayerWeights vectors;  // its matrix views are packed below
  std::shared_ptr<const PackedWeight> q, k, v, o, gate, up, down;
};

// Weights outlive a pool of another shape or term, so the two are held apart.
struct Layer {
  LayerSpec spec;
  std::shared_ptr<const LayerParams> params;
  std::shared_ptr<KvPages> pages;  // written by the stage's thread only

  size_t weight_bytes() const;
};

// The embedding (first stage), the final norm and the output matrix (last stage).
struct Ends {
  std::shared_ptr<const PackedWeight> embedding;
  std::shared_ptr<const PackedWeight> output;
  std::vector<float> final_norm;
  // Where the two lie in the file: equal places need one packed matrix only.
  WeightView embedding_view, output_view;
};

// What a stage is made of.
struct StageParts {
  std::shared_ptr<const Model> model;
  LayerRange range;
  bool first = false;
  bool last = false;
  std::vector<std::shared_ptr<const Layer>> layers;  // of range, in order
  Ends ends;

  // Bytes that a decode step streams from memory: all packed weights but the embedding's other rows.
  size_t weight_bytes() const;
};

struct LoadOptions {
  LayerRange range;
  bool first = false;
  bool last = false;
  KvShape kv;
  // The parts of a running stage whose packed weights are taken over; with share_kv also pools of the same shape.
  const StageParts* reuse = nullptr;
  bool share_kv = true;
  std::function<void(uint64_t done, uint64_t total)> progress;  // source bytes; on the calling thread
  std::function<bool()> cancelled;                              // asked between two matrices
};

// Takes what it can from `reuse`, packs the rest. kCancelled, and the errors of lookups and pools.
// REQUIRES: the range lies in the model.
StatusOr<StageParts> LoadStageParts(std::shared_ptr<const Model> model, const LoadOptions& options, Backend& backend);

}  // namespace gyre
