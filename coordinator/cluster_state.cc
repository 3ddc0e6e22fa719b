#include "coordinator/cluster_state.h"

#include <algorithm>
#include <utility>

namespace gyre {
namespace {

// If this many members die within this time, a request may be the cause.
constexpr size_t kSuspiciousCrashes = 2;
constexpr uint64_t kLateSteps = uint64_t{1} << 16;  // in flight, at most
constexpr Duration kSuspiciousTime = std::chrono::minutes(10);

}  // namespace

bool ClusterState::Suspicious(Deadline now) const {
  return crashes_.size() >= kSuspiciousCrashes && now - crashes_.front() < kSuspiciousTime;
}

ClusterState::ClusterState(ClusterPolicy policy, std::string ring_address)
    : policy_(std::move(policy)),
      ring_address_(std::move(ring_address)),
      sizes_(policy_.sizes),
      least_blocks_(policy_.sizes.counts.num_blocks),
      retry_pause_(policy_.retry),
      rebalance_(policy_.rebalance) {
  counts_.rebalance = policy_.rebalance.mode;
  counts_.wire = policy_.wire;
  counts_.transport = policy_.transport;
  counts_.kv_type = policy_.kv_type;
  counts_.block_size = policy_.block_size;
  if (!policy_.record) return;
  record_ = *policy_.record;
  drained_ = record_.drained;
  on_workers_ = record_.on_workers;
  served_ = !record_.stages.empty();
  if (served_) adopt_ = record_;
}

Status ClusterState::CheckMember(const ClusterPolicy& policy, const MemberInfo& info) {
  if (info.model_hash != policy.model_hash) {
    return FailedPrecondition("{} has another model file (hash {:016x}, expected {:016x})", info.name, info.model_hash,
                              policy.model_hash);
  }
  if (!policy.isa.empty() && info.isa != policy.isa) {
    return FailedPrecondition("{} computes with {}, the cluster asks for {} (--bit-equal)", info.name, info.isa,
                              policy.isa);
  }
  if (!Has(info.wire_types, policy.wire)) {
    return FailedPrecondition("{} sends activations as {}, the cluster asks for {} ({})", info.name,
                              WireTypeNames(info.wire_types), WireTypeName(policy.wire),
                              policy.isa.empty() ? "--wire" : "--bit-equal");
  }
  GYRE_RETURN_IF_ERROR(Annotate(AgreedTransport(policy.transport, info.transport).status(), info.name));
  const int layers = policy.sizes.num_layers();
  if (info.wish && (info.wish->begin < 0 || info.wish->size() <= 0 || info.wish->end > layers)) {
    return InvalidArgument("{} wants layers {}, the model has 0-{}", info.name, FormatRange(*info.wish), layers - 1);
  }
  if (info.holds.begin < 0 || info.holds.size() < 0 || info.holds.end > layers) {
    return InvalidArgument("{} holds layers {}, the model has 0-{}", info.name, FormatRange(info.holds), layers - 1);
  }
  return absl::OkStatus();
}

void ClusterState::Log(LogLevel level, std::string line) { Do(WriteLog{level, std::move(line)}); }

void ClusterState::Answer(uint64_t ask, StatusOr<ChangeReport> answer) {
  if (ask != 0) Do(AnswerCaller{ask, std::move(answer)});
}

ClusterState::Member* ClusterState::Find(uint64_t id) {
  for (auto& [name, m] : members_) {
    if (m.id == id) return &m;
  }
  return nullptr;
}

// Does the work that is due after an event, once the event is handled.
ClusterState::Actions ClusterState::Settle(Deadline now) {
  if (change_ != nullptr) Apply(change_->transaction.OnTick(now), now);
  for (auto& [name, m] : members_) {
    if (m.drop && now >= m.drop->until) m.drop->failed = true;
  }
  DropDetached(now);
  if (change_ == nullptr && plan_ && now >= repair_at_) Repair(now);
  MaybePlan(now);
  LetLeave(now);
  if (std::exchange(record_changed_, false) || record_.drained != drained_) {
    record_.drained = drained_;
    Do(KeepRecord{record_});
  }
  Reconsider(now);
  // Requests in the meantime must get the present state.
  if (!plan_) {
    const Status refusal = Refusal();
    if (Message(refusal) != refusal_told_) TellRefusal(refusal);
  }
  return std::exchange(actions_, {});
}

void ClusterState::TellRefusal(const Status& why, bool crashed) {
  refusal_told_ = Message(why);
  if (served_) {
    Do(AwaitRing{why, crashed, kept_.has_value()});
  } else {
    Do(RefuseRequests{why});
  }
}

ClusterState::Actions ClusterState::Joined(MemberInfo info, uint64_t id, Deadline now) {
  uint64_t order = id;
  if (const auto it = members_.find(info.name); it != members_.end()) {
    order = it->second.order;
    Remove(info.name, Unavailable("it joined again"), now, false);
  }
  Log(LogLevel::kInfo, fmt::format("{} joined from {}", info.name, info.host.empty() ? "this process" : info.host));
  if (info.name == trouble_with_) trouble_ = absl::OkStatus();
  seen_isas_.insert(info.isa);
  // It may still get steps of a plan that is over.
  if (info.last_step > 0) step_floor_ = std::max(step_floor_, info.last_step + kLateSteps);
  const std::string name = info.name;
  Member member;
  member.info = std::move(info);
  member.id = id;
  member.order = order;
  member.holds = member.info.holds;
  members_[name] = std::move(member);
  retry_at_ = now;
  retry_pause_ = policy_.retry;
  return Settle(now);
}

ClusterState::Actions ClusterState::Left(const Membership& member, const Status& why, Deadline now, bool crashed) {
  const auto it = members_.find(member.name);
  if (it != members_.end() && (member.id == 0 || it->second.id == member.id)) {
    Remove(member.name, why, now, crashed);
    retry_at_ = now;
    retry_pause_ = policy_.retry;
  }
  return Settle(now);
}

// `name` by value, as it may be the one that the member has.
void ClusterState::Remove(std::string name, const Status& why, Deadline now, bool crashed) {
  Log(LogLevel::kWarn, fmt::format("{} is gone: {}", name, Message(why)));
  const Member gone_member = std::move(members_.at(name));
  const uint64_t id = gone_member.id;
  crashed = crashed && !gone_member.leaving;
  Do(ForgetMember{{name, id}});
  members_.erase(name);
  // Under its name another machine may come.
  links_.asked.erase(name);
  links_.found.erase(name);
  for (auto& [other, m] : members_) {
    m.links.asked.erase(name);
    m.links.found.erase(name);
  }
  if (gone_member.ask != 0) Answer(gone_member.ask, Unchanged());
  // After the decision the new plan says whether it is missed.
  const Plan* runs = change_ != nullptr && change_->transaction.decided() ? &change_->plan : plan_ ? &*plan_ : nullptr;
  const int stage = runs == nullptr ? -1 : runs->StageOf(name);
  std::string layers;
  if (stage >= 0) layers = " with layers " + FormatRange(runs->stages[static_cast<size_t>(stage)].layers);
  const Status gone = MakeStatus(why.code(), "worker {}{} is gone: {}", name, layers, Message(why));
  const bool plan_lost = stage >= 0 && runs != nullptr && plan_ && runs == &*plan_;
  if (change_ != nullptr) {
    const auto it = change_->ids.find(name);
    if (it != change_->ids.end() && it->second == id) Apply(change_->transaction.OnLost(name, gone, now), now);
  }
  if (!plan_lost) return;
  if (crashed) {
    crashes_.push_back(now);
    if (crashes_.size() > kSuspiciousCrashes) crashes_.erase(crashes_.begin());
  }
  LosePlan(gone, name, {}, crashed);
}

// Whether the member has layers, or is about to get some.
bool ClusterState::TakesPart(const std::string& name, uint64_t id) const {
  if (plan_ && plan_->StageOf(name) >= 0) return true;
  if (change_ == nullptr) return false;
  const auto it = change_->ids.find(name);
  return it != change_->ids.end() && it->second == id;
}

ClusterState::Actions ClusterState::Detached(const Membership& member, uint64_t stream, const Status& why,
                                             Deadline now) {
  Member* m = Find(member.id);
  if (m == nullptr || stream < m->stream) return Settle(now);
  if (m->leaving || !TakesPart(member.name, member.id)) return Left(member, why, now, !m->leaving);
  Log(LogLevel::kWarn, fmt::format("the control connection of {} is cut: {}", member.name, Message(why)));
  m->detached = why;
  m->detached_until = now + policy_.detach_grace;
  return Settle(now);
}

ClusterState::Actions ClusterState::Reattached(const Membership& member, uint64_t stream, Deadline now) {
  if (Member* m = Find(member.id); m != nullptr) {
    m->stream = stream;
    m->detached_until = kNoDeadline;
    m->detached = absl::OkStatus();
    Log(LogLevel::kInfo, fmt::format("{} is back: its control connection is a new one", member.name));
  }
  return Settle(now);
}

// Drops members that did not come back. With a broken ring a process counts as dead if it is not back when the repair
// would begin.
void ClusterState::DropDetached(Deadline now) {
  std::vector<std::pair<std::string, Status>> dead;
  for (const auto& [name, m] : members_) {
    if (m.detached.ok()) continue;
    const bool stands_in_the_way = change_ == nullptr && plan_ && now >= repair_at_ && plan_->StageOf(name) >= 0;
    if (now >= m.detached_until || stands_in_the_way) dead.emplace_back(name, m.detached);
  }
  for (const auto& [name, why] : dead) {
    Remove(name, why, now, true);
    retry_at_ = now;
    retry_pause_ = policy_.retry;
  }
}

ClusterState::Actions ClusterState::WantsToLeave(const Membership& member, Deadline now) {
  if (Member* m = Find(member.id); m != nullptr && !m->leaving) {
    m->leaving = true;
    Log(LogLevel::kInfo, fmt::format("{} leaves: its layers go to the others", member.name));
    leave_retry_at_ = now;
  }
  return Settle(now);
}

// A worker that heartbeats while its stage is in a layer that does not end, or answers no more.
void ClusterState::CheckStuck(const Member& m, Deadline now) {
  if (m.info.local || !TakesPart(m.info.name, m.id)) return;
  const Duration silent = std::chrono::microseconds(m.load.unanswered_us);
  const auto seconds = [](Duration d) { return std::chrono::duration<double>(d).count(); };
  const auto lose = [&](const Status& why) {
    Remove(m.info.name, why, now, true);
    retry_at_ = now;
    retry_pause_ = policy_.retry;
  };
  if (silent > policy_.stuck) return lose(Unavailable("its stage has not answered for {:.1f} s", seconds(silent)));
  if (m.load.in_layer_us == 0) return;
  const Duration in_layer = std::chrono::microseconds(m.load.in_layer_us);
  const Duration estimate = std::chrono::microseconds(m.load.layer_estimate_us);
  const Duration limit = estimate == Duration{} ? policy_.stuck_unmeasured
                                                : std::max<Duration>(policy_.stuck, policy_.stuck_factor * estimate);
  if (in_layer <= limit) return;
  lose(Unavailable("it computes one layer for {:.1f} s, at most {:.1f} s are expected", seconds(in_layer),
                   seconds(limit)));
}

// A step that one end of a hop has, the other one doesn't get, and no byte of it comes: a link that swallows everything
// while both its ends live.
void ClusterState::CheckLinks(const RingProgress& ring, Deadline now) {
  constexpr Duration kSlept = std::chrono::seconds(1);  // workers report four times a second
  constexpr uint64_t kAnswersUs = 1'000'000;
  const Duration pause = now - std::exchange(links_checked_, now);
  if (!plan_ || broken_ || ring.plan != plan_->epoch.number) return owing_.clear();
  // Where this process slept, the others' reports from before say nothing of now.
  for (auto& [hop, link] : owing_) link.since += pause >= kSlept ? pause : Duration{};
  // An old report says nothing of now.
  const auto load_of = [this, now, kSlept](size_t stage) -> const Member* {
    const auto it = members_.find(plan_->stages[stage].worker());
    const bool known =
        it != members_.end() && it->second.load.plan == plan_->epoch.number && now - it->second.loaded_at <= kSlept;
    return known ? &it->second : nullptr;
  };
  for (size_t hop = 0; hop <= plan_->stages.size(); ++hop) {
    const Member* const from = hop > 0 ? load_of(hop - 1) : nullptr;
    const Member* const to = hop < plan_->stages.size() ? load_of(hop) : nullptr;
    if ((hop > 0 && from == nullptr) || (hop < plan_->stages.size() && to == nullptr)) {
      owing_.erase(hop);
      continue;
    }
    // One that computes, or can't hand on what it has, takes nothing in. One that doesn't answer is stuck itself.
    const bool sent = from == nullptr || !from->load.in_step || from->load.sending;
    const bool waits = to == nullptr || (!to->load.in_step && to->load.unanswered_us < kAnswersUs);
    const uint64_t has = from != nullptr ? from->load.step_taken : ring.step_sent;
    const uint64_t taken = to != nullptr ? to->load.step_taken : ring.step_came;
    const uint64_t bytes = to != nullptr ? to->load.bytes_received : ring.bytes_received;
    if (has <= taken || !sent || !waits) {
      owing_.erase(hop);
      continue;
    }
    const auto [link, fresh] = owing_.try_emplace(hop, OwingLink{taken, bytes, now});
    if (link->second.step_taken != taken || link->second.bytes_received != bytes) link->second = {taken, bytes, now};
    const Duration silent = now - link->second.since;
    if (silent < policy_.silent_link) continue;
    const auto name = [](const Member* m) { return m != nullptr ? m->info.name : "the coordinator"; };
    const Status why = Unavailable("the link from {} to {} is silent: it owes a step, and for {:.1f} s nothing came",
                                   name(from), name(to), std::chrono::duration<double>(silent).count());
    owing_.clear();
    Log(LogLevel::kWarn, Message(why));
    return Do(EndRing{plan_->epoch, why});
  }
}

ClusterState::Actions ClusterState::CanProbe(Deadline now) {
  can_probe_ = true;
  return Settle(now);
}

ClusterState::Actions ClusterState::Probed(const StageProbed& probed, Deadline now) {
  OnProbed("the coordinator", &links_, probed, now);
  return Settle(now);
}

// The disk of a member that fetches its weights gets fuller, or gets room.
void ClusterState::HearOfRoom(const MemberLoad& load, Member* m, Deadline now) {
  if (!m->info.fetches || load.weights_room == 0) return;
  // For want of it there may be no plan over workers.
  if ((!plan_ || fallback_) && load.weights_room > m->info.disk) retry_at_ = std::min(retry_at_, now);
  m->info.disk = load.weights_room;
}

ClusterState::Actions ClusterState::Reported(const std::string& name, const MemberLoad& load, const RingProgress& ring,
                                             Deadline now) {
  if (const auto it = members_.find(name); it != members_.end()) {
    it->second.load = load;
    it->second.loaded_at = now;
    it->second.loads.Add(now, load);
    HearOfRoom(load, &it->second, now);
    CheckStuck(it->second, now);
    CheckLinks(ring, now);
  }
  return Settle(now);
}

ClusterState::Actions ClusterState::Said(uint64_t member, StageEvent event, Deadline now) {
  Member* m = Find(member);
  if (m == nullptr) return Settle(now);
  // Whatever name the worker uses, here it has this one.
  event.worker = m->info.name;
  OnDropEvent(*m, event);
  if (const auto* probed = std::get_if<StageProbed>(&event.what)) OnProbed(m->info.name, &m->links, *probed, now);
  if (m->late_commit && m->late_commit->epoch == event.epoch) {
    const bool committed = std::holds_alternative<StageCommitted>(event.what);
    if (committed) m->holds = m->late_commit->layers;
    if (committed || std::holds_alternative<StageAborted>(event.what)) m->late_commit.reset();
  }
  if (change_ != nullptr) {
    const auto it = change_->ids.find(event.worker);
    if (it != change_->ids.end() && it->second == member) {
      if (const auto* ready = std::get_if<StageReady>(&event.what); ready && event.epoch == change_->plan.epoch)
        change_->mirrored[event.worker] = ready->mirrored;
      Apply(change_->transaction.OnEvent(event, now), now);
      if (change_ != nullptr && event.epoch == change_->plan.epoch && std::holds_alternative<StageProgress>(event.what))
        Do(ShowProgress{change_->transaction.progress()});
    }
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
    // A smaller cache forgets everything, so that nothing needs to move.
    if (change_->num_blocks < num_blocks()) live = {};
    Apply(change_->transaction.OnDrained(live, now), now);
  }
  return Settle(now);
}

ClusterState::Actions ClusterState::RingBroken(Epoch epoch, const Status& why, Deadline now) {
  // A ring that is given up already may break at any time: its repair goes on.
  if (plan_ && plan_->epoch == epoch && !broken_) {
    broken_ = true;
    repair_at_ = now + policy_.repair_grace;
    if (change_ != nullptr) Apply(change_->transaction.OnRingBroken(why), now);
  }
  return Settle(now);
}

ClusterState::Actions ClusterState::Ticked(Deadline now) { return Settle(now); }

Deadline ClusterState::deadline() const {
  Deadline next = kNoDeadline;
  for (const auto& [name, m] : members_) next = std::min(next, m.detached_until);
  if (change_ != nullptr) return std::min(next, change_->transaction.deadline());
  if (plan_) next = std::min(next, repair_at_);
  for (const auto& [name, m] : members_) {
    if (m.leaving && !m.dismissed && !broken_) next = std::min(next, leave_retry_at_);
  }
  if (!broken_ && (!plan_ || fallback_)) next = std::min(next, adopt_ ? adopt_until_ : retry_at_);
  return next;
}

}  // namespace gyre
