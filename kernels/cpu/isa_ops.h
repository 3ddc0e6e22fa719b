// What differs between instruction sets: a few inner loops, behind one table of function pointers an ISA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/panels.h"
#include "kernels/cpu/tiles.h"

namespace gyre::cpu {

// The rows of x that a product's inner loop takes at most, with 32 vector registers; x lies in groups of as many, so
// that these have one address and constant offsets.
inline constexpr size_t kRowGroup = 6;

// x quantized per 32 to int8: x = q * scale. Row r, block b has the number At(r, b). Rows are padded with zeros to
// `blocks` blocks.
struct Quantized {
  const int8_t* q;        // [At][32]
  const float* scale;     // [At]
  const float* sum;       // [At]: scale * sum of q, for types with minima
  const int32_t* offset;  // [scales a block][At]: sum of q over the scale's part, times minus the layout's kZero; of
                          // kHalfMin times 1
  size_t blocks;
  size_t group;         // IsaOps::LayoutOf; the last group may be part empty
  size_t parts;         // from a block's first offset to its second
  const int16_t* wide;  // where wide, in place of q [At][32], of each four the first and third, then the second and
                        // fourth; else null
  size_t At(size_t row, size_t block) const { return (row / group * blocks + block) * group + row % group; }
};

// Where a row of Quantized goes: block b to number b * step of each; offset = times * the sum of q.
struct QuantizedRow {
  int8_t* q;
  int16_t* wide;  // in place of q, or null
  float* scale;
  float* sum;
  int32_t* offset;
  size_t step, parts;
  bool halves;  // two scales a block
  int32_t times;
};

// Products of many rows with float weights, the same bits as IsaOps::dot at more speed. Rows of x lie in row_panels of
// `rows`, k rounded up to `lanes` positions each, in an order of their own; missing rows and positions are zeros.
struct FloatGemm {
  size_t rows, lanes;
  size_t columns;  // products are made for as many at a time
  size_t min_rows;     // rows from which on this is faster
  size_t scratch;  // floats
  // One row_panel, of `rows` rows or fewer.
  void (*pack_rows)(const float* x, size_t rows, size_t k, float* row_panel);
  void (*dot)(const float* row_panels, size_t rows, const void* w, FloatType type, size_t n, size_t k, float* scratch,
              float* out, size_t ldo);
  size_t Floats(size_t k) const { return rows * ((k + lanes - 1) / lanes * lanes); }  // of a row_panel
};

// Of queries over some positions, relative to the largest exponent of a weight there.
struct SoftmaxPartial {
  double* sum = nullptr;  // [query], of weights; 0 = it saw nothing there
  float* max = nullptr;     // [query], that exponent, -infinity where it saw nothing
  float* acc = nullptr;    // [query][dim], of weighted values
};

struct IsaOps {
  // out[r * ldo + c] = sum over k of x[r * k + i] * w[c * k + i], for columns [0, n). One accumulator vector for some
  // thousands of positions of a (row, column), its lanes added in a fixed order, and these sums in order: the same bits
  // for any number of rows.
  void (*dot)(const float* x, size_t rows, const void* w, FloatType type, size_t n, size_t k, float* out, size_t ldo);
  // The same against `panels` panels that follow each other, an even number; the order of docs/kernels.md. `columns`:
  // how many of the panels' columns exist.
  void (*dot_panels)(const Quantized& x, size_t rows, PanelType type, const std::byte* w, size_t panels, size_t columns,
                     float* out, size_t ldo);
  // The blocks of one row.
  void (*quantize)(const float* x, size_t blocks, const QuantizedRow& to);
  // scores[r * lds + j] = q[r] . keys[j], for rows of q and n keys; element d of key j is keys[d * stride + j], times
  // scales[d / 32 * stride + j] where there are scales. One chain along d. Of several pages the scores follow each
  // other.
  void (*scores)(const float* q, size_t rows, const KvSpans& runs, size_t stride, size_t head_dim, float* scores,
                 size_t lds);
  // Scores become weights e^(scale s[i] - *max) for i of [begin, end), *max the largest exponent; their sum, in an
  // order that depends on i only. Relative error of a weight some 1e-7, and as much for each unit between its exponent
  // and the largest. REQUIRES: scale > 0.
  float (*exp_scores)(float* s, size_t begin, size_t end, float scale, float* max);
  // acc[r] += sum over j of weights[r * ldw + j] * values[j], in order of j; values[j] and acc[r] of head_dim,
  // values[j] times scales[j] of head_dim / 32 where there are scales. Of several pages the weights follow each other.
  void (*weighted_sum)(const float* weights, size_t ldw, size_t rows, const KvSpans& runs, size_t head_dim, float* acc);
  // to += from for n queries, each with `dim` sums.
  void (*combine_partials)(const SoftmaxPartial& to, const SoftmaxPartial& from, size_t n, size_t dim);
  // out = gate / (1 + exp(-gate)) * up
  void (*silu_times)(const float* gate, const float* up, size_t n, float* out);
  // out = gate * (1 + tanh(sqrt(2 / pi) * (gate + 0.044715 gate^3))) / 2 * up
  void (*gelu_times)(const float* gate, const float* up, size_t n, float* out);
  // x = cap * tanh(scale * x / cap); NaN stays NaN. Error about cap * 1e-7.
  void (*softcap)(float* x, size_t n, float scale, float cap);
  // Backend::RmsNorm of one row: the same bits everywhere.
  void (*rms_norm)(const float* x, size_t n, const float* w, float eps, float* out);
  // f16, rounded to nearest even.
  void (*to_half)(const float* x, size_t n, uint16_t* out);
  FloatGemm float_gemm;
  // The rows in a group that dot_panels wants; a table that takes another's dot_panels takes this too.
  size_t row_group = kRowGroup;
  // From that many rows on dot_panels takes x as 16-bit numbers, for types whose codes stand for signed numbers of 8
  // bits.
  size_t wide_rows_from = SIZE_MAX;
  // Matrix tiles for prompts, or null.
  const TileOps* tiles = nullptr;
  // From that many rows on dot_panels uses tiles too, for codes of 8 bits.
  size_t tile_rows_from = SIZE_MAX;

  // How x of dot_panels has to lie: for tiles and as 16-bit numbers in whole groups, whose missing rows may be
  // anything.
  struct Layout {
    size_t group;
    bool wide;
  };
  Layout LayoutOf(size_t rows, size_t bits, bool is_signed) const {
    if (rows >= tile_rows_from && bits == 8) return {kTileRows, false};
    if (rows >= wide_rows_from && is_signed) return {kRowGroup, true};
    return {rows < row_group ? rows : row_group, false};
  }
};

// Each in builds for its processors only.
const IsaOps* Avx2Ops();
const IsaOps* AvxVnniOps();
const IsaOps* Avx512Ops();
const IsaOps* Avx512VnniOps();
const IsaOps* AmxOps();
const IsaOps* AmxEmulatedOps();
const IsaOps* NeonOps();
const IsaOps* NeonDotOps();

}  // namespace gyre::cpu
