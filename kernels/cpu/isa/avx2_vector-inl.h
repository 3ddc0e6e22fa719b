// Eight floats of AVX2 as a vector class V.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/isa/common-inl.h"

namespace gyre::cpu {
namespace {

struct V8 : CopiedTails<V8, 8> {
  using T = __m256;
  using Bytes [[gnu::vector_size(32)]] = uint8_t;
  static constexpr size_t kLanes = 8;
  static constexpr size_t kTileRows = 3, kTileColumns = 4, kChain = 4096, kGemmRows = 6, kGemmVectors = 2,
                          kPageStreams = 2;
  static T Zero() { return _mm256_setzero_ps(); }
  static T Load(const float* p) { return _mm256_loadu_ps(p); }
  static T LoadHalf(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static T LoadBf16(const uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static T LoadInt8(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  // Exponent and mantissa of E4M3 lie 7 bits higher in f16, whose exponent bias is larger by 8. Its sign, extended to
  // 16 bits, also gets into the exponent's highest bit.
  static T LoadFp8(const std::byte* p) {
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<int16_t>(0xBFFF))));
  }
  static T Broadcast(float f) { return _mm256_set1_ps(f); }
  static T Fma(T a, T b, T c) { return _mm256_fmadd_ps(a, b, c); }
  static T Add(T a, T b) { return _mm256_add_ps(a, b); }
  static T Mul(T a, T b) { return _mm256_mul_ps(a, b); }
  static T Div(T a, T b) { return _mm256_div_ps(a, b); }
  static T Max(T a, T b) { return _mm256_max_ps(a, b); }
  static T Min(T a, T b) { return _mm256_min_ps(a, b); }
  static T Round(T a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static T Floor(T a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
  static T TimesPowerOf2(T a, T n) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(a, _mm256_castsi256_ps(exponent));
  }
  static void StoreHalf(uint16_t* p, T v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void Store(float* p, T v) { _mm256_storeu_ps(p, v); }
  static float Sum(T v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float Largest(T v) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }
  using Doubles = __m256d;
  static constexpr size_t kDoubles = 4;
  static Doubles LoadDoubles(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
  static Doubles Splat(double d) { return _mm256_set1_pd(d); }
  static Doubles Fma(Doubles a, Doubles b, Doubles c) { return _mm256_fmadd_pd(a, b, c); }
  static Doubles Max(Doubles a, Doubles b) { return _mm256_max_pd(a, b); }
  static Doubles PowerOf2(Doubles shifted) {
    const __m256i n = _mm256_slli_epi64(_mm256_castpd_si256(shifted), 52);
    return _mm256_castsi256_pd(_mm256_add_epi64(n, _mm256_set1_epi64x(int64_t{1023} << 52)));
  }
  static void Store(double* p, Doubles v) { _mm256_storeu_pd(p, v); }
  // Codes of 4 bits times a scale (AnyNibbles). 8 less than a code's four bits, times the scale, is one exact FMA.
  class Nibbles {
   public:
    explicit Nibbles(float scale) : scale_(_mm256_set1_ps(scale)), least_(_mm256_set1_ps(-8 * scale)) {}
    void Load(const std::byte* from, T& low, T& high) const {
      const __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
      const __m256i four = _mm256_and_si256(codes, _mm256_set1_epi32(15));
      low = _mm256_fmadd_ps(_mm256_cvtepi32_ps(four), scale_, least_);
      high = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(codes, 4)), scale_, least_);
    }

   private:
    T scale_, least_;
  };
  static void Transpose(T (&v)[8]) {
    T t[8];
    for (size_t i = 0; i < 8; i += 4) {  // within 128 bits, four rows at a time
      const T low01 = _mm256_unpacklo_ps(v[i], v[i + 1]), high01 = _mm256_unpackhi_ps(v[i], v[i + 1]);
      const T low23 = _mm256_unpacklo_ps(v[i + 2], v[i + 3]), high23 = _mm256_unpackhi_ps(v[i + 2], v[i + 3]);
      t[i] = _mm256_shuffle_ps(low01, low23, 0x44);
      t[i + 1] = _mm256_shuffle_ps(low01, low23, 0xEE);
      t[i + 2] = _mm256_shuffle_ps(high01, high23, 0x44);
      t[i + 3] = _mm256_shuffle_ps(high01, high23, 0xEE);
    }
    for (size_t i = 0; i < 4; ++i) {
      v[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
      v[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
  }
};

}  // namespace
}  // namespace gyre::cpu
