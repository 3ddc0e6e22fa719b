// A plan change from its beginning to its end: the plan serves, the old one goes on, or neither.
#include <algorithm>
#include <utility>

#include "base/counted.h"
#include "coordinator/cluster/cluster_state.h"
#include "coordinator/cluster/ring_bits.h"

namespace gyre {

void ClusterState::Begin(const TrialPlan& trial, ChangeReason reason, Deadline now, const ChangeAsk& asked) {
  adoption_.GiveUp();
  Plan plan = trial.plan;
  plan.epoch = plans_.TakeNext();
  if (policy_.new_key) plan.key = policy_.new_key();
  const auto tokens = [this](uint32_t blocks) { return uint64_t{blocks} * static_cast<uint64_t>(policy_.block_size); };
  const uint64_t before = tokens(cache_.num_blocks()), next = tokens(trial.num_blocks);
  if (trial.whole) {
    actions_.Log(LogLevel::kInfo, fmt::format("plan {}: the KV cache is to hold {} tokens in place of {}, as was asked "
                                              "for",
                                              plan.epoch.number, next, before));
  } else if (next < before) {
    actions_.Happened(LogLevel::kWarn,
                      {.kind = EventKind::kCache,
                       .text = fmt::format("the KV cache is cut from {} to {} tokens: what the workers hold beside "
                                           "room for a resize",
                                           before, next),
                       .plan = plan.epoch.number});
  }
  std::optional<KvRestorePlan> restore;
  if (ring_.plan() == nullptr && restore_.possible()) {
    // A member that is left out, as a plan failed because of it, is perhaps out of reach for the others: its replica
    // takes its place.
    std::map<std::string, uint64_t> live;
    for (const auto& [name, m] : roster_.members()) {
      if (!m.left_out.for_now(now)) live[name] = m.id;
    }
    auto begun =
        restore_.Begin(next == before, RingCacheNamespace(plan, roster_, policy_), live, cache_.sizes().num_layers());
    if (begun.ok()) restore = *std::move(begun);
    if (!begun.ok()) actions_.Log(LogLevel::kWarn, Message(begun.status()));
  }
  std::vector<Participant> participants = ParticipantsOf(ring_.plan(), plan, restore ? &*restore : nullptr);
  std::map<std::string, uint64_t> ids;
  for (const Participant& p : participants) {
    Member& m = roster_.At(p.worker);
    ids[p.worker] = m.id;
    m.holdings.EndDrop();  // what is prepared for it is replaced
  }
  const PlanChooser chooser = Chooser(now);
  change_ = std::make_unique<PendingChange>(
      PendingChange{.plan = plan,
                    .transaction = PlanChange(plan.epoch, std::move(participants), ring_.whole() != nullptr,
                                              policy_.timeouts, restore.has_value()),
                    .reason = reason,
                    .asked = asked,
                    .report = chooser.Preview(plan, chooser.CountsOf(trial), asked.mode),
                    .started = now,
                    .num_blocks = trial.num_blocks,
                    .whole = trial.whole,
                    .ids = std::move(ids),
                    .restore = std::move(restore),
                    .replicas = {}});
  actions_.Log(LogLevel::kInfo, fmt::format("plan {}: preparing {}", plan.epoch.number, FormatRanges(plan)));
  actions_.Do(WireEnds{plan});
  Apply(change_->transaction.Start(now), now);
}

void ClusterState::Apply(const PlanChange::Actions& actions, Deadline now) {
  for (const ChangeAction& a : actions) {
    uint64_t member = 0;
    if (!a.worker.empty()) {
      member = change_->ids.at(a.worker);
      if (roster_.Find(member) == nullptr) continue;  // it has left
    }
    switch (a.kind) {
      case ChangeAction::kTell: {
        Change change{.verb = a.verb, .epoch = change_->plan.epoch, .prepare = {}, .units = a.units};
        if (a.verb == ChangeVerb::kPrepare) {
          change.prepare = change_->RequestFor(a.worker, ring_.plan(), policy_, cache_);
          if (change.prepare.stage >= 0)
            change.prepare.weight_sources = roster_.WeightSourcesFor(a.worker, ring_address_);
        }
        actions_.Do(TellMember{member, std::move(change)});
        break;
      }
      case ChangeAction::kDrainEngine: PauseRing(now); break;
      case ChangeAction::kResumeOld:
        outage_.End();
        actions_.Do(ResumeOldRing{});
        break;
      case ChangeAction::kResumeNew: Serve(); break;
    }
  }
  if (change_ == nullptr || !change_->transaction.over()) return;
  const std::unique_ptr<PendingChange> change = std::move(change_);
  if (change->transaction.state() == ChangeState::kDone) {
    Done(*change, now);
  } else {
    Failed(*change, now);
  }
}

// All are ready: what is to be copied is asked for.
void ClusterState::PauseRing(Deadline now) {
  const Epoch epoch = change_->plan.epoch;
  if (!change_->restore) {
    StopRing(now, absl::OkStatus());
    return actions_.Do(DrainEngine{epoch});
  }
  const std::optional<uint64_t> step = change_->restore->Step(change_->replicas);
  actions_.Log(LogLevel::kInfo, fmt::format("plan {}: the pages of plan {} are restored, {}", epoch.number,
                                            change_->restore->lost.epoch.number,
                                            !step                ? "though no replica of what is lost is whole"
                                            : step == UINT64_MAX ? "as all its members live"
                                                                 : fmt::format("as they were in step {}", *step)));
  actions_.Do(RestoreCache{epoch, step});
}

// The new plan is the one that runs from here on.
void ClusterState::Serve() {
  ring_.Serve(change_->plan);
  const Plan& plan = *ring_.plan();
  const uint64_t cache_namespace = RingCacheNamespace(plan, roster_, policy_);
  restore_.Forget();
  if (policy_.replicate_kv) {
    std::map<std::string, uint64_t> ids;
    for (const StagePlan& s : plan.stages) ids[s.worker()] = change_->ids.at(s.worker());
    restore_.Keep(plan, cache_namespace, std::move(ids));
  }
  ForgetObserved();
  outage_.Served();
  pace_.Served();
  const uint32_t blocks_before = cache_.num_blocks();
  if (change_->whole) {
    const auto block_size = static_cast<uint64_t>(policy_.block_size);
    actions_.Happened(LogLevel::kInfo,
                      {.kind = EventKind::kCache,
                       .text = fmt::format("the KV cache holds {} tokens in place of {}, as was asked for",
                                           change_->num_blocks * block_size, blocks_before * block_size),
                       .plan = plan.epoch.number});
    cache_.Replace(*change_->whole);
    actions_.Do(ShrinkCache{cache_.num_blocks(), true});
  } else if (cache_.Shrink(change_->num_blocks)) {
    actions_.Do(ShrinkCache{cache_.num_blocks(), false});
  }
  for (const Participant& p : change_->transaction.participants()) {
    // One that did not say so may still hold what it had.
    if (p.in_new() || !change_->transaction.committed(p.worker)) continue;
    if (Member* m = roster_.Find(change_->ids.at(p.worker)); m != nullptr) m->holdings.Released();
  }
  bool all_local = true, any_local = false;
  for (const StagePlan& s : plan.stages) {
    Member& m = roster_.At(s.worker());  // had it left, the change would have faulted
    m.holdings.Serves(s.layers);
    m.left_out.Served();
    all_local &= m.info.local;
    any_local |= m.info.local;
  }
  record_.Serve(plan, cache_.num_blocks(), !all_local);
  const std::set<BlockId>& missing = change_->transaction.missing();
  actions_.Do(ResumeNewRing{.epoch = plan.epoch,
                            .stages = static_cast<uint32_t>(plan.stages.size()),
                            .prefill_matches_decode = PrefillMatchesDecode(plan, roster_, policy_),
                            .cache_namespace = cache_namespace,
                            .own_member = any_local,
                            .restores = change_->restore.has_value(),
                            .missing = {missing.begin(), missing.end()},
                            .step_floor = roster_.step_floor()});
}

// What was learned from the plan's steps says nothing of another one.
void ClusterState::ForgetObserved() {
  speeds_.slowdowns().PlanChanged();
  rebalancer_.PlanChanged();
  ring_watch_.PlanChanged();
}

// After a plan: the members may hold more of the cache than it was cut to.
void ClusterState::MaybeGrow(Deadline now) {
  const auto block_size = static_cast<uint64_t>(policy_.block_size);
  const uint64_t before = cache_.num_blocks() * block_size;
  const Plan& plan = *ring_.plan();
  // Pools in a device's own memory are as large as the cache was when they were made.
  const bool fixed = std::any_of(plan.stages.begin(), plan.stages.end(),
                                 [this](const StagePlan& s) { return roster_.At(s.worker()).info.own_memory; });
  if (fixed || ring_.fallback() || !cache_.Grow(plan, Chooser(now).Members())) return;
  actions_.Happened(LogLevel::kInfo, {.kind = EventKind::kCache,
                                      .text = fmt::format("the KV cache grows from {} to {} tokens, as the members of "
                                                          "plan {} hold it",
                                                          before, cache_.num_blocks() * block_size, plan.epoch.number),
                                      .plan = plan.epoch.number});
  record_.SetBlocks(cache_.num_blocks());
  actions_.Do(GrowCache{cache_.num_blocks()});
}

// The plan serves, and all its members have said so.
void ClusterState::Done(const PendingChange& change, Deadline now) {
  const PlanChange& t = change.transaction;
  const Plan& plan = *ring_.plan();
  const bool automatic = change.reason == ChangeReason::kAutomatic, repair = change.reason == ChangeReason::kRepair;
  if (change.reason == ChangeReason::kRebalance) rebalancer_.Served();
  // A repair of the fallback is the fallback.
  const bool alone = plan.stages.size() == 1 && roster_.At(plan.stages[0].worker()).info.local;
  ring_.SetFallback(alone && (automatic || (repair && ring_.fallback())));
  const std::optional<Outage::Stop> stop = outage_.End();
  if (!change.asked.drains.empty()) {
    roster_.Drain(change.asked.drains);
    actions_.Do(RecordEvent{DrainedEvent(change.asked.drains, true)});
  }
  ChangeReport report = change.report;
  report.epoch = plan.epoch;
  report.pages_moved = t.pages_moved();
  report.last_pages = t.last_pages();
  report.took = now - change.started;
  plans_.Done(report);
  const Duration stopped = stop ? now - stop->since : Duration{};
  actions_.Record({.took = report.took, .paused = stopped, .pages_moved = report.pages_moved, .result = "serving"},
                  plan);
  ClusterEvent event{.kind = EventKind::kPlan,
                     .text = fmt::format("plan {} serves: {}", plan.epoch.number, FormatNamedRanges(plan)),
                     .plan = plan.epoch.number,
                     .took = report.took};
  const double seconds = std::chrono::duration<double>(stopped).count();
  if (stop && !stop->why.ok()) {
    event.kind = EventKind::kRecovered;
    event.took = stopped;
    event.text += fmt::format("; the ring had stood still for {:.3f} s: {}", seconds, Message(stop->why));
  } else if (stop) {
    event.text += fmt::format("; the ring paused for {:.3f} s", seconds);
  }
  actions_.Do(RecordEvent{std::move(event)});
  actions_.Log(LogLevel::kInfo, fmt::format("plan {} serves: {}; {} moved, {} in the pause", plan.epoch.number,
                                            report.ranges, Counted(report.pages_moved, "page"), report.last_pages));
  actions_.Answer(change.asked.ask, report);
  MaybeGrow(now);
  if (ring_.fallback()) return;
  // The workers that ran a lost plan and have no part in this one are not needed as they are.
  roster_.ForEach([&](Member& m) {
    if (Roster::IsStale(m, ring_.plan())) StartDrop(m, now);
  });
}

void ClusterState::Failed(const PendingChange& change, Deadline now) {
  const PlanChange& t = change.transaction;
  plans_.Aborted(t.status());
  actions_.Do(CancelWiring{change.plan.epoch});
  actions_.Happened(LogLevel::kWarn, {.kind = EventKind::kPlanFailed,
                                      .member = t.culprit(),
                                      .text = fmt::format("plan {} was {}: {}", change.plan.epoch.number,
                                                          ChangeStateName(t.state()), Message(t.status())),
                                      .plan = change.plan.epoch.number});
  actions_.Answer(change.asked.ask, t.status());
  const auto id = change.ids.find(t.culprit());
  Member* const culprit = id == change.ids.end() ? nullptr : roster_.Find(id->second);
  const bool faulted = t.state() == ChangeState::kFaulted;
  // A fault during a restore may lie in the pages that members have, so these are given up. A member that is lost says
  // nothing against what the others have.
  const bool lost = culprit == nullptr && !t.culprit().empty();
  if (faulted || (change.restore && !lost)) restore_.Forget();
  if (change.reason == ChangeReason::kLeaving) pace_.LeaveFailed(now);
  if (change.reason == ChangeReason::kRebalance) rebalancer_.Failed(now);
  // The coordinator itself chose the member that takes over a drained member's layers. If that member failed, the next
  // drain chooses another one.
  const bool spare_failed = !change.asked.drains.empty() && culprit != nullptr && !ring_.Has(culprit->info.name);
  if (change.reason != ChangeReason::kAsked || faulted || spare_failed) {
    if (culprit == nullptr) {
      pace_.Failed(now);
    } else {
      // The next plan restores nothing, and shows whether the member is at fault.
      if (!t.restore_failed()) LeaveOut(*culprit, t.status(), now);
      pace_.SetNext(now);
    }
  }
  if (faulted) {
    // Participants that committed drop the old stage, the others the new one.
    for (const Participant& p : t.participants()) {
      Member* const m = roster_.Find(change.ids.at(p.worker));
      if (m == nullptr) continue;
      LayerRange layers;
      if (p.in_new()) layers = change.plan.stages[static_cast<size_t>(p.stage)].layers;
      m->holdings.PlanLost(change.plan.epoch, layers, t.committed(p.worker));
      actions_.Do(TellMember{m->id, {ChangeVerb::kAbort, change.plan.epoch}});
      actions_.Do(TellMember{m->id, {ChangeVerb::kRelease, change.plan.epoch}});
    }
    ring_.Serve(change.plan);
    return LosePlan(t.status(), t.culprit(), now, now, now - change.started);
  }
  actions_.Record({.took = now - change.started, .result = "aborted: " + Message(t.status())}, change.plan);
  if (ring_.broken() && change.reason == ChangeReason::kRepair) {
    return LosePlan(Annotate(t.status(), "the ring could not be repaired"), t.culprit(), now, now);
  }
  if (t.drain_expired()) {
    // A step that does not land is a broken link of the old plan. The engine stays stopped until there are new ones.
    StopRing(now, t.status());
    ring_.Break(now);
  }
  if (ring_.plan() == nullptr && culprit == nullptr) outage_.Blame(t.status(), t.culprit());
}

void ClusterState::LeaveOut(Member& m, const Status& why, Deadline now) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(m.left_out.PlanFailed(why, now, policy_));
  actions_.Happened(LogLevel::kWarn, {.kind = EventKind::kLeftOut,
                                      .member = m.info.name,
                                      .text = fmt::format("{} is left out of plans for {} s: {}", m.info.name,
                                                          seconds.count(), Message(why))});
}

