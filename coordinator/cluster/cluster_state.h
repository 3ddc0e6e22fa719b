// Membership, plans, and their order, as a pure state machine: events and a clock value in, actions out.
// It has no clock, thread, lock, I/O or callback; cluster.cc has those. It binds its parts, of which each has its own
// state and rules. docs/resize.md has the rules.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/stage_control.h"
#include "coordinator/cluster/adoption.h"
#include "coordinator/cluster/cache_size.h"
#include "coordinator/cluster/cluster_actions.h"
#include "coordinator/cluster/cluster_types.h"
#include "coordinator/cluster/kept_record.h"
#include "coordinator/cluster/kv_restore.h"
#include "coordinator/cluster/outage.h"
#include "coordinator/cluster/pending_change.h"
#include "coordinator/cluster/plan_change.h"
#include "coordinator/cluster/plan_chooser.h"
#include "coordinator/cluster/plan_log.h"
#include "coordinator/cluster/rebalancer.h"
#include "coordinator/cluster/retry_pace.h"
#include "coordinator/cluster/ring_watch.h"
#include "coordinator/cluster/roster.h"
#include "coordinator/cluster/serving_ring.h"
#include "coordinator/cluster/speeds.h"

namespace gyre {

// Not thread-safe.
class ClusterState {
 public:
  using Actions = std::vector<ClusterAction>;
  // `ring_address`: of the coordinator's ring port, as plans have it.
  ClusterState(ClusterPolicy policy, std::string ring_address);

  // Why such a member can't join; it depends on nothing that changes.
  static Status CheckMember(const ClusterPolicy& policy, const MemberInfo& info);

  // A member with this name that is there already is replaced, and keeps its place in the join order.
  Actions Joined(MemberInfo info, uint64_t id, Deadline now);
  // Nothing happens if this membership has ended before. `crashed`: its process died, perhaps of what it computed.
  Actions Left(const Membership& member, const Status& why, Deadline now, bool crashed = true);
  // See Cluster::Detach. A member without layers just leaves.
  Actions Detached(const Membership& member, uint64_t stream, const Status& why, Deadline now);
  // The process of this member, whose control connection is cut, is gone: it is not waited for. With a
  // member's id of 0 it is a worker of the coordinator's predecessor.
  Actions FoundGone(const Membership& member, Deadline now);
  Actions Reattached(const Membership& member, uint64_t stream, Deadline now);
  // All layers of the member go to others, then it is dismissed; without a mark on its name.
  Actions WantsToLeave(const Membership& member, Deadline now);
  // What the engine has seen of its ring, just before the next event.
  void SeeRing(const RingProgress& progress) { ring_watch_.See(progress); }
  Actions Reported(const std::string& name, const MemberLoad& load, Deadline now);
  // From now on ProbeFromHere is done.
  Actions CanProbe(Deadline now);
  Actions Probed(const StageProbed& probed, Deadline now);
  Actions Said(uint64_t member, StageEvent event, Deadline now);
  Actions Wired(Epoch epoch, const Status& to_first, const Status& from_last, Deadline now);
  Actions Drained(Epoch epoch, UnitList live, Deadline now);
  Actions RingBroken(Epoch epoch, const Status& why, Deadline now);
  // Each ends in one AnswerCaller{ask}. `ask` is not 0.
  Actions AskedToResize(uint64_t ask, const std::string& text, Deadline now, const AskMode& mode = {});
  // The KV cache gets room for `tokens` positions, more or fewer than it has: with a plan of the same ranges, whose
  // pools begin anew.
  Actions AskedToResizeCache(uint64_t ask, uint64_t tokens, Deadline now, const AskMode& mode = {});
  // The plan that is proposed.
  Actions AskedForProposed(uint64_t ask, Deadline now, const AskMode& mode = {});
  // All layers of a member go to others; it gets none again before AskedToUndrain, also if it leaves and joins again.
  Actions AskedToDrain(uint64_t ask, const std::string& name, Deadline now, const AskMode& mode = {});
  Actions AskedToUndrain(uint64_t ask, const std::string& name, Deadline now);
  // A drain of a member that is then dismissed, and the end of its name's mark.
  Actions AskedToRemove(uint64_t ask, const std::string& name, Deadline now);
  Actions Ticked(Deadline now);

  // The time at which Ticked is due.
  Deadline deadline() const;
  // `now`: for rates.
  ClusterStatus status(Deadline now) const;
  bool serving() const { return ring_.whole() != nullptr; }
  // Plan changes that failed, and why the last one did.
  uint64_t failures() const { return plans_.failures(); }
  const Status& failure() const { return plans_.failure(); }

 private:
  // Events (cluster_state.cc).
  Actions Settle(Deadline now);
  PlanChooser Chooser(Deadline now) const;
  bool TakesPart(const Member& m) const;
  void Remove(std::string name, const Status& why, Deadline now, bool crashed);
  void RemoveLost(const std::string& name, const Status& why, Deadline now);
  void Measured(const std::string& by, const StageProbed& probed, Deadline now);
  void Asked(const ChangeAsk& asked, const StatusOr<TrialPlan>& trial, Deadline now);
  ChangeReport Unchanged() const;

  // Plans that are due (cluster_plans.cc).
  void MaybePlan(Deadline now);
  bool Adopt(Deadline now);
  bool PlanWorkers(Deadline now, bool with_local);
  void PlanLocal(Deadline now);
  void Repair(Deadline now);
  void LetLeave(Deadline now);
  void Dismiss(Member& m);
  void LookForFaster(Deadline now);
  void StartDrop(Member& m, Deadline now);

  // A plan change from its beginning to its end (cluster_change.cc).
  void Begin(const TrialPlan& trial, ChangeReason reason, Deadline now, const ChangeAsk& asked = {});
  void Apply(const PlanChange::Actions& actions, Deadline now);
  void PauseRing(Deadline now);
  void Serve();
  void MaybeGrow(Deadline now);
  void Done(const PendingChange& change, Deadline now);
  void Failed(const PendingChange& change, Deadline now);
  void LeaveOut(Member& m, const Status& why, Deadline now);
  void ForgetObserved();
  void LosePlan(const Status& why, const std::string& because_of, Deadline heard, Deadline now, Duration took = {},
                bool crashed = false);
  void StopRing(Deadline since, const Status& why);
  void TellRefusal(const Status& why, Deadline now, bool crashed = false);

  Status Refusal() const;

  const ClusterPolicy policy_;
  const std::string ring_address_;
  Roster roster_;
  CacheSize cache_;
  Speeds speeds_;
  ServingRing ring_;
  RingWatch ring_watch_;
  Outage outage_;
  std::unique_ptr<PendingChange> change_;
  KvRestore restore_;
  Adoption adoption_;
  KeptRecord record_;
  RetryPace pace_;
  Rebalancer rebalancer_;
  PlanLog plans_;
  ActionList actions_;
};

}  // namespace gyre
