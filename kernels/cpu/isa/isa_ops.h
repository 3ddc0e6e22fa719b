// The inner loops that differ between instruction sets, as one table of function pointers per ISA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/products/panels.h"
#include "kernels/cpu/products/tiles.h"
#include "kernels/op_types.h"

namespace gyre::cpu {

// Rows of x that the inner loop of a product takes at most, with 32 vector registers. x is stored in groups of so many
// rows, so that a group has one address and constant offsets.
inline constexpr size_t kRowGroup = 6;

// x quantized to int8 in blocks of 32: x = q * scale. Block b of row r has index At(r, b). Rows are padded with zeros
// to `blocks` blocks.
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

// Where IsaOps::quantize writes one row of Quantized: block b at index b * step of each array; offset = times * (sum of
// q).
struct QuantizedRow {
  int8_t* q;
  int16_t* wide;  // written instead of q, unless null
  float* scale;
  float* sum;
  int32_t* offset;
  size_t step, parts;
  bool halves;  // sum and offset separately for both halves of a block (two weight scales)
  int32_t times;
};

// Products of many rows with float weights: the same bits as IsaOps::dot, faster. x is packed into row panels of `rows`
// rows (BLIS's micro-panels), k padded to a multiple of `lanes`; missing rows and positions are zeros.
struct FloatGemm {
  size_t rows, lanes;
  size_t columns;   // columns of the output per pass
  size_t min_rows;  // with fewer rows IsaOps::dot is faster
  size_t scratch;   // floats that each thread needs
  // Packs one row panel from at most `rows` rows of x.
  void (*pack_rows)(const float* x, size_t rows, size_t k, float* row_panel);
  void (*dot)(const float* row_panels, size_t rows, const void* w, FloatType type, size_t n, size_t k, float* scratch,
              float* out, size_t ldo);
  size_t Floats(size_t k) const { return rows * ((k + lanes - 1) / lanes * lanes); }  // floats per row panel
};

// The online-softmax state of some queries over a part of their context. Weights are relative to exp(max).
struct SoftmaxPartial {
  double* sum = nullptr;  // [query]: sum of the weights; 0 = the query attends to nothing here
  float* max = nullptr;   // [query]: largest scaled score, the exponent of the largest weight; -infinity where sum is 0
  float* acc = nullptr;   // [query][dim]: sum of weight * value
};

// Queries rounded to 16 bits, in blocks of 32: an element is scale * (256 * high + low). Codes of keys are multiplied
// as unsigned bytes, so the sums over a block begin with `offset`, of high and of low.
struct RoundedQueries {
  int8_t *high = nullptr, *low = nullptr;  // [query][head_dim]
  float* scale = nullptr;                  // [query][head_dim / 32]
  int32_t* offset = nullptr;               // [query][head_dim / 32][2]
  RoundedQueries From(size_t query, size_t head_dim) const {
    const size_t block = query * (head_dim / kBlock);
    return {high + query * head_dim, low + query * head_dim, scale + block, offset + 2 * block};
  }
};

// The inputs of IsaOps::scan_state for each row; q and k are normalized already.
struct ScanRows {
  const float *q, *k;  // key_dim elements each; from row to row key_stride
  size_t key_stride;
  const float* v;  // value_dim elements; from row to row value_stride
  size_t value_stride;
  const float* decay;  // one or, with channel_decay, key_dim of them; from row to row decay_stride
  size_t decay_stride;
  const float* beta;  // from row to row gate_stride
  size_t gate_stride, out_stride;
  float skip;
  const float *remove = nullptr, *replace = nullptr;  // as q, for StateScanParams::removal; beta is not read then
};

// E4M3 with a scale for each block of `group` x `group` weights: byte i of column c at bytes[c * k + i], its scale, an
// unaligned f32, at number (first_row + c) / group * across + i / group. REQUIRES: group % 16 == 0; scales below 2^120.
struct Fp8Matrix {
  const std::byte* bytes;
  const std::byte* scales;
  size_t across, group, first_row;
};

struct IsaOps {
  // out[r * ldo + c] = sum over i of x[r * k + i] * w[c * k + i], for columns [0, n). Each (row, column) has one
  // accumulator vector for a chain of some thousand positions; its lanes are added in a fixed order, then the chains in
  // order: the same bits for any number of rows.
  void (*dot)(const float* x, size_t rows, const void* w, FloatType type, size_t n, size_t k, float* out, size_t ldo);
  // The same for E4M3: the bits of `dot` with the weights that expand_fp8 gives.
  void (*dot_fp8)(const float* x, size_t rows, const Fp8Matrix& w, size_t n, size_t k, float* out, size_t ldo);
  // The same for `panels` consecutive panels, an even number; the order of additions is in docs/kernels.md. `columns`:
  // how many columns of these panels exist. `streams`: how many panels few rows read at once, 1 or 4; no bit depends on
  // it.
  void (*dot_panels)(const Quantized& x, size_t rows, PanelType type, const std::byte* w, size_t panels, size_t columns,
                     float* out, size_t ldo, size_t streams);
  // Quantizes one row of `blocks` blocks.
  void (*quantize)(const float* x, size_t blocks, const QuantizedRow& to);
  // scores[r * lds + j] = q[r] . keys[j] for `rows` queries and n keys per page. Element d of key j is keys[d * stride
  // + j], times scales[d / 32 * stride + j] if there are scales. One chain of additions along d. The scores of several
  // pages are consecutive.
  void (*scores)(const float* q, size_t rows, const KvSpans& runs, size_t stride, size_t head_dim, float* scores,
                 size_t lds);
  // With integer dot products, both or neither: `scores` for rounded queries and keys with scales, and the rounding of
  // `blocks` blocks for keys of this type. Of a block's largest element a rounded one is off by at most 1.6e-5.
  void (*code_scores)(const RoundedQueries& q, size_t rows, const KvSpans& runs, size_t stride, size_t head_dim,
                      float* scores, size_t lds) = nullptr;
  void (*round_queries)(const float* q, size_t blocks, KvType type, const RoundedQueries& to) = nullptr;
  // Replaces s[i] by exp(scale * s[i] - *max) for i in [begin, end), where *max is the largest exponent. Returns their
  // sum, added in an order that depends on i only. Relative error of a weight: about 1e-7, and as much again for each
  // unit between its exponent and the largest. REQUIRES: scale > 0.
  float (*exp_scores)(float* s, size_t begin, size_t end, float scale, float* max);
  // acc[r] += sum over j of weights[r * ldw + j] * values[j], in the order of j; values[j] and acc[r] have head_dim
  // elements, and values[j] is times scales[j] (head_dim / 32 of them) if there are scales. The weights of several
  // pages are consecutive.
  void (*weighted_sum)(const float* weights, size_t ldw, size_t rows, const KvSpans& runs, size_t head_dim, float* acc);
  // out[j * dims + d] = element d of key j as f32, for n keys of a page and their first `dims` elements; keys as in
  // `scores`.
  void (*expand_keys)(const KvSpan& keys, size_t stride, size_t n, size_t dims, float* out);
  // Combines the partial `from` into `to`, for n queries of `dim` elements.
  void (*combine_partials)(const SoftmaxPartial& to, const SoftmaxPartial& from, size_t n, size_t dim);
  // out = gate / (1 + exp(-gate)) * up; here and below a null `up` is all ones
  void (*silu_times)(const float* gate, const float* up, size_t n, float* out);
  // out = gate * (1 + tanh(sqrt(2 / pi) * (gate + 0.044715 gate^3))) / 2 * up
  void (*gelu_times)(const float* gate, const float* up, size_t n, float* out);
  // Activation::kClampedSwiglu
  void (*clamped_swiglu_times)(const float* gate, const float* up, size_t n, float* out);
  // out = 1 / (1 + exp(-gate)) * up
  void (*sigmoid_times)(const float* gate, const float* up, size_t n, float* out);
  // out = max(gate, 0)^2 * up
  void (*relu_squared_times)(const float* gate, const float* up, size_t n, float* out);
  // out = gate * Phi(gate) * up, with the normal distribution's function
  void (*gelu_erf_times)(const float* gate, const float* up, size_t n, float* out);
  // out = max(gate, 0) * up
  void (*relu_times)(const float* gate, const float* up, size_t n, float* out);
  // x = cap * tanh(scale * x / cap); NaN stays NaN. Absolute error about cap * 1e-7.
  void (*softcap)(float* x, size_t n, float scale, float cap);
  // Backend::RmsNorm of one row. Gives the same bits on every ISA.
  void (*rms_norm)(const float* x, size_t n, const float* w, float eps, float* out);
  // Converts to f16, rounded to nearest even.
  void (*to_half)(const float* x, size_t n, uint16_t* out);
  // out = Fp8ToFloat of n bytes, times scale.
  void (*expand_fp8)(const std::byte* from, size_t n, float scale, float* out);
  // The largest of n numbers, without NaN; -infinity if there is none.
  float (*largest)(const float* x, size_t n);
  // The sum over i of exp((x[i] - top) * by). It is added in eight chains and these in a fixed order: the same bits on
  // every ISA. Relative error about 1e-14; what is below exp(-708) counts as that. NaN gives NaN. REQUIRES: x[i] <= top
  // < infinity, by >= 0.
  double (*sum_exp)(const float* x, size_t n, double top, double by);
  // Backend::ShortConv of n channels from params' pointers on, for `count` rows of one sequence.
  void (*short_conv)(const float* x, size_t stride, size_t count, size_t n, const ShortConvParams& params, float* state,
                     float* out);
  // Backend::ScanState of one value head for `count` rows of one sequence.
  void (*scan_state)(const ScanRows& rows, size_t count, const StateScanParams& params, float* state, float* out);
  FloatGemm float_gemm;
  // The argument `streams` of dot_panels.
  size_t streams = 4;
  // Rows per group of x that dot_panels needs. A table that borrows dot_panels from another borrows this too.
  size_t row_group = kRowGroup;
  // From this number of rows on dot_panels takes x as 16-bit numbers, for types whose codes are signed 8-bit numbers.
  size_t wide_rows_from = SIZE_MAX;
  // Matrix tiles for prefill, or null.
  const TileOps* tiles = nullptr;
  // From this number of rows on dot_panels also uses tiles, for 8-bit codes.
  size_t tile_rows_from = SIZE_MAX;

