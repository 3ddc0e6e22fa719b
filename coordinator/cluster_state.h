// Membership, plans, and their order, as a pure state machine: events and a clock value in, actions out.
// It has no clock, thread, lock, I/O or callback; cluster.cc has those. docs/resize.md has the rules.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/log.h"
#include "base/stage_control.h"
#include "coordinator/balance.h"
#include "coordinator/cluster_types.h"
#include "coordinator/mirrors.h"
#include "coordinator/plan_change.h"
#include "coordinator/plan_memory.h"

namespace gyre {

// Actions, to be done in the order in which they are given. `member` is a Membership's id.
struct PrepareMember {
  uint64_t member = 0;
  PrepareRequest request;
};
struct MoveMember {
  uint64_t member = 0;
  Epoch epoch;
  UnitList list;
};
struct TellMember {
  enum What : uint8_t { kCommit, kRelease, kAbort, kDismiss };
  uint64_t member = 0;
  What what = kAbort;
  Epoch epoch;
};
// The worker is no longer a member: its name is free, and its events are ignored.
struct ForgetMember {
  Membership member;
};
// Make the coordinator's two links of the plan, and report to Wired.
struct WireEnds {
  Plan plan;
};
struct CancelWiring {
  Epoch epoch;
};
// Engine::Drain, and report to Drained.
struct DrainEngine {
  Epoch epoch;
};
// Engine::Recall, and report to Drained.
struct RecallCache {
  Epoch epoch;
  std::optional<uint64_t> step;  // as Engine::Recall says
};
struct ResumeOldRing {};
// Engine::Resume over the links that WireEnds made.
struct ResumeNewRing {
  Epoch epoch;
  uint32_t stages = 1;
  bool prefill_matches_decode = true;
  uint64_t salt = 0;
  bool own_member = false;  // the coordinator's own member has layers
  bool recalls = false;     // as Ring says, and the next two
  std::vector<BlockId> missing;
  uint64_t step_floor = 0;
};
struct ShrinkCache {
  uint32_t num_blocks = 0;
};
// Engine::BreakRing, and report to RingBroken.
struct EndRing {
  Epoch epoch;
  Status why;
};
// Engine::Grow.
struct GrowCache {
  uint32_t num_blocks = 0;
};
// Engine::Lose: there is no plan yet, so requests are refused with `why`.
struct RefuseRequests {
  Status why;
};
// Engine::Await: a plan that served is lost, so requests wait for the next one and are told `why`.
struct AwaitRing {
  Status why;
  bool crashed = false;   // a process of the ring died, perhaps of what was in flight
  bool mirrored = false;  // the next plan may recall the cache
};
struct AnswerCaller {
  uint64_t ask = 0;
  StatusOr<ChangeReport> answer;
};
// For the history. The record's wall-clock time is not set.
struct RecordPlan {
  PlanRecord record;
};
struct WriteLog {
  LogLevel level = LogLevel::kInfo;
  std::string line;
};
// To be known when the coordinator is started again.
struct KeepRecord {
  ClusterRecord record;
};
// The member's links to these are to be measured.
struct ProbeLinks {
  uint64_t member = 0;
  std::vector<WeightSource> peers;
};
// Likewise this process's, by Cluster::SetProber's; report to Probed.
struct ProbeFromHere {
  std::vector<WeightSource> peers;
};
// Weights that are loaded for the plan that is being made.
struct ShowProgress {
  StageProgress loaded;
};
using ClusterAction =
    std::variant<PrepareMember, MoveMember, TellMember, ForgetMember, WireEnds, CancelWiring, DrainEngine, RecallCache,
                 ResumeOldRing, ResumeNewRing, ShrinkCache, GrowCache, EndRing, RefuseRequests, AwaitRing, AnswerCaller,
                 RecordPlan, KeepRecord, WriteLog, ShowProgress, ProbeLinks, ProbeFromHere>;

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
  Actions Reattached(const Membership& member, uint64_t stream, Deadline now);
  // All layers of the member go to others, then it is dismissed; without a mark on its name.
  Actions WantsToLeave(const Membership& member, Deadline now);
  // `ring`: how far the coordinator's ends of the ring are at the same time.
  Actions Reported(const std::string& name, const MemberLoad& load, const RingProgress& ring, Deadline now);
  // From now on ProbeFromHere is done.
  Actions CanProbe(Deadline now);
  Actions Probed(const StageProbed& probed, Deadline now);
  Actions Said(uint64_t member, StageEvent event, Deadline now);
  Actions Wired(Epoch epoch, const Status& to_first, const Status& from_last, Deadline now);
  Actions Drained(Epoch epoch, UnitList live, Deadline now);
  Actions RingBroken(Epoch epoch, const Status& why, Deadline now);
  // Each ends in one AnswerCaller{ask}. `ask` is not 0.
  Actions AskedToResize(uint64_t ask, const std::string& text, Deadline now, const AskMode& mode = {});
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
  bool serving() const { return plan_.has_value() && !broken_; }
  // Plan changes that failed, and why the last one did.
  uint64_t failures() const { return failures_; }
  const Status& failure() const { return failure_; }

