// Sixteen floats of AVX-512 as a vector class V.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace gyre::cpu {
namespace {

struct V16 {
  using T = __m512;
  using Bytes [[gnu::vector_size(64)]] = uint8_t;
  static constexpr size_t kLanes = 16;
  static constexpr size_t kTileRows = 6, kTileColumns = 4, kChain = 2048, kGemmRows = 8, kGemmVectors = 3,
                          kPageStreams = 4;
  static T Zero() { return _mm512_setzero_ps(); }
  static T Load(const float* p) { return _mm512_loadu_ps(p); }
  static T LoadHalf(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static T LoadBf16(const uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static __mmask16 Mask(size_t n) { return static_cast<__mmask16>((1u << n) - 1); }
  static T LoadTail(const float* p, size_t n) { return _mm512_maskz_loadu_ps(Mask(n), p); }
  static T LoadHalfTail(const uint16_t* p, size_t n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(Mask(n), p)); }
  static T LoadBf16Tail(const uint16_t* p, size_t n) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(Mask(n), p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static T LoadInt8(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static T LoadInt8Tail(const int8_t* p, size_t n) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(Mask(n), p)));
  }
  // Exponent and mantissa of E4M3 lie 7 bits higher in f16, whose exponent bias is larger by 8. Its sign, extended to
  // 16 bits, also gets into the exponent's highest bit.
  static T FromFp8(__m128i bytes) {
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0xBFFF))));
  }
  static T LoadFp8(const std::byte* p) { return FromFp8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static T LoadFp8Tail(const std::byte* p, size_t n) { return FromFp8(_mm_maskz_loadu_epi8(Mask(n), p)); }
  static void StoreTail(float* p, T v, size_t n) { _mm512_mask_storeu_ps(p, Mask(n), v); }
  static T Broadcast(float f) { return _mm512_set1_ps(f); }
  static T Fma(T a, T b, T c) { return _mm512_fmadd_ps(a, b, c); }
  static T Add(T a, T b) { return _mm512_add_ps(a, b); }
  static T Mul(T a, T b) { return _mm512_mul_ps(a, b); }
  static T Div(T a, T b) { return _mm512_div_ps(a, b); }
  static T Max(T a, T b) { return _mm512_max_ps(a, b); }
  static T Min(T a, T b) { return _mm512_min_ps(a, b); }
  static T Round(T a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static T Floor(T a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
  static T TimesPowerOf2(T a, T n) { return _mm512_scalef_ps(a, n); }
  static void StoreHalf(uint16_t* p, T v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void Store(float* p, T v) { _mm512_storeu_ps(p, v); }
  static float Sum(T v) {
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
    const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(v), high);
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float Largest(T v) { return _mm512_reduce_max_ps(v); }
  using Doubles = __m512d;
  static constexpr size_t kDoubles = 8;
  static Doubles LoadDoubles(const float* p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
  static Doubles Splat(double d) { return _mm512_set1_pd(d); }
  static Doubles Fma(Doubles a, Doubles b, Doubles c) { return _mm512_fmadd_pd(a, b, c); }
  static Doubles Max(Doubles a, Doubles b) { return _mm512_max_pd(a, b); }
  static Doubles PowerOf2(Doubles shifted) {
    const __m512i n = _mm512_slli_epi64(_mm512_castpd_si512(shifted), 52);
    return _mm512_castsi512_pd(_mm512_add_epi64(n, _mm512_set1_epi64(int64_t{1023} << 52)));
  }
  static void Store(double* p, Doubles v) { _mm512_storeu_pd(p, v); }
  // Codes of 4 bits times a scale, looked up (AnyNibbles).
  class Nibbles {
   public:
    explicit Nibbles(float scale)
        : values_(_mm512_mul_ps(_mm512_set1_ps(scale),
                                _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7))) {}
    void Load(const std::byte* from, T& low, T& high) const {
      const __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
      low = _mm512_permutexvar_ps(codes, values_);  // the index has four bits
      high = _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), values_);
    }

   private:
    T values_;
  };
  static void Transpose(T (&v)[16]) {
    T t[16];
    for (size_t i = 0; i < 16; i += 4) {  // within 128 bits, four rows at a time
      const T low01 = _mm512_unpacklo_ps(v[i], v[i + 1]), high01 = _mm512_unpackhi_ps(v[i], v[i + 1]);
      const T low23 = _mm512_unpacklo_ps(v[i + 2], v[i + 3]), high23 = _mm512_unpackhi_ps(v[i + 2], v[i + 3]);
      t[i] = _mm512_shuffle_ps(low01, low23, 0x44);
      t[i + 1] = _mm512_shuffle_ps(low01, low23, 0xEE);
      t[i + 2] = _mm512_shuffle_ps(high01, high23, 0x44);
      t[i + 3] = _mm512_shuffle_ps(high01, high23, 0xEE);
    }
    for (size_t i = 0; i < 4; ++i) {
      const T even01 = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88), odd01 = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xDD);
      const T even23 = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88),
              odd23 = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xDD);
      v[i] = _mm512_shuffle_f32x4(even01, even23, 0x88);
      v[i + 4] = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
      v[i + 8] = _mm512_shuffle_f32x4(even01, even23, 0xDD);
      v[i + 12] = _mm512_shuffle_f32x4(odd01, odd23, 0xDD);
    }
  }
};

}  // namespace
}  // namespace gyre::cpu
