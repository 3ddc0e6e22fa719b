// A plan change, to its end: the plan serves, the old one goes on, or neither.
#include <algorithm>
#include <utility>

#include "coordinator/cluster_state.h"
#include "xxhash.h"

namespace gyre {

void ClusterState::Apply(const PlanChange::Actions& actions, Deadline now) {
  for (const ChangeAction& a : actions) {
    const Epoch epoch = change_->plan.epoch;
    uint64_t member = 0;
    if (!a.worker.empty()) {
      member = change_->ids.at(a.worker);
      if (Find(member) == nullptr) continue;  // it has left
    }
    switch (a.kind) {
      case ChangeAction::kPrepare: Do(PrepareMember{member, RequestFor(a.worker)}); break;
      case ChangeAction::kMove: Do(MoveMember{member, epoch, a.list}); break;
      case ChangeAction::kCommit: Do(TellMember{member, TellMember::kCommit, epoch}); break;
      case ChangeAction::kRelease: Do(TellMember{member, TellMember::kRelease, epoch}); break;
      case ChangeAction::kAbort: Do(TellMember{member, TellMember::kAbort, epoch}); break;
      case ChangeAction::kDrainEngine:
        if (change_->recalls()) {
          const std::optional<uint64_t> step = RecalledStep();
          Log(LogLevel::kInfo,
              fmt::format("plan {}: the pages of plan {} are recalled, {}", epoch.number, kept_->plan.epoch.number,
                          !step                ? "though no mirror of what is lost is whole"
                          : step == UINT64_MAX ? "as all its members live"
                                               : fmt::format("as they were in step {}", *step)));
          Do(RecallCache{epoch, step});
        } else {
          Do(DrainEngine{epoch});
        }
        break;
      case ChangeAction::kResumeOld: Do(ResumeOldRing{}); break;
      case ChangeAction::kResumeNew: Serve(); break;
    }
  }
  if (change_ != nullptr) MaybeFinish(now);
}

// The members that are as they were when the plan served whose pages are kept. One that is left out, as a plan failed
// because of it, is perhaps out of reach for the others: its mirror takes its place.
std::set<std::string> ClusterState::Survivors(Deadline now) const {
  std::set<std::string> out;
  for (const auto& [name, id] : kept_->ids) {
    const auto m = members_.find(name);
    if (m != members_.end() && m->second.id == id && m->second.left_out_until <= now) out.insert(name);
  }
  return out;
}

// Chooses the members from which the draft recalls the lost plan's pages. If it can't, forgets that plan and returns
// none.
std::set<std::string> ClusterState::ChooseRecall(const Draft& draft, Deadline now) {
  if (plan_ || !kept_) return {};
  std::set<std::string> survivors = Survivors(now);
  const bool whole = RecallSources(kept_->plan, {0, sizes_.num_layers()}, "", survivors).has_value();
  const bool same_salt = SaltOf(draft.plan) == kept_->salt;
  if (whole && same_salt && draft.num_blocks == num_blocks()) return survivors;
  const char* why = "the KV cache is cut";
  if (!same_salt) why = "with other stages its content would have been rounded otherwise";
  if (!whole) why = "a stage is lost with its mirror";
  Log(LogLevel::kWarn, fmt::format("the pages of plan {} are not recalled: {}", kept_->plan.epoch.number, why));
  kept_.reset();
  return {};
}

// The step up to which all mirrors that are needed are whole.
std::optional<uint64_t> ClusterState::RecalledStep() const {
  uint64_t step = UINT64_MAX;
  for (const StagePlan& s : kept_->plan.stages) {
    if (change_->survivors.count(s.worker()) > 0) continue;
    const auto mirrored = change_->mirrored.find(s.mirrored_by);
    if (mirrored == change_->mirrored.end() || !mirrored->second) return std::nullopt;
    step = std::min(step, *mirrored->second);
  }
  return step;
}

void ClusterState::SetMirrors(Plan* plan) const {
  if (!policy_.mirror_kv) return;
  std::vector<bool> local;
  for (const StagePlan& s : plan->stages) local.push_back(members_.at(s.worker()).info.local);
  const auto holders = MirrorHolders(local);
  for (size_t i = 0; i < holders.size(); ++i) {
    if (holders[i]) plan->stages[i].mirrored_by = plan->stages[*holders[i]].worker();
  }
}

// The new plan is the one that runs from here on.
void ClusterState::Serve() {
  plan_ = change_->plan;
  kept_.reset();
  if (policy_.mirror_kv) {
    kept_ = Kept{.plan = *plan_, .salt = SaltOf(*plan_), .ids = {}};
    for (const StagePlan& s : plan_->stages) kept_->ids[s.worker()] = change_->ids.at(s.worker());
  }
  ForgetObserved();
  served_ = true;
  broken_ = false;
  repair_at_ = kNoDeadline;
  trouble_ = absl::OkStatus();
  refusal_told_.clear();
  retry_pause_ = policy_.retry;
  if (change_->num_blocks < num_blocks()) {
    SetBlocks(change_->num_blocks);
    least_blocks_ = std::min(least_blocks_, num_blocks());
    Do(ShrinkCache{num_blocks()});
  }
  for (const Participant& p : change_->transaction.participants()) {
    // One that did not say so may still hold what it had.
    if (Member* m = Find(change_->ids.at(p.worker));
        m != nullptr && !p.in_new() && change_->transaction.committed(p.worker)) {
      m->holds = {};
    }
  }
  bool prefill_matches_decode = true, all_local = true, any_local = false;
  for (const StagePlan& s : plan_->stages) {
    Member& m = members_.at(s.worker());  // had it left, the change would have faulted
    m.holds = s.layers;
    m.late_commit.reset();
    m.left_out = absl::OkStatus();
    m.left_out_until = Deadline{};
    m.pause = Duration{};
    prefill_matches_decode &= m.info.prefill_matches_decode;
    all_local &= m.info.local;
    any_local |= m.info.local;
  }
  on_workers_ |= !all_local;
  record_ = {
      .stages = {}, .num_blocks = num_blocks(), .on_workers = on_workers_, .plan = plan_->epoch.number, .drained = {}};
  for (const StagePlan& s : plan_->stages) record_.stages.push_back({s.worker(), s.layers});
  record_changed_ = true;
  Do(ResumeNewRing{.epoch = plan_->epoch,
                   .stages = static_cast<uint32_t>(plan_->stages.size()),
                   .prefill_matches_decode = policy_.exact || prefill_matches_decode,
                   .salt = SaltOf(*plan_),
                   .own_member = any_local,
                   .recalls = change_->recalls(),
                   .missing = {change_->transaction.missing().begin(), change_->transaction.missing().end()},
                   .step_floor = step_floor_});
}

void ClusterState::SetBlocks(uint32_t num_blocks) { sizes_.counts = policy_.sizes.counts.Shrunk(num_blocks); }

// After a plan: the cache was cut for members that have fewer layers now, or are gone. Pages lie where they lie, as the
// pools have room for all from the beginning.
void ClusterState::MaybeGrow() {
  if (num_blocks() == policy_.sizes.counts.num_blocks || fallback_) return;
  const uint32_t fit = FitBlocks(policy_.sizes, PlanMembers(), *plan_, true);
  if (fit <= num_blocks()) return;
  const auto block_size = static_cast<uint64_t>(policy_.block_size);
  Log(LogLevel::kInfo, fmt::format("the KV cache grows from {} to {} tokens, as the members of plan {} hold it",
                                   num_blocks() * block_size, fit * block_size, plan_->epoch.number));
  SetBlocks(fit);
  record_.num_blocks = fit;  // or else a restart would cut the cache below texts that are under way
  record_changed_ = true;
  Do(GrowCache{fit});
}

// A block's content depends on the instruction set that computed its layers and, with rounded activations, on the
// boundaries between stages.
uint64_t ClusterState::SaltOf(const Plan& plan) const {
  if (plan.wire == WireType::kF32 && seen_isas_.size() <= 1) return 0;
  std::string text = WireTypeName(plan.wire);
  std::string isa_before;
  for (const StagePlan& s : plan.stages) {
    const std::string& isa = members_.at(s.worker()).info.isa;
    const bool same = plan.wire == WireType::kF32 && isa == isa_before && !s.first;
    if (!same) text += fmt::format(" {} {}", s.layers.begin, isa);
    isa_before = isa;
  }
  const uint64_t hash = XXH3_64bits(text.data(), text.size());
  return hash == 0 ? 1 : hash;
}

void ClusterState::MaybeFinish(Deadline now) {
  if (!change_->transaction.over()) return;
  const std::unique_ptr<Change> change = std::move(change_);
  const PlanChange& t = change->transaction;
  if (t.state() != ChangeState::kDone) return Failed(*change, now);
  ++counts_.plans;
  const Member& only = members_.at(plan_->stages[0].worker());
  const bool asked = change->why != Why::kAutomatic && change->why != Why::kRepair;
  if (change->why == Why::kRebalance) rebalance_.Served();
  // A repair of the fallback is the fallback.
  fallback_ = plan_->stages.size() == 1 && only.info.local && !asked && (change->why != Why::kRepair || fallback_);
  if (!change->drains.empty()) drained_.insert(change->drains);
  ChangeReport report = change->report;
  report.epoch = plan_->epoch;
  report.pages_moved = t.pages_moved();
  report.last_pages = t.last_pages();
  report.took = now - change->started;
  counts_.last_change = report;
  Record(*plan_, report.took, report.pages_moved, "serving");
  Log(LogLevel::kInfo, fmt::format("plan {} serves: {}; {} pages moved, {} in the pause", plan_->epoch.number,
                                   report.ranges, report.pages_moved, report.last_pages));
  Answer(change->ask, report);
  MaybeGrow();
  if (fallback_) return;
  // The workers that ran a lost plan and have no part in this one are not needed as they are.
  for (auto& [name, m] : members_) {
    if (IsStale(m)) StartDrop(m, now);
  }
}

void ClusterState::Failed(const Change& change, Deadline now) {
  const PlanChange& t = change.transaction;
  ++counts_.aborted;
  ++failures_;
  failure_ = t.status();
  Do(CancelWiring{change.plan.epoch});
  Log(LogLevel::kWarn,
      fmt::format("plan {} was {}: {}", change.plan.epoch.number, ChangeStateName(t.state()), Message(t.status())));
  Answer(change.ask, t.status());
  Member* culprit = nullptr;
  if (const auto it = change.ids.find(t.culprit()); it != change.ids.end()) culprit = Find(it->second);
  const bool faulted = t.state() == ChangeState::kFaulted;
  // Only where a member was lost the others have what they had.
  const bool lost = culprit == nullptr && !t.culprit().empty();
  if (faulted || (change.recalls() && !lost)) kept_.reset();
  if (change.why == Why::kLeaving) leave_retry_at_ = now + retry_pause_;
  if (change.why == Why::kRebalance) rebalance_.Failed(now);
  if (change.why != Why::kAsked || faulted) {
    if (culprit != nullptr) {
      // The next plan recalls nothing, and shows whether the member is at fault.
      if (!t.recall_failed()) LeaveOut(*culprit, t.status(), now);
      retry_at_ = now;
    } else {
      retry_at_ = now + retry_pause_;
      retry_pause_ = std::min(2 * retry_pause_, policy_.longest_pause);
    }
  }
  if (faulted) {
    // Participants that committed drop the old stage, the others the new one.
    for (const Participant& p : t.participants()) {
      Member* m = Find(change.ids.at(p.worker));
      if (m == nullptr) continue;
      LayerRange next;
      if (p.in_new()) next = change.plan.stages[static_cast<size_t>(p.stage)].layers;
      if (t.committed(p.worker)) {
        m->holds = next;
      } else {
        m->late_commit = LateCommit{change.plan.epoch, next};
      }
      Do(TellMember{m->id, TellMember::kAbort, change.plan.epoch});
      Do(TellMember{m->id, TellMember::kRelease, change.plan.epoch});
    }
    plan_ = change.plan;
    return LosePlan(t.status(), t.culprit(), now - change.started);
  }
  Record(change.plan, now - change.started, 0, "aborted: " + Message(t.status()));
  if (broken_ && change.why == Why::kRepair) {
    return LosePlan(Annotate(t.status(), "the ring could not be repaired"), t.culprit());
  }
  if (t.drain_expired()) {
    // A step that does not land is a broken link of the old plan. The engine stays stopped until there are new ones.
    broken_ = true;
    repair_at_ = now;
  }
  if (!plan_ && culprit == nullptr) {
    trouble_ = t.status();
    trouble_with_ = t.culprit();
  }
}

void ClusterState::Record(const Plan& plan, Duration took, uint64_t pages_moved, std::string result) {
  Do(RecordPlan{{.number = plan.epoch.number,
                 .ranges = FormatNamedRanges(plan),
                 .took = took,
                 .pages_moved = pages_moved,
                 .result = std::move(result)}});
}

void ClusterState::LosePlan(const Status& why, const std::string& because_of, Duration took, bool crashed) {
  if (!plan_) return;
  const Epoch lost = plan_->epoch;
  ++counts_.lost;
  Record(*plan_, took, 0, "lost: " + Message(why));
  trouble_ = why;
  trouble_with_ = because_of;
  plan_.reset();
  if (kept_ && kept_->plan.epoch != lost) kept_.reset();
  ForgetObserved();
  broken_ = false;
  fallback_ = false;
  repair_at_ = kNoDeadline;
  TellRefusal(why, crashed);
}

}  // namespace gyre
