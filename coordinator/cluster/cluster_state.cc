#include "coordinator/cluster/cluster_state.h"

#include <algorithm>
#include <utility>

#include "coordinator/cluster/layer_handover.h"

namespace gyre {

ClusterState::ClusterState(ClusterPolicy policy, std::string ring_address)
    : policy_(std::move(policy)),
      ring_address_(std::move(ring_address)),
      roster_(policy_.record ? policy_.record->drained : std::set<std::string>()),
      cache_(policy_.sizes),
      speeds_(policy_, ring_address_),
      ring_watch_(policy_.silent_link),
      adoption_(policy_.record, policy_.adopt_wait),
      record_(policy_.record),
      pace_(policy_.retry, policy_.longest_pause),
      rebalancer_(policy_.rebalance),
      plans_(policy_.term) {}

Status ClusterState::CheckMember(const ClusterPolicy& policy, const MemberInfo& info) {
  if (info.model_hash != policy.model_hash) {
    return FailedPrecondition("{} has another model file (hash {:016x}, expected {:016x})", info.name, info.model_hash,
                              policy.model_hash);
  }
  if (!policy.isa.empty() && info.isa != policy.isa) {
    return FailedPrecondition("{} computes with {}, the cluster asks for {} (--bit-equal)", info.name, info.isa,
                              policy.isa);
  }
  if (!policy.version.empty() && info.version != policy.version) {
    return FailedPrecondition("{} runs Gyre {}, the cluster asks for {} (--bit-equal)", info.name, info.version,
                              policy.version);
  }
  if (!Has(info.wire_types, policy.wire)) {
    return FailedPrecondition("{} sends activations as {}, the cluster asks for {} ({})", info.name,
                              WireTypeNames(info.wire_types), WireTypeName(policy.wire),
                              policy.isa.empty() ? "--wire" : "--bit-equal");
  }
  GYRE_RETURN_IF_ERROR(Annotate(AgreedTransport(policy.transport, info.transport).status(), info.name));
  const int layers = policy.sizes.num_layers();
  if (info.preference &&
      (info.preference->begin < 0 || info.preference->size() <= 0 || info.preference->end > layers)) {
    return InvalidArgument("{} wants {}, the model has layers 0-{}", info.name, LayersText(*info.preference),
                           layers - 1);
  }
  if (info.holds.begin < 0 || info.holds.size() < 0 || info.holds.end > layers) {
    return InvalidArgument("{} holds {}, the model has layers 0-{}", info.name, LayersText(info.holds), layers - 1);
  }
  return absl::OkStatus();
}

PlanChooser ClusterState::Chooser(Deadline now) const {
  return PlanChooser({.policy = policy_,
                      .ring_address = ring_address_,
                      .roster = roster_,
                      .cache = cache_,
                      .restore = restore_,
                      .speeds = speeds_,
                      .runs = ring_.plan(),
                      .served = record_.served(),
                      .on_workers = record_.on_workers(),
                      .next = plans_.next(),
                      .now = now});
}

// Does the work that is due after an event, once the event is handled.
ClusterState::Actions ClusterState::Settle(Deadline now) {
  if (change_ != nullptr) Apply(change_->transaction.OnTick(now), now);
  roster_.ForEach([now](Member& m) { m.holdings.Tick(now); });
  // With a broken ring a process counts as dead if it is not back when the repair would begin.
  const bool repairs = change_ == nullptr && now >= ring_.repair_at();
  for (const auto& [name, why] : roster_.NotBack(repairs ? ring_.plan() : nullptr, now)) RemoveLost(name, why, now);
  if (change_ == nullptr && ring_.plan() != nullptr && now >= ring_.repair_at()) Repair(now);
  MaybePlan(now);
  LetLeave(now);
  if (auto record = record_.TakeChanged(roster_.drained())) actions_.Do(KeepRecord{*std::move(record)});
  LookForFaster(now);
  // Requests in the meantime must get the present state.
  if (ring_.plan() == nullptr) {
    if (const Status refusal = Refusal(); outage_.IsNews(refusal)) TellRefusal(refusal, now);
  }
  return actions_.Take();
}

ClusterState::Actions ClusterState::Joined(MemberInfo info, uint64_t id, Deadline now) {
  uint64_t order = id;
  if (const Member* m = roster_.Find(info.name); m != nullptr) {
    order = m->order;
    Remove(info.name, Unavailable("it joined again"), now, false);
  }
  actions_.Happened(LogLevel::kInfo, {.kind = EventKind::kJoined,
                                      .member = info.name,
                                      .text = fmt::format("{} joined from {}", info.name,
                                                          info.host.empty() ? "this process" : info.host)});
  outage_.Excuse(info.name);
  roster_.Add(std::move(info), id, order);
  pace_.MembersChanged(now);
  return Settle(now);
}

ClusterState::Actions ClusterState::Left(const Membership& member, const Status& why, Deadline now, bool crashed) {
  const Member* const m = roster_.Find(member.name);
  if (m != nullptr && (member.id == 0 || m->id == member.id)) {
    Remove(member.name, why, now, crashed);
    pace_.MembersChanged(now);
  }
  return Settle(now);
}

// `name` by value, as it may be the one that the member has.
void ClusterState::Remove(std::string name, const Status& why, Deadline now, bool crashed) {
  const Member gone_member = roster_.Remove(name);
  crashed = crashed && !gone_member.leaving;
  actions_.Do(ForgetMember{{name, gone_member.id}});
  speeds_.Forget(name);
  rebalancer_.Forget(name);
  if (gone_member.ask != 0) actions_.Answer(gone_member.ask, Unchanged());
  // After the decision the new plan says whether it is missed.
  const Plan* runs = change_ != nullptr && change_->transaction.decided() ? &change_->plan : ring_.plan();
  const int stage = runs == nullptr ? -1 : runs->StageOf(name);
  std::string layers;
  if (stage >= 0) layers = " with " + LayersText(runs->stages[static_cast<size_t>(stage)].layers);
  const Status gone = MakeStatus(why.code(), "worker {}{} is gone: {}", name, layers, Message(why));
  const bool wanted = gone_member.dismissed && stage < 0;
  actions_.Happened(wanted ? LogLevel::kInfo : LogLevel::kWarn,
                    {.kind = wanted ? EventKind::kLeft : EventKind::kLost,
                     .member = name,
                     .text = wanted ? fmt::format("{} has left, as it was asked to", name)
                                    : fmt::format("{}{} is gone: {}", name, layers, Message(why))});
  const bool plan_lost = stage >= 0 && runs == ring_.plan();
  if (change_ != nullptr && change_->Involves(name, gone_member.id)) {
    Apply(change_->transaction.OnLost(name, gone, now), now);
  }
  if (!plan_lost) return;
  if (crashed) pace_.Crashed(now);
  LosePlan(gone, name, gone_member.report.at == Deadline{} ? now : gone_member.report.at, now, {}, crashed);
}

// The member is lost, and nobody said that it leaves.
void ClusterState::RemoveLost(const std::string& name, const Status& why, Deadline now) {
  Remove(name, why, now, true);
  pace_.MembersChanged(now);
}

// Whether the member has layers, or is about to get some.
bool ClusterState::TakesPart(const Member& m) const {
  return ring_.Has(m.info.name) || (change_ != nullptr && change_->Involves(m.info.name, m.id));
}

ClusterState::Actions ClusterState::Detached(const Membership& member, uint64_t stream, const Status& why,
                                             Deadline now) {
  Member* m = roster_.Find(member.id);
  if (m == nullptr || !m->control.IsCurrent(stream)) return Settle(now);
  if (m->leaving || !TakesPart(*m)) return Left(member, why, now, !m->leaving);
  m->control.Cut(why, now + policy_.detach_grace);
  if (!m->info.address.empty()) actions_.Do(CheckLife{m->id, m->info.name, m->info.address});
  return Settle(now);
}

ClusterState::Actions ClusterState::FoundGone(const Membership& member, Deadline now) {
  if (member.id == 0) {
    adoption_.FoundGone(member.name);
  } else if (const Member* m = roster_.Find(member.id); m != nullptr && !m->control.cut().ok()) {
    const Status& cut = m->control.cut();
    RemoveLost(m->info.name, MakeStatus(cut.code(), "its process has ended ({})", Message(cut)), now);
  }
  return Settle(now);
}

ClusterState::Actions ClusterState::Reattached(const Membership& member, uint64_t stream, Deadline now) {
  if (Member* m = roster_.Find(member.id); m != nullptr) {
    // Only now, as a member that does not come back is lost, and one event tells of a loss.
    if (const Status cut = m->control.Replace(stream); !cut.ok()) {
      actions_.Happened(LogLevel::kWarn,
                        {.kind = EventKind::kCut,
                         .member = member.name,
                         .text = fmt::format("the control connection of {} was cut: {}", member.name, Message(cut))});
    }
    actions_.Happened(LogLevel::kInfo,
                      {.kind = EventKind::kBack,
                       .member = member.name,
                       .text = fmt::format("{} is back: its control connection is a new one", member.name)});
  }
  return Settle(now);
}

ClusterState::Actions ClusterState::WantsToLeave(const Membership& member, Deadline now) {
  if (Member* m = roster_.Find(member.id); m != nullptr && !m->leaving) {
    m->leaving = true;
    actions_.Log(LogLevel::kInfo, fmt::format("{} leaves: its layers go to the others", member.name));
    pace_.MayLeave(now);
  }
  return Settle(now);
}

ClusterState::Actions ClusterState::Reported(const std::string& name, const MemberLoad& load, Deadline now) {
  Member* const m = roster_.Find(name);
  if (m == nullptr) return Settle(now);
  m->report = {load, now};
  m->loads.Add(now, load);
  // For want of room for its weights there may be no plan over workers.
  if (m->HearOfRoom(load) && (ring_.plan() == nullptr || ring_.fallback())) pace_.NotLaterThan(now);
  if (!m->info.local && TakesPart(*m)) {
    if (const Status stuck = m->CheckStuck(policy_); !stuck.ok()) RemoveLost(name, stuck, now);
  }
  const auto reports = [this](const std::string& worker) {
    const Member* const member = roster_.Find(worker);
    return member == nullptr ? nullptr : &member->report;
  };
  if (const auto silent = ring_watch_.Check(ring_.whole(), reports, now)) {
    actions_.Log(LogLevel::kWarn, Message(*silent));
    actions_.Do(EndRing{ring_.plan()->epoch, *silent});
  }
  return Settle(now);
}

ClusterState::Actions ClusterState::CanProbe(Deadline now) {
  speeds_.links().CanMeasureHere();
  return Settle(now);
}

ClusterState::Actions ClusterState::Probed(const StageProbed& probed, Deadline now) {
  Measured(LinkTable::kThisProcess, probed, now);
  return Settle(now);
}

void ClusterState::Measured(const std::string& by, const StageProbed& probed, Deadline now) {
  for (const LinkSpeed& l : speeds_.links().Answered(by, probed, now)) {
    actions_.Log(LogLevel::kWarn, fmt::format("{} does not reach {}: {}",
                                              by == LinkTable::kThisProcess ? "the coordinator" : by, l.to, l.failure));
  }
}

ClusterState::Actions ClusterState::Said(uint64_t member, StageEvent event, Deadline now) {
  Member* m = roster_.Find(member);
  if (m == nullptr) return Settle(now);
  // Whatever name the worker uses, here it has this one.
  event.worker = m->info.name;
  if (const auto next = m->holdings.OnDropAnswer(event)) {
    actions_.Do(TellMember{m->id, {*next, event.epoch}});
    if (*next == ChangeVerb::kRelease) pace_.SetNext(Deadline{});
  }
  if (const auto* probed = std::get_if<StageProbed>(&event.what)) Measured(m->info.name, *probed, now);
  m->holdings.OnLateAnswer(event);
  if (change_ != nullptr && change_->Involves(event.worker, member)) {
    const bool of_change = event.epoch == change_->plan.epoch;
    if (const StageDone* ready = event.AnswerTo(ChangeVerb::kPrepare); ready && of_change)
      change_->replicas[event.worker] = ready->replicated;
    Apply(change_->transaction.OnEvent(event, now), now);
    if (change_ != nullptr && of_change && std::holds_alternative<StageProgress>(event.what))
      actions_.Do(ShowProgress{change_->transaction.progress()});
  }
  return Settle(now);
}

ClusterState::Actions ClusterState::Wired(Epoch epoch, const Status& to_first, const Status& from_last, Deadline now) {
  if (change_ != nullptr && change_->plan.epoch == epoch) {
    Apply(change_->transaction.OnWired(to_first, from_last, now), now);
  }
  return Settle(now);
}

ClusterState::Actions ClusterState::Drained(Epoch epoch, UnitList live, Deadline now) {
  if (change_ != nullptr && change_->plan.epoch == epoch) {
    // A cache of another size forgets everything, so that nothing needs to move.
    if (change_->BeginsAnew(cache_.num_blocks())) live = {};
    Apply(change_->transaction.OnDrained(live, now), now);
  }
  return Settle(now);
}

ClusterState::Actions ClusterState::RingBroken(Epoch epoch, const Status& why, Deadline now) {
  // A ring that is given up already may break at any time: its repair goes on.
  if (const Plan* plan = ring_.whole(); plan != nullptr && plan->epoch == epoch) {
    // After the decision members close the old ring's links anyway, so this break is expected.
    if (change_ == nullptr || !change_->transaction.decided()) {
      StopRing(now, why);
      ring_.Untold(why);
    }
    ring_.Break(now + policy_.repair_grace);
    if (change_ != nullptr) Apply(change_->transaction.OnRingBroken(why), now);
  }
  return Settle(now);
}

ClusterState::Actions ClusterState::Ticked(Deadline now) { return Settle(now); }

Deadline ClusterState::deadline() const {
  Deadline next = kNoDeadline;
  for (const auto& [name, m] : roster_.members()) next = std::min(next, m.control.until());
  if (change_ != nullptr) return std::min(next, change_->transaction.deadline());
  next = std::min(next, ring_.repair_at());
  if (ring_.broken()) return next;
  for (const auto& [name, m] : roster_.members()) {
    if (m.leaving && !m.dismissed) next = std::min(next, pace_.leave_at());
  }
  if (ring_.plan() != nullptr && !ring_.fallback()) return next;
  return std::min(next, adoption_.pending() ? adoption_.until() : pace_.next());
}

ClusterState::Actions ClusterState::AskedToResize(uint64_t ask, const std::string& text, Deadline now,
                                                  const AskMode& mode) {
  const PlanChooser chooser = Chooser(now);
  const StatusOr<std::vector<Assignment>> assignments = ParseResize(text, cache_.sizes(), chooser.Members());
  Asked({.ask = ask, .drains = "", .mode = mode}, assignments.ok() ? chooser.Try(*assignments) : assignments.status(),
        now);
  return Settle(now);
}

ClusterState::Actions ClusterState::AskedToResizeCache(uint64_t ask, uint64_t tokens, Deadline now,
                                                       const AskMode& mode) {
  constexpr uint64_t kMostBlocks = 1U << 30;  // so that units have numbers of 32 bits
  const auto block_size = static_cast<uint64_t>(policy_.block_size);
  const uint64_t blocks = tokens / block_size + (tokens % block_size != 0 ? 1 : 0);
  StatusOr<TrialPlan> trial = FailedPrecondition("no plan serves");
  if (blocks == 0 || blocks > kMostBlocks) {
    trial = InvalidArgument("a KV cache of {} tokens: expected 1 to {}", tokens, kMostBlocks * block_size);
  } else if (ring_.whole() != nullptr) {
    const PlanChooser chooser = Chooser(now);
    trial = chooser.Try(chooser.Same(), {.whole = cache_.whole().Resized(static_cast<uint32_t>(blocks))});
  }
  if (change_ == nullptr && trial.ok() && trial->num_blocks == cache_.num_blocks() && *trial->whole == cache_.whole()) {
    ChangeReport report = Unchanged();
    report.dry_run = mode.dry_run;
    actions_.Answer(ask, std::move(report));
  } else {
    Asked({.ask = ask, .drains = "", .mode = mode}, trial, now);
  }
  return Settle(now);
}

ClusterState::Actions ClusterState::AskedForProposed(uint64_t ask, Deadline now, const AskMode& mode) {
  if (!rebalancer_.proposal()) {
    actions_.Answer(ask,
                    policy_.rebalance.mode == Rebalance::kOff
                        ? FailedPrecondition("no plan is proposed: the coordinator was started with --rebalance off")
                        : FailedPrecondition("no plan is proposed: none is known that would be faster"));
    return Settle(now);
  }
  return AskedToResize(ask, rebalancer_.proposal()->ranges, now, mode);
}

ClusterState::Actions ClusterState::AskedToDrain(uint64_t ask, const std::string& name, Deadline now,
                                                 const AskMode& mode) {
  const bool is_there = roster_.Has(name), has_layers = ring_.Has(name);
  if (change_ == nullptr && is_there && !has_layers) {
    if (!mode.dry_run && roster_.Drain(name)) actions_.Do(RecordEvent{DrainedEvent(name, false)});
    ChangeReport report = Unchanged();
    report.dry_run = mode.dry_run;
    actions_.Answer(ask, std::move(report));
  } else {
    StatusOr<TrialPlan> trial = FailedPrecondition("{} has no layers", name);
    if (!is_there) trial = NoSuchWorker(name, Chooser(now).Members());
    if (is_there && has_layers) trial = HandOverLayers(Chooser(now), {name});
    Asked({.ask = ask, .drains = name, .mode = mode}, trial, now);
  }
  return Settle(now);
}

ClusterState::Actions ClusterState::AskedToUndrain(uint64_t ask, const std::string& name, Deadline now) {
  const bool marked = roster_.Undrain(name);
  if (!marked && !roster_.Has(name)) {
    actions_.Answer(ask, NoSuchWorker(name, Chooser(now).Members()));
  } else {
    if (marked) {
      actions_.Do(RecordEvent{{.kind = EventKind::kUndrained,
                               .member = name,
                               .text = fmt::format("{} is undrained, and may get layers again", name)}});
    }
    if (change_ != nullptr && change_->asked.drains == name) change_->asked.drains.clear();
    pace_.SetNext(now);  // a plan that waits for members may wait for this one
    actions_.Answer(ask, Unchanged());
  }
  return Settle(now);
}

ClusterState::Actions ClusterState::AskedToRemove(uint64_t ask, const std::string& name, Deadline now) {
  const bool marked = roster_.Undrain(name);
  Member* const m = roster_.Find(name);
  if (m == nullptr) {
    actions_.Answer(ask, marked ? StatusOr<ChangeReport>(Unchanged()) : NoSuchWorker(name, Chooser(now).Members()));
  } else if (m->info.local) {
    actions_.Answer(ask,
                    FailedPrecondition("{} is the coordinator's own member: it can be drained, not removed", name));
  } else if (m->ask != 0) {
    actions_.Answer(ask, FailedPrecondition("{} is being removed already", name));
  } else {
    m->leaving = true;
    m->ask = ask;
    pace_.MayLeave(now);
  }
  return Settle(now);
}

// A dry run ends where the change would begin, so that both are decided by the same rules.
void ClusterState::Asked(const ChangeAsk& asked, const StatusOr<TrialPlan>& trial, Deadline now) {
  const bool dry = asked.mode.dry_run;
  if (change_ != nullptr) {
    const char* const state = ChangeStateName(change_->transaction.state());
    return actions_.Answer(asked.ask, FailedPrecondition("plan {} is being made ({}); try again when it is done",
                                                         change_->plan.epoch.number, state));
  }
  if (!trial.ok()) return actions_.Answer(asked.ask, trial.status());
  if (!trial->shortages.empty()) return actions_.Answer(asked.ask, trial->shortages[0].why);
  if (!trial->held.empty()) {
    for (const Shortage& s : trial->held) {
      if (!dry) StartDrop(roster_.At(s.worker), now);
    }
    const char* const drop = dry ? "it must first drop" : "it was told to drop";
    return actions_.Answer(asked.ask, ResourceExhausted("{}; {} what it holds of a lost plan, try again",
                                                        Message(trial->held[0].why), drop));
  }
  if (!dry) return Begin(*trial, ChangeReason::kAsked, now, asked);
  const PlanChooser chooser = Chooser(now);
  actions_.Answer(asked.ask, chooser.Preview(trial->plan, chooser.CountsOf(*trial), asked.mode));
}

// The report of what changes no plan.
ChangeReport ClusterState::Unchanged() const {
  if (ring_.plan() == nullptr) return {};
  ChangeReport report = Chooser({}).Preview(*ring_.plan(), cache_.sizes().counts, {});
  report.epoch = ring_.plan()->epoch;
  return report;
}

}  // namespace gyre
