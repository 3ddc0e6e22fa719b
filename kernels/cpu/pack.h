// Weights as the CPU kernels want them.
#pragma once

#include <cstddef>

#include "kernels/cpu/buffer.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/panel_format.h"
#include "kernels/cpu/team.h"

namespace gyre {

// `source` stays in use for Embed, for exact products and for types that have no panels.
struct CpuWeight : PackedWeight {
  const std::byte* source = nullptr;
  size_t row_bytes = 0;  // of source

  PanelDotFn dot = nullptr;  // null: no panels
  Buffer<std::byte> panels;  // ceil(n / 16) of panel_bytes each
  size_t panel_bytes = 0;
  size_t blocks = 0;  // of x, for the panels

  size_t Panels() const { return (n + kPanelColumns - 1) / kPanelColumns; }
};

// Q8_0, Q4_0, Q4_K and Q6_K are copied into panels; the others stay where they are.
std::shared_ptr<CpuWeight> PackWeight(const WeightView& w, const KernelTable& kernels, const Team& team,
                                      const std::function<void(size_t)>& progress);

}  // namespace gyre
