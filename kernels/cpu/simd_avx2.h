// 8 floats at a time. Same names as simd_avx512.h. Unnamed namespace, on purpose: see dequant_blocks.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gyre {
namespace {

using Vec = __m256;
using VecI = __m256i;
constexpr size_t kLanes = 8;
// Rows of x that a dot tile of 4 columns holds in registers.
constexpr int kTileRows = 3;
constexpr int kPanelRows = 2;

alignas(32) constexpr int32_t kFirst[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
inline __m256i First(size_t n) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kFirst + 8 - n));
}

inline Vec Zero() {
  return _mm256_setzero_ps();
}
inline Vec Set(float v) {
  return _mm256_set1_ps(v);
}
inline Vec Load(const float* p) {
  return _mm256_loadu_ps(p);
}
inline Vec LoadPart(const float* p, size_t n) {
  return _mm256_maskload_ps(p, First(n));
}
inline void Store(float* p, Vec v) {
  _mm256_storeu_ps(p, v);
}
inline void StorePart(float* p, Vec v, size_t n) {
  _mm256_maskstore_ps(p, First(n), v);
}
inline Vec Add(Vec a, Vec b) {
  return _mm256_add_ps(a, b);
}
inline Vec Sub(Vec a, Vec b) {
  return _mm256_sub_ps(a, b);
}
inline Vec Mul(Vec a, Vec b) {
  return _mm256_mul_ps(a, b);
}
inline Vec Div(Vec a, Vec b) {
  return _mm256_div_ps(a, b);
}
inline Vec Fma(Vec a, Vec b, Vec c) {
  return _mm256_fmadd_ps(a, b, c);
}
// The second operand if either is NaN.
inline Vec Min(Vec a, Vec b) {
  return _mm256_min_ps(a, b);
}
inline Vec Max(Vec a, Vec b) {
  return _mm256_max_ps(a, b);
}
inline Vec Abs(Vec a) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
inline Vec CopySign(Vec magnitude, Vec sign) {
  return _mm256_or_ps(magnitude, _mm256_and_ps(_mm256_set1_ps(-0.0f), sign));
}
inline Vec SelectLess(Vec a, Vec b, Vec if_less, Vec if_not) {
  return _mm256_blendv_ps(if_not, if_less, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
// A bit for each lane that is not <= b (so also for NaN).
inline unsigned NotLessEqual(Vec a, Vec b) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NLE_UQ)));
}
inline bool AnyNan(Vec a) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0;
}
inline Vec Round(Vec a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// a * 2^n, n whole, |n| <= 250: in two steps, each of which has an exponent of its own.
inline Vec TimesPowerOfTwo(Vec a, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n), first = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i p = _mm256_slli_epi32(_mm256_add_epi32(first, bias), 23);
  const __m256i q = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, first), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(a, _mm256_castsi256_ps(p)), _mm256_castsi256_ps(q));
}

inline Vec LoadHalf(const std::byte* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Vec WidenBf16(__m128i v) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}
inline Vec LoadBf16(const std::byte* p) {
  return WidenBf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// The first n of 8 16-bit elements; there is no masked load of these.
inline __m128i LoadPart16(const std::byte* p, size_t n) {
  alignas(16) std::byte copy[16] = {};
  std::memcpy(copy, p, 2 * n);
  return _mm_load_si128(reinterpret_cast<const __m128i*>(copy));
}
inline Vec LoadHalfPart(const std::byte* p, size_t n) {
  return _mm256_cvtph_ps(LoadPart16(p, n));
}
inline Vec LoadBf16Part(const std::byte* p, size_t n) {
  return WidenBf16(LoadPart16(p, n));
}
inline void StoreHalf(uint16_t* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

// The sums across the lanes of four vectors, each by the same tree whatever stands beside it: i + (i + 4), then
// ((0 + 2) + (1 + 3)).
inline __m128 FoldTo4(Vec v) {
  return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}
inline __m128 SumEach(Vec a, Vec b, Vec c, Vec d) {
  const __m128 a4 = FoldTo4(a), b4 = FoldTo4(b), c4 = FoldTo4(c), d4 = FoldTo4(d);
  const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(a4, b4), _mm_unpackhi_ps(a4, b4));
  const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(c4, d4), _mm_unpackhi_ps(c4, d4));
  return _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
}
inline __m128 FoldMaxTo4(Vec v) {
  return _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}

// Whole numbers in 32-bit lanes.
inline VecI SetI(int32_t v) {
  return _mm256_set1_epi32(v);
}
inline VecI LoadI(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline VecI AddI(VecI a, VecI b) {
  return _mm256_add_epi32(a, b);
}
inline VecI MulI(VecI a, VecI b) {
  return _mm256_mullo_epi32(a, b);
}
inline VecI AndI(VecI a, VecI b) {
  return _mm256_and_si256(a, b);
}
inline VecI OrI(VecI a, VecI b) {
  return _mm256_or_si256(a, b);
}
template <int kBits>
inline VecI ShiftRight16(VecI a) {
  return _mm256_srli_epi16(a, kBits);
}
template <int kBits>
inline VecI ShiftLeft16(VecI a) {
  return _mm256_slli_epi16(a, kBits);
}
inline VecI MulAddPairs16(VecI a, VecI b) {
  return _mm256_madd_epi16(a, b);
}
inline Vec ToFloat(VecI a) {
  return _mm256_cvtepi32_ps(a);
}
inline VecI LoadU8(const std::byte* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline VecI LoadS8(const std::byte* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
// Rounds to the nearest whole number, ties to even.
inline VecI RoundToInt(Vec v) {
  return _mm256_cvtps_epi32(v);
}
inline void StoreI(int32_t* p, VecI v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}

// Doubles, half as many lanes.
using VecD = __m256d;
constexpr size_t kLanesD = 4;
inline VecD SetD(double v) {
  return _mm256_set1_pd(v);
}
inline VecD LoadAsDouble(const float* p) {
  return _mm256_cvtps_pd(_mm_loadu_ps(p));
}
inline VecD AddD(VecD a, VecD b) {
  return _mm256_add_pd(a, b);
}
inline VecD SubD(VecD a, VecD b) {
  return _mm256_sub_pd(a, b);
}
inline VecD MulD(VecD a, VecD b) {
  return _mm256_mul_pd(a, b);
}
inline VecD FmaD(VecD a, VecD b, VecD c) {
  return _mm256_fmadd_pd(a, b, c);
}
inline VecD MaxD(VecD a, VecD b) {
  return _mm256_max_pd(a, b);
}
inline VecD RoundD(VecD a) {
  return _mm256_round_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// a * 2^n, n whole, -1022 <= n <= 1023.
inline VecD TimesPowerOfTwoD(VecD a, VecD n) {
  const __m256i whole = _mm256_cvtepi32_epi64(_mm256_cvtpd_epi32(n));
  const __m256i p = _mm256_slli_epi64(_mm256_add_epi64(whole, _mm256_set1_epi64x(1023)), 52);
  return _mm256_mul_pd(a, _mm256_castsi256_pd(p));
}
inline void StoreD(double* p, VecD v) {
  _mm256_storeu_pd(p, v);
}

}  // namespace
}  // namespace gyre
