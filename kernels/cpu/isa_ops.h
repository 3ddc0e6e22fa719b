// What differs between instruction sets: a few inner loops, behind one table of function pointers an ISA.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gyre::cpu {

enum class FloatType { kF32, kF16, kBf16 };

// Columns of a Q8_0 panel, and the positions of one block along K.
inline constexpr size_t kPanel = 16;
inline constexpr size_t kBlock = 32;
// A panel's block: 16 f16 scales, then for each 4 positions along K the 4 bytes of each column, stored as w + 128.
inline constexpr size_t kPanelBlockBytes = kPanel * 2 + kPanel * kBlock;

// x quantized per 32 to int8: x = q * scale.
struct Quantized {
  const int8_t* q;        // [rows][k]
  const float* scale;     // [rows][k / 32]
  const int32_t* offset;  // [rows][k / 32]: -128 * sum of q, what the +128 of the weights adds
};

struct IsaOps {
  // out[r * ldo + c] = sum over k of x[r * k + i] * w[c * k + i], for columns [0, n). One accumulator vector a
  // (row, column), lanes added in a fixed order, the tail last: the same bits for any number of rows.
  void (*dot)(const float* x, size_t rows, const void* w, FloatType type, size_t n, size_t k, float* out, size_t ldo);
  // The same against `panels` Q8_0 panels that follow each other; block by block along K. `columns`: how many of the
  // panels' columns exist.
  void (*dot_q8)(const Quantized& x, size_t rows, const std::byte* w, size_t panels, size_t columns, size_t k, float* out,
                 size_t ldo);
  // One row: q, scale and offset of k elements.
  void (*quantize)(const float* x, size_t k, int8_t* q, float* scale, int32_t* offset);
  // scores[j] = q . keys[j], for n keys of head_dim that lie one after the other.
  void (*scores)(const float* q, const void* keys, bool half, size_t n, size_t head_dim, float* scores);
  // acc += sum over j of weights[j] * values[j], in order of j.
  void (*weighted_sum)(const float* weights, const void* values, bool half, size_t n, size_t head_dim, float* acc);
};

// Null where this build has no such file.
const IsaOps* Avx2Ops();
const IsaOps* Avx512Ops();
const IsaOps* Avx512VnniOps();

}  // namespace gyre::cpu
