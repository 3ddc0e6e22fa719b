// What a coordinator that is started again must know of its cluster (docs/restart.md), and when it is to be written
// down. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/plan.h"
#include "coordinator/cluster/cluster_types.h"

namespace gyre {

// Not thread-safe.
class KeptRecord {
 public:
  // `record`: the predecessor's.
  explicit KeptRecord(const std::optional<ClusterRecord>& record) : record_(record.value_or(ClusterRecord())) {}

  // A plan has served: from then on requests wait where there is none.
  bool served() const { return !record_.stages.empty(); }
  // A plan over workers has served: their least number counts no more where no plan serves.
  bool on_workers() const { return record_.on_workers; }

  void Serve(const Plan& plan, uint32_t num_blocks, bool on_workers) {
    record_.stages.clear();
    for (const StagePlan& s : plan.stages) record_.stages.push_back({s.worker(), s.layers, s.members[0].address});
    record_.num_blocks = num_blocks;
    record_.on_workers |= on_workers;
    record_.plan = plan.epoch.number;
    changed_ = true;
  }
  // Or else a restart would cut the cache below texts that are under way.
  void SetBlocks(uint32_t num_blocks) {
    record_.num_blocks = num_blocks;
    changed_ = true;
  }
  // The record to write down, with the names that are drained now; nullopt: it has not changed.
  std::optional<ClusterRecord> TakeChanged(const std::set<std::string>& drained) {
    if (!std::exchange(changed_, false) && record_.drained == drained) return std::nullopt;
    record_.drained = drained;
    return record_;
  }

 private:
  ClusterRecord record_;
  bool changed_ = false;
};

}  // namespace gyre
