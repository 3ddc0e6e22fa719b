// 16 floats at a time. Same names as simd_avx2.h, so that the kernels are written once and compiled with either.
// Unnamed namespace, on purpose: see dequant_blocks.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace gyre {
namespace {

using Vec = __m512;
using VecI = __m512i;
constexpr size_t kLanes = 16;
// Rows of x that a dot tile of 4 columns holds in registers.
constexpr int kTileRows = 6;
constexpr int kPanelRows = 8;

inline __mmask16 First(size_t n) {
  return static_cast<__mmask16>((1u << n) - 1);
}

inline Vec Zero() {
  return _mm512_setzero_ps();
}
inline Vec Set(float v) {
  return _mm512_set1_ps(v);
}
inline Vec Load(const float* p) {
  return _mm512_loadu_ps(p);
}
inline Vec LoadPart(const float* p, size_t n) {
  return _mm512_maskz_loadu_ps(First(n), p);
}
inline void Store(float* p, Vec v) {
  _mm512_storeu_ps(p, v);
}
inline void StorePart(float* p, Vec v, size_t n) {
  _mm512_mask_storeu_ps(p, First(n), v);
}
inline Vec Add(Vec a, Vec b) {
  return _mm512_add_ps(a, b);
}
inline Vec Sub(Vec a, Vec b) {
  return _mm512_sub_ps(a, b);
}
inline Vec Mul(Vec a, Vec b) {
  return _mm512_mul_ps(a, b);
}
inline Vec Div(Vec a, Vec b) {
  return _mm512_div_ps(a, b);
}
inline Vec Fma(Vec a, Vec b, Vec c) {
  return _mm512_fmadd_ps(a, b, c);
}
// The second operand if either is NaN.
inline Vec Min(Vec a, Vec b) {
  return _mm512_min_ps(a, b);
}
inline Vec Max(Vec a, Vec b) {
  return _mm512_max_ps(a, b);
}
inline Vec Abs(Vec a) {
  return _mm512_abs_ps(a);
}
inline Vec CopySign(Vec magnitude, Vec sign) {
  const VecI bit = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  return _mm512_castsi512_ps(
      _mm512_or_si512(_mm512_castps_si512(magnitude), _mm512_and_si512(bit, _mm512_castps_si512(sign))));
}
inline Vec SelectLess(Vec a, Vec b, Vec if_less, Vec if_not) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), if_not, if_less);
}
// A bit for each lane that is not <= b (so also for NaN).
inline unsigned NotLessEqual(Vec a, Vec b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ);
}
inline bool AnyNan(Vec a) {
  return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0;
}
inline Vec Round(Vec a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// a * 2^n, n whole.
inline Vec TimesPowerOfTwo(Vec a, Vec n) {
  return _mm512_scalef_ps(a, n);
}

inline Vec LoadHalf(const std::byte* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec LoadHalfPart(const std::byte* p, size_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(First(n), p));
}
inline Vec WidenBf16(__m256i v) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}
inline Vec LoadBf16(const std::byte* p) {
  return WidenBf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec LoadBf16Part(const std::byte* p, size_t n) {
  return WidenBf16(_mm256_maskz_loadu_epi16(First(n), p));
}
inline void StoreHalf(uint16_t* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

// The sums across the lanes of four vectors, each by the same tree whatever stands beside it: i + (i + 8), + 4 further
// on, then ((0 + 2) + (1 + 3)). A quarter of a vector belongs to each while they are added.
inline __m128 SumEach(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  const Vec cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
  const Vec four = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  const Vec two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4E));
  const Vec one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xB1));
  const VecI firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
  return _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one));
}
inline __m128 FoldMaxTo4(Vec v) {
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  return _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// Whole numbers in 32-bit lanes.
inline VecI SetI(int32_t v) {
  return _mm512_set1_epi32(v);
}
inline VecI LoadI(const std::byte* p) {
  return _mm512_loadu_si512(p);
}
inline VecI AddI(VecI a, VecI b) {
  return _mm512_add_epi32(a, b);
}
inline VecI MulI(VecI a, VecI b) {
  return _mm512_mullo_epi32(a, b);
}
inline VecI AndI(VecI a, VecI b) {
  return _mm512_and_si512(a, b);
}
inline VecI OrI(VecI a, VecI b) {
  return _mm512_or_si512(a, b);
}
template <int kBits>
inline VecI ShiftRight16(VecI a) {
  return _mm512_srli_epi16(a, kBits);
}
template <int kBits>
inline VecI ShiftLeft16(VecI a) {
  return _mm512_slli_epi16(a, kBits);
}
inline VecI MulAddPairs16(VecI a, VecI b) {
  return _mm512_madd_epi16(a, b);
}
inline Vec ToFloat(VecI a) {
  return _mm512_cvtepi32_ps(a);
}
inline VecI LoadU8(const std::byte* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline VecI LoadS8(const std::byte* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// Rounds to the nearest whole number, ties to even.
inline VecI RoundToInt(Vec v) {
  return _mm512_cvtps_epi32(v);
}
inline void StoreI(int32_t* p, VecI v) {
  _mm512_storeu_si512(p, v);
}

// Doubles, half as many lanes.
using VecD = __m512d;
constexpr size_t kLanesD = 8;
inline VecD SetD(double v) {
  return _mm512_set1_pd(v);
}
inline VecD LoadAsDouble(const float* p) {
  return _mm512_cvtps_pd(_mm256_loadu_ps(p));
}
inline VecD AddD(VecD a, VecD b) {
  return _mm512_add_pd(a, b);
}
inline VecD SubD(VecD a, VecD b) {
  return _mm512_sub_pd(a, b);
}
inline VecD MulD(VecD a, VecD b) {
  return _mm512_mul_pd(a, b);
}
inline VecD FmaD(VecD a, VecD b, VecD c) {
  return _mm512_fmadd_pd(a, b, c);
}
inline VecD MaxD(VecD a, VecD b) {
  return _mm512_max_pd(a, b);
}
inline VecD RoundD(VecD a) {
  return _mm512_roundscale_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline VecD TimesPowerOfTwoD(VecD a, VecD n) {
  return _mm512_scalef_pd(a, n);
}
inline void StoreD(double* p, VecD v) {
  _mm512_storeu_pd(p, v);
}

}  // namespace
}  // namespace gyre