 private:
  // Layers that the member gets in a plan that was lost while it was being committed.
  struct LateCommit {
    Epoch epoch;
    LayerRange layers;
  };
  // The member is told to drop what it holds of a lost plan: it prepares and commits a stage without layers.
  struct Drop {
    Epoch epoch;
    Deadline until{};
    bool failed = false;
  };
  // The links from a process to others, by their names.
  struct Links {
    std::map<std::string, LinkSpeed> found;
    std::map<std::string, Deadline> asked;  // when
    Deadline until{};                       // so long an answer is waited for
  };
  struct Member {
    MemberInfo info;
    uint64_t id = 0;
    uint64_t order = 0;  // of joining
    MemberLoad load;
    Deadline loaded_at{};  // when it came
    LoadWindow loads;
    LayerRange holds;  // layers that it runs: of the plan, or of one that was lost
    std::optional<LateCommit> late_commit;
    std::optional<Drop> drop;
    uint64_t stream = 0;                    // of its control connection
    Deadline detached_until = kNoDeadline;  // that connection is cut: so long it may come back
    Status detached;                        // why
    bool leaving = false;                   // it gets no layers any more
    bool dismissed = false;
    uint64_t ask = 0;  // who had it removed, and has no answer yet
    Status left_out;   // a plan failed because of it, or it has too little memory
    Deadline left_out_until{};
    Duration pause{};
    Links links;
    double slowness = 0;       // its steps take so many times what was measured for; 0 = not known
    MemberLoad observed_from;  // when its steps began to be looked at
    std::string why;           // it has the layers that it has
    double stage_seconds = 0;
  };
  enum class Why : uint8_t { kAsked, kAutomatic, kRepair, kLeaving, kRebalance };
  // The plan change that is under way.
  struct Change {
    Plan plan;
    PlanChange transaction;
    Why why = Why::kAutomatic;
    uint64_t ask = 0;
    std::string drains;   // the member that is drained by it; "" = none
    ChangeReport report;  // as far as it is known before
    Deadline started{};
    uint32_t num_blocks = 0;
    std::map<std::string, uint64_t> ids;  // of participants; a member may leave and join again meanwhile
    std::set<std::string> survivors;      // from which the pages of `kept_` are recalled; empty: they are not
    std::map<std::string, std::optional<uint64_t>> mirrored;  // up to which step holders of lost stages have these
    bool recalls() const { return !survivors.empty(); }
  };
  // A plan whose pages may be recalled: the one that serves, or was lost.
  struct Kept {
    Plan plan;
    uint64_t salt = 0;
    std::map<std::string, uint64_t> ids;  // of its members
    bool taken_over = false;  // the coordinator before had it: its members know what they have of the kept index
  };
  // A change that somebody asked for.
  struct Wanted {
    uint64_t ask = 0;
    StatusOr<std::vector<Assignment>> assignments;
    std::string drains;  // the member that a drain is for
    AskMode mode;
  };
  struct Draft {
    Plan plan;
    uint32_t num_blocks = 0;
    std::vector<Shortage> shortages;  // without what members hold of a lost plan
    std::vector<Shortage> held;       // members that have room only when they have dropped that
  };