// `heard`: the last sign of whoever is to blame.
void ClusterState::LosePlan(const Status& why, const std::string& because_of, Deadline heard, Deadline now,
                            Duration took, bool crashed) {
  if (ring_.plan() == nullptr) return;
  StopRing(heard, why);
  const Plan lost = ring_.Lose();
  plans_.Lost();
  actions_.Record({.took = took, .result = "lost: " + Message(why)}, lost);
  outage_.Blame(why, because_of);
  restore_.Lost(lost.epoch);
  ForgetObserved();
  TellRefusal(why, now, crashed);
}

// `since`: the last sign of the ring, unless the engine has waited for a result for longer.
void ClusterState::StopRing(Deadline since, const Status& why) {
  const Plan* const plan = ring_.plan();
  const auto owes = plan == nullptr || why.ok() ? std::nullopt : ring_watch_.OwesSince(*plan);
  outage_.Begin(owes.value_or(since), why);
}

void ClusterState::TellRefusal(const Status& why, Deadline now, bool crashed) {
  outage_.Told(why);
  if (!record_.served()) return actions_.Do(RefuseRequests{why});
  if (!outage_.begun()) StopRing(now, why);  // a coordinator that was started again has requests that wait
  actions_.Do(AwaitRing{why, crashed, restore_.possible(), outage_.since()});
}

}  // namespace gyre
