// What operators are told of the cluster.
#include <algorithm>
#include <set>
#include <utility>

#include "coordinator/cluster_state.h"

namespace gyre {

std::vector<const ClusterState::Member*> ClusterState::ByOrder() const {
  std::vector<const Member*> out;
  for (const auto& [name, m] : members_) out.push_back(&m);
  std::sort(out.begin(), out.end(), [](const Member* a, const Member* b) { return a->order < b->order; });
  return out;
}

std::string ClusterState::LeftOut() const {
  std::string out;
  for (const Member* m : ByOrder()) {
    if (!m->left_out.ok()) out += fmt::format("; {} is left out: {}", m->info.name, Message(m->left_out));
  }
  return out;
}

Status ClusterState::Refusal() const {
  std::string text = trouble_.ok() ? "" : Message(trouble_) + "; ";
  if (adopt_) {
    text += fmt::format("the coordinator was started again, and waits for {}", Missing());
  } else if (change_ != nullptr) {
    text += fmt::format("plan {} is being prepared", change_->plan.epoch.number);
  } else {
    size_t workers = 0;
    std::string drained;
    for (const auto& [name, m] : members_) {
      if (drained_.count(name) > 0) {
        drained += fmt::format("; {} is drained", name);
      } else if (!m.info.local) {
        ++workers;
      }
    }
    if (on_workers_) {
      text += fmt::format("requests wait for a worker: no plan can be made over the {} that {} there{}", workers,
                          workers == 1 ? "is" : "are", drained);
    } else {
      text += fmt::format("{} of {} workers have joined{}", workers, policy_.min_workers, drained);
    }
  }
  return Unavailable("{}{}", text, LeftOut());
}

std::string ClusterState::Describe() const {
  if (change_ != nullptr) {
    return fmt::format("plan {}: {}{}", change_->plan.epoch.number, ChangeStateName(change_->transaction.state()),
                       LeftOut());
  }
  if (broken_) return "the ring is being repaired";
  return plan_ ? "serving" + LeftOut() : Message(Refusal());
}

// A replay computes every row on the members of the next plan.
std::string ClusterState::ReplayNote() const {
  if (policy_.wire != WireType::kF32) {
    return fmt::format("texts may change where a worker is lost, as activations are rounded ({})",
                       WireTypeName(policy_.wire));
  }
  std::set<std::string> isas;
  for (const auto& [name, m] : members_) isas.insert(m.info.isa);
  if (isas.size() <= 1) return "";
  std::string names;
  for (const std::string& isa : isas) names += (names.empty() ? "" : ", ") + isa;
  return fmt::format("texts may change where a worker is lost, as members compute with several instruction sets ({})",
                     names);
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

std::optional<MirrorStatus> ClusterState::MirrorOf(const Member& m) const {
  if (!plan_) return std::nullopt;
  for (const StagePlan& s : plan_->stages) {
    if (s.mirrored_by != m.info.name) continue;
    MirrorStatus mirror{.of = s.worker(), .behind = {}};
    if (m.load.mirrored_plan != plan_->epoch.number) return mirror;
    mirror.pages = m.load.mirrored_pages;
    mirror.bytes = m.load.mirrored_bytes;
    const auto source = members_.find(s.worker());
    if (m.load.mirrored_step && source != members_.end() && source->second.load.plan == plan_->epoch.number) {
      // Reports come one after the other.
      const uint64_t taken = std::max(source->second.load.step_taken, *m.load.mirrored_step);
      mirror.behind = taken - *m.load.mirrored_step;
    }
    return mirror;
  }
  return std::nullopt;
}

ClusterStatus ClusterState::status(Deadline now) const {
  ClusterStatus s = counts_;
  s.plan = plan_;
  s.state = Describe();
  s.num_blocks = change_ != nullptr ? change_->num_blocks : num_blocks();
  s.replay_note = ReplayNote();
  s.proposal = rebalance_.proposal();
  for (const Member* m : ByOrder()) {
    MemberStatus member{.info = m->info,
                        .load = m->load,
                        .rates = m->loads.Rates(now),
                        .drained = drained_.count(m->info.name) > 0,
                        .leaving = m->leaving,
                        .detached = !m->detached.ok(),
                        .left_out = Message(m->left_out),
                        .slowness = m->slowness,
                        .stage_seconds = m->stage_seconds,
                        .why = m->why};
    for (const auto& [to, link] : m->links.found) member.links.push_back(link);
    member.mirror = MirrorOf(*m);
    if (change_ != nullptr) member.loading = change_->transaction.progress(m->info.name);
    const int stage = plan_ ? plan_->StageOf(m->info.name) : -1;
    if (stage >= 0) member.layers = plan_->stages[static_cast<size_t>(stage)].layers;
    // A member that was not told to drop them holds the layers of a lost plan.
    if (m->holds.size() > 0) {
      member.weight_bytes = RangeBytes(sizes_, m->holds);
      member.kv_bytes = sizes_.MemoryOf(m->holds);
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
