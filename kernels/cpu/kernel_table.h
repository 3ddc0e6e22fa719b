// What one instruction set provides: plain functions on one thread, no allocation. The driver (cpu_backend.cc) picks a
// table at start and does the rest. Every result of a row depends on that row alone: tiles of several rows or columns
// only decide what is computed side by side, never in which order one element's terms are added.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace gyre {

inline constexpr size_t kPanelColumns = 16;  // columns that lie interleaved in a packed weight
inline constexpr size_t kQuantBlock = 32;    // elements of x that share a scale

// Rows of x as signed bytes: x = scale[block] * q. `data` is private to the instruction set (bytes, or 16-bit pairs).
struct QuantizedRows {
  std::byte* data = nullptr;  // [row][row_bytes]
  float* scale = nullptr;     // [row][blocks]
  int32_t* sum16 = nullptr;   // [row][2 * blocks], sum of q over each 16
  size_t blocks = 0;          // a row's, even: a multiple of 64 elements, the last of which may be zeros
  size_t row_bytes = 0;
};

// out[r * ldo + c] = sum over k of x[r * ldx + k] * w[c][k], the rows of w `stride` bytes apart.
using DotFn = void (*)(const float* x, size_t ldx, size_t rows, const std::byte* w, size_t stride, size_t cols,
                       size_t k, float* out, size_t ldo);
// out[r * ldo + c], c < cols, of the panels that start at `panels`, `panel_bytes` apart; rows [row, row + rows) of x.
using PanelDotFn = void (*)(const QuantizedRows& x, size_t row, size_t rows, const std::byte* panels,
                            size_t panel_bytes, float* out, size_t ldo, size_t cols);
// sums[r * dim + i] += sum over p < count of weights[r * ldw + p] * v[p][i], p rising.
using WeightedSumFn = void (*)(const float* weights, size_t ldw, size_t rows, const std::byte* v, size_t count,
                               size_t dim, float* sums);

struct KernelTable {
  DotFn dot_f32, dot_f16, dot_bf16;
  void (*dequantize)(DType type, const std::byte* src, float* dst, size_t elems);

  size_t quantized_bytes;  // of QuantizedRows::data an element
  // x[k] to data, scale and sum16 of one row of `blocks`; elements past k are zeros. NaN gives a NaN scale.
  void (*quantize)(const float* x, size_t k, size_t blocks, std::byte* data, float* scale, int32_t* sum16);
  PanelDotFn dot_q8, dot_q4, dot_q4k, dot_q6k;

  void (*rms_norm)(const float* x, size_t dim, const float* w, float eps, float* out);
  void (*rope)(float* x, int heads, int head_dim, const float* cos, const float* sin, int half, RopePairing pairing);
  void (*gated)(const float* gate, const float* up, size_t n, Activation act, float* out);
  void (*softcap)(float* x, size_t n, float cap);
  void (*to_half)(const float* x, uint16_t* out, size_t n);

  // s[n] in place: t = softcap(scale * s), then exp(t - max). Gives max and the sum of the exponentials.
  void (*softmax_part)(float* s, size_t n, float scale, float softcap, float* max, float* sum);
  WeightedSumFn weighted_sum_f32, weighted_sum_f16;

  // The first i in [begin, n) with not x[i] <= threshold (so NaN too), or n.
  size_t (*find_above)(const float* x, size_t begin, size_t n, float threshold);
  float (*max_of)(const float* x, size_t n);  // ignoring NaN; -inf if there is nothing
  // Sum of exp((x - max) * by) in double, in a fixed order.
  double (*sum_exp)(const float* x, size_t n, double max, double by);
};

const KernelTable& Avx2Kernels();
const KernelTable& Avx512Kernels();
const KernelTable& Avx512VnniKernels();

}  // namespace gyre
