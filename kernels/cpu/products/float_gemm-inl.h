// Products of many rows with float weights in terms of a vector class V, included after float_kernels-inl.h: the bits
// of its DotRows, faster.
//
// In DotRows the lanes of a register are positions: lane l sums positions l, l + kLanes, ..., and at the end of a chain
// the lanes are added. Here the lanes are columns. All positions of lane 0 come first, then those of another lane, in
// the order in which V::Sum adds lanes. So a weight is converted once for all rows, a loaded weight is multiplied with
// kGemmRows rows, and there are no horizontal sums.
//
// V also has: kGemmRows (rows of x, against kGemmVectors registers of columns) and Transpose (kLanes registers).
#pragma once

#include <cstddef>
#include <utility>

#include "kernels/cpu/isa/float_kernels-inl.h"

namespace gyre::cpu {
namespace {

template <typename V>
struct Gemm {
  using T = typename V::T;
  static constexpr size_t kRows = V::kGemmRows, kPanels = V::kGemmVectors, kColumns = kPanels * V::kLanes;
  // Floats between the weights of successive lanes; the 16 keep them out of the same cache sets.
  static constexpr size_t kLaneStride = V::kChain * kPanels + 16;

  static size_t StepsOf(size_t positions) { return (positions + V::kLanes - 1) / V::kLanes; }

  // v[l] = position l of `rows` rows, then zeros; load(r) returns a register with positions in its lanes.
  template <typename Fn>
  static void LoadTransposed(size_t rows, const Fn& load, T (&v)[V::kLanes]) {
    for (size_t r = 0; r < V::kLanes; ++r) v[r] = r < rows ? load(r) : V::Zero();
    V::Transpose(v);
  }

  // FloatGemm::pack_rows: for each chain and each lane its positions, with all rows of a position adjacent.
  static void PackRows(const float* x, size_t rows, size_t k, float* row_panel) {
    for (size_t begin = 0; begin < k; begin += V::kChain) {
      const size_t count = k - begin < V::kChain ? k - begin : V::kChain, steps = StepsOf(count);
      for (size_t i = 0; i < steps; ++i) {
        const size_t at = i * V::kLanes, n = count - at < V::kLanes ? count - at : V::kLanes;
        for (size_t first = 0; first < kRows; first += V::kLanes) {
          const size_t width = kRows - first < V::kLanes ? kRows - first : V::kLanes;
          T v[V::kLanes];
          LoadTransposed(
              rows < first ? 0 : rows - first,
              [&](size_t r) {
                const float* from = x + (first + r) * k + begin + at;
                return n == V::kLanes ? V::Load(from) : V::LoadTail(from, n);
              },
              v);
          for (size_t l = 0; l < V::kLanes; ++l) V::StoreTail(row_panel + (l * steps + i) * kRows + first, v[l], width);
        }
      }
      row_panel += steps * V::kLanes * kRows;
    }
  }

  // Packs one chain of `columns` columns, whose first weight has index `from`: for each lane its positions, with all
  // columns of a position adjacent.
  template <FloatType type>
  static void PackColumns(const void* w, size_t from, size_t columns, size_t k, size_t count, float* to) {
    for (size_t first = 0; first < kColumns; first += V::kLanes) {
      for (size_t at = 0; at < count; at += V::kLanes) {
        const size_t n = count - at < V::kLanes ? count - at : V::kLanes;
        T v[V::kLanes];
        LoadTransposed(
            columns < first ? 0 : columns - first,
            [&](size_t c) {
              const size_t begin = from + (first + c) * k + at;
              return n == V::kLanes ? LoadWeights<V, type>(w, begin) : LoadWeightsTail<V, type>(w, begin, n);
            },
            v);
        for (size_t l = 0; l < V::kLanes; ++l) V::Store(to + l * kLaneStride + at * kPanels + first, v[l]);
      }
    }
  }

