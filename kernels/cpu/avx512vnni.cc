// AVX-512 VNNI: Q8_0 panels by dpbusd, a lane a column, no horizontal adds.
#include <immintrin.h>

#include "kernels/cpu/isa_ops.h"

namespace gyre::cpu {
namespace {

// R rows against P panels. Several panels are several streams from memory, in different pages.
template <size_t R, size_t P>
void Tile(const Quantized& x, size_t row, const std::byte* w, size_t stride, size_t k, __m512 (&sum)[R][P]) {
  const size_t blocks = k / kBlock;
  for (size_t r = 0; r < R; ++r) {
    for (size_t p = 0; p < P; ++p) sum[r][p] = _mm512_setzero_ps();
  }
  for (size_t b = 0; b < blocks; ++b, w += kPanelBlockBytes) {
    __m512i dots[R][P];
    for (size_t r = 0; r < R; ++r) {
      for (size_t p = 0; p < P; ++p) dots[r][p] = _mm512_set1_epi32(x.offset[(row + r) * blocks + b]);
    }
    for (size_t g = 0; g < kBlock / 4; ++g) {
      __m512i xs[R];
      for (size_t r = 0; r < R; ++r) {
        int32_t four;
        __builtin_memcpy(&four, x.q + (row + r) * k + b * kBlock + 4 * g, 4);
        xs[r] = _mm512_set1_epi32(four);
      }
      for (size_t p = 0; p < P; ++p) {
        const std::byte* q = w + p * stride + kPanel * 2 + g * kPanel * 4;
        if (R == 1) _mm_prefetch(reinterpret_cast<const char*>(q + 4 * kPanelBlockBytes), _MM_HINT_T0);
        const __m512i ws = _mm512_loadu_si512(q);
        for (size_t r = 0; r < R; ++r) dots[r][p] = _mm512_dpbusd_epi32(dots[r][p], ws, xs[r]);
      }
    }
    for (size_t p = 0; p < P; ++p) {
      const __m512 scales = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + p * stride)));
      for (size_t r = 0; r < R; ++r) {
        const __m512 by = _mm512_mul_ps(scales, _mm512_set1_ps(x.scale[(row + r) * blocks + b]));
        sum[r][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][p]), by, sum[r][p]);
      }
    }
  }
}

template <size_t R, size_t P>
void StoreTile(const Quantized& x, size_t row, const std::byte* w, size_t panel, size_t columns, size_t k, float* out,
               size_t ldo) {
  const size_t stride = k / kBlock * kPanelBlockBytes;
  __m512 sum[R][P];
  Tile<R, P>(x, row, w + panel * stride, stride, k, sum);
  for (size_t r = 0; r < R; ++r) {
    for (size_t p = 0; p < P; ++p) {
      const size_t column = (panel + p) * kPanel;
      const size_t left = columns - column;
      const auto mask = static_cast<__mmask16>(left >= kPanel ? 0xFFFF : (1u << left) - 1);
      _mm512_mask_storeu_ps(out + (row + r) * ldo + column, mask, sum[r][p]);
    }
  }
}

template <size_t R, size_t P>
void Rows(const Quantized& x, size_t row, const std::byte* w, size_t panels, size_t columns, size_t k, float* out,
          size_t ldo) {
  size_t p = 0;
  for (; p + P <= panels; p += P) StoreTile<R, P>(x, row, w, p, columns, k, out, ldo);
  for (; p < panels; ++p) StoreTile<R, 1>(x, row, w, p, columns, k, out, ldo);
}

void DotQ8(const Quantized& x, size_t rows, const std::byte* w, size_t panels, size_t columns, size_t k, float* out,
           size_t ldo) {
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) Rows<4, 2>(x, r, w, panels, columns, k, out, ldo);
  for (; r < rows; ++r) Rows<1, 4>(x, r, w, panels, columns, k, out, ldo);
}

}  // namespace

const IsaOps* Avx512VnniOps() {
  static const IsaOps kOps = {Avx512Ops()->dot, DotQ8, Avx512Ops()->quantize, Avx512Ops()->scores,
                              Avx512Ops()->weighted_sum};
  return &kOps;
}

}  // namespace gyre::cpu