  auto TimesOf(Activation act) const {
    switch (act) {
      case Activation::kSilu: return silu_times;
      case Activation::kGeluTanh: return gelu_times;
      case Activation::kClampedSwiglu: return clamped_swiglu_times;
      case Activation::kSigmoid: return sigmoid_times;
      case Activation::kReluSquared: return relu_squared_times;
      case Activation::kGelu: return gelu_erf_times;
      case Activation::kRelu: return relu_times;
    }
    return silu_times;
  }

  // The layout of x for dot_panels: rows per group, and whether as 16-bit numbers. For tiles and 16-bit numbers the
  // groups are whole; rows that do not exist may hold anything.
  struct Layout {
    size_t group;
    bool wide;
  };
  Layout LayoutOf(size_t rows, bool int8_tiles, bool is_signed) const {
    if (rows >= tile_rows_from && int8_tiles) return {kTileRows, false};
    if (rows >= wide_rows_from && is_signed) return {kRowGroup, true};
    return {rows < row_group ? rows : row_group, false};
  }
};

// Each exists only in builds for its processors.
const IsaOps* Avx2Ops();
const IsaOps* AvxVnniOps();
const IsaOps* Avx512Ops();
// IsaOps::dot_fp8 for processors that also have AVX-512 VBMI.
void DotFp8Vbmi(const float* x, size_t rows, const Fp8Matrix& w, size_t n, size_t k, float* out, size_t ldo);
// Unpacks units [begin, end) of a panel whose type is unpacked first to units of UnpackedOf (bytes, f32 scales), and
// prefetches as many units from `next` on. For processors that also have AVX-512 VBMI.
using UnpackUnits = void (*)(const std::byte* panel, size_t begin, size_t end, const std::byte* next, std::byte* to);
UnpackUnits UnpackUnitsVbmi(PanelType type);
const IsaOps* Avx512VnniOps();
const IsaOps* AmxOps();
const IsaOps* AmxEmulatedOps();
const IsaOps* NeonOps();
const IsaOps* NeonDotOps();

}  // namespace gyre::cpu
