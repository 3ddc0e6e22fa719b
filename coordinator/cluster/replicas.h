// The choice of each stage's replica, and of the sources of a lost plan's pages (docs/faults.md). Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/plan.h"
#include "base/stage_control.h"

namespace gyre {

// For each stage of a ring the index of the stage whose member replicates it: the next one round the ring. The
// coordinator's own member (`local`) is not replicated, and replicates one only where it is the only other. nullopt:
// nobody.
std::vector<std::optional<size_t>> ReplicaHolders(const std::vector<bool>& local);

// The sources of layers' pages when the plan is lost: their owners that survive, else the surviving holders of
// their replicas. Sources come in the order of the layers, those of `reader` itself only where it reads its own
// replica. nullopt: no survivor has the pages of a layer in `wanted`.
std::optional<std::vector<LayerSource>> RestoreSources(const Plan& lost, LayerRange wanted, const std::string& reader,
                                                       const std::set<std::string>& survivors);

}  // namespace gyre
