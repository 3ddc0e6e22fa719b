// Weights as the CPU kernels read them: Q8_0 in panels, everything else as it lies in the file.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>

#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/team.h"
#include "kernels/ops.h"

namespace gyre::cpu {

struct FreeDelete {
  void operator()(std::byte* p) const { std::free(p); }
};

struct CpuWeight : PackedWeight {
  WeightView source;                               // in the file
  std::unique_ptr<std::byte[], FreeDelete> panels; // Q8_0: kPanelBlockBytes a panel and block, panel after panel
};

std::shared_ptr<const CpuWeight> PackWeight(const WeightView& w, const Team& team,
                                            const std::function<void(size_t)>& progress);
// The type whose elements the kernels read as they lie, or nullopt.
std::optional<FloatType> PlainType(const CpuWeight& w);
// Row n as f32.
void ExpandRow(const CpuWeight& w, size_t n, float* out);

}  // namespace gyre::cpu
