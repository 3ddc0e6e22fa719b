// Who owns which layers: immutable, numbered by epoch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace gyre {

// One member's share of a stage. shard i of n; n is 1 until tensor parallelism comes.
struct StageMember {
  std::string worker;
  int shard = 0;
  int shards = 1;
  bool operator==(const StageMember&) const = default;
};

// A contiguous layer range. The first stage also embeds, the last applies the final norm and the output head.
struct StagePlan {
  LayerRange layers;
  bool first = false;
  bool last = false;
  std::vector<StageMember> members;
  bool operator==(const StagePlan&) const = default;
};

struct Plan {
  Epoch epoch;
  uint32_t model = 0;
  int num_layers = 0;
  std::vector<StagePlan> stages;  // ring order = layer order

  // kInvalidArgument unless the ranges tile [0, num_layers) in order, none empty, first and last set right.
  Status Validate() const;
};

// num_layers cut into `stages` ranges whose sizes differ by at most one, the larger first, members worker names[i].
// kInvalidArgument: stages < 1, more stages than layers, or names too few.
StatusOr<Plan> EvenPlan(Epoch epoch, uint32_t model, int num_layers, const std::vector<std::string>& names);

// "0-7,8-11,12-15": both ends inclusive, as users write it.
std::string FormatRanges(const Plan& plan);

}  // namespace gyre
