// IsaOps::dot_panels by 256-bit vectors; with AVX-VNNI by dpbusd.
#pragma once

#include <cassert>

#include "kernels/cpu/isa/x86_support.h"
#include "kernels/cpu/products/avx2_book_rows-inl.h"
#include "kernels/cpu/products/avx2_few-inl.h"
#include "kernels/cpu/products/avx2_many-inl.h"

namespace gyre::cpu {
namespace {

// Calls f(row, R) for rows [begin, end), a few of one group at a time; R is a constant.
template <typename Fn>
void EachFewRows(const Quantized& x, size_t begin, size_t end, const Fn& f) {
  for (size_t row = begin; row < end;) {
    // rows that are left in this group
    const size_t rest = x.group - row % x.group, one = end - row < rest ? end - row : rest;
    const size_t rows = !kEveryShape ? 1 : one > 3 && !kVnni ? 2 : one;
    if (rows == 1) f(row, std::integral_constant<size_t, 1>());
    if constexpr (kEveryShape) {
      if (rows == 2) f(row, std::integral_constant<size_t, 2>());
      if (rows == 3) f(row, std::integral_constant<size_t, 3>());
    }
    if constexpr (kEveryShape && kVnni) {
      if (rows == 4) f(row, std::integral_constant<size_t, 4>());
    }
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
    EachFewRows(x, many, rows, [&](size_t row, auto r) {
      StreamTile<L, r()>(x, row, w + p * stride, stride, panels - p < slice ? panels - p : slice,
                         columns < column ? 0 : columns - column, ahead, out + row * ldo + column, ldo);
    });
  }
}

// Types that are unpacked first, but for few rows.
template <typename L>
void DotUnpackedFirst(const Quantized& x, size_t rows, const std::byte* w, size_t panels, size_t columns, float* out,
                      size_t ldo) {
  using Shape = ShapeOf<L>;
  const size_t many = rows < kMany<Shape> ? 0
                      : kSigned<Shape>    ? rows
                                          : rows / kRows * kRows,
               stride = x.blocks / L::kBlocks * L::kUnitBytes;
  if (many > 0)
    ManyRows<Shape>(UnpackingSource{L::kUnitBytes, Unpack<L, Unpacked<L>>}, x, many, w, panels, columns, out, ldo);
  for (size_t p = 0; many < rows && p * kPanel < columns; ++p) {
    EachFewRows(x, many, rows, [&](size_t row, auto r) {
      const std::byte* panel = w + p * stride;
      float* to = out + row * ldo + p * kPanel;
      if constexpr (L::kBook)
        BookTile<L, r()>(x, row, panel, columns - p * kPanel, kOneAhead, to, ldo);
      else
        StreamTile<L, r()>(x, row, panel, stride, 1, columns - p * kPanel, kOneAhead, to, ldo);
    });
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