  // Events (cluster_state.cc).
  Actions Settle(Deadline now);
  void TellRefusal(const Status& why, bool crashed = false);
  void Remove(std::string name, const Status& why, Deadline now, bool crashed);
  void Answer(uint64_t ask, StatusOr<ChangeReport> answer);
  bool TakesPart(const std::string& name, uint64_t id) const;
  void DropDetached(Deadline now);
  void CheckStuck(const Member& m, Deadline now);
  void HearOfRoom(const MemberLoad& load, Member* m, Deadline now);
  void CheckLinks(const RingProgress& ring, Deadline now);
  void Log(LogLevel level, std::string line);
  template <typename T>
  void Do(T action) {
    actions_.push_back(std::move(action));
  }

  // Requests of operators (cluster_asks.cc).
  void Asked(const Wanted& wanted, Deadline now);
  StatusOr<std::vector<Assignment>> WithoutMember(const std::string& name) const;
  StatusOr<std::vector<Assignment>> WithoutMembers(const std::set<std::string>& names) const;
  StatusOr<std::vector<Assignment>> WithoutLeaving() const;
  ChangeReport Preview(const Plan& next, uint32_t num_blocks, const AskMode& mode) const;
  ChangeReport Unchanged() const;

  // Plans that are chosen and begun (cluster_plans.cc).
  void MaybePlan(Deadline now);
  bool Adopt(Deadline now);
  std::string Missing() const;
  bool PlanWorkers(Deadline now, bool with_local);
  StatusOr<Draft> DraftFor(std::vector<PlanMember> members) const;
  bool MakeRoom(const Draft& draft, std::vector<PlanMember>* candidates, std::map<std::string, Status>* too_small);
  bool OnlyLocal(const Plan& plan) const;
  void PlanLocal(Deadline now);
  void Repair(Deadline now);
  void LetLeave(Deadline now);
  void DismissMember(Member& m);
  uint32_t BlocksThatFit(const Plan& plan, const std::vector<PlanMember>& members, bool reserve) const;
  struct DraftRules {
    bool automatic = false;   // the cache may be cut where the first plan over workers, or the survivors, don't hold it
    bool gives_away = false;  // likewise where a member gives its layers away, as far as it was cut before
    uint32_t num_blocks = UINT32_MAX;  // of the cache, at most
  };
  StatusOr<Draft> MakeDraft(const std::vector<Assignment>& assignments, const DraftRules& rules) const;
  void Begin(const Draft& draft, Why why, Deadline now, const Wanted* wanted = nullptr);
  PrepareRequest RequestFor(const std::string& worker) const;
  std::vector<WeightSource> WeightSourcesFor(const std::string& worker) const;
  Epoch NextEpoch() { return {.term = policy_.term, .number = next_number_++}; }
  Plan EmptyPlan(Epoch epoch) const;
  void StartDrop(Member& m, Deadline now);
  void OnDropEvent(Member& m, const StageEvent& event);
  void LeaveOut(Member& m, const Status& why, Deadline now);
  std::vector<PlanMember> PlanMembers(bool with_stale = true) const;
  bool IsStale(const Member& m) const;

  // Measured speeds, and better plans (cluster_rebalance.cc).
  void Reconsider(Deadline now);
  void ProbeNext(Deadline now);
  void OnProbed(const std::string& name, Links* links, const StageProbed& probed, Deadline now);
  void Observe(Deadline now);
  void ForgetObserved();
  std::vector<PlanMember> Candidates(Deadline now) const;
  Balance BalanceOf(const std::vector<PlanMember>& members) const;
  HopSpeed HopBetween(const Member* from, const Member* to) const;
  std::optional<Proposal> Weigh(const Balance& balance, const std::vector<RingStage>& ring, double now_seconds) const;
  void Explain(const Balance& balance, const std::vector<RingStage>& now, const std::vector<RingStage>& best);
  StatusOr<std::vector<Assignment>> ShareLayers(const std::vector<PlanMember>& members) const;

