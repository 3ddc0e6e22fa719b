// The ISA level AVX2 with FMA and F16C.
#include <immintrin.h>

#include <bit>
#include <cassert>
#include <type_traits>
#include <utility>

#include "kernels/codes.h"
#include "kernels/cpu/attention/attention_kernels-inl.h"
#include "kernels/cpu/products/avx2_panels-inl.h"
#include "kernels/cpu/products/avx2_products-inl.h"
#include "kernels/cpu/isa/avx2_vector-inl.h"
#include "kernels/cpu/isa/common-inl.h"
#include "kernels/cpu/products/float_gemm-inl.h"
#include "kernels/cpu/isa/float_kernels-inl.h"
#include "kernels/cpu/isa/isa_ops.h"
#include "kernels/cpu/isa/x86_support.h"
#include "kernels/cpu/state/recurrence-inl.h"

namespace gyre::cpu {
namespace {

inline void Quantize(const float* x, int8_t* q, float* scale, int32_t (&sums)[2]) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
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
  *scale = amax / 127.0f;
  const __m256 inverse = _mm256_set1_ps(amax > 0 ? 127.0f / amax : 0.0f);
  for (int half = 0; half < 2; ++half) {
    const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * half], inverse));
    const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * half + 1], inverse));
    // Packing works within 128-bit lanes: it gives elements 0-3 8-11 | 4-7 12-15.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16 * half), bytes);
    const __m256i pairs = _mm256_add_epi32(low, high);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    sums[half] = _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
  }
}

void QuantizeX(const float* x, size_t blocks, const QuantizedRow& to) {
  if (to.wide == nullptr) return QuantizeRow<Quantize>(x, blocks, to);
  const __m128i order = _mm_set_epi8(15, 13, 14, 12, 11, 9, 10, 8, 7, 5, 6, 4, 3, 1, 2, 0);
  for (size_t b = 0, at = 0; b < blocks; ++b, at += to.step) {
    alignas(32) int8_t q[kBlock];
    float scale;
    int32_t sums[2];
    Quantize(x + b * kBlock, q, &scale, sums);
    PutScale(to, at, scale, sums);
    for (size_t half = 0; half < kBlock; half += 16) {
      const __m128i bytes = _mm_shuffle_epi8(_mm_load_si128(reinterpret_cast<const __m128i*>(q + half)), order);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.wide + at * kBlock + half), _mm256_cvtepi8_epi16(bytes));
    }
  }
}

}  // namespace

const IsaOps* Avx2Ops() {
  static const IsaOps kOps = {.dot = Dot<V8>,
                              .dot_fp8 = DotFp8<V8>,
                              .dot_panels = DotPanels,
                              .quantize = QuantizeX,
                              .scores = Scores<V8>,
                              .exp_scores = ExpScores<V8>,
                              .weighted_sum = WeightedSum<V8>,
                              .expand_keys = ExpandKeys<V8>,
                              .combine_partials = CombinePartials<V8>,
                              .silu_times = SiluTimes<V8>,
                              .gelu_times = GeluTimes<V8>,
                              .clamped_swiglu_times = ClampedSwigluTimes<V8>,
                              .sigmoid_times = SigmoidTimes<V8>,
                              .relu_squared_times = ReluSquaredTimes<V8>,
                              .gelu_erf_times = GeluErfTimes<V8>,
                              .relu_times = ReluTimes<V8>,
                              .softcap = Softcap<V8>,
                              .rms_norm = RmsNorm<V8>,
                              .to_half = ToHalf<V8>,
                              .expand_fp8 = ExpandFp8<V8>,
                              .largest = LargestOf<V8>,
                              .sum_exp = SumExp<V8>,
                              .short_conv = ShortConv<V8>,
                              .scan_state = ScanState<V8>,
                              .float_gemm = Gemm<V8>::kOps,
                              .streams = PanelStreams(),
                              .row_group = kRows,
                              .wide_rows_from = kManySigned};
  return &kOps;
}

}  // namespace gyre::cpu
