// Plans that are due: the first one, the next one after a loss, a repair, one without members that leave, a faster one.
#include <algorithm>
#include <utility>

#include "coordinator/cluster/cluster_state.h"
#include "coordinator/cluster/layer_handover.h"
#include "coordinator/cluster/ring_bits.h"
#include "identity/principal.h"

namespace gyre {

// The first plan, or the next after a loss: over the workers and the local member when enough workers are there,
// otherwise over the local member alone.
void ClusterState::MaybePlan(Deadline now) {
  const bool serves = ring_.plan() != nullptr && !ring_.fallback();
  if (change_ != nullptr || ring_.broken() || serves || now < pace_.next()) return;
  if (adoption_.pending() && Adopt(now)) return;
  // Until somebody joins, or one that is left out is tried again.
  pace_.SetNext(roster_.NextTry(now));
  // A request that kills one worker after the other must not kill the coordinator too, if the workers hold the model.
  if (pace_.Suspicious(now) && PlanWorkers(now, false)) return;
  if (!PlanWorkers(now, true) && ring_.plan() == nullptr) PlanLocal(now);
}

// The plan of the coordinator's predecessor, as a repair makes it again: the stages are there, and only links are new.
// True: it is on its way, or its members are waited for.
bool ClusterState::Adopt(Deadline now) {
  for (const ClusterRecord::Stage& s : adoption_.Begin(roster_, now)) {
    const bool own = s.worker == kLocalName;  // it joins at once
    if (!own && !s.address.empty()) actions_.Do(CheckLife{0, s.worker, s.address});
  }
  if (adoption_.Waits(roster_, now)) return true;
  const std::string missing = adoption_.Missing(roster_);
  const ClusterRecord record = adoption_.Take();
  if (!missing.empty()) {
    actions_.Log(LogLevel::kWarn, fmt::format("{} did not come back after the restart: the others go on", missing));
    return false;
  }
  const StatusOr<TrialPlan> trial = Chooser(now).Again(record);
  if (!trial.ok()) {
    actions_.Log(LogLevel::kWarn,
                 fmt::format("the plan of before the restart can't be made again: {}", Message(trial.status())));
    return false;
  }
  if (policy_.has_cache && record.plan != 0) {
    Plan before = trial->plan;
    before.epoch.number = record.plan;
    std::map<std::string, uint64_t> ids;
    for (const StagePlan& s : before.stages) ids[s.worker()] = roster_.At(s.worker()).id;
    const uint64_t cache_namespace = RingCacheNamespace(before, roster_, policy_);
    restore_.TakeOver(std::move(before), cache_namespace, std::move(ids));
  }
  Begin(*trial, ChangeReason::kAutomatic, now);
  return true;
}

// True: a plan over workers is on its way.
bool ClusterState::PlanWorkers(Deadline now, bool with_local) {
  const PlanChooser::OverWorkers choice = Chooser(now).ForWorkers(with_local);
  std::map<std::string, Status> left_out_before;
  for (const std::string& name : choice.tried) left_out_before[name] = roster_.At(name).left_out.Try();
  if (!choice.plan.ok()) {
    const Status& why = choice.plan.status();
    actions_.Log(LogLevel::kError, fmt::format("no plan: {}", Message(why)));
    outage_.Blame(why, "");
    plans_.Refused(why);
  }
  const bool chosen = choice.plan.ok() && choice.plan->has_value();
  if (chosen) {
    const TrialPlan& trial = **choice.plan;
    for (const Shortage& s : trial.held) {
      Member& m = roster_.At(s.worker);
      StartDrop(m, now);
      pace_.NotLaterThan(m.holdings.drop_until());
    }
    if (trial.held.empty()) Begin(trial, ChangeReason::kAutomatic, now);
  }
  for (const auto& [name, why] : choice.too_small) {
    roster_.At(name).left_out.TooSmall(why);
    if (left_out_before[name] == why) continue;
    actions_.Happened(
        LogLevel::kWarn,
        {.kind = EventKind::kLeftOut, .member = name, .text = fmt::format("{} is left out: {}", name, Message(why))});
    if (!chosen) plans_.Refused(why);
  }
  return chosen;
}

void ClusterState::PlanLocal(Deadline now) {
  const std::optional<PlanChooser::OverLocal> choice = Chooser(now).ForLocal();
  if (!choice) return;
  if (choice->plan.ok()) return Begin(*choice->plan, ChangeReason::kAutomatic, now);
  const Status& why = choice->plan.status();
  roster_.At(choice->member).left_out.TooSmall(why);
  if (plans_.RefusedAlone(why)) actions_.Log(LogLevel::kWarn, fmt::format("no plan: {}", Message(why)));
}

// The same ranges with new links.
void ClusterState::Repair(Deadline now) {
  const uint64_t number = ring_.plan()->epoch.number;
  if (const Status why = ring_.BeginRepair(); !why.ok()) {
    actions_.Happened(LogLevel::kWarn, {.kind = EventKind::kRingBroken,
                                        .text = fmt::format("the ring of plan {} broke: {}", number, Message(why)),
                                        .plan = number});
  }
  actions_.Log(LogLevel::kInfo, fmt::format("repairing the ring of plan {}", number));
  const PlanChooser chooser = Chooser(now);
  const StatusOr<TrialPlan> trial = chooser.Try(chooser.Same());
  if (trial.ok()) return Begin(*trial, ChangeReason::kRepair, now);
  pace_.SetNext(now);
  LosePlan(Annotate(trial.status(), "the ring could not be repaired"), "", now, now);
}

// Members that leave give their layers away, all in one change, and are dismissed when they have none.
void ClusterState::LetLeave(Deadline now) {
  if (change_ != nullptr || ring_.broken()) return;
  bool holds_layers = false;
  std::set<std::string> leaving;
  roster_.ForEach([&](Member& m) {
    if (!m.leaving) return;
    leaving.insert(m.info.name);
    if (ring_.Has(m.info.name)) {
      holds_layers |= !m.dismissed;
    } else {
      Dismiss(m);
    }
  });
  if (!holds_layers || now < pace_.leave_at()) return;
  const StatusOr<TrialPlan> trial = HandOverLayers(Chooser(now), leaving);
  Status refusal = trial.status();
  if (trial.ok() && !trial->shortages.empty()) refusal = trial->shortages[0].why;
  if (trial.ok() && !trial->held.empty()) refusal = trial->held[0].why;
  if (refusal.ok()) return Begin(*trial, ChangeReason::kLeaving, now);
  // Waiting would change nothing: the others go on as after a loss.
  roster_.ForEach([&](Member& m) {
    if (!m.leaving || m.dismissed) return;
    actions_.Log(LogLevel::kWarn, fmt::format("{} leaves with its layers: {}", m.info.name, Message(refusal)));
    if (m.ask != 0) {
      m.leaving = false;
      actions_.Answer(std::exchange(m.ask, 0), refusal);
    } else {
      Dismiss(m);
    }
  });
}

void ClusterState::Dismiss(Member& m) {
  if (m.dismissed) return;
  m.dismissed = true;
  actions_.Do(DismissMember{m.id});
  if (m.ask != 0) actions_.Answer(std::exchange(m.ask, 0), Unchanged());
}

// What the member holds of a lost plan is dropped, so that it has room for its next layers.
void ClusterState::StartDrop(Member& m, Deadline now) {
  if (m.holdings.dropping()) return;
  if (ring_.plan() == nullptr) restore_.Drops(m.info.name);
  const Epoch epoch = plans_.TakeNext();
  m.holdings.BeginDrop(epoch, now + policy_.timeouts.commit);
  actions_.Do(TellMember{m.id, PrepareChange({.plan = Chooser(now).EmptyPlan(epoch),
                                              .stage = -1,
                                              .block_size = policy_.block_size,
                                              .memory = cache_.whole(),
                                              .kv_type = policy_.kv_type,
                                              .sources = {}})});
}

// Has links measured, none while a plan is made, and proposes or makes a faster plan.
void ClusterState::LookForFaster(Deadline now) {
  if (policy_.rebalance.mode == Rebalance::kOff || change_ != nullptr || ring_.broken()) return;
  std::vector<LinkTable::Peer> peers;
  for (const auto& [name, m] : roster_.members()) {
    // With its first report a member has the key by which it lets others measure their links to it.
    const bool reported = m.report.at != Deadline{};
    if (m.info.local || m.info.address.empty() || !m.control.cut().ok() || !reported) continue;
    peers.push_back({.name = name, .address = m.info.address, .measures = !m.leaving});
  }
  if (auto order = speeds_.links().Next(peers, now)) {
    if (order->by == LinkTable::kThisProcess) {
      actions_.Do(ProbeFromHere{std::move(order->peers)});
    } else {
      actions_.Do(ProbeLinks{roster_.At(order->by).id, std::move(order->peers)});
    }
  }
  // A fallback is left for the workers by itself.
  if (ring_.plan() == nullptr || ring_.fallback() || !rebalancer_.Due(now)) return;
  const PlanChooser chooser = Chooser(now);
  const std::optional<Rebalancer::View> view = Rebalancer::ViewOf(chooser);
  if (!view) return;
  const std::vector<PlanMember> in_ring(view->members.begin(),
                                        view->members.begin() + static_cast<std::ptrdiff_t>(view->ring.size()));
  speeds_.Observe(in_ring, view->ring, roster_, cache_.sizes(), now);
  // Soon more is known.
  if (speeds_.links().Measuring(now)) return;
  if (const auto offer = rebalancer_.Look(chooser, *view)) {
    actions_.Log(
        LogLevel::kInfo,
        fmt::format("a better plan is known: {} ({:.2f} times as fast: {}){}", offer->ranges, offer->gain, offer->why,
                    policy_.rebalance.mode == Rebalance::kAsk ? "; `gyre resize --proposed` takes it" : ""));
  }
  if (!rebalancer_.MakeNow(now)) return;
  const auto assignments = ParseResize(rebalancer_.proposal()->ranges, cache_.sizes(), chooser.Members());
  const StatusOr<TrialPlan> trial = assignments.ok() ? chooser.Try(*assignments) : assignments.status();
  if (!trial.ok()) return;
  rebalancer_.Begun(FormatNamedRanges(*ring_.plan()), now);
  Begin(*trial, ChangeReason::kRebalance, now);
}

}  // namespace gyre
