// THE forward pass: rows through a range of layers, driven by the spec's fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/step.h"
#include "kernels/ops.h"
#include "worker/layer.h"

namespace gyre {

// Scratch memory of one stage lives here and grows to the largest step, so that steps allocate nothing later. Not
// thread-safe. The parts and the backend outlive it.
class Forward {
 public:
  // exact: quantized weights are multiplied by f32 activations.
  Forward(const StageParts& parts, Backend& backend, bool exact);

  // Takes in a step's rows: positions, block tables, rotations. Gives the rows' memory, [rows][dim], to be filled
  // by Embed or by the caller. REQUIRES: a checked batch with at least one row, which outlives the step.
  float* Begin(const StepBatch& batch);
  // REQUIRES: the first stage.
  void Embed(std::span<const TokenId> ids);
  // All layers, all rows.
  void RunLayers();
  // The same where only some rows' results are wanted (the last stage): the others' keys and values are written, and
  // what comes after these in the last layer is left out. Then row i of x() is row wanted[i] of the step.
  // `wanted`: strictly rising.
  void RunLayers(std::span<const uint32_t> wanted);
  // Hidden states [rows][dim].
  std::span<const float> x() const { return {x_.data(), rows_ * dim_}; }

  // REQUIRES: the last stage. Final norm of the rows of x(): [rows][dim], valid until the next step.
  const float* FinalNorm();
  // logits [rows][vocab] of final-normed rows.
  void Head(const float* normed, size_t rows, float* logits);

 private:
  // Memory that only grows.
  class Buffer {
   public:
    float* Room(size_t n) {
      if (v_.size() < n) v_.resize(n);
      return v_.data();
    }
    float* data() { return v_.data(); }
    const float* data() const { return v_.data(); }

   private:
    std::vector<float> v_;
  };

  // One rotary embedding that layers of this stage use; cos and sin [rows][dims/2] of the step.
  struct Rotation {
    RopeSpec spec;
    std::vector<double> frequencies;  // radians a position
    Buffer cos, sin;
  };

  // Rows [first, first + rows) of the step in one layer.
  struct Slice {
    float* x = nullptr;       // [rows][dim]
    float* normed = nullptr;  // [rows][dim]
    std::span<const KvRow> kv;
    const float* cos = nullptr;
    const float* sin = nullptr;
    size_t rows() const { return kv.size(); }
  };

  size_t FindRotation(const RopeSpec& spec);
  void FillRotations();
  void RunLayer(size_t index);
  size_t RunLastLayer(size_t index, std::span<const uint32_t> wanted);
  Slice MakeSlice(size_t index, size_t first, size_t rows);
  void StoreKeysAndValues(const Layer& layer, const Slice& s);
  void Attend(const Layer& layer, const Slice& s);
  void FeedForward(const Layer& layer, const Slice& s);
  void AddResult(const Layer& layer, const std::vector<float>& post_norm, const Slice& s);

  const StageParts& parts_;
  Backend& backend_;
  const bool exact_;
  const size_t dim_;
  size_t rows_ = 0;
  std::vector<Rotation> rotations_;
  std::vector<size_t> rotation_of_layer_;
  std::vector<std::vector<KvRow>> kv_rows_;  // [KV group][row]
  Buffer x_, normed_, q_, k_, v_, attended_, result_, gate_, up_, picked_cos_, picked_sin_;
  std::vector<KvRow> picked_rows_;
};

}  // namespace gyre
