// The ISA level AVX-512 F, BW, DQ, VL. Integer products are those of AVX2: without VNNI wider registers gain little.
#include <immintrin.h>

#include <bit>
#include <type_traits>
#include <utility>

#include "kernels/cpu/attention/attention_kernels-inl.h"
#include "kernels/cpu/isa/avx512_vector-inl.h"
#include "kernels/cpu/isa/common-inl.h"
#include "kernels/cpu/products/float_gemm-inl.h"
#include "kernels/cpu/isa/float_kernels-inl.h"
#include "kernels/cpu/isa/isa_ops.h"
#include "kernels/cpu/state/recurrence-inl.h"

namespace gyre::cpu {
namespace {

// Gives the same numbers as AVX2's function, four blocks at a time, because horizontal steps and divisions cost most.
void QuantizeFour(const float* x, size_t blocks, const QuantizedRow& to) {
  if (to.wide != nullptr) return Avx2Ops()->quantize(x, blocks, to);
  // Packing works within 128-bit lanes: it gives elements 0 to 3 and 16 to 19 of a block, then those of the next.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (size_t b = 0; b < blocks; b += 4) {
    const size_t n = blocks - b < 4 ? blocks - b : 4;
    __m512 v[4][2], max[4];
    Each<0>(std::make_index_sequence<4>(), [&](auto i) {  // constants, so that v stays in registers
      for (size_t j = 0; j < 2; ++j)
        v[i][j] = i < n ? _mm512_loadu_ps(x + (b + i) * kBlock + 16 * j) : _mm512_setzero_ps();
      max[i] = _mm512_max_ps(_mm512_abs_ps(v[i][0]), _mm512_abs_ps(v[i][1]));
    });
    // Element i of each 128-bit lane belongs to block i.
    auto both = [](__m512 a, __m512 c) { return _mm512_max_ps(_mm512_unpacklo_ps(a, c), _mm512_unpackhi_ps(a, c)); };
    const __m512 first = both(max[0], max[1]), second = both(max[2], max[3]);
    __m512 all = _mm512_max_ps(_mm512_shuffle_ps(first, second, 0x44), _mm512_shuffle_ps(first, second, 0xEE));
    all = _mm512_max_ps(all, _mm512_shuffle_f32x4(all, all, 0x4E));
    all = _mm512_max_ps(all, _mm512_shuffle_f32x4(all, all, 0xB1));
    const __m128 amax = _mm512_castps512_ps128(all), most = _mm_set1_ps(127.0f);
    alignas(16) float scales[4];
    _mm_store_ps(scales, _mm_div_ps(amax, most));
    const __m512 inverse =
        _mm512_broadcast_f32x4(_mm_maskz_div_ps(_mm_cmp_ps_mask(amax, _mm_setzero_ps(), _CMP_GT_OQ), most, amax));
    auto words = [&](auto i) {
      const __m512 by = _mm512_permutexvar_ps(_mm512_set1_epi32(static_cast<int>(i())), inverse);
      return _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(v[i][0], by)),
                                _mm512_cvtps_epi32(_mm512_mul_ps(v[i][1], by)));
    };
    Each<0>(std::make_index_sequence<2>(), [&](auto pair) {
      constexpr size_t i = 2 * pair();
      const __m512i bytes =
          _mm512_permutexvar_epi32(order, _mm512_packs_epi16(words(std::integral_constant<size_t, i>()),
                                                             words(std::integral_constant<size_t, i + 1>())));
      alignas(64) int64_t eights[8];  // sums of eight bytes each, with 128 added to each byte
      _mm512_store_si512(eights,
                         _mm512_sad_epu8(_mm512_xor_si512(bytes, _mm512_set1_epi8(-128)), _mm512_setzero_si512()));
      for (size_t j = 0; j < 2 && i + j < n; ++j) {
        const size_t at = (b + i + j) * to.step;
        const __m256i block = j == 0 ? _mm512_castsi512_si256(bytes) : _mm512_extracti64x4_epi64(bytes, 1);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.q + at * kBlock), block);
        auto sum = [&](size_t half) {
          return static_cast<int32_t>(eights[4 * j + 2 * half] + eights[4 * j + 2 * half + 1]) - 16 * 128;
        };
        PutScale(to, at, scales[i + j], {sum(0), sum(1)});
      }
    });
  }
}

}  // namespace

const IsaOps* Avx512Ops() {
  // The products are those of AVX2, and therefore also the layout of x.
  static const IsaOps kOps = {.dot = Dot<V16>,
                              .dot_fp8 = DotFp8<V16>,
                              .dot_panels = Avx2Ops()->dot_panels,
                              .quantize = QuantizeFour,
                              .scores = Scores<V16>,
                              .exp_scores = ExpScores<V16>,
                              .weighted_sum = WeightedSum<V16>,
                              .expand_keys = ExpandKeys<V16>,
                              .combine_partials = CombinePartials<V16>,
                              .silu_times = SiluTimes<V16>,
                              .gelu_times = GeluTimes<V16>,
                              .clamped_swiglu_times = ClampedSwigluTimes<V16>,
                              .sigmoid_times = SigmoidTimes<V16>,
                              .relu_squared_times = ReluSquaredTimes<V16>,
                              .gelu_erf_times = GeluErfTimes<V16>,
                              .relu_times = ReluTimes<V16>,
                              .softcap = Softcap<V16>,
                              .rms_norm = RmsNorm<V16>,
                              .to_half = ToHalf<V16>,
                              .expand_fp8 = ExpandFp8<V16>,
                              .largest = LargestOf<V16>,
                              .sum_exp = SumExp<V16>,
                              .short_conv = ShortConv<V16>,
                              .scan_state = ScanState<V16>,
                              .float_gemm = Gemm<V16>::kOps,
                              .streams = Avx2Ops()->streams,
                              .row_group = Avx2Ops()->row_group,
                              .wide_rows_from = Avx2Ops()->wide_rows_from};
  return &kOps;
}

}  // namespace gyre::cpu