  // Multiplies `rows` rows of a row panel, at most R, by `columns` columns, at most P registers. One chain: the first
  // one, or one that is added to out.
  template <size_t R, size_t P>
  static void Multiply(const float* x, size_t rows, const float* w, size_t columns, size_t steps, bool first,
                       float* out, size_t ldo) {
    constexpr size_t kLevels = std::bit_width(V::kLanes);
    alignas(64) float pending[kLevels][R][P][V::kLanes];  // sums of 1, 2, 4, ... lanes
    for (size_t index = 0; index < V::kLanes; ++index) {
      size_t lane = 0;  // `index` with its bits reversed: lanes that are added come in succession
      for (size_t bit = 1; bit < V::kLanes; bit *= 2) lane = 2 * lane + ((index & bit) != 0);
      const float *xs = x + lane * steps * kRows, *ws = w + lane * kLaneStride;
      T sum[R][P];
      for (size_t r = 0; r < R; ++r) {
        for (size_t p = 0; p < P; ++p) sum[r][p] = V::Zero();
      }
      for (size_t i = 0; i < steps; ++i, xs += kRows, ws += kColumns) {
        T weights[P];
        for (size_t p = 0; p < P; ++p) weights[p] = V::Load(ws + p * V::kLanes);
        for (size_t r = 0; r < R; ++r) {
          const T value = V::Broadcast(xs[r]);
          for (size_t p = 0; p < P; ++p) sum[r][p] = V::Fma(value, weights[p], sum[r][p]);
        }
      }
      const auto complete = static_cast<size_t>(std::countr_one(index));
      for (size_t level = 0; level < complete; ++level) {
        for (size_t r = 0; r < R; ++r) {
          for (size_t p = 0; p < P; ++p) sum[r][p] = V::Add(V::Load(pending[level][r][p]), sum[r][p]);
        }
      }
      for (size_t r = 0; r < R; ++r) {
        for (size_t p = 0; p < P; ++p) V::Store(pending[complete][r][p], sum[r][p]);
      }
    }
    for (size_t r = 0; r < rows; ++r) {
      for (size_t p = 0; p < P; ++p) {
        const size_t at = p * V::kLanes, n = columns - at < V::kLanes ? columns - at : V::kLanes;
        float* to = out + r * ldo + at;
        const T chain = V::Load(pending[kLevels - 1][r][p]);
        if (n == V::kLanes)
          V::Store(to, first ? chain : V::Add(V::Load(to), chain));
        else
          V::StoreTail(to, first ? chain : V::Add(V::LoadTail(to, n), chain), n);
      }
    }
  }
  template <size_t P>
  static void MultiplyRowPanel(const float* x, size_t rows, const float* w, size_t columns, size_t steps, bool first,
                               float* out, size_t ldo) {
    if constexpr (P > 1) {
      if (columns <= (P - 1) * V::kLanes) return MultiplyRowPanel<P - 1>(x, rows, w, columns, steps, first, out, ldo);
    }
    if (rows <= kRows / 2)
      Multiply<kRows / 2, P>(x, rows, w, columns, steps, first, out, ldo);
    else
      Multiply<kRows, P>(x, rows, w, columns, steps, first, out, ldo);
  }

  template <FloatType type>
  static void DotTyped(const float* row_panels, size_t rows, const void* w, size_t n, size_t k, float* scratch,
                       float* out, size_t ldo) {
    const size_t row_panel = kOps.Floats(k);
    for (size_t column = 0; column < n; column += kColumns) {
      const size_t columns = n - column < kColumns ? n - column : kColumns;
      for (size_t begin = 0; begin < k || begin == 0; begin += V::kChain) {
        const size_t count = k - begin < V::kChain ? k - begin : V::kChain;
        PackColumns<type>(w, column * k + begin, columns, k, count, scratch);
        for (size_t r = 0; r < rows; r += kRows) {
          MultiplyRowPanel<kPanels>(row_panels + r / kRows * row_panel + begin * kRows,
                                    rows - r < kRows ? rows - r : kRows, scratch, columns, StepsOf(count), begin == 0,
                                    out + r * ldo + column, ldo);
        }
      }
    }
  }
  static void Dot(const float* row_panels, size_t rows, const void* w, FloatType type, size_t n, size_t k,
                  float* scratch, float* out, size_t ldo) {
    switch (type) {
      case FloatType::kF32: return DotTyped<FloatType::kF32>(row_panels, rows, w, n, k, scratch, out, ldo);
      case FloatType::kF16: return DotTyped<FloatType::kF16>(row_panels, rows, w, n, k, scratch, out, ldo);
      case FloatType::kBf16: return DotTyped<FloatType::kBf16>(row_panels, rows, w, n, k, scratch, out, ldo);
    }
  }

  static constexpr FloatGemm kOps = {kRows,    V::kLanes, kColumns, /*min_rows=*/32, V::kLanes* kLaneStride,
                                     PackRows, Dot};
};

}  // namespace
}  // namespace gyre::cpu
