// What operators are told of the cluster.
#include <algorithm>
#include <utility>

#include "base/counted.h"
#include "coordinator/cluster/cluster_state.h"
#include "coordinator/cluster/ring_bits.h"
#include "fmt/format.h"

namespace gyre {
namespace {

std::optional<ReplicaStatus> ReplicaOf(const Plan* plan, const Member& m, const Roster& roster) {
  if (plan == nullptr) return std::nullopt;
  for (const StagePlan& s : plan->stages) {
    if (s.replicated_by != m.info.name) continue;
    const MemberLoad& load = m.report.load;
    ReplicaStatus replica{.of = s.worker(), .behind = {}};
    if (load.replicated_plan != plan->epoch.number) return replica;
    replica.pages = load.replicated_pages;
    replica.bytes = load.replicated_bytes;
    const Member* const source = roster.Find(s.worker());
    if (load.replicated_step && source != nullptr && source->report.load.plan == plan->epoch.number) {
      // Reports come one after the other.
      const uint64_t taken = std::max(source->report.load.step_taken, *load.replicated_step);
      replica.behind = taken - *load.replicated_step;
    }
    return replica;
  }
  return std::nullopt;
}

}  // namespace

const char* EventKindName(EventKind kind) {
  switch (kind) {
    case EventKind::kJoined: return "joined";
    case EventKind::kLeft: return "left";
    case EventKind::kLost: return "lost";
    case EventKind::kDrained: return "drained";
    case EventKind::kUndrained: return "undrained";
    case EventKind::kLeftOut: return "left_out";
    case EventKind::kCut: return "cut";
    case EventKind::kBack: return "back";
    case EventKind::kRingBroken: return "ring_broken";
    case EventKind::kPlan: return "plan";
    case EventKind::kPlanFailed: return "plan_failed";
    case EventKind::kRecovered: return "recovered";
    case EventKind::kCache: return "cache";
  }
  return "";
}

bool SameCluster(const ClusterStatus& a, const ClusterStatus& b) {
  auto same = [](const MemberStatus& x, const MemberStatus& y) {
    return x.info.name == y.info.name && x.info.address == y.info.address && x.info.instance == y.info.instance &&
           x.layers == y.layers && x.weight_bytes == y.weight_bytes && x.kv_bytes == y.kv_bytes && x.why == y.why &&
           x.drained == y.drained && x.leaving == y.leaving && x.detached == y.detached && x.left_out == y.left_out;
  };
  return a.plan == b.plan && a.state == b.state && a.plans == b.plans && a.aborted == b.aborted && a.lost == b.lost &&
         a.proposal == b.proposal &&
         std::equal(a.members.begin(), a.members.end(), b.members.begin(), b.members.end(), same);
}

Status ClusterState::Refusal() const {
  std::string text = outage_.trouble().ok() ? "" : Message(outage_.trouble()) + "; ";
  if (adoption_.pending()) {
    text += fmt::format("the coordinator was started again, and waits for {}", adoption_.Missing(roster_));
  } else if (change_ != nullptr) {
    text += fmt::format("plan {} is being prepared", change_->plan.epoch.number);
  } else {
    uint64_t workers = 0;
    std::string drained;
    for (const auto& [name, m] : roster_.members()) {
      if (roster_.IsDrained(name)) {
        drained += fmt::format("; {} is drained", name);
      } else if (!m.info.local) {
        ++workers;
      }
    }
    if (record_.on_workers()) {
      text += fmt::format("requests wait for a worker: no plan can be made over the {} that {} there{}", workers,
                          workers == 1 ? "is" : "are", drained);
    } else {
      text += fmt::format(
          "{} of {}{}", workers,
          Counted(static_cast<uint64_t>(policy_.min_workers), "worker has joined", "workers have joined"), drained);
    }
  }
  return Unavailable("{}{}", text, roster_.DescribeLeftOut());
}

ClusterStatus ClusterState::status(Deadline now) const {
  const Plan* const plan = ring_.plan();
  ClusterStatus s;
  if (plan != nullptr) s.plan = *plan;
  if (change_ != nullptr) {
    s.state = fmt::format("plan {}: {}{}", change_->plan.epoch.number, ChangeStateName(change_->transaction.state()),
                          roster_.DescribeLeftOut());
  } else if (ring_.broken()) {
    s.state = "the ring is being repaired";
  } else {
    s.state = plan != nullptr ? "serving" + roster_.DescribeLeftOut() : Message(Refusal());
  }
  s.plans = plans_.done();
  s.aborted = plans_.aborted();
  s.lost = plans_.lost();
  s.last_change = plans_.last_change();
  s.replay_note = ReplayNote(roster_, policy_);
  s.rounds_prompts = plan != nullptr && !PrefillMatchesDecode(*plan, roster_, policy_);
  s.rebalance = policy_.rebalance.mode;
  s.proposal = rebalancer_.proposal();
  s.step_seconds = rebalancer_.step_seconds();
  s.wire = policy_.wire;
  s.transport = policy_.transport;
  s.kv_type = policy_.kv_type;
  s.block_size = policy_.block_size;
  s.num_blocks = change_ != nullptr ? change_->num_blocks : cache_.num_blocks();
  for (int group = 0; group < kKvGroups; ++group) {
    s.unit_bytes[static_cast<size_t>(group)] = cache_.sizes().UnitBytes(group);
  }
  for (const Member* m : roster_.ByOrder()) {
    const std::string& name = m->info.name;
    const LayersExplanation explanation = rebalancer_.Explanation(name);
    MemberStatus member{.info = m->info,
                        .load = m->report.load,
                        .rates = m->loads.Rates(now),
                        .drained = roster_.IsDrained(name),
                        .leaving = m->leaving,
                        .detached = !m->control.cut().ok(),
                        .left_out = Message(m->left_out.why()),
                        .slowdown = speeds_.slowdowns().Of(name),
                        .stage_seconds = explanation.stage_seconds,
                        .why = explanation.why};
    for (const auto& [to, link] : speeds_.links().From(name)) member.links.push_back(link);
    member.replica = ReplicaOf(plan, *m, roster_);
    if (change_ != nullptr) member.loading = change_->transaction.progress(name);
    if (ring_.Has(name)) member.layers = plan->stages[static_cast<size_t>(plan->StageOf(name))].layers;
    // A member that was not told to drop them holds the layers of a lost plan.
    if (const LayerRange layers = m->holdings.layers(); layers.size() > 0) {
      member.weight_bytes = RangeBytes(cache_.sizes(), layers);
      member.kv_bytes = cache_.sizes().MemoryOf(layers);
    }
    s.members.push_back(std::move(member));
  }
  std::stable_sort(s.members.begin(), s.members.end(), [](const MemberStatus& a, const MemberStatus& b) {
    if (a.layers.has_value() != b.layers.has_value()) return a.layers.has_value();
    return a.layers && a.layers->begin < b.layers->begin;
  });
  return s;
}

}  // namespace gyre
