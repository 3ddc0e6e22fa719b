// The plan change that is under way: the transaction, what it is for, and what its members are told to prepare. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/plan.h"
#include "base/stage_control.h"
#include "coordinator/cluster/cache_size.h"
#include "coordinator/cluster/cluster_types.h"
#include "coordinator/cluster/kv_restore.h"
#include "coordinator/cluster/plan_change.h"

namespace gyre {

enum class ChangeReason : uint8_t { kAsked, kAutomatic, kRepair, kLeaving, kRebalance };

// The request of an operator for a change. With ask = 0 nobody asked for it.
struct ChangeAsk {
  uint64_t ask = 0;
  std::string drains;  // the member that is drained by it; "" = none
  AskMode mode;
};

struct PendingChange {
  Plan plan;
  PlanChange transaction;
  ChangeReason reason = ChangeReason::kAutomatic;
  ChangeAsk asked;
  ChangeReport report;  // as far as it is known before
  Deadline started{};
  uint32_t num_blocks = 0;
  std::optional<MemoryCounts> whole;    // as TrialPlan has it
  std::map<std::string, uint64_t> ids;  // of participants; a member may leave and join again meanwhile
  std::optional<KvRestorePlan> restore;
  std::map<std::string, std::optional<uint64_t>> replicas;  // up to which step holders of lost stages have these

  bool Involves(const std::string& name, uint64_t id) const {
    const auto it = ids.find(name);
    return it != ids.end() && it->second == id;
  }
  // Whether the cache, which has `blocks_before` blocks, forgets what it has.
  bool BeginsAnew(uint32_t blocks_before) const { return whole.has_value() || num_blocks < blocks_before; }
  // Without sources of weights. `runs`: the plan that serves, or null.
  PrepareRequest RequestFor(const std::string& worker, const Plan* runs, const ClusterPolicy& policy,
                            const CacheSize& cache) const;
};

// The members that take part in a change from `runs` (null: no plan serves) to `next`. `restore` says where the pages
// of a lost plan come from (null: nowhere); the change waits only for those of its survivors that give pages.
std::vector<Participant> ParticipantsOf(const Plan* runs, const Plan& next, const KvRestorePlan* restore);

}  // namespace gyre
