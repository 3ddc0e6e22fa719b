// Chooses the members that take over layers when others give theirs away: at a drain, a removal, a SIGTERM. Pure.
#pragma once

#include <set>
#include <string>

#include "base/status.h"
#include "coordinator/cluster/plan_chooser.h"

namespace gyre {

// A plan without these members, of which some have layers. The first that fits: spares in their places; the others
// share the layers; the best ring of all that are left. The second comes before the first where it is clearly faster,
// and each with more of the KV cache comes before one with less. Where none fits, the second, with what is missing.
// kFailedPrecondition: nobody is left. REQUIRES: a plan serves.
StatusOr<TrialPlan> HandOverLayers(const PlanChooser& chooser, const std::set<std::string>& leaving);

}  // namespace gyre
