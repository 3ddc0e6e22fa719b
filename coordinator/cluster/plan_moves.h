// The moves of a plan change: layers that change hands, and the layers of each member afterwards. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/cluster/planner.h"

namespace gyre {

// Consecutive layers that one member takes over from another.
struct LayerMove {
  LayerRange layers;
  std::string from;  // "" = nobody runs them
  std::string to;
  uint64_t weight_bytes = 0;  // that `to` loads
  uint64_t kv_bytes = 0;      // of pages that `to` copies
  bool operator==(const LayerMove&) const = default;
};

// The share of a member in a plan.
struct MemberShare {
  std::string name;
  std::optional<LayerRange> layers;
  uint64_t weight_bytes = 0, kv_bytes = 0;
  uint64_t peak_bytes = 0;    // that it holds while the plan takes the place of the one before
  uint64_t memory_bytes = 0;  // that it has; 0 = unknown
  bool fits() const { return memory_bytes == 0 || peak_bytes <= memory_bytes; }
};

// In the order of the layers. `live`: the units of memory in use or cached, which are copied. `runs`: the plan that
// serves, or null. `members`: with what they hold now. Weights that a member holds already are not loaded again.
std::vector<LayerMove> MovesBetween(const ModelSizes& sizes, const Plan* runs, const std::vector<PlanMember>& members,
                                    const Plan& next, const MemoryCounts& live);

// Members with layers in `next`, in ring order, then those that lose all their layers of `runs`.
std::vector<MemberShare> SharesOf(const ModelSizes& sizes, const Plan* runs, const std::vector<PlanMember>& members,
                                  const Plan& next);

}  // namespace gyre
