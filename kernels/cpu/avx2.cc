// AVX2, FMA, F16C.
#include <immintrin.h>

#include "kernels/cpu/isa_ops.h"

namespace gyre::cpu {
namespace {

struct V8 {
  using T = __m256;
  static constexpr size_t kLanes = 8;
  static T Zero() { return _mm256_setzero_ps(); }
  static T Load(const float* p) { return _mm256_loadu_ps(p); }
  static T LoadHalf(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static T LoadBf16(const uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  template <typename E>
  static void CopyTail(const void* p, size_t n, E (&out)[kLanes]) {
    for (size_t i = 0; i < n; ++i) __builtin_memcpy(&out[i], static_cast<const E*>(p) + i, sizeof(E));
  }
  static T LoadTail(const float* p, size_t n) {
    float all[kLanes] = {};
    CopyTail(p, n, all);
    return Load(all);
  }
  static T LoadHalfTail(const uint16_t* p, size_t n) {
    uint16_t all[kLanes] = {};
    CopyTail(p, n, all);
    return LoadHalf(all);
  }
  static T LoadBf16Tail(const uint16_t* p, size_t n) {
    uint16_t all[kLanes] = {};
    CopyTail(p, n, all);
    return LoadBf16(all);
  }
  static void StoreTail(float* p, T v, size_t n) {
    float all[kLanes];
    Store(all, v);
    __builtin_memcpy(p, all, n * sizeof(float));
  }
  static T Broadcast(float f) { return _mm256_set1_ps(f); }
  static T Fma(T a, T b, T c) { return _mm256_fmadd_ps(a, b, c); }
  static void Store(float* p, T v) { _mm256_storeu_ps(p, v); }
  static float Sum(T v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
};

#include "kernels/cpu/float_kernels-inl.h"

void Quantize(const float* x, size_t k, int8_t* q, float* scale, int32_t* offset) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  for (size_t b = 0; b < k / kBlock; ++b, x += kBlock, q += kBlock) {
    __m256 v[4];
    __m256 max = _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + 8 * i);
      max = _mm256_max_ps(max, _mm256_andnot_ps(sign, v[i]));
    }
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps(max, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    const float amax = _mm_cvtss_f32(m);
    scale[b] = amax / 127.0f;
    const __m256 inverse = _mm256_set1_ps(amax > 0 ? 127.0f / amax : 0.0f);
    int32_t sum = 0;
    for (int i = 0; i < 4; ++i) {
      alignas(32) int32_t n[8];
      _mm256_store_si256(reinterpret_cast<__m256i*>(n), _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse)));
      for (int j = 0; j < 8; ++j) {
        q[8 * i + j] = static_cast<int8_t>(n[j]);
        sum += n[j];
      }
    }
    offset[b] = -128 * sum;
  }
}

// Eight columns of one row: half a panel.
void DotHalfPanel(const Quantized& x, size_t row, const std::byte* w, size_t half, size_t k, float* out) {
  const size_t blocks = k / kBlock;
  __m256 sum = _mm256_setzero_ps();
  for (size_t b = 0; b < blocks; ++b, w += kPanelBlockBytes) {
    const std::byte* q = w + kPanel * 2 + half * 32;
    __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();
    for (size_t g = 0; g < kBlock / 4; ++g, q += kPanel * 4) {
      int32_t four;
      __builtin_memcpy(&four, x.q + row * k + b * kBlock + 4 * g, 4);
      // The four activations as int16, twice in each 128-bit lane.
      const __m256i xs = _mm256_broadcastq_epi64(_mm_cvtepi8_epi16(_mm_cvtsi32_si128(four)));
      const __m256i w0 = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
      const __m256i w1 = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q + 16)));
      low = _mm256_add_epi32(low, _mm256_madd_epi16(w0, xs));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(w1, xs));
    }
    // Pairs of neighbours are one column's; hadd leaves the columns as 0 1 4 5 | 2 3 6 7.
    __m256i dots = _mm256_permute4x64_epi64(_mm256_hadd_epi32(low, high), 0xD8);
    dots = _mm256_add_epi32(dots, _mm256_set1_epi32(x.offset[row * blocks + b]));
    const __m256 scales = _mm256_mul_ps(
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w + half * 16))),
        _mm256_set1_ps(x.scale[row * blocks + b]));
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), scales, sum);
  }
  _mm256_storeu_ps(out, sum);
}

void DotQ8(const Quantized& x, size_t rows, const std::byte* w, size_t panels, size_t columns, size_t k, float* out,
           size_t ldo) {
  const size_t stride = k / kBlock * kPanelBlockBytes;
  for (size_t p = 0; p < panels; ++p, w += stride) {
    for (size_t r = 0; r < rows; ++r) {
      float sums[kPanel];
      DotHalfPanel(x, r, w, 0, k, sums);
      DotHalfPanel(x, r, w, 1, k, sums + 8);
      for (size_t c = p * kPanel; c < columns && c < (p + 1) * kPanel; ++c) out[r * ldo + c] = sums[c - p * kPanel];
    }
  }
}

}  // namespace

const IsaOps* Avx2Ops() {
  static constexpr IsaOps kOps = {Dot<V8>, DotQ8, Quantize, Scores<V8>, WeightedSum<V8>};
  return &kOps;
}

}  // namespace gyre::cpu