  // A plan change from its actions to its end (cluster_change.cc).
  void Apply(const PlanChange::Actions& actions, Deadline now);
  void Serve();
  void SetBlocks(uint32_t num_blocks);
  void MaybeGrow();
  void MaybeFinish(Deadline now);
  std::set<std::string> Survivors(Deadline now) const;
  std::set<std::string> ChooseRecall(const Draft& draft, Deadline now);
  std::optional<uint64_t> RecalledStep() const;
  void SetMirrors(Plan* plan) const;
  void Failed(const Change& change, Deadline now);
  void LosePlan(const Status& why, const std::string& because_of, Duration took = {}, bool crashed = false);
  bool Suspicious(Deadline now) const;
  void Record(const Plan& plan, Duration took, uint64_t pages_moved, std::string result);
  uint64_t SaltOf(const Plan& plan) const;

  // The status for operators (cluster_status.cc).
  std::string Describe() const;
  std::string LeftOut() const;
  std::string ReplayNote() const;
  Status Refusal() const;
  std::vector<const Member*> ByOrder() const;
  std::optional<MirrorStatus> MirrorOf(const Member& m) const;
  Member* Find(uint64_t id);

  const ClusterPolicy policy_;
  const std::string ring_address_;
  // Its memory shrinks where members don't hold all of policy_.sizes, and grows again.
  ModelSizes sizes_;
  uint32_t num_blocks() const { return sizes_.counts.num_blocks; }
  uint32_t least_blocks_;            // that it was cut to: to this it may be cut again
  bool on_workers_ = false;          // a plan over workers has served: min_workers counts no more where none does
  std::set<std::string> seen_isas_;  // instruction sets that blocks of the cache may have been computed with

  std::map<std::string, Member> members_;
  std::set<std::string> drained_;  // names, of members that have left too
  std::optional<Plan> plan_;       // it runs
  std::unique_ptr<Change> change_;
  std::optional<Kept> kept_;            // of plan_, or where there is none of the one before
  std::optional<ClusterRecord> adopt_;  // the plan of the coordinator before, until one is made
  Deadline adopt_until_ = kNoDeadline;
  ClusterRecord record_;  // what is to be kept
  bool record_changed_ = false;
  bool fallback_ = false;  // the plan is the local member's alone, until enough workers are there
  bool broken_ = false;    // the plan's ring is not to be used any more
  // The links of the plan that owe a step, by their hops: what was seen of them.
  struct OwingLink {
    uint64_t step_taken = 0, bytes_received = 0;
    Deadline since{};
  };
  std::map<size_t, OwingLink> owing_;
  bool can_probe_ = false;
  Links links_;  // from this process
  Deadline links_checked_{};
  Deadline repair_at_ = kNoDeadline;
  Deadline leave_retry_at_{};
  Deadline retry_at_{};
  Duration retry_pause_{};
  Status trouble_;  // why there is no plan any more
  std::string trouble_with_;
  std::vector<Deadline> crashes_;  // of members with layers, lately
  uint64_t step_floor_ = 0;        // no member has had a later step
  bool served_ = false;            // a plan has served: from then on requests wait where there is none
  std::string refusal_told_;       // to the engine
  Status local_refusal_;           // why the local member alone got no plan
  uint64_t next_number_ = 1;
  uint64_t failures_ = 0;
  Status failure_;
  ClusterStatus counts_;
  RebalancePolicy rebalance_;
  Deadline reconsider_at_{};
  std::string considered_;        // what the last plans were weighed by
  std::optional<Proposal> best_;  // likewise
  Deadline observed_since_ = kNoDeadline;
  Actions actions_;  // of the event that is being handled
};

}  // namespace gyre
