// Requests of operators to a cluster: resizes, drains, and dry runs of these.
#include <algorithm>
#include <utility>

#include "coordinator/cluster_state.h"

namespace gyre {

ClusterState::Actions ClusterState::AskedToResize(uint64_t ask, const std::string& text, Deadline now,
                                                  const AskMode& mode) {
  Asked({.ask = ask, .assignments = ParseResize(text, sizes_, PlanMembers()), .drains = "", .mode = mode}, now);
  return Settle(now);
}

ClusterState::Actions ClusterState::AskedForProposed(uint64_t ask, Deadline now, const AskMode& mode) {
  if (!rebalance_.proposal()) {
    Answer(ask, policy_.rebalance.mode == Rebalance::kOff
                    ? FailedPrecondition("no plan is proposed: the coordinator was started with --rebalance off")
                    : FailedPrecondition("no plan is proposed: none is known that would be faster"));
    return Settle(now);
  }
  return AskedToResize(ask, rebalance_.proposal()->ranges, now, mode);
}

ClusterState::Actions ClusterState::AskedToDrain(uint64_t ask, const std::string& name, Deadline now,
                                                 const AskMode& mode) {
  const auto it = members_.find(name);
  const bool has_layers = plan_ && plan_->StageOf(name) >= 0;
  if (change_ == nullptr && it != members_.end() && !has_layers) {
    if (!mode.dry_run) drained_.insert(name);
    ChangeReport report = Unchanged();
    report.dry_run = mode.dry_run;
    Answer(ask, std::move(report));
  } else {
    Asked({.ask = ask, .assignments = WithoutMember(name), .drains = name, .mode = mode}, now);
  }
  return Settle(now);
}

ClusterState::Actions ClusterState::AskedToUndrain(uint64_t ask, const std::string& name, Deadline now) {
  if (drained_.erase(name) == 0 && members_.count(name) == 0) {
    Answer(ask, NotFound("no worker '{}'", name));
  } else {
    if (change_ != nullptr && change_->drains == name) change_->drains.clear();
    retry_at_ = now;  // a plan that waits for members may wait for this one
    Answer(ask, Unchanged());
  }
  return Settle(now);
}

ClusterState::Actions ClusterState::AskedToRemove(uint64_t ask, const std::string& name, Deadline now) {
  const bool marked = drained_.erase(name) > 0;
  const auto it = members_.find(name);
  if (it == members_.end()) {
    Answer(ask, marked ? StatusOr<ChangeReport>(Unchanged()) : NotFound("no worker '{}'", name));
  } else if (it->second.info.local) {
    Answer(ask, FailedPrecondition("{} is the coordinator's own member: it can be drained, not removed", name));
  } else if (it->second.ask != 0) {
    Answer(ask, FailedPrecondition("{} is being removed already", name));
  } else {
    it->second.leaving = true;
    it->second.ask = ask;
    leave_retry_at_ = now;
  }
  return Settle(now);
}

// Ranges for a plan without this member, which has layers.
StatusOr<std::vector<Assignment>> ClusterState::WithoutMember(const std::string& name) const {
  if (members_.count(name) == 0) return NotFound("no worker '{}'", name);
  if (!plan_ || plan_->StageOf(name) < 0) return FailedPrecondition("{} has no layers", name);
  return WithoutMembers({name});
}

StatusOr<std::vector<Assignment>> ClusterState::WithoutLeaving() const {
  std::set<std::string> names;
  for (const auto& [name, m] : members_) {
    if (m.leaving) names.insert(name);
  }
  return WithoutMembers(names);
}

StatusOr<std::vector<Assignment>> ClusterState::WithoutMembers(const std::set<std::string>& names) const {
  std::vector<PlanMember> rest;
  for (const StagePlan& s : plan_->stages) {
    if (names.count(s.worker()) == 0) rest.push_back({.name = s.worker(), .address = s.members[0].address});
  }
  // The last one's layers go to the first that waits: workers before the local member.
  for (bool local : {false, true}) {
    for (const PlanMember& m : PlanMembers()) {
      const bool waits =
          names.count(m.name) == 0 && m.local == local && !m.drained && members_.at(m.name).left_out.ok();
      if (rest.empty() && waits) rest.push_back({.name = m.name, .address = m.address});
    }
  }
  if (rest.empty()) return FailedPrecondition("{} is the only worker: nobody can take its layers", *names.begin());
  return ShareLayers(rest);
}

// A dry run ends where the change would begin, so that both are decided by the same rules.
void ClusterState::Asked(const Wanted& wanted, Deadline now) {
  const bool dry = wanted.mode.dry_run;
  if (change_ != nullptr) {
    return Answer(wanted.ask,
                  FailedPrecondition("plan {} is being made ({}); try again when it is done",
                                     change_->plan.epoch.number, ChangeStateName(change_->transaction.state())));
  }
  const StatusOr<Draft> draft = wanted.assignments.ok()
                                    ? MakeDraft(*wanted.assignments, {.gives_away = !wanted.drains.empty()})
                                    : wanted.assignments.status();
  if (!draft.ok()) return Answer(wanted.ask, draft.status());
  if (!draft->shortages.empty()) return Answer(wanted.ask, draft->shortages[0].why);
  if (!draft->held.empty()) {
    for (const Shortage& s : draft->held) {
      if (!dry) StartDrop(members_.at(s.worker), now);
    }
    const char* const drop = dry ? "it must first drop" : "it was told to drop";
    return Answer(wanted.ask, ResourceExhausted("{}; {} what it holds of a lost plan, try again",
                                                Message(draft->held[0].why), drop));
  }
  if (!dry) return Begin(*draft, Why::kAsked, now, &wanted);
  Answer(wanted.ask, Preview(draft->plan, draft->num_blocks, wanted.mode));
}

ChangeReport ClusterState::Preview(const Plan& next, uint32_t num_blocks, const AskMode& mode) const {
  ModelSizes sizes = sizes_;
  sizes.counts = policy_.sizes.counts.Shrunk(num_blocks);
  const Plan* runs = plan_ ? &*plan_ : nullptr;
  const std::vector<PlanMember> members = PlanMembers();
  return {.epoch = {},
          .ranges = FormatRanges(next),
          .named_ranges = FormatNamedRanges(next),
          .dry_run = mode.dry_run,
          .moves = MovesBetween(sizes_, runs, members, next, mode.live),
          .members = SharesOf(sizes, runs, members, next)};
}

// The report of what changes no plan.
ChangeReport ClusterState::Unchanged() const {
  if (!plan_) return {};
  ChangeReport report = Preview(*plan_, num_blocks(), {});
  report.epoch = plan_->epoch;
  return report;
}

}  // namespace gyre
