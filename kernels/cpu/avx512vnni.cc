// AVX-512 VNNI: panels by dpbusd, a lane a column, no horizontal adds.
#include <immintrin.h>

#include <type_traits>
#include <utility>

#include "kernels/codes.h"
#include "kernels/cpu/isa_ops.h"

namespace gyre::cpu {
namespace {

#include "kernels/cpu/common-inl.h"

__m256i Load256(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
__m128i Load128(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// Four activations for every column.
__m512i Four(const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, 4);
  return _mm512_set1_epi32(four);
}

// A table of 16 signed values, kZero added, once in each 128 bits.
template <typename L>
__m512i Table() {
  const int8_t* values = L::kIq4 ? kIq4Values : kFp4Doubled;
  const __m128i table = _mm_xor_si128(Load128(reinterpret_cast<const std::byte*>(values)), _mm_set1_epi8(-128));
  return _mm512_broadcast_i32x4(table);
}

// Group g of a block: four unsigned codes of each column.
template <typename L>
__m512i Codes(const std::byte* block, size_t g) {
  if constexpr (L::kBits == 8) {
    return _mm512_loadu_si512(block + g * kGroup);
  } else if constexpr (L::kBits <= 3) {
    const __m512i pairs = _mm512_loadu_si512(block + g / 4 * kGroup);
    const __m512i two = _mm512_and_si512(_mm512_srli_epi16(pairs, static_cast<unsigned>(2 * (g % 4))), _mm512_set1_epi8(3));
    if constexpr (L::kBits == 2) return two;
    const __m512i bits = _mm512_loadu_si512(block + L::kPlanes);
    const __m512i there = g < 2 ? _mm512_slli_epi16(bits, static_cast<unsigned>(2 - g)) : _mm512_srli_epi16(bits, static_cast<unsigned>(g - 2));
    return _mm512_ternarylogic_epi32(two, there, _mm512_set1_epi8(4), 0xF8);
  } else {
    const __m512i two = _mm512_loadu_si512(block + g % 4 * kGroup);
    const __m512i low = _mm512_and_si512(g < 4 ? two : _mm512_srli_epi16(two, 4), _mm512_set1_epi8(15));
    if constexpr (L::kTable) return _mm512_shuffle_epi8(Table<L>(), low);
    if constexpr (L::kBits == 4) return low;
    const std::byte* plane = block + L::kPlanes;
    // a | (b & c)
    if constexpr (L::kBits == 5) {
      const __m512i bits = _mm512_loadu_si512(plane);
      const __m512i there = g < 4 ? _mm512_slli_epi16(bits, static_cast<unsigned>(4 - g % 4))
                                  : _mm512_srli_epi16(bits, static_cast<unsigned>(g % 4));
      return _mm512_ternarylogic_epi32(low, there, _mm512_set1_epi8(16), 0xF8);
    }
    const __m512i bits = _mm512_loadu_si512(plane + g / 4 * kGroup);
    const __m512i there = g % 4 == 3 ? _mm512_srli_epi16(bits, 2) : _mm512_slli_epi16(bits, static_cast<unsigned>(4 - 2 * (g % 4)));
    return _mm512_ternarylogic_epi32(low, there, _mm512_set1_epi8(48), 0xF8);
  }
}

// The weights' scales of part s of block b, and the minima of block b.
template <typename L>
__m512 Scales(const std::byte* unit, size_t b, size_t s) {
  if constexpr (L::kWide) return _mm512_loadu_ps(unit + (b * L::kScalesPerBlock + s) * kPanel * 4);
  if constexpr (!L::kSuper) return _mm512_cvtph_ps(Load256(unit + b * kPanel * 2));
  __m512i bytes = _mm512_cvtepi8_epi32(Load128(unit + L::kMins + (b * L::kScalesPerBlock + s) * kPanel));
  if constexpr (L::kHalfMin) bytes = _mm512_and_si512(bytes, _mm512_set1_epi32(15));
  return _mm512_mul_ps(_mm512_cvtph_ps(Load256(unit)), _mm512_cvtepi32_ps(bytes));
}
template <typename L>
__m512 HalfMins(const std::byte* unit, size_t b, size_t s) {
  const __m512i bytes = _mm512_cvtepu8_epi32(Load128(unit + L::kMins + (b * 2 + s) * kPanel));
  return _mm512_mul_ps(_mm512_cvtph_ps(Load256(unit + kPanel * 2)), _mm512_cvtepi32_ps(_mm512_srli_epi32(bytes, 4)));
}
template <typename L>
__m512 Mins(const std::byte* unit, size_t b) {
  if constexpr (!L::kSuper) return _mm512_cvtph_ps(Load256(unit + L::kMins + b * kPanel * 2));
  const __m512i bytes = _mm512_cvtepu8_epi32(Load128(unit + L::kByteMins + b * kPanel));
  return _mm512_mul_ps(_mm512_cvtph_ps(Load256(unit + kPanel * 2)), _mm512_cvtepi32_ps(bytes));
}

// R rows of one group against P panels, units [begin, end), on top of what sum holds. Several panels are several streams from
// memory, in different pages.
template <typename L, size_t R, size_t P>
[[gnu::always_inline]] inline void Tile(const Quantized& x, size_t row, const std::byte* w, size_t stride, size_t begin, size_t end,
                                        __m512 (&sum)[R][P]) {
  constexpr size_t kParts = L::kScalesPerBlock, kGroups = kBlock / 4 / kParts;
  const size_t at = x.At(row, begin * L::kBlocks), group = x.group;
  const int8_t* q = x.q + at * kBlock;
  const float* scale = x.scale + at;
  const float* total = x.sum + at;
  const int32_t* offset = x.offset + at;
  for (size_t u = begin; u < end; ++u) {
    const std::byte* unit = w + u * L::kUnitBytes;
    for (size_t b = 0; b < L::kBlocks; ++b, q += group * kBlock, scale += group, total += group, offset += group) {
      const std::byte* block = unit + L::kHeader + b * L::kBlockBytes;
      if constexpr (R == 1) {
        for (size_t p = 0; p < P; ++p) {
          for (size_t line = 0; line < L::kBlockBytes; line += 64)
            _mm_prefetch(reinterpret_cast<const char*>(block + p * stride + line + 2048), _MM_HINT_T0);
        }
      }
      auto part = [&](auto s) {
        __m512i dots[R][P];
        for (size_t r = 0; r < R; ++r) {
          for (size_t p = 0; p < P; ++p) dots[r][p] = L::kHalfMin ? _mm512_setzero_si512() : _mm512_set1_epi32(offset[s() * x.parts + r]);
        }
        Each<s() * kGroups>(std::make_index_sequence<kGroups>(), [&](auto g) {
          __m512i codes[P];
          for (size_t p = 0; p < P; ++p) codes[p] = Codes<L>(block + p * stride, g());
          for (size_t r = 0; r < R; ++r) {
            const __m512i four = Four(q + r * kBlock + 4 * g());
            for (size_t p = 0; p < P; ++p) dots[r][p] = _mm512_dpbusd_epi32(dots[r][p], codes[p], four);
          }
        });
        for (size_t p = 0; p < P; ++p) {
          const __m512 scales = Scales<L>(unit + p * stride, b, s());
          for (size_t r = 0; r < R; ++r) {
            sum[r][p] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dots[r][p]), scales), _mm512_set1_ps(scale[r]), sum[r][p]);
          }
          if constexpr (L::kHalfMin) {
            const __m512 mins = HalfMins<L>(unit + p * stride, b, s());
            for (size_t r = 0; r < R; ++r) {
              const float half = scale[r] * static_cast<float>(offset[s() * x.parts + r]);
              sum[r][p] = _mm512_fmadd_ps(mins, _mm512_set1_ps(half), sum[r][p]);
            }
          }
        }
      };
      Each<0>(std::make_index_sequence<kParts>(), part);
      if constexpr (L::kMin) {
        for (size_t p = 0; p < P; ++p) {
          const __m512 mins = Mins<L>(unit + p * stride, b);
          for (size_t r = 0; r < R; ++r) sum[r][p] = _mm512_fmadd_ps(mins, _mm512_set1_ps(total[r]), sum[r][p]);
        }
      }
    }
  }
}

