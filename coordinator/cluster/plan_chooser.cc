#include "coordinator/cluster/plan_chooser.h"

#include <algorithm>

#include "coordinator/cluster/plan_moves.h"
#include "coordinator/cluster/replicas.h"

namespace gyre {

Plan PlanChooser::EmptyPlan(Epoch epoch) const {
  return {.epoch = epoch,
          .model = s_.policy.model,
          .model_hash = s_.policy.model_hash,
          .num_layers = s_.cache.sizes().num_layers(),
          .coordinator_address = s_.ring_address,
          .wire = s_.policy.wire,
          .transport = s_.policy.transport,
          .stages = {}};
}

ChangeReport PlanChooser::Preview(const Plan& next, const MemoryCounts& counts, const AskMode& mode) const {
  ModelSizes sizes = s_.cache.sizes();
  sizes.counts = counts;
  const std::vector<PlanMember> members = Members();
  return {.epoch = {},
          .ranges = FormatRanges(next),
          .named_ranges = FormatNamedRanges(next),
          .dry_run = mode.dry_run,
          .moves = MovesBetween(s_.cache.sizes(), s_.runs, members, next, mode.live),
          .members = SharesOf(sizes, s_.runs, members, next),
          .kv_tokens = uint64_t{counts[kPageGroup]} * static_cast<uint64_t>(s_.policy.block_size)};
}

bool PlanChooser::OnlyLocal(const Plan& plan) const {
  return std::all_of(plan.stages.begin(), plan.stages.end(),
                     [this](const StagePlan& s) { return s_.roster.At(s.worker()).info.local; });
}

void PlanChooser::SetReplicas(Plan* plan) const {
  if (!s_.policy.replicate_kv) return;
  std::vector<bool> local;
  for (const StagePlan& s : plan->stages) local.push_back(s_.roster.At(s.worker()).info.local);
  const auto holders = ReplicaHolders(local);
  for (size_t i = 0; i < holders.size(); ++i) {
    if (holders[i]) plan->stages[i].replicated_by = plan->stages[*holders[i]].worker();
  }
}

StatusOr<TrialPlan> PlanChooser::Try(const std::vector<Assignment>& assignments, const TrialRules& rules) const {
  const CacheSize& cache = s_.cache;
  TrialPlan trial{
      .plan = EmptyPlan(s_.next),
      .num_blocks = rules.whole ? (*rules.whole)[kPageGroup] : std::min(cache.num_blocks(), rules.num_blocks),
      .whole = rules.whole,
      .shortages = {},
      .held = {}};
  Plan& plan = trial.plan;
  plan.stages = MakeStages(assignments);
  GYRE_RETURN_IF_ERROR(plan.Validate());
  for (const StagePlan& s : plan.stages) {
    if (!s_.roster.Has(s.worker())) return NoSuchWorker(s.worker(), Members());
  }
  SetReplicas(&plan);
  const std::vector<PlanMember> all = Members(), without_stale = Members(false);
  const bool first = !s_.on_workers && !OnlyLocal(plan);
  // After a loss nothing is in the cache, so it may be cut to what the survivors hold.
  const bool recovers = s_.served && s_.runs == nullptr && !FindShortages(cache.sizes(), without_stale, plan).empty();
  if (rules.automatic && (first || recovers)) {
    // The first plan over workers decides how large the KV cache is: all that follow must hold it.
    trial.num_blocks = cache.Cut(plan, without_stale, recovers).value_or(trial.num_blocks);
  }
  if (rules.gives_away) trial.num_blocks = cache.GiveBack(plan, all).value_or(trial.num_blocks);
  ModelSizes sizes = cache.sizes();
  sizes.counts = CountsOf(trial);
  trial.shortages = FindShortages(sizes, without_stale, plan);
  // The pages that a member holds of a lost plan have the old number.
  for (Shortage& s : FindShortages(cache.sizes(), all, plan)) {
    if (Roster::IsStale(s_.roster.At(s.worker), s_.runs)) trial.held.push_back(std::move(s));
  }
  return trial;
}

StatusOr<std::vector<Assignment>> PlanChooser::Share(const std::vector<PlanMember>& members) const {
  const ModelSizes& sizes = s_.cache.sizes();
  StatusOr<std::vector<Assignment>> even = BalanceLayers(sizes, members);
  const bool plain = s_.policy.rebalance.mode == Rebalance::kOff || members.size() < 2 ||
                     std::any_of(members.begin(), members.end(), [this](const PlanMember& m) {
                       return m.preference || s_.roster.At(m.name).info.speed == MachineSpeed{};
                     });
  if (plain || !even.ok() || even->size() != members.size()) return even;
  const Balance b = s_.speeds.BalanceOf(members, s_.roster, sizes);
  const StatusOr<std::vector<RingStage>> by_speed = BestSplit(b);
  if (!by_speed.ok()) return even;
  std::vector<RingStage> as_even;
  for (const Assignment& a : *even) {
    const auto it =
        std::find_if(members.begin(), members.end(), [&a](const PlanMember& m) { return m.name == a.worker; });
    as_even.push_back({static_cast<size_t>(it - members.begin()), a.layers});
  }
  const double gain = TimeOf(b, as_even).seconds / TimeOf(b, *by_speed).seconds;
  return gain >= s_.policy.rebalance.share_gain ? AssignmentsOf(b, *by_speed) : even;
}

std::vector<Assignment> PlanChooser::Same() const {
  std::vector<Assignment> same;
  for (const StagePlan& s : s_.runs->stages) same.push_back({s.worker(), s.members[0].address, s.layers});
  return same;
}

std::vector<PlanMember> PlanChooser::Candidates() const {
  std::vector<PlanMember> out;
  for (PlanMember& m : Members()) {
    const Member& member = s_.roster.At(m.name);
    const bool out_of_reach = member.left_out.for_now(s_.now) || !member.control.cut().ok();
    if (!m.drained && !(out_of_reach && s_.runs->StageOf(m.name) < 0)) out.push_back(std::move(m));
  }
  const auto place = [this](const PlanMember& m) {
    const int stage = s_.runs->StageOf(m.name);
    return stage >= 0 ? stage : m.local ? 2 << 20 : 1 << 20;
  };
  std::stable_sort(out.begin(), out.end(),
                   [&](const PlanMember& a, const PlanMember& b) { return place(a) < place(b); });
  return out;
}

double PlanChooser::SecondsOf(const TrialPlan& trial) const {
  const std::vector<PlanMember> members = Members();
  std::vector<PlanMember> chosen;
  std::vector<RingStage> ring;
  for (const StagePlan& s : trial.plan.stages) {
    const auto it =
        std::find_if(members.begin(), members.end(), [&s](const PlanMember& m) { return m.name == s.worker(); });
    chosen.push_back(*it);
    chosen.back().memory = chosen.back().disk = 0;  // the trial was checked for them
    ring.push_back({chosen.size() - 1, s.layers});
  }
  return TimeOf(s_.speeds.BalanceOf(chosen, s_.roster, s_.cache.sizes()), ring).seconds;
}

PlanChooser::OverWorkers PlanChooser::ForWorkers(bool with_local) const {
  OverWorkers out;
  // The local member is the last, as it is for ranges without a name.
  std::vector<PlanMember> candidates;
  for (bool local : {false, true}) {
    for (PlanMember& m : Members()) {
      if (m.local != local || (local && !with_local) || m.drained) continue;
      if (s_.roster.At(m.name).left_out.for_now(s_.now)) continue;
      out.tried.push_back(m.name);
      candidates.push_back(std::move(m));
    }
  }
  const auto enough = [&] {
    const auto workers =
        std::count_if(candidates.begin(), candidates.end(), [](const PlanMember& m) { return !m.local; });
    // After a loss whoever is left goes on.
    return workers > 0 && (workers >= s_.policy.min_workers || (s_.on_workers && s_.runs == nullptr));
  };
  while (enough()) {
    StatusOr<TrialPlan> trial = First(candidates);
    if (!trial.ok()) {
      out.plan = trial.status();
      return out;
    }
    // The local member prefers all layers.
    if (OnlyLocal(trial->plan)) break;
    if (MakeRoom(*trial, &candidates, &out.too_small)) continue;
    out.plan = *std::move(trial);
    return out;
  }
  return out;
}

// The first automatic plan for `members`, of whom the last is the local one, if it is there. It is left out where the
// cache would be cut for its sake.
StatusOr<TrialPlan> PlanChooser::First(std::vector<PlanMember> members) const {
  const ModelSizes& sizes = s_.cache.sizes();
  members.resize(std::min(members.size(), sizes.layers.size()));
  const auto trial_of = [&](const std::vector<PlanMember>& chosen) -> StatusOr<TrialPlan> {
    // After a loss the ring waits until the longest load is over.
    const bool recovers = s_.on_workers && s_.runs == nullptr;
    GYRE_ASSIGN_OR_RETURN(const std::vector<Assignment> assignments,
                          Share(recovers ? OrderByHeld(sizes, chosen) : chosen));
    return Try(assignments, {.automatic = true});
  };
  StatusOr<TrialPlan> trial = trial_of(members);
  if (!trial.ok() || trial->num_blocks == s_.cache.num_blocks() || !members.back().local) return trial;
  members.pop_back();
  StatusOr<TrialPlan> without = trial_of(members);
  const bool better = without.ok() && without->shortages.empty() && without->num_blocks > trial->num_blocks;
  return better ? without : trial;
}

// Takes the smallest of those that have too little memory off the list: the others may do without it. False: there is
// none.
bool PlanChooser::MakeRoom(const TrialPlan& trial, std::vector<PlanMember>* candidates,
                           std::map<std::string, Status>* too_small) const {
  std::vector<Shortage> shortages = trial.shortages;
  for (const Shortage& s : trial.held) {
    if (s_.roster.At(s.worker).holdings.drop_failed()) shortages.push_back(s);
  }
  if (shortages.empty()) return false;
  const auto least = std::min_element(shortages.begin(), shortages.end(),
                                      [](const Shortage& a, const Shortage& b) { return a.memory < b.memory; });
  (*too_small)[least->worker] = least->why;
  candidates->erase(std::find_if(candidates->begin(), candidates->end(),
                                 [&least](const PlanMember& m) { return m.name == least->worker; }));
  return true;
}

std::optional<PlanChooser::OverLocal> PlanChooser::ForLocal() const {
  for (PlanMember& m : Members()) {
    if (!m.local || m.drained || s_.roster.At(m.name).left_out.for_now(s_.now)) continue;
    m.preference.reset();  // it is for plans with others
    const StatusOr<std::vector<Assignment>> assignments = BalanceLayers(s_.cache.sizes(), {m});
    StatusOr<TrialPlan> trial = assignments.ok() ? Try(*assignments, {.automatic = true}) : assignments.status();
    if (trial.ok() && !trial->shortages.empty()) trial = Status(trial->shortages[0].why);
    return OverLocal{m.name, std::move(trial)};
  }
  return std::nullopt;
}

StatusOr<TrialPlan> PlanChooser::Again(const ClusterRecord& record) const {
  std::vector<Assignment> same;
  for (const ClusterRecord::Stage& s : record.stages) {
    same.push_back({s.worker, s_.roster.At(s.worker).info.address, s.layers});
  }
  TrialRules rules;
  if (record.num_blocks > 0) rules.num_blocks = record.num_blocks;
  GYRE_ASSIGN_OR_RETURN(TrialPlan trial, Try(same, rules));
  if (!trial.shortages.empty()) return trial.shortages[0].why;
  // A worker may hold other layers, of a plan that was not stored any more, with pools as large as the stored ones.
  ModelSizes sizes = s_.cache.sizes();
  sizes.counts = s_.cache.CutTo(trial.num_blocks);
  std::vector<PlanMember> members = Members();
  for (PlanMember& m : members) m.held = {};
  const std::vector<Shortage> held = FindShortages(sizes, members, trial.plan);
  if (!held.empty()) return held[0].why;
  return trial;
}

}  // namespace gyre
