// The list of members: it has their names, order and state, the marks of drains, and what plans must know of each.
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/plan.h"
#include "base/stage_control.h"
#include "coordinator/cluster/cluster_types.h"
#include "coordinator/cluster/kv_restore.h"
#include "coordinator/cluster/member.h"
#include "coordinator/cluster/planner.h"

namespace gyre {

// Not thread-safe. References to members are good until these leave.
class Roster {
 public:
  // `drained`: names that have the mark of a drain.
  explicit Roster(std::set<std::string> drained) : drained_(std::move(drained)) {}

  // REQUIRES: no member has this name. `order`: among the others, of joining.
  void Add(MemberInfo info, uint64_t id, uint64_t order);
  // REQUIRES: there is one.
  Member Remove(const std::string& name);

  const std::map<std::string, Member>& members() const { return members_; }
  bool Has(const std::string& name) const { return members_.count(name) > 0; }
  // REQUIRES: there is one.
  Member& At(const std::string& name) { return members_.at(name); }
  const Member& At(const std::string& name) const { return members_.at(name); }
  // Null: there is none.
  Member* Find(const std::string& name);
  const Member* Find(const std::string& name) const;
  Member* Find(uint64_t id);
  std::vector<const Member*> ByOrder() const;
  template <typename Function>
  void ForEach(const Function& function) {
    for (auto& [name, m] : members_) function(m);
  }

  // The mark belongs to the name: it stays when the member leaves. False: nothing has changed.
  bool Drain(const std::string& name) { return drained_.insert(name).second; }
  bool Undrain(const std::string& name) { return drained_.erase(name) > 0; }
  bool IsDrained(const std::string& name) const { return drained_.count(name) > 0; }
  const std::set<std::string>& drained() const { return drained_; }

  // Members that did not come back: whom to drop, and why. `needed`: the ring of this plan is to be repaired now, so
  // that its members are not waited for any more; or null.
  std::vector<std::pair<std::string, Status>> NotBack(const Plan* needed, Deadline now) const;
  // Whether the member holds layers, but of no plan that runs.
  static bool IsStale(const Member& m, const Plan* runs) {
    return m.holdings.any() && !(runs != nullptr && runs->StageOf(m.info.name) >= 0);
  }
  // All members for the planner, in the order of joining. `held`: units of memory in which their layers' pages lie.
  // `with_stale`: with what they hold of a lost plan.
  std::vector<PlanMember> PlanMembers(const Plan* runs, const KvRestore& restore, const MemoryCounts& held,
                                      bool with_stale) const;
  // All that may have weights which this worker lacks: the coordinator, workers with the file, those that fetched some.
  std::vector<WeightSource> WeightSourcesFor(const std::string& worker, const std::string& coordinator) const;
  // The next time at which one that is left out is tried again; kNoDeadline: none is.
  Deadline NextTry(Deadline now) const;
  // No member has had a later step.
  uint64_t step_floor() const { return step_floor_; }

  // Those that are left out, as parts of a sentence.
  std::string DescribeLeftOut() const;

 private:
  std::map<std::string, Member> members_;
  std::set<std::string> drained_;  // names, of members that have left too
  uint64_t step_floor_ = 0;
};

}  // namespace gyre
