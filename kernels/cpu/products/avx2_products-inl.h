// IsaOps::dot_panels by 256-bit vectors; with AVX-VNNI by dpbusd.
#pragma once

#include <cassert>

#include "kernels/cpu/isa/x86_support.h"
#include "kernels/cpu/products/avx2_few-inl.h"
#include "kernels/cpu/products/avx2_many-inl.h"

namespace gyre::cpu {
namespace {

// Rows [begin, end), blocks [first, last).
template <typename L>
void FewRows(const Quantized& x, size_t begin, size_t end, const std::byte* w, size_t stride, size_t panels,
             size_t columns, size_t ahead, size_t first, size_t last, float* out, size_t ldo) {
  for (size_t row = begin; row < end;) {
    // rows that are left in this group
    const size_t rest = x.group - row % x.group, one = end - row < rest ? end - row : rest;
    const size_t rows = !kEveryShape ? 1 : one > 3 && !kVnni ? 2 : one;
    auto stream = StreamTile<L, 1>;
    if constexpr (kEveryShape) stream = rows == 1 ? StreamTile<L, 1> : rows == 2 ? StreamTile<L, 2> : StreamTile<L, 3>;
    if constexpr (kEveryShape && kVnni) stream = rows == 4 ? StreamTile<L, 4> : stream;
    stream(x, row, w, stride, panels, columns, ahead, first, last, out + row * ldo, ldo);
    row += rows;
  }
}

// Number of rows from which on unpacking pays.
constexpr size_t kManySigned = 8;
template <typename L>
constexpr size_t kMany = kVnni || kSigned<L> ? kManySigned : kRows;

template <PanelType type>
void DotTyped(const Quantized& x, size_t rows, const std::byte* w, size_t panels, size_t columns, size_t streams,
              float* out, size_t ldo) {
  using L = PanelLayout<type>;
  const size_t many = rows < kMany<L> ? 0
                      : kSigned<L>    ? rows
                                      : rows / kRows * kRows,
               stride = x.blocks / L::kBlocks * L::kUnitBytes;
  assert(many == 0 || (kSigned<L> ? x.wide != nullptr && x.group == kRowGroup : x.group == kRows));
  if (many > 0) ManyRows<L>(PanelSource<L>(), x, many, w, panels, columns, out, ldo);
  if (many == rows) return;
  const size_t slice = streams == 1 ? 1 : kSlice, ahead = streams == 1 ? kOneAhead : kFourAhead;
  for (size_t p = 0; p < panels; p += slice) {
    const size_t column = p * kPanel;
    FewRows<L>(x, many, rows, w + p * stride, stride, panels - p < slice ? panels - p : slice,
               columns < column ? 0 : columns - column, ahead, 0, x.blocks, out + column, ldo);
  }
}

// Types that are unpacked first: few rows pass over bytes, a segment of one panel at a time.
template <bool is_signed, size_t scales>
struct BytesLayout : UnpackedLayout<1, scales, false, false> {
  static constexpr bool kSigned = is_signed;
};
template <typename L>
void DotUnpackedFirst(const Quantized& x, size_t rows, const std::byte* w, size_t panels, size_t columns, float* out,
                      size_t ldo) {
  using Shape = ShapeOf<L>;
  using Bytes = BytesLayout<L::kSigned, L::kScalesPerBlock>;
  const size_t many = rows < kMany<Shape> ? 0 : kSigned<Shape> ? rows : rows / kRows * kRows;
  if (many > 0)
    ManyRows<Shape>(UnpackingSource{L::kUnitBytes, Unpack<L, Unpacked<L>>}, x, many, w, panels, columns, out, ldo);
  if (many == rows) return;
  const size_t units = x.blocks / L::kBlocks, segment = kCodesSegment / L::kUnit;
  alignas(64) std::byte bytes[kCodesSegment / kBlock * Bytes::kUnitBytes];
  for (size_t p = 0; p < panels && p * kPanel < columns; ++p, w += units * L::kUnitBytes) {
    for (size_t at = 0; at < units; at += segment) {
      const size_t end = at + segment < units ? at + segment : units;
      for (size_t line = at * L::kUnitBytes; line < end * L::kUnitBytes; line += 64)
        __builtin_prefetch(w + segment * L::kUnitBytes + line);
      Unpack<L, Bytes>(w, at, end, bytes);
      FewRows<Bytes>(x, many, rows, bytes, 0, 1, columns - p * kPanel, 0, at * L::kBlocks, end * L::kBlocks,
                     out + p * kPanel, ldo);
    }
  }
}

void DotPanels(const Quantized& x, size_t rows, PanelType type, const std::byte* w, size_t panels, size_t columns,
               float* out, size_t ldo, size_t streams) {
  WithPanelType(type, [&]<PanelType t>() {
    if constexpr (PanelLayout<t>::kUnpackedFirst)
      DotUnpackedFirst<PanelLayout<t>>(x, rows, w, panels, columns, out, ldo);
    else
      DotTyped<t>(x, rows, w, panels, columns, streams, out, ldo);
  });
}

}  // namespace
}  // namespace gyre::cpu
