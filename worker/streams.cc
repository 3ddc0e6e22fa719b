#include "worker/streams.h"

#include <algorithm>

namespace gyre {

void Streams::SetLengths(const float* lengths, size_t rows, float* x) {
  length_.Divide(x, rows, dim_, x);
  backend_.ScaleRows(x, rows, dim_, lengths);
}

void Streams::Begin(const float* embedded, size_t rows, Matrices matrices, Arithmetic arithmetic, float* x) {
  const size_t width = (matrices.size() + 1) * dim_;
  float* product = Room(product_, rows * dim_);
  float* lengths = Room(lengths_, rows);
  backend_.Copy(length_.Of(embedded, rows, dim_, product), lengths, rows * sizeof(float));
  backend_.CopyColumns(embedded, rows, dim_, dim_, x, width);
  for (size_t i = 0; i < matrices.size(); ++i) {
    backend_.MatMul(embedded, rows, *matrices[i], product, arithmetic);
    SetLengths(lengths, rows, product);
    backend_.CopyColumns(product, rows, dim_, dim_, x + (i + 1) * dim_, width);
  }
}

void Streams::End(const float* x, size_t rows, Matrices matrices, Arithmetic arithmetic, float* out) {
  const size_t width = (matrices.size() + 1) * dim_;
  float *product = Room(product_, rows * dim_), *stream = Room(weighted_, rows * dim_);
  float* lengths = Room(lengths_, rows);
  backend_.CopyColumns(x, rows, width, dim_, out, dim_);
  backend_.Copy(length_.Of(out, rows, dim_, product), lengths, rows * sizeof(float));
  for (size_t i = 0; i < matrices.size(); ++i) {
    backend_.CopyColumns(x + (i + 1) * dim_, rows, width, dim_, stream, dim_);
    backend_.MatMul(stream, rows, *matrices[i], product, arithmetic);
    SetLengths(lengths, rows, product);
    backend_.AddInPlace(out, product, rows * dim_);
  }
  backend_.Scale(out, rows * dim_, 1 / static_cast<float>(matrices.size() + 1));
}

// Which streams matter decides, so nothing is rounded.
const float* Streams::Route(const Layer& layer, const float* x, size_t rows) {
  float* normed = Room(normed_, rows * dim_);
  float* scores = Room(scores_, rows * CountOf(layer));
  backend_.RmsNorm(x, rows, dim_, layer.vector(Slot::kStreamRouterNorm), layer.spec.norm_eps, normed);
  backend_.Scale(normed, rows * dim_, 1 / static_cast<float>(dim_));
  backend_.MatMul(normed, rows, layer.matrix(Slot::kStreamRouter), scores, Arithmetic::kExact);
  backend_.SoftcapInPlace(scores, rows * CountOf(layer), 1);  // tanh
  return scores;
}

void Streams::AddWeighted(const float* from, size_t rows, const float* weights, size_t columns, size_t column,
                          float* to) {
  float *weighted = Room(weighted_, rows * dim_), *by = Room(column_, rows);
  backend_.CopyColumns(weights + column, rows, columns, 1, by, 1);
  backend_.Copy(from, weighted, rows * dim_ * sizeof(float));
  backend_.ScaleRows(weighted, rows, dim_, by);
  backend_.AddInPlace(to, weighted, rows * dim_);
}

void Streams::Predict(const Layer& layer, const float* x, size_t rows, float* first) {
  const size_t count = CountOf(layer), n = rows * dim_;
  rows_ = rows;
  count_ = count;
  float *streams = Room(streams_, count * n), *predictions = Room(predictions_, count * n),
        *weights = Room(weights_, rows * count * count);
  for (size_t k = 0; k < count; ++k)
    backend_.CopyColumns(x + k * dim_, rows, count * dim_, dim_, streams + k * n, dim_);
  backend_.Copy(streams, predictions, count * n * sizeof(float));
  backend_.MatMul(Route(layer, streams, rows), rows, layer.matrix(Slot::kStreamPrediction), weights,
                  Arithmetic::kExact);
  for (size_t k = 0; k < count; ++k) {
    for (size_t i = 0; i < count; ++i)
      AddWeighted(streams + i * n, rows, weights, count * count, k * count + i, predictions + k * n);
  }
  backend_.Copy(predictions, first, n * sizeof(float));
}

void Streams::Compact(std::span<const uint32_t> numbers) {
  for (size_t k = 0; k < count_; ++k) {
    float* of = predictions_.data() + k * rows_ * dim_;
    backend_.GatherRows(of, dim_, numbers, dim_, of);
  }
}

void Streams::Correct(const Layer& layer, const float* made, size_t rows, float* x) {
  const size_t count = CountOf(layer), n = rows * dim_;
  float *weights = Room(weights_, rows * count), *change = Room(product_, n);
  backend_.MatMul(Route(layer, made, rows), rows, layer.matrix(Slot::kStreamCorrection), weights, Arithmetic::kExact);
  backend_.Copy(made, change, n * sizeof(float));
  backend_.AddScaled(change, predictions_.data(), n, -1);
  for (size_t k = 0; k < count; ++k) {
    float* stream = predictions_.data() + k * rows_ * dim_;
    backend_.AddInPlace(stream, change, n);
    AddWeighted(change, rows, weights, count, k, stream);
    backend_.CopyColumns(stream, rows, dim_, dim_, x + k * dim_, count * dim_);
  }
}

void Streams::ScaleFirst(const Layer& layer, const float* x, size_t rows, float* out) {
  backend_.CopyColumns(x, rows, CountOf(layer) * dim_, dim_, out, dim_);
  backend_.ScaleColumns(out, rows, dim_, layer.vector(Slot::kStreamScale));
}

void Streams::AddToOthers(const Layer& layer, const float* added, size_t rows, float* x) {
  const size_t count = CountOf(layer);
  float* stream = Room(product_, rows * dim_);
  for (size_t k = 1; k < count; ++k) {
    backend_.CopyColumns(x + k * dim_, rows, count * dim_, dim_, stream, dim_);
    backend_.AddInPlace(stream, added, rows * dim_);
    backend_.CopyColumns(stream, rows, dim_, dim_, x + k * dim_, count * dim_);
  }
}

}  // namespace gyre
