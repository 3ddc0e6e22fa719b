// What members have room for while a plan takes the place of the one before: blocks of the cache, weights and pages of
// both plans. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/plan.h"
#include "base/status.h"
#include "coordinator/cluster/planner.h"

namespace gyre {

// The largest number of KV blocks, up to sizes.counts[kPageGroup], that every member holds, with what belongs to them
// in other groups (MemoryCounts::Shrunk), beside the weights that it holds already and gets in `next`, and, with
// `reserve`, beside room for a quarter more layers, without which no resize would fit. 0: not one.
uint32_t FitBlocks(const ModelSizes& sizes, const std::vector<PlanMember>& members, const Plan& next, bool reserve);

// Bytes that a member holds while `next` takes the place of what it holds: weights and pages of both, and the larger of
// their replicas, as one is dropped when the other begins.
uint64_t PeakBytes(const ModelSizes& sizes, const PlanMember& member, const Plan& next);

struct Shortage {
  std::string worker;
  uint64_t memory = 0;  // bytes that it has
  Status why;           // kResourceExhausted with the numbers
};
// Members of `next` that can't hold what they hold already beside what they get, weights and pages, or whose disk can't
// hold these weights.
std::vector<Shortage> FindShortages(const ModelSizes& sizes, const std::vector<PlanMember>& members, const Plan& next);

}  // namespace gyre
