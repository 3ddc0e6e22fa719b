// Dot products of rows of x with rows of plain weights, as they lie in the file. Lanes run along k, one chain of sums
// an element, then one tree across the lanes: an element's bits do not depend on the tile it was computed in.
// Included after vec_math.h; unnamed namespace, on purpose: see dequant_blocks.h.
#pragma once

#include <cstddef>
#include <cstring>

#include "kernels/cpu/kernel_table.h"

namespace gyre {
namespace {

struct ElementF32 {
  static constexpr size_t kBytes = 4;
  static Vec At(const std::byte* p, size_t i) { return Load(reinterpret_cast<const float*>(p) + i); }
  static Vec Part(const std::byte* p, size_t i, size_t n) { return LoadPart(reinterpret_cast<const float*>(p) + i, n); }
};
struct ElementF16 {
  static constexpr size_t kBytes = 2;
  static Vec At(const std::byte* p, size_t i) { return LoadHalf(p + 2 * i); }
  static Vec Part(const std::byte* p, size_t i, size_t n) { return LoadHalfPart(p + 2 * i, n); }
};
struct ElementBf16 {
  static constexpr size_t kBytes = 2;
  static Vec At(const std::byte* p, size_t i) { return LoadBf16(p + 2 * i); }
  static Vec Part(const std::byte* p, size_t i, size_t n) { return LoadBf16Part(p + 2 * i, n); }
};

// kRows rows times kCols columns; columns past `cols` repeat the last one and are not stored.
template <typename Element, int kRows, int kCols>
void DotTile(const float* x, size_t ldx, const std::byte* w, size_t stride, size_t cols, size_t k, float* out,
             size_t ldo) {
  const std::byte* column[kCols];
  for (size_t c = 0; c < kCols; ++c) column[c] = w + (c < cols ? c : cols - 1) * stride;
  Vec sum[kRows][kCols];
  GYRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    GYRE_UNROLL
    for (int c = 0; c < kCols; ++c) sum[r][c] = Zero();
  }
  size_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    Vec xs[kRows];
    GYRE_UNROLL
    for (int r = 0; r < kRows; ++r) xs[r] = Load(x + static_cast<size_t>(r) * ldx + i);
    GYRE_UNROLL
    for (int c = 0; c < kCols; ++c) {
      const Vec weight = Element::At(column[c], i);
      GYRE_UNROLL
      for (int r = 0; r < kRows; ++r) sum[r][c] = Fma(xs[r], weight, sum[r][c]);
    }
  }
  if (i < k) {
    GYRE_UNROLL
    for (int c = 0; c < kCols; ++c) {
      const Vec weight = Element::Part(column[c], i, k - i);
      GYRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        sum[r][c] = Fma(LoadPart(x + static_cast<size_t>(r) * ldx + i, k - i), weight, sum[r][c]);
      }
    }
  }
  GYRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    float* to = out + static_cast<size_t>(r) * ldo;
    GYRE_UNROLL
    for (int c = 0; c < kCols; c += 4) {
      const __m128 four = SumEach(sum[r][c], sum[r][c + 1], sum[r][c + 2], sum[r][c + 3]);
      const auto at = static_cast<size_t>(c);
      if (at + 4 <= cols) {
        _mm_storeu_ps(to + at, four);
      } else if (at < cols) {
        alignas(16) float part[4];
        _mm_store_ps(part, four);
        std::memcpy(to + at, part, (cols - at) * sizeof(float));
      }
    }
  }
}

template <typename Element, int kRows, int kCols>
void DotRows(const float* x, size_t ldx, const std::byte* w, size_t stride, size_t cols, size_t k, float* out,
             size_t ldo) {
  for (size_t c = 0; c < cols; c += kCols) {
    DotTile<Element, kRows, kCols>(x, ldx, w + c * stride, stride, cols - c, k, out + c, ldo);
  }
}

template <typename Element>
void Dot(const float* x, size_t ldx, size_t rows, const std::byte* w, size_t stride, size_t cols, size_t k, float* out,
         size_t ldo) {
  size_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) {
    DotRows<Element, kTileRows, 4>(x + r * ldx, ldx, w, stride, cols, k, out + r * ldo, ldo);
  }
  for (; r + 2 <= rows; r += 2) {
    DotRows<Element, 2, 4>(x + r * ldx, ldx, w, stride, cols, k, out + r * ldo, ldo);
  }
  // A single row streams the weights: eight columns are eight streams, in different pages if k is large.
  if (r < rows) DotRows<Element, 1, 8>(x + r * ldx, ldx, w, stride, cols, k, out + r * ldo, ldo);
}

// kRows rows, kVecs vectors along dim from element `at`; the last vector may be partial.
template <typename Element, int kRows, int kVecs>
void WeightedSumTile(const float* weights, size_t ldw, const std::byte* v, size_t count, size_t dim, size_t at,
                     float* sums) {
  const size_t valid = dim - at;
  const bool whole = valid >= kVecs * kLanes;
  Vec sum[kRows][kVecs];
  GYRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    GYRE_UNROLL
    for (int d = 0; d < kVecs; ++d) {
      const float* from = sums + static_cast<size_t>(r) * dim + at + static_cast<size_t>(d) * kLanes;
      sum[r][d] = whole ? Load(from) : LoadPart(from, valid);
    }
  }
  for (size_t p = 0; p < count; ++p) {
    GYRE_UNROLL
    for (int d = 0; d < kVecs; ++d) {
      const size_t i = p * dim + at + static_cast<size_t>(d) * kLanes;
      const Vec value = whole ? Element::At(v, i) : Element::Part(v, i, valid);
      GYRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        sum[r][d] = Fma(Set(weights[static_cast<size_t>(r) * ldw + p]), value, sum[r][d]);
      }
    }
  }
  GYRE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    GYRE_UNROLL
    for (int d = 0; d < kVecs; ++d) {
      float* to = sums + static_cast<size_t>(r) * dim + at + static_cast<size_t>(d) * kLanes;
      if (whole) {
        Store(to, sum[r][d]);
      } else {
        StorePart(to, sum[r][d], valid);
      }
    }
  }
}

template <typename Element, int kRows>
void WeightedSumRows(const float* weights, size_t ldw, const std::byte* v, size_t count, size_t dim, float* sums) {
  size_t at = 0;
  for (; at + 4 * kLanes <= dim; at += 4 * kLanes) {
    WeightedSumTile<Element, kRows, 4>(weights, ldw, v, count, dim, at, sums);
  }
  for (; at < dim; at += kLanes) WeightedSumTile<Element, kRows, 1>(weights, ldw, v, count, dim, at, sums);
}

template <typename Element>
void WeightedSum(const float* weights, size_t ldw, size_t rows, const std::byte* v, size_t count, size_t dim,
                 float* sums) {
  constexpr int kRows = kLanes == 16 ? 4 : 2;
  size_t r = 0;
  for (; r + kRows <= rows; r += kRows) {
    WeightedSumRows<Element, kRows>(weights + r * ldw, ldw, v, count, dim, sums + r * dim);
  }
  for (; kRows > 2 && r + 2 <= rows; r += 2) {
    WeightedSumRows<Element, 2>(weights + r * ldw, ldw, v, count, dim, sums + r * dim);
  }
  for (; r < rows; ++r) WeightedSumRows<Element, 1>(weights + r * ldw, ldw, v, count, dim, sums + r * dim);
}

}  // namespace
}  // namespace gyre