struct Output {
  float* out;
  size_t ldo, columns;
};

template <typename L, size_t R, size_t P>
void StoreTile(const Quantized& x, size_t row, const std::byte* w, size_t stride, size_t panel, size_t begin, size_t end, const Output& o) {
  __m512 sum[R][P];
  auto each = [&](auto f) {
    for (size_t p = 0; p < P; ++p) {
      const size_t column = (panel + p) * kPanel, left = column < o.columns ? o.columns - column : 0;
      const auto mask = static_cast<__mmask16>(left >= kPanel ? 0xFFFF : (1u << left) - 1);
      for (size_t r = 0; r < R; ++r) f(sum[r][p], o.out + (row + r) * o.ldo + column, mask);
    }
  };
  each([&](__m512& v, const float* from, __mmask16 mask) { v = begin == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, from); });
  Tile<L, R, P>(x, row, w + panel * stride, stride, begin, end, sum);
  each([](__m512& v, float* to, __mmask16 mask) { _mm512_mask_storeu_ps(to, mask, v); });
}

// Sanitized, the tiles take a compiler minutes; the largest and the smallest will do there.
#ifdef GYRE_FEW_TILES
constexpr bool kEveryShape = false;
#else
constexpr bool kEveryShape = true;
#endif

// All rows against P panels, a segment of k after the other.
template <typename L, size_t P>
void Rows(const Quantized& x, size_t rows, const std::byte* w, size_t stride, size_t panel, const Output& o) {
  const size_t units = x.blocks / L::kBlocks, segment = rows > 3 ? 512 / L::kUnit : units;
  for (size_t at = 0; at < units; at += segment) {
    const size_t end = at + segment < units ? at + segment : units;
    size_t r = 0;
    if constexpr (P == 2) {
      for (; r + kRowGroup <= rows; r += kRowGroup) StoreTile<L, kRowGroup, P>(x, r, w, stride, panel, at, end, o);
    }
    if constexpr (kEveryShape) {
      for (; r + 3 <= rows; r += 3) StoreTile<L, 3, P>(x, r, w, stride, panel, at, end, o);
      for (; r + 2 <= rows; r += 2) StoreTile<L, 2, P>(x, r, w, stride, panel, at, end, o);
    }
    for (; r < rows; ++r) StoreTile<L, 1, P>(x, r, w, stride, panel, at, end, o);
  }
}

template <PanelType type>
void DotTyped(const Quantized& x, size_t rows, const std::byte* w, size_t panels, const Output& o) {
  using L = PanelLayout<type>;
  const size_t stride = x.blocks / L::kBlocks * L::kUnitBytes;
  size_t p = 0;
  if (rows <= 3) {
    for (; p + 4 <= panels; p += 4) Rows<L, 4>(x, rows, w, stride, p, o);
  }
  for (; p < panels; p += 2) Rows<L, 2>(x, rows, w, stride, p, o);
}

void DotPanels(const Quantized& x, size_t rows, PanelType type, const std::byte* w, size_t panels, size_t columns, float* out, size_t ldo) {
  const Output o{out, ldo, columns};
  WithPanelType(type, [&]<PanelType t>() { DotTyped<t>(x, rows, w, panels, o); });
}

}  // namespace

const IsaOps* Avx512VnniOps() {
  static const IsaOps kOps = [] {
    IsaOps ops = *Avx512Ops();
    ops.dot_panels = DotPanels;
    return ops;
  }();
  return &kOps;
}

}  // namespace gyre::cpu
