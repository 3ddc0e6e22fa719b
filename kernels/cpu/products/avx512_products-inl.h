// IsaOps::dot_panels by AVX-512 VNNI: dpbusd, one lane per column, so no horizontal adds.
#pragma once

#include <immintrin.h>

#include <utility>

#include "kernels/cpu/isa/common-inl.h"
#include "kernels/cpu/isa/isa_ops.h"
#include "kernels/cpu/isa/x86_support.h"
#include "kernels/cpu/products/avx512_unpack-inl.h"

namespace gyre::cpu {
namespace {

// Broadcasts four activations to every column.
__m512i Four(const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, 4);
  return _mm512_set1_epi32(four);
}

// Prefetches at this distance from the current reads, in the panels whose bits are set.
struct PrefetchAhead {
  size_t bytes = 0;
  unsigned panels = 0;
};

// The codes of a block of P panels.
template <typename L, size_t P>
struct PanelCodes {
  BlockCodes<L> of[P];
};

// R rows of one group against P panels, units [begin, end), the first of which is at w; added to `sum`. Several panels
// are several streams from memory, in different pages.
template <typename L, size_t R, size_t P>
[[gnu::always_inline]] inline void Tile(const Quantized& x, size_t row, const std::byte* w, size_t stride, size_t begin,
                                        size_t end, PrefetchAhead ahead, __m512 (&sum)[R][P]) {
  constexpr size_t kParts = L::kScalesPerBlock, kGroups = kBlock / 4 / kParts;
  const size_t at = x.At(row, begin * L::kBlocks), group = x.group;
  const int8_t* q = x.q + at * kBlock;
  const float* scale = x.scale + at;
  const float* total = x.sum + at;
  const int32_t* offset = x.offset + at;
  for (size_t u = begin; u < end; ++u) {
    const std::byte* unit = w + (u - begin) * L::kUnitBytes;
    for (size_t b = 0; b < L::kBlocks; ++b, q += group * kBlock, scale += group, total += group, offset += group) {
      const std::byte* block = unit + L::kHeader + b * L::kBlockBytes;
      if (ahead.panels != 0) {
        for (size_t p = 0; p < P; ++p) {
          if (P == 2 && (ahead.panels >> p & 1) == 0) continue;
          for (size_t line = 0; b == 0 && line < L::kHeader; line += 64)
            _mm_prefetch(reinterpret_cast<const char*>(unit + p * stride + line + ahead.bytes), _MM_HINT_T0);
          for (size_t line = 0; line < L::kBlockBytes; line += 64)
            _mm_prefetch(reinterpret_cast<const char*>(block + p * stride + line + ahead.bytes), _MM_HINT_T0);
        }
      }
      const auto all = [&]<size_t... p>(std::index_sequence<p...>) {
        return PanelCodes<L, P>{{BlockCodes<L>(unit + p * stride, b)...}};
      }
      (std::make_index_sequence<P>());
      auto part = [&](auto s) {
        __m512i dots[R][P];
        for (size_t r = 0; r < R; ++r) {
          for (size_t p = 0; p < P; ++p)
            dots[r][p] = L::kHalfMin ? _mm512_setzero_si512() : _mm512_set1_epi32(offset[s() * x.parts + r]);
        }
        Each<s() * kGroups>(std::make_index_sequence<kGroups>(), [&](auto g) {
          __m512i codes[P];
          Each<0>(std::make_index_sequence<P>(), [&](auto p) { codes[p] = all.of[p].template Group<g()>(); });
          for (size_t r = 0; r < R; ++r) {
            const __m512i four = Four(q + r * kBlock + 4 * g());
            for (size_t p = 0; p < P; ++p) dots[r][p] = _mm512_dpbusd_epi32(dots[r][p], codes[p], four);
          }
        });
        for (size_t p = 0; p < P; ++p) {
          const __m512 scales = Scales<L>(unit + p * stride, b, s());
          for (size_t r = 0; r < R; ++r) {
            sum[r][p] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dots[r][p]), scales), _mm512_set1_ps(scale[r]),
                                        sum[r][p]);
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
void StoreTile(const Quantized& x, size_t row, const std::byte* w, size_t stride, size_t panel, size_t begin,
               size_t end, PrefetchAhead ahead, const Output& o) {
  __m512 sum[R][P];
  auto each = [&](auto f) {
    for (size_t p = 0; p < P; ++p) {
      const size_t column = (panel + p) * kPanel, left = column < o.columns ? o.columns - column : 0;
      const auto mask = static_cast<__mmask16>(left >= kPanel ? 0xFFFF : (1u << left) - 1);
      for (size_t r = 0; r < R; ++r) f(sum[r][p], o.out + (row + r) * o.ldo + column, mask);
    }
  };
  each([&](__m512& v, const float* from, __mmask16 mask) {
    v = begin == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, from);
  });
  Tile<L, R, P>(x, row, w, stride, begin, end, ahead, sum);
  each([](__m512& v, float* to, __mmask16 mask) { _mm512_mask_storeu_ps(to, mask, v); });
}

// With sanitizers, all tile shapes take minutes to compile; the largest and the smallest suffice there.
#ifdef GYRE_FEW_TILES
constexpr bool kEveryShape = false;
#else
constexpr bool kEveryShape = true;
#endif

// All rows against units [begin, end) of P panels from `panel` on; w points to the first of these units. The first rows
// prefetch at the distance `ahead`.
template <typename L, size_t P>
void Pass(const Quantized& x, size_t rows, const std::byte* w, size_t stride, size_t panel, size_t begin, size_t end,
          size_t ahead, const Output& o) {
  // Small codes take long to unpack, so the first rows prefetch for one panel and the next rows for the other.
  const bool interleaved = P == 2 && L::kBits < 8 && rows > kRowGroup * 3 / 2;
  size_t r = 0;
  auto take = [&]<size_t R>() {
    for (; r + R <= rows; r += R) {
      const unsigned panels = ahead == 0 || r > kRowGroup ? 0 : interleaved ? 1 + (r > 0) : r == 0 ? ~0u : 0;
      StoreTile<L, R, P>(x, r, w, stride, panel, begin, end, {ahead, panels}, o);
    }
  };
  if constexpr (P == 2) take.template operator()<kRowGroup>();
  if constexpr (P == 2 && kEveryShape) {
    take.template operator()<5>();
    take.template operator()<4>();
  }
  if constexpr (kEveryShape) {
    take.template operator()<3>();
    take.template operator()<2>();
  }
  take.template operator()<1>();
}

// All rows against P of the panels, one segment of k after another. The first rows that read a segment prefetch the
// next one, which arrives while the others use this one. For many rows, codes of less than 8 bits are unpacked once for
// all; for few rows that costs more than it saves.
template <typename L, size_t P>
void Rows(const Quantized& x, size_t rows, const std::byte* w, size_t stride, size_t panel, size_t panels,
          const Output& o) {
  constexpr size_t kMany = 4 * kRowGroup;
  using U = UnpackedOf<L>;
  const size_t units = x.blocks / L::kBlocks, segment = rows > 3 ? kCodesSegment / L::kUnit : units;
  w += panel * stride;
  for (size_t at = 0; at < units; at += segment) {
    const size_t end = at + segment < units ? at + segment : units;
    if constexpr (L::kBits < 8 && P == 2) {
      if (rows >= kMany) {
        constexpr size_t kStride = kCodesSegment / kBlock * U::kUnitBytes;
        alignas(64) std::byte unpacked[P * kStride];
        for (size_t p = 0; p < P; ++p) {
          const std::byte* here = w + p * stride;
          Unpack<L>(here, at, end, end < units ? here + end * L::kUnitBytes : here + P * stride,
                    unpacked + p * kStride);
        }
        Pass<U, P>(x, rows, unpacked, kStride, panel, at * L::kBlocks, end * L::kBlocks, 0, o);
        continue;
      }
    }
    auto pass = [&](size_t from, size_t to, size_t ahead) {
      Pass<L, P>(x, rows, w + from * L::kUnitBytes, stride, panel, from, to, ahead, o);
    };
    if (segment < units) {
      pass(at, end, end < units ? segment * L::kUnitBytes : (panel + P < panels ? P * stride - at * L::kUnitBytes : 0));
    } else {
      // Near the end of the panels it prefetches where the next ones begin.
      constexpr size_t kAhead = P == 1 ? kOneAhead : kFourAhead, kLast = (kAhead + L::kUnitBytes - 1) / L::kUnitBytes;
      const size_t last = end > kLast ? end - kLast : 0;
      if (last > 0) pass(0, last, kAhead);
      pass(last, end, kAhead + (P - 1) * stride);
    }
  }
}

template <PanelType type>
void DotTyped(const Quantized& x, size_t rows, const std::byte* w, size_t panels, size_t streams, const Output& o) {
  using L = PanelLayout<type>;
  const size_t stride = x.blocks / L::kBlocks * L::kUnitBytes;
  size_t p = 0;
  if (rows <= 3) {
    for (; streams == 1 && p < panels; ++p) Rows<L, 1>(x, rows, w, stride, p, panels, o);
    for (; p + 4 <= panels; p += 4) Rows<L, 4>(x, rows, w, stride, p, panels, o);
  }
  for (; p < panels; p += 2) Rows<L, 2>(x, rows, w, stride, p, panels, o);
}

// The same for types that are unpacked first, P panels at a time: U is the form of what `unpack` gives.
template <typename U, size_t P>
void UnpackedRows(const Quantized& x, size_t rows, UnpackUnits unpack, size_t unit_bytes, const std::byte* w,
                  size_t panel, const Output& o) {
  constexpr size_t kUnit = UnpackedFirstShape<1, true>::kUnit, kBlocks = kUnit / kBlock,
                   kSegment = kCodesSegment / kUnit, kStride = kCodesSegment / kBlock * U::kUnitBytes;
  alignas(64) std::byte unpacked[P * kStride];
  const size_t units = x.blocks / kBlocks, stride = units * unit_bytes;
  w += panel * stride;
  for (size_t at = 0; at < units; at += kSegment) {
    const size_t end = at + kSegment < units ? at + kSegment : units;
    for (size_t p = 0; p < P; ++p) {
      const std::byte* here = w + p * stride;
      unpack(here, at, end, end < units ? here + end * unit_bytes : here + P * stride, unpacked + p * kStride);
    }
    Pass<U, P>(x, rows, unpacked, kStride, panel, at * kBlocks, end * kBlocks, 0, o);
  }
}

template <typename L>
void DotUnpackedFirst(const Quantized& x, size_t rows, const std::byte* w, size_t panels, const Output& o) {
  using U = UnpackedOf<L>;
  static const UnpackUnits unpack = HasAvx512Vbmi() ? UnpackUnitsVbmi(L::kType) : Unpack<L>;
  if (rows > 3) {
    for (size_t p = 0; p < panels; p += 2) UnpackedRows<U, 2>(x, rows, unpack, L::kUnitBytes, w, p, o);
  } else {  // one unpacked panel takes less of the first-level cache
    for (size_t p = 0; p < panels; ++p) UnpackedRows<U, 1>(x, rows, unpack, L::kUnitBytes, w, p, o);
  }
}

void DotPanels(const Quantized& x, size_t rows, PanelType type, const std::byte* w, size_t panels, size_t columns,
               float* out, size_t ldo, size_t streams) {
  const Output o{out, ldo, columns};
  WithPanelType(type, [&]<PanelType t>() {
    if constexpr (PanelLayout<t>::kUnpackedFirst)
      DotUnpackedFirst<PanelLayout<t>>(x, rows, w, panels, o);
    else
      DotTyped<t>(x, rows, w, panels, streams, o);
  });
}

}  // namespace
}  // namespace gyre::cpu
