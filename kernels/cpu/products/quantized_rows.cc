#include "kernels/cpu/products/quantized_rows.h"

#include <tuple>

namespace gyre::cpu {

QuantizedRows::Part QuantizedRows::PartOf(const IsaOps& ops, const CpuWeight& w, size_t rows) {
  const auto [halves, times, int8_tiles, is_signed] = WithPanelType(w.panel_type, []<PanelType type>() {
    using L = PanelLayout<type>;
    return std::tuple<bool, int, bool, bool>(L::kScalesPerBlock == 2, L::kHalfMin ? 1 : -L::kZero, L::kInt8Tiles,
                                             L::kSigned);
  });
  const IsaOps::Layout layout = ops.LayoutOf(rows, int8_tiles, is_signed);
  const size_t slots = (rows + layout.group - 1) / layout.group * layout.group * w.blocks;
  return {.first = 0,
          .slots = slots,
          .used = w.k / kBlock,
          .blocks = w.blocks,
          .group = layout.group,
          .wide = layout.wide,
          .halves = halves,
          .times = times};
}

size_t QuantizedRows::Find(const IsaOps& ops, const CpuWeight& w, size_t rows) const {
  Part part = PartOf(ops, w, rows);
  size_t i = 0;
  for (; i < parts_.size(); ++i) {
    part.first = parts_[i].first;
    if (parts_[i] == part) break;
  }
  return i;
}

void QuantizedRows::Add(const IsaOps& ops, const CpuWeight& w, size_t rows) {
  Part& part = parts_.emplace_back(PartOf(ops, w, rows));
  part.first = slots_;
  slots_ += part.slots;
  any_wide_ = any_wide_ || part.wide;
}

void QuantizedRows::Allocate() {
  if (scale_.size() < slots_) {
    q_.resize(slots_);
    scale_.resize(slots_);
    sum_.resize(slots_);
    offset_.resize(slots_ * 2);
  }
  if (any_wide_ && wide_.size() < slots_) wide_.resize(slots_);
}

Quantized QuantizedRows::View(size_t number) const {
  const Part& p = parts_[number];
  return {q_[p.first].q, &scale_[p.first], &sum_[p.first], &offset_[2 * p.first],
          p.blocks,      p.group,          p.slots,        p.wide ? wide_[p.first].q : nullptr};
}

void QuantizedRows::Quantize(const IsaOps& ops, size_t number, size_t row, const float* x) {
  const Part& p = parts_[number];
  const size_t in_part = row / p.group * p.blocks * p.group + row % p.group, at = p.first + in_part;
  int32_t* offset = &offset_[2 * p.first + in_part];
  ops.quantize(
      x, p.used,
      {q_[at].q, p.wide ? wide_[at].q : nullptr, &scale_[at], &sum_[at], offset, p.group, p.slots, p.halves, p.times});
  for (size_t b = p.used; b < p.blocks; ++b) {  // zeros up to the end of the last unit
    const size_t step = b * p.group;
    q_[at + step] = {};
    if (p.wide) wide_[at + step] = {};
    scale_[at + step] = sum_[at + step] = 0;
    offset[step] = 0;
    if (p.halves) offset[p.slots + step] = 0;
  }
}

}  // namespace gyre::cpu
