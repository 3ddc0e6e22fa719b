// Several streams of rows between layers: AltUp (Baykal et al. 2023), as Gemma 3n has it (docs/models.md).
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "kernels/ops.h"
#include "worker/layer.h"
#include "worker/row_length.h"

namespace gyre {

// A row [streams][dim] has all streams. A layer predicts each stream from all of them, computes the first one alone,
// and corrects the predictions by what it made of that. All rows are on the device. Not thread-safe.
class Streams {
 public:
  using Matrices = std::span<const std::shared_ptr<const PackedWeight>>;  // of the streams behind the first
  Streams(Backend& backend, size_t dim) : backend_(backend), dim_(dim), length_(backend) {}

  // x = the embeddings [rows][dim] as first stream, and their products with the matrices, of the same lengths.
  void Begin(const float* embedded, size_t rows, Matrices matrices, Arithmetic arithmetic, float* x);
  // out [rows][dim] = the mean of the first stream and the others' products with the matrices, of the same lengths.
  void End(const float* x, size_t rows, Matrices matrices, Arithmetic arithmetic, float* out);
  // Keeps the predictions of all streams of x; first [rows][dim] = that of the first.
  void Predict(const Layer& layer, const float* x, size_t rows, float* first);
  // Leaves the predictions of these rows.
  void Compact(std::span<const uint32_t> numbers);
  // x = the predictions, corrected by what the layer has made of the first, `made` [rows][dim].
  void Correct(const Layer& layer, const float* made, size_t rows, float* x);
  // out [rows][dim] = the first stream of x times the layer's scale of it.
  void ScaleFirst(const Layer& layer, const float* x, size_t rows, float* out);
  // Adds [rows][dim] to all streams of x but the first.
  void AddToOthers(const Layer& layer, const float* added, size_t rows, float* x);

 private:
  static size_t CountOf(const Layer& layer) { return static_cast<size_t>(layer.spec.streams); }
  float* Room(DeviceBuffer<float>& buffer, size_t n) { return buffer.EnsureCapacity(backend_.device(), n); }
  // [rows][streams]: how much of each stream rows [rows][dim] want.
  const float* Route(const Layer& layer, const float* x, size_t rows);
  // to [rows][dim] += from times a column of weights [rows][columns].
  void AddWeighted(const float* from, size_t rows, const float* weights, size_t columns, size_t column, float* to);
  // x [rows][dim] gets the lengths [rows].
  void SetLengths(const float* lengths, size_t rows, float* x);

  Backend& backend_;
  const size_t dim_;
  RowLength length_;
  size_t rows_ = 0, count_ = 0;                // of the predictions when they were made; and streams
  DeviceBuffer<float> streams_, predictions_;  // [stream][rows][dim]
  DeviceBuffer<float> weighted_, column_, normed_, scores_, weights_, lengths_, product_;
};

}  // namespace gyre
