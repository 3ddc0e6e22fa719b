// The size of the KV cache: its capacity, what is used of it as members don't hold more, and when it is cut or grows.
// Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/memory_counts.h"
#include "base/plan.h"
#include "coordinator/cluster/plan_memory.h"
#include "coordinator/cluster/planner.h"

namespace gyre {

// Not thread-safe.
class CacheSize {
 public:
  // `sizes`: of the model, with the cache's capacity.
  explicit CacheSize(const ModelSizes& sizes) : whole_(sizes), used_(sizes), least_(sizes.counts[kPageGroup]) {}

  const MemoryCounts& whole() const { return whole_.counts; }
  // The model's sizes with the cache as it is used now.
  const ModelSizes& sizes() const { return used_; }
  uint32_t num_blocks() const { return used_.counts[kPageGroup]; }
  // The counts of the capacity after it is cut to `num_blocks`.
  MemoryCounts CutTo(uint32_t num_blocks) const { return whole_.counts.Shrunk(num_blocks); }

  // The blocks that the members of `plan` hold, as many as are used now at most. `reserve`: as FitBlocks says.
  uint32_t Fit(const Plan& plan, const std::vector<PlanMember>& members, bool reserve) const {
    return std::min(num_blocks(), FitBlocks(whole_, members, plan, reserve));
  }
  // For the first plan over workers, and for one after a loss, when nothing is in the cache: what the members hold.
  // `bare`: rather without room for a resize than nothing. nullopt: not even one block fits, and a refusal has the
  // numbers of the cache as it is.
  std::optional<uint32_t> Cut(const Plan& plan, const std::vector<PlanMember>& members, bool bare) const {
    uint32_t fit = Fit(plan, members, true);
    if (fit == 0 && bare) fit = Fit(plan, members, false);
    return fit == 0 ? std::nullopt : std::optional(fit);
  }
  // For a plan whose member gives its layers away: the part by which the cache has grown for that member goes with it.
  // nullopt: the cache stays, as it is or as it was at its least.
  std::optional<uint32_t> GiveBack(const Plan& plan, const std::vector<PlanMember>& members) const {
    if (num_blocks() <= least_ || FindShortages(used_, members, plan).empty()) return std::nullopt;
    const uint32_t fit = Fit(plan, members, false);
    return fit < least_ ? std::nullopt : std::optional(fit);
  }

  // A plan serves whose cache has another capacity.
  void Replace(const MemoryCounts& whole) {
    whole_.counts = used_.counts = whole;
    least_ = num_blocks();
  }
  // A plan serves with this number of blocks. False: there were as many or more before.
  bool Shrink(uint32_t num_blocks) {
    if (num_blocks >= used_.counts[kPageGroup]) return false;
    used_.counts = CutTo(num_blocks);
    least_ = std::min(least_, num_blocks);
    return true;
  }
  // The cache was cut for members that have fewer layers now, or are gone. Pages lie where they lie, as the pools have
  // room for all from the beginning. False: the members of the plan that serves hold no more.
  bool Grow(const Plan& plan, const std::vector<PlanMember>& members) {
    if (num_blocks() == whole_.counts[kPageGroup]) return false;
    const uint32_t fit = FitBlocks(whole_, members, plan, true);
    if (fit <= num_blocks()) return false;
    used_.counts = CutTo(fit);
    return true;
  }

 private:
  ModelSizes whole_;
  ModelSizes used_;
  uint32_t least_;  // that it was cut to: to this it may be cut again
};

}  // namespace gyre
