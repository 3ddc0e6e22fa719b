// Why each member has the layers that it has, for `gyre layers --why`. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coordinator/cluster/balance.h"
#include "coordinator/cluster/roster.h"
#include "coordinator/cluster/speeds.h"

namespace gyre {

struct LayersExplanation {
  std::string why;           // a sentence
  double stage_seconds = 0;  // of its stage in a step; 0: it has none
};

// By member. `now`: the ring that serves; `best`: the fastest one, empty where there is none. REQUIRES: the members of
// `balance` are in the roster.
std::map<std::string, LayersExplanation> ExplainLayers(const Balance& balance, const std::vector<RingStage>& now,
                                                       const std::vector<RingStage>& best, const Roster& roster,
                                                       const Speeds& speeds);

// "12.3 ms"
std::string MillisText(double seconds);

}  // namespace gyre
