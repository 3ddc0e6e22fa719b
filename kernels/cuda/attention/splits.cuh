// Functions that the attention kernels over splits of the context share.
#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/pages.cuh"
#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/math.cuh"

namespace gyre::cuda {

// The results of the splits of all heads of all rows: [row][head][split].
struct Parts {
  float* sums;     // [value_dim]: of values, by weights relative to the largest score
  float* largest;  // score
  float* totals;   // of weights
  size_t splits, value_dim;
  GPU_FN size_t At(size_t row, size_t head, size_t heads, size_t split) const {
    return (row * heads + head) * splits + split;
  }
};

// The positions that a row sees: [begin, end).
struct Seen {
  size_t begin, end;
};
GPU_FN Seen SeenBy(const KvRow& row, const AttentionParams& params) {
  const size_t end = size_t{row.position} + 1, wide = static_cast<size_t>(params.window),
               chunk = static_cast<size_t>(params.chunk);
  const size_t by_window = params.window > 0 && end > wide ? end - wide : 0,
               by_chunk = params.chunk > 0 ? row.position / chunk * chunk : 0;
  return {by_window > by_chunk ? by_window : by_chunk, end};
}

// A score after scaling and the softcap.
GPU_FN float ScoreOf(float product, const AttentionParams& params) {
  const float score = gpu::Mul(product, params.scale);
  return params.softcap > 0 ? gpu::Mul(params.softcap, Tanh(gpu::Div(score, params.softcap))) : score;
}

// few.cu: as AttendSplitKernel, for pages of 16 positions and heads of whole vectors.
bool CanAttendFew(const KvView& kv);
// rows: at most 65,535.
void AttendFew(Stream stream, const float* q, const KvRow* rows, size_t count, const KvView& kv,
               const AttentionParams& params, const Parts& parts);

}  // namespace gyre::cuda
