// The time of a step of a ring, from the measured speeds of machines and links, and the ring with the shortest steps.
// Pure.
//
// A ring is a pipeline: a step leaves it whenever the slowest stage or hop is done with one, but no more often than the
// steps in flight (one more than stages; one if there is one stage) go round. So the time of a step is
//   max(slowest stage, slowest hop, (all stages + all hops) / steps in flight).
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "base/measured.h"
#include "base/status.h"
#include "coordinator/cluster/planner.h"

namespace gyre {

// The measured link from one member to another. 0 = it takes no time.
struct HopSpeed {
  bool reached = true;
  double latency = 0;  // seconds, one way
  double bytes_per_second = 0;
};

struct RatedMember {
  PlanMember member;
  MachineSpeed speed;
  double slowdown = 1;  // how many times as long as these numbers say its steps were seen to take
  bool must = false;    // a ring without it doesn't count
};

// The input of a search for the fastest ring. Times are in seconds.
struct Balance {
  ModelSizes sizes;
  double rows = 16;      // of the step that is estimated
  double row_bytes = 0;  // of a row's activations between two stages
  std::vector<RatedMember> members;
  // [from][to], by the members' places; the last place is the coordinator's. Empty: no hop takes time.
  std::vector<std::vector<HopSpeed>> hops;
};

// A member's stage, by the member's place in Balance::members.
struct RingStage {
  size_t member = 0;
  LayerRange layers;
  bool operator==(const RingStage&) const = default;
};

inline constexpr double kNever = std::numeric_limits<double>::infinity();

struct RingTime {
  double seconds = kNever;     // between two steps; kNever: a member lacks memory or can't be reached
  double loop = kNever;        // of one step alone
  std::vector<double> stages;  // of each, in ring order
  size_t slowest = 0;          // of these
};

// The ring is in layer order and covers all layers.
RingTime TimeOf(const Balance& balance, const std::vector<RingStage>& ring);

// Members whose speed is not known, or a part of it, are taken to be as fast as the others are on average; where nobody
// is known, all are alike.
void FillUnknown(std::vector<RatedMember>* members);

// The ring with the shortest step: which members, in which order, with which layers. For up to 6 members all orders are
// tried. With more the search begins with theirs, puts each of those after the first `settled` at every place, and
// exchanges two as long as that helps. Members that hold layers
// already need room for both. kResourceExhausted: the members can't hold the model, or can't reach each other.
StatusOr<std::vector<RingStage>> BestRing(const Balance& balance, size_t settled);
// The same with all members, in their order.
StatusOr<std::vector<RingStage>> BestSplit(const Balance& balance);

std::vector<Assignment> AssignmentsOf(const Balance& balance, const std::vector<RingStage>& ring);

}  // namespace gyre
