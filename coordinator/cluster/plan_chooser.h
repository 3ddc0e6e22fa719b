// The choice of plans: which members get which layers, whether they have room, and how large the KV cache is then.
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/plan.h"
#include "base/status.h"
#include "coordinator/cluster/cache_size.h"
#include "coordinator/cluster/cluster_types.h"
#include "coordinator/cluster/kv_restore.h"
#include "coordinator/cluster/plan_memory.h"
#include "coordinator/cluster/planner.h"
#include "coordinator/cluster/roster.h"
#include "coordinator/cluster/speeds.h"

namespace gyre {

// A plan that may be begun, and what is missing for it.
struct TrialPlan {
  Plan plan;
  uint32_t num_blocks = 0;            // of the cache
  std::optional<MemoryCounts> whole;  // the cache's new capacity, which begins anew; nullopt: it stays
  std::vector<Shortage> shortages;    // without what members hold of a lost plan
  std::vector<Shortage> held;         // members that have room only when they have dropped that
  bool fits() const { return shortages.empty() && held.empty(); }
};

// What may become of the KV cache with a plan.
struct TrialRules {
  bool automatic = false;   // the cache may be cut where the first plan over workers, or the survivors, don't hold it
  bool gives_away = false;  // a member gives its layers away: the cache may be cut as far as it was cut before
  uint32_t num_blocks = UINT32_MAX;   // of the cache, at most
  std::optional<MemoryCounts> whole;  // as TrialPlan has it
};

// The present state, from which a plan is chosen; all of it outlives the chooser and does not change meanwhile.
struct PlanningState {
  const ClusterPolicy& policy;
  const std::string& ring_address;  // the coordinator's
  const Roster& roster;
  const CacheSize& cache;
  const KvRestore& restore;
  const Speeds& speeds;
  const Plan* runs = nullptr;  // the plan that serves, or null
  bool served = false;         // a plan has served
  bool on_workers = false;     // and one over workers
  Epoch next;                  // of the next plan
  Deadline now{};
};

// Not thread-safe.
class PlanChooser {
 public:
  explicit PlanChooser(const PlanningState& state) : s_(state) {}

  const PlanningState& state() const { return s_; }
  // As Roster::PlanMembers says.
  std::vector<PlanMember> Members(bool with_stale = true) const {
    return s_.roster.PlanMembers(s_.runs, s_.restore, s_.cache.sizes().counts, with_stale);
  }
  Plan EmptyPlan(Epoch epoch) const;
  MemoryCounts CountsOf(const TrialPlan& trial) const { return trial.whole.value_or(s_.cache.CutTo(trial.num_blocks)); }
  // What a change to `next` would do, or does.
  ChangeReport Preview(const Plan& next, const MemoryCounts& counts, const AskMode& mode) const;

  // kInvalidArgument: not a plan; kNotFound: of a member that is not there.
  StatusOr<TrialPlan> Try(const std::vector<Assignment>& assignments, const TrialRules& rules = {}) const;

  // All of these get layers, in their order: equal shares of the bytes, or those by speed where that makes a
  // difference.
  StatusOr<std::vector<Assignment>> Share(const std::vector<PlanMember>& members) const;
  // The ranges of the plan that serves.
  std::vector<Assignment> Same() const;
  // The members that may have layers in a better plan: of the one that serves in ring order, then the other workers,
  // then the local member.
  std::vector<PlanMember> Candidates() const;
  // The expected time of a step; kNever: a link can't be made.
  double SecondsOf(const TrialPlan& trial) const;

  // An automatic plan over the workers that are there, after those that have too little memory were left out.
  struct OverWorkers {
    std::vector<std::string> tried;           // the members that were tried at first
    std::map<std::string, Status> too_small;  // those that are left out
    // Ok(nullopt): there are too few workers. Members in `held` must first drop what they hold.
    StatusOr<std::optional<TrialPlan>> plan = std::optional<TrialPlan>();
  };
  OverWorkers ForWorkers(bool with_local) const;
  // A plan over the local member alone.
  struct OverLocal {
    std::string member;
    StatusOr<TrialPlan> plan;  // with room for it
  };
  // nullopt: there is no local member that may have layers.
  std::optional<OverLocal> ForLocal() const;
  // The plan of the coordinator's predecessor. REQUIRES: its members are there.
  StatusOr<TrialPlan> Again(const ClusterRecord& record) const;

 private:
  StatusOr<TrialPlan> First(std::vector<PlanMember> members) const;
  bool MakeRoom(const TrialPlan& trial, std::vector<PlanMember>* candidates,
                std::map<std::string, Status>* too_small) const;
  bool OnlyLocal(const Plan& plan) const;
  void SetReplicas(Plan* plan) const;

  const PlanningState s_;
};

}  // namespace gyre
