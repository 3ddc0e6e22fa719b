// Products of quantized rows by int8 tiles for 8-bit codes (other codes are faster with VNNI), in terms of a class
// Tiles (Configure, Release, Zero<t>, Load<t>, Store<t>, DotInt8<c, a, b>). A tile product computes the exact dots of
// 16 rows and 16 columns over the positions that share one scale. Scaling and adding them is done as in avx512vnni.cc,
// in the same order, so the bits are the same.
#pragma once

#include <utility>

#include "kernels/cpu/products/avx512_panels-inl.h"
#include "kernels/cpu/products/tile_kernels-inl.h"

namespace gyre::cpu {
namespace {

// Tiles 0 and 1 are sums; tile 4 is x: 16 rows of the positions that share one scale; tile 6 is their codes in groups
// of four positions. Few tiles are used for the reason given at MultiplyStep.
template <typename L>
constexpr TileConfig Int8Config() {
  constexpr uint8_t kBytes = kBlock / L::kScalesPerBlock, kRows = kBytes / 4;
  return {.row_bytes = {64, 64, 0, 0, kBytes, 0, 64}, .rows = {16, 16, 0, 0, 16, 0, kRows}};
}

// Unpacks the codes of units [begin, end) of a panel and subtracts kZero: dots of signed codes need no offset.
// Meanwhile it prefetches what is unpacked next, which arrives while the rows pass over these codes.
template <typename L>
void PutSignedCodes(const std::byte* panel, size_t begin, size_t end, std::byte* codes) {
  const __m512i zero = _mm512_set1_epi8(static_cast<char>(L::kZero));
  for (size_t u = begin; u < end; ++u) {
    for (size_t b = 0; b < L::kBlocks; ++b, codes += kBlock * kPanel) {
      const std::byte *unit = panel + u * L::kUnitBytes, *block = unit + L::kHeader + b * L::kBlockBytes;
      for (size_t line = 0; line < L::kBlockBytes; line += 64)
        __builtin_prefetch(block + line + kCodesSegment / L::kUnit * L::kUnitBytes);
      const BlockCodes<L> all(unit, b);
      Each<0>(std::make_index_sequence<kBlock / 4>(), [&](auto g) {
        _mm512_store_si512(codes + g() * kGroup, _mm512_sub_epi8(all.template Group<g()>(), zero));
      });
    }
  }
}

// The dots of 16 rows, for each part of a block that has its own scale.
template <typename L>
using BlockDots = int32_t[L::kScalesPerBlock][kTileRows * kPanel];

// The dots of two blocks.
template <typename Tiles, typename L>
[[gnu::always_inline]] inline void DotPair(const int8_t* q, const std::byte* codes, BlockDots<L>* dots) {
  constexpr size_t kParts = L::kScalesPerBlock, kBytes = kBlock / kParts;
  Each<0>(std::make_index_sequence<2 * kParts>(), [&](auto i) {
    constexpr int c = static_cast<int>(i() % 2), a = 4, b = 6;
    constexpr size_t block = i() / kParts, part = i() % kParts;
    Tiles::template Zero<c>();
    Tiles::template Load<a>(q + block * kTileRows * kBlock + part * kBytes, kBlock);
    Tiles::template Load<b>(codes + i() * kBytes * kPanel, kGroup);
    Tiles::template DotInt8<c, a, b>();
    Tiles::template Store<c>(dots[block][part], kPanel * sizeof(int32_t));
  });
}

// Calls f(r) for each of R rows with a compile-time constant, so that sums stay in registers.
template <size_t R, typename Fn>
[[gnu::always_inline]] inline void EachRow(const Fn& f) {
#ifdef GYRE_FEW_TILES  // with sanitizers, unrolled code takes minutes to compile
  for (size_t r = 0; r < R; ++r) f(r);
#else
  Each<0>(std::make_index_sequence<R>(), f);
#endif
}

// sum[r] += the product of row r with block b; `at` is the index of the first row in x.
template <typename L, size_t R>
[[gnu::always_inline]] inline void AddBlock(const Quantized& x, size_t at, const std::byte* unit, size_t b,
                                            const BlockDots<L>& dots, __m512 (&sum)[R]) {
  const float* scale = x.scale + at;
  Each<0>(std::make_index_sequence<L::kScalesPerBlock>(), [&](auto s) {
    const __m512 scales = Scales<L>(unit, b, s());
    EachRow<R>([&](auto r) {
      const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(dots[s()] + r * kPanel));
      sum[r] = _mm512_fmadd_ps(_mm512_mul_ps(dot, scales), _mm512_set1_ps(scale[r]), sum[r]);
    });
  });
}

// Up to R rows of a group of 16 against units [begin, end) of one panel with unpacked codes, added to the contents of
// `out`.
template <typename Tiles, typename L, size_t R>
void AddUnits(const Quantized& x, size_t row, const std::byte* panel, const std::byte* codes, size_t begin, size_t end,
              const OutputTile& out) {
  __m512 sum[R];
  EachRow<R>([&](auto r) {
    sum[r] = begin > 0 && r < out.rows ? _mm512_maskz_loadu_ps(out.mask(), out.out + r * out.ldo) : _mm512_setzero_ps();
  });
  const size_t at = x.At(row, begin * L::kBlocks), pairs = (end - begin) * L::kBlocks / 2;
  alignas(64) BlockDots<L> dots[2][2];
  auto multiply = [&](size_t p) {
    DotPair<Tiles, L>(x.q + (at + 2 * p * kTileRows) * kBlock, codes + 2 * p * kBlock * kPanel, dots[p % 2]);
  };
  multiply(0);
  for (size_t p = 0; p < pairs; ++p) {
    if (p + 1 < pairs) multiply(p + 1);  // the tiles compute the next pair while this one is added
    for (size_t b = 2 * p; b < 2 * p + 2; ++b) {
      AddBlock<L, R>(x, at + b * kTileRows, panel + (begin + b / L::kBlocks) * L::kUnitBytes, b % L::kBlocks,
                     dots[p % 2][b % 2], sum);
    }
  }
  EachRow<R>([&](auto r) {
    if (r < out.rows) _mm512_mask_storeu_ps(out.out + r * out.ldo, out.mask(), sum[r]);
  });
}

template <typename Tiles, typename L>
void Int8Panels(const Quantized& x, size_t rows, const std::byte* w, size_t columns, float* out, size_t ldo) {
  const size_t units = x.blocks / L::kBlocks, segment = kCodesSegment / L::kUnit;
  alignas(64) std::byte codes[kCodesSegment * kPanel];
  Tiles::Configure(Int8Config<L>());
  for (size_t column = 0; column < columns; column += kPanel, w += units * L::kUnitBytes) {
    for (size_t at = 0; at < units; at += segment) {
      const size_t end = at + segment < units ? at + segment : units;
      PutSignedCodes<L>(w, at, end, codes);
      for (size_t r = 0; r < rows; r += kTileRows) {
        const OutputTile part{out + r * ldo + column, ldo, rows - r, columns - column};
        const auto add = part.rows > kTileRows / 2 ? AddUnits<Tiles, L, kTileRows> : AddUnits<Tiles, L, kTileRows / 2>;
        add(x, r, w, codes, at, end, part);
      }
    }
  }
  Tiles::Release();
}

// IsaOps::dot_panels; `few` returns the ops that take x in smaller groups.
template <typename Tiles, const IsaOps* (*few)()>
void DotPanels(const Quantized& x, size_t rows, PanelType type, const std::byte* w, size_t panels, size_t columns,
               float* out, size_t ldo, size_t streams) {
  if (x.group != kTileRows) return few()->dot_panels(x, rows, type, w, panels, columns, out, ldo, streams);
  WithPanelType(type, [&]<PanelType t>() {
    using L = PanelLayout<t>;
    if constexpr (L::kInt8Tiles)
      Int8Panels<Tiles, L>(x, rows, w, columns, out, ldo);
    else
      __builtin_trap();  // IsaOps::LayoutOf never asks for tiles here
  });
}

}  // namespace
}  // namespace gyre::cpu
