// Looks for a plan that would be faster than the one that serves, by the measured speeds: whether one is proposed or to
// be made, and why members have the layers that they have (docs/rebalance.md). Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "coordinator/cluster/explain_layers.h"
#include "coordinator/cluster/plan_chooser.h"
#include "coordinator/cluster/rebalance_policy.h"

namespace gyre {

// Not thread-safe.
class Rebalancer {
 public:
  explicit Rebalancer(const RebalanceRules& rules) : policy_(rules) {}

  // Whether it is time to look again; then the next time is later.
  bool Due(Deadline now);
  // The members that may have layers, and the ring of the plan that serves, which is of the first of them.
  struct View {
    std::vector<PlanMember> members;
    std::vector<RingStage> ring;
  };
  // nullopt: a member with layers is about to give them away. REQUIRES: a plan serves.
  static std::optional<View> ViewOf(const PlanChooser& chooser);
  // Looks for a faster plan. nullopt: none is proposed that was not proposed before.
  std::optional<Proposal> Look(const PlanChooser& chooser, const View& view);
  // Whether the proposed plan is to be made without a request.
  bool MakeNow(Deadline now) const { return policy_.MakeNow(now); }

  // The change to the proposed plan begins, in place of these ranges; then one of the two.
  void Begun(const std::string& ranges_before, Deadline now) { policy_.Begun(ranges_before, now); }
  void Served() { policy_.Served(); }
  void Failed(Deadline now) { policy_.Failed(now); }
  // Another plan serves, or none does.
  void PlanChanged();
  void Forget(const std::string& member) { explained_.erase(member); }

  const std::optional<Proposal>& proposal() const { return policy_.proposal(); }
  double step_seconds() const { return step_seconds_; }  // of the plan that serves, as expected; 0 = not known
  // Empty where nothing was measured yet.
  LayersExplanation Explanation(const std::string& member) const;

 private:
  RebalancePolicy policy_;
  Deadline due_at_{};
  std::string considered_;        // what the last plans were weighed by
  std::optional<Proposal> best_;  // the best of these plans
  std::map<std::string, LayersExplanation> explained_;
  double step_seconds_ = 0;
};

}  // namespace gyre
