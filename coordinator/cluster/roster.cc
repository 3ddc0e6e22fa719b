#include "coordinator/cluster/roster.h"

#include <algorithm>

#include "identity/principal.h"

namespace gyre {
namespace {

constexpr uint64_t kLateSteps = uint64_t{1} << 16;  // in flight, at most

}  // namespace

// A worker that heartbeats while its stage is in a layer that does not end, or answers no more.
Status Member::CheckStuck(const ClusterPolicy& policy) const {
  const auto seconds = [](Duration d) { return std::chrono::duration<double>(d).count(); };
  const Duration silent = std::chrono::microseconds(report.load.unanswered_us);
  if (silent > policy.stuck) return Unavailable("its stage has not answered for {:.1f} s", seconds(silent));
  if (report.load.in_layer_us == 0) return absl::OkStatus();
  const Duration in_layer = std::chrono::microseconds(report.load.in_layer_us);
  const Duration estimate = std::chrono::microseconds(report.load.layer_estimate_us);
  const Duration limit = estimate == Duration{} ? policy.stuck_unmeasured
                                                : std::max<Duration>(policy.stuck, policy.stuck_factor * estimate);
  if (in_layer <= limit) return absl::OkStatus();
  return Unavailable("it computes one layer for {:.1f} s, at most {:.1f} s are expected", seconds(in_layer),
                     seconds(limit));
}

void Roster::Add(MemberInfo info, uint64_t id, uint64_t order) {
  // It may still get steps of a plan that is over.
  if (info.last_step > 0) step_floor_ = std::max(step_floor_, info.last_step + kLateSteps);
  Member& m = members_[info.name];
  m.id = id;
  m.order = order;
  m.holdings = Holdings(info.holds);
  m.info = std::move(info);
}

Member Roster::Remove(const std::string& name) {
  auto node = members_.extract(name);
  return std::move(node.mapped());
}

Member* Roster::Find(const std::string& name) {
  const auto it = members_.find(name);
  return it == members_.end() ? nullptr : &it->second;
}

const Member* Roster::Find(const std::string& name) const {
  const auto it = members_.find(name);
  return it == members_.end() ? nullptr : &it->second;
}

Member* Roster::Find(uint64_t id) {
  for (auto& [name, m] : members_) {
    if (m.id == id) return &m;
  }
  return nullptr;
}

std::vector<const Member*> Roster::ByOrder() const {
  std::vector<const Member*> out;
  for (const auto& [name, m] : members_) out.push_back(&m);
  std::sort(out.begin(), out.end(), [](const Member* a, const Member* b) { return a->order < b->order; });
  return out;
}

std::vector<std::pair<std::string, Status>> Roster::NotBack(const Plan* needed, Deadline now) const {
  std::vector<std::pair<std::string, Status>> out;
  for (const auto& [name, m] : members_) {
    if (m.control.cut().ok()) continue;
    const bool stands_in_the_way = needed != nullptr && needed->StageOf(name) >= 0;
    if (now >= m.control.until() || stands_in_the_way) out.emplace_back(name, m.control.cut());
  }
  return out;
}

std::vector<PlanMember> Roster::PlanMembers(const Plan* runs, const KvRestore& restore, const MemoryCounts& held,
                                            bool with_stale) const {
  std::vector<PlanMember> out;
  for (const Member* m : ByOrder()) {
    out.push_back({.name = m->info.name,
                   .address = m->info.address,
                   .local = m->info.local,
                   .drained = IsDrained(m->info.name) || m->leaving,
                   .memory = m->info.memory,
                   .preference = m->info.preference,
                   .holds = with_stale || !IsStale(*m, runs) ? m->holdings.Most() : LayerRange{},
                   .replicas = restore.ReplicaAt(m->info.name),
                   .held = held,
                   .disk = m->info.disk});
  }
  return out;
}

std::vector<WeightSource> Roster::WeightSourcesFor(const std::string& worker, const std::string& coordinator) const {
  std::vector<WeightSource> sources;
  if (!At(worker).info.fetches) return sources;
  if (!coordinator.empty()) sources.push_back({kCoordinatorName, coordinator});
  for (const auto& [name, m] : members_) {
    if (name == worker || m.info.local || m.info.address.empty()) continue;
    if (!m.info.fetches || m.holdings.layers().size() > 0) sources.push_back({name, m.info.address});
  }
  return sources;
}

Deadline Roster::NextTry(Deadline now) const {
  Deadline next = kNoDeadline;
  for (const auto& [name, m] : members_) {
    if (m.left_out.for_now(now)) next = std::min(next, m.left_out.until());
  }
  return next;
}

std::string Roster::DescribeLeftOut() const {
  std::string out;
  for (const Member* m : ByOrder()) {
    if (!m->left_out.why().ok()) out += fmt::format("; {} is left out: {}", m->info.name, Message(m->left_out.why()));
  }
  return out;
}

}  // namespace gyre
