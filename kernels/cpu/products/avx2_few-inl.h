// Products of few rows with panels by 256-bit vectors, and what those of many rows share with them.
#pragma once

#include <immintrin.h>

#include <type_traits>
#include <utility>

#include "kernels/cpu/products/avx2_panels-inl.h"
#include "kernels/cpu/isa/avx2_vector-inl.h"

namespace gyre::cpu {
namespace {

// Number of pairs of products (a code times an activation) that a 16-bit sum holds without saturating.
template <typename L>
constexpr size_t kSafe = kSigned<L>      ? 1
                         : L::kBits == 6 ? 2
                         : L::kBits == 5 ? 4
                                         : 8;

// Broadcasts four activations to every column.
__m256i Four(const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, 4);
  return _mm256_set1_epi32(four);
}

// sum[r] += part s of a block for eight columns: the exact dots, converted, times the weights' scales, times the scales
// of the activations. With kHalfMin also the part's minima.
template <typename L, size_t R>
[[gnu::always_inline]] inline void AddPart(const Quantized& x, size_t at, size_t s, __m256 scales, const auto& mins,
                                           const __m256i (&dots)[R], __m256 (&sum)[R]) {
  const float* scale = x.scale + at;
  Each<0>(std::make_index_sequence<R>(), [&](auto r) {
    sum[r] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(dots[r]), scales), _mm256_set1_ps(scale[r]), sum[r]);
  });
  if constexpr (L::kHalfMin) {
    const __m256 m = mins();
    const int32_t* half = x.offset + s * x.parts + at;
    Each<0>(std::make_index_sequence<R>(), [&](auto r) {
      sum[r] = _mm256_fmadd_ps(m, _mm256_set1_ps(scale[r] * static_cast<float>(half[r])), sum[r]);
    });
  }
}
// With kMin: adds the minima of a block in the same way.
template <typename L, size_t R>
[[gnu::always_inline]] inline void AddMins(const Quantized& x, size_t at, const auto& mins, __m256 (&sum)[R]) {
  if constexpr (L::kMin) {
    const __m256 m = mins();
    Each<0>(std::make_index_sequence<R>(),
            [&](auto r) { sum[r] = _mm256_fmadd_ps(m, _mm256_set1_ps(x.sum[at + r]), sum[r]); });
  }
}
// The start value of an integer sum, which subtracts the codes' zero.
template <typename L>
__m256i Offset(const Quantized& x, size_t at, size_t s) {
  return kSigned<L> || L::kHalfMin ? _mm256_setzero_si256() : _mm256_set1_epi32(x.offset[s * x.parts + at]);
}

// Eight columns of R rows of the output, of which n exist.
template <size_t R>
void LoadSums(const float* out, size_t ldo, size_t n, bool first, __m256 (&sum)[R]) {
  for (size_t r = 0; r < R; ++r)
    sum[r] = first ? V8::Zero() : n == 8 ? V8::Load(out + r * ldo) : V8::LoadTail(out + r * ldo, n);
}
template <size_t R>
void StoreSums(const __m256 (&sum)[R], size_t n, float* out, size_t ldo) {
  for (size_t r = 0; r < R; ++r) {
    if (n == 8)
      V8::Store(out + r * ldo, sum[r]);
    else
      V8::StoreTail(out + r * ldo, sum[r], n);
  }
}
// The number of the eight columns that exist.
size_t Columns(size_t column, size_t columns) {
  return columns < column ? 0 : columns - column < 8 ? columns - column : 8;
}

// With sanitizers, unrolled code takes minutes to compile.
#ifdef GYRE_FEW_TILES
constexpr bool kEveryShape = false;
constexpr int kHalves = 1, kUnrolled = 1;
#else
constexpr bool kEveryShape = true;
constexpr int kHalves = 2, kUnrolled = 16;
#endif

constexpr size_t kSlice = 4;
// For few rows, which are bound by reading the codes from memory: R rows of one group, from `row` on, against up to
// kSlice panels, which are separate streams in different pages.
template <typename L, size_t R>
void StreamTile(const Quantized& x, size_t row, const std::byte* w, size_t stride, size_t panels, size_t columns,
                size_t ahead, float* out, size_t ldo) {
  constexpr size_t kParts = L::kScalesPerBlock, kGroups = kBlock / 4 / kParts;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256 sum[2 * kSlice][R] = {};
  size_t at = x.At(row, 0);
  for (size_t u = 0; u < x.blocks / L::kBlocks; ++u) {
    for (size_t b = 0; b < L::kBlocks; ++b, at += x.group) {
      const int8_t* q = x.q + at * kBlock;
      for (size_t p = 0; p < panels; ++p) {
        const std::byte* unit = w + p * stride + u * L::kUnitBytes;
        for (size_t line = 0; ahead > 0 && line < L::kBlockBytes; line += 64)
          __builtin_prefetch(unit + L::kHeader + b * L::kBlockBytes + line + ahead);
#pragma GCC unroll kHalves
        for (size_t half = 0; half < 2; ++half) {
          const size_t first = 8 * half;
          const BlockCodes<L> all(unit, first, b);
          Each<0>(std::make_index_sequence<kParts>(), [&](auto s) {
            __m256i dots[R], words[R];
            for (size_t r = 0; r < R; ++r) dots[r] = Offset<L>(x, at + r, s());
            Each<s() * kGroups>(std::make_index_sequence<kGroups>(), [&](auto g) {
              const __m256i codes = all.template Group<g()>();
              if constexpr (kVnni) {
                for (size_t r = 0; r < R; ++r) dots[r] = AddDots(dots[r], codes, Four(q + r * kBlock + 4 * g()));
                return;
              }
              const __m256i magnitude = kSigned<L> ? _mm256_abs_epi8(codes) : codes;
              for (size_t r = 0; r < R; ++r) {
                const __m256i fours = Four(q + r * kBlock + 4 * g());
                const __m256i product =
                    _mm256_maddubs_epi16(magnitude, kSigned<L> ? _mm256_sign_epi8(fours, codes) : fours);
                words[r] = g() % kSafe<L> == 0 || g() == s() * kGroups ? product : _mm256_add_epi16(words[r], product);
                if (g() % kSafe<L> == kSafe<L> - 1 || g() == (s() + 1) * kGroups - 1)
                  dots[r] = _mm256_add_epi32(dots[r], _mm256_madd_epi16(words[r], ones));
              }
            });
            AddPart<L>(
                x, at, s(), Scales<L>(unit, first, b, s()), [&] { return HalfMins<L>(unit, first, b, s()); }, dots,
                sum[2 * p + half]);
          });
          AddMins<L>(
              x, at, [&] { return Mins<L>(unit, first, b); }, sum[2 * p + half]);
        }
      }
    }
  }
  for (size_t half = 0; half < 2 * panels; ++half)
    StoreSums(sum[half], Columns(8 * half, columns), out + 8 * half, ldo);
}

}  // namespace
}  // namespace gyre::cpu
