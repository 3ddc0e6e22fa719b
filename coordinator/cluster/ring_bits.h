// What decides about the bits that a ring computes (docs/bits.md). Pure.
#pragma once

#include <cstdint>
#include <string>

#include "base/plan.h"
#include "coordinator/cluster/cluster_types.h"
#include "coordinator/cluster/roster.h"

namespace gyre {

// Everything of a ring that changes the bits of a block's content: members with another instruction set or version
// compute other bits, and rounded activations depend on the boundaries between stages. REQUIRES: the members of the
// plan are there.
uint64_t RingCacheNamespace(const Plan& plan, const Roster& roster, const ClusterPolicy& policy);

// Whether all stages of the plan compute prompt rows as generated ones. Members that are gone don't count.
bool PrefillMatchesDecode(const Plan& plan, const Roster& roster, const ClusterPolicy& policy);

// Why texts may change where a member is lost, as every row is computed again on the members of the next plan. Empty if
// they don't.
std::string ReplayNote(const Roster& roster, const ClusterPolicy& policy);

}  // namespace gyre
