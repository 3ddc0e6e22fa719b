// The ISA level AVX-512 VNNI.
#include "kernels/cpu/attention/code_scores-inl.h"
#include "kernels/cpu/isa/avx512_vector-inl.h"
#include "kernels/cpu/isa/x86_support.h"
#include "kernels/cpu/products/avx512_products-inl.h"

namespace gyre::cpu {
namespace {

// Sixteen integers for code_scores-inl.h.
struct I16 {
  using Int = __m512i;
  static Int Splat(int32_t n) { return _mm512_set1_epi32(n); }
  static Int SplatFour(const int8_t* four) { return Four(four); }
  static Int UsualLines(const std::byte* from) { return Interleave(_mm512_loadu_si512(from)); }
  static Int Lines(const std::byte* from, size_t stride, size_t n) {
    const auto line = [&](size_t l) { return _mm_maskz_loadu_epi8(V16::Mask(n), from + l * stride); };
    Int lines = _mm512_inserti32x4(_mm512_castsi128_si512(line(0)), line(1), 1);
    lines = _mm512_inserti32x4(lines, line(2), 2);
    return Interleave(_mm512_inserti32x4(lines, line(3), 3));
  }
  // First four positions of each line into each 128 bits, then the lines of each position side by side.
  static Int Interleave(Int lines) {
    const Int fours =
        _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), lines);
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_shuffle_epi8(fours, _mm512_broadcast_i32x4(order));
  }
  static Int Dot(Int sum, Int codes, Int four) { return _mm512_dpbusd_epi32(sum, codes, four); }
  static Int Flip(Int bytes) { return _mm512_xor_si512(bytes, _mm512_set1_epi8(-128)); }
  static Int Low(Int bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi8(15)); }
  static Int High(Int bytes) { return Low(_mm512_srli_epi16(bytes, 4)); }
  static __m512 Floats(Int high, Int low) {
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
  }
  // The numbers of a block times `by` as 256 * high + low, and the sums of both.
  static void RoundBlock(const float* x, float by, int8_t* high, int8_t* low, int32_t (&sums)[2]) {
    Int all[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (size_t i = 0; i < kKvBlock; i += 16) {
      const Int n = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(by)));
      const Int upper = _mm512_srai_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(128)), 8),
                lower = _mm512_sub_epi32(n, _mm512_slli_epi32(upper, 8));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(high + i), _mm512_cvtepi32_epi8(upper));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(low + i), _mm512_cvtepi32_epi8(lower));
      all[0] = _mm512_add_epi32(all[0], upper);
      all[1] = _mm512_add_epi32(all[1], lower);
    }
    for (size_t half = 0; half < 2; ++half) sums[half] = _mm512_reduce_add_epi32(all[half]);
  }
};

}  // namespace

const IsaOps* Avx512VnniOps() {
  static const IsaOps kOps = [] {
    IsaOps ops = *Avx512Ops();
    ops.dot_panels = DotPanels;
    ops.round_queries = RoundQueries<V16, I16>;
    ops.code_scores = CodeScores<V16, I16>;
    if (HasAvx512Vbmi()) ops.dot_fp8 = DotFp8Vbmi;
    ops.streams = PanelStreams();
    ops.row_group = kRowGroup;
    ops.wide_rows_from = SIZE_MAX;
    return ops;
  }();
  return &kOps;
}

}  // namespace gyre::cpu
