#include "coordinator/cluster/layer_handover.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace gyre {
namespace {

constexpr size_t kMostTried = 16;  // spares for one place, as each costs a trial

class Handover {
 public:
  Handover(const PlanChooser& chooser, const std::set<std::string>& leaving) : chooser_(chooser), leaving_(leaving) {}

  StatusOr<TrialPlan> Choose() const;

 private:
  const PlanningState& state() const { return chooser_.state(); }
  const Plan& runs() const { return *state().runs; }
  bool Leaves(const std::string& name) const { return leaving_.count(name) > 0; }
  std::vector<PlanMember> Spares() const;
  std::optional<TrialPlan> Replace() const;
  StatusOr<std::vector<Assignment>> ShareRest() const;

  const PlanChooser& chooser_;
  const std::set<std::string>& leaving_;
};

// The members without layers that may take some: workers, then the local member.
std::vector<PlanMember> Handover::Spares() const {
  std::vector<PlanMember> out;
  for (bool local : {false, true}) {
    for (PlanMember& m : chooser_.Members()) {
      if (m.local != local || m.drained || Leaves(m.name) || runs().StageOf(m.name) >= 0) continue;
      const Member& member = state().roster.At(m.name);
      if (!member.left_out.for_now(state().now) && member.control.cut().ok()) out.push_back(std::move(m));
    }
  }
  return out;
}

// Each of them has its place taken by a spare, and nothing else changes: so the fewest layers move. nullopt: there are
// too few spares, or a place is too large for each.
std::optional<TrialPlan> Handover::Replace() const {
  std::vector<Assignment> next = chooser_.Same();
  std::vector<size_t> places;
  for (size_t i = 0; i < next.size(); ++i) {
    if (Leaves(next[i].worker)) places.push_back(i);
  }
  std::stable_sort(places.begin(), places.end(), [&](size_t a, size_t b) {
    const ModelSizes& sizes = state().cache.sizes();
    return RangeBytes(sizes, next[a].layers) > RangeBytes(sizes, next[b].layers);
  });
  std::vector<PlanMember> spares = Spares();
  // The coordinator's own member is for where nobody else is left.
  if (places.size() < next.size()) {
    spares.erase(std::remove_if(spares.begin(), spares.end(), [](const PlanMember& m) { return m.local; }),
                 spares.end());
  }
  std::optional<TrialPlan> trial;
  for (size_t place : places) {
    size_t best = spares.size();
    double least = kNever;
    for (size_t i = 0; i < spares.size() && i < kMostTried; ++i) {
      if (spares[i].preference && *spares[i].preference != next[place].layers) continue;
      std::vector<Assignment> tried = next;
      tried[place].worker = spares[i].name;
      tried[place].address = spares[i].address;
      StatusOr<TrialPlan> with = chooser_.Try(tried, {.gives_away = true});
      if (!with.ok() || !with->fits()) continue;
      if (const double seconds = chooser_.SecondsOf(*with); seconds < least) {
        least = seconds;
        best = i;
        trial = *std::move(with);
      }
    }
    if (best == spares.size()) return std::nullopt;
    next[place].worker = spares[best].name;
    next[place].address = spares[best].address;
    spares.erase(spares.begin() + static_cast<std::ptrdiff_t>(best));
  }
  return trial;
}

// The members that have layers beside these share all of them.
StatusOr<std::vector<Assignment>> Handover::ShareRest() const {
  std::vector<PlanMember> rest;
  for (const StagePlan& s : runs().stages) {
    if (!Leaves(s.worker())) rest.push_back({.name = s.worker(), .address = s.members[0].address});
  }
  // The last one's layers go to the first that waits: workers before the local member.
  for (bool local : {false, true}) {
    for (const PlanMember& m : chooser_.Members()) {
      const bool waits =
          !Leaves(m.name) && m.local == local && !m.drained && state().roster.At(m.name).left_out.why().ok();
      if (rest.empty() && waits) rest.push_back({.name = m.name, .address = m.address});
    }
  }
  if (rest.empty()) {
    return FailedPrecondition("{} is the only worker: nobody can take its layers", runs().stages[0].worker());
  }
  return chooser_.Share(rest);
}

StatusOr<TrialPlan> Handover::Choose() const {
  std::vector<TrialPlan> fitting;
  const auto trial_of = [&](const StatusOr<std::vector<Assignment>>& assignments) -> StatusOr<TrialPlan> {
    GYRE_RETURN_IF_ERROR(assignments.status());
    StatusOr<TrialPlan> trial = chooser_.Try(*assignments, {.gives_away = true});
    if (trial.ok() && trial->fits()) fitting.push_back(*trial);
    return trial;
  };
  if (auto replaced = Replace()) fitting.push_back(*std::move(replaced));
  const StatusOr<TrialPlan> shared = trial_of(ShareRest());
  if (fitting.empty()) {
    std::vector<PlanMember> rest;
    for (const StagePlan& s : runs().stages) {
      for (PlanMember& m : chooser_.Members()) {
        if (m.name == s.worker() && !Leaves(m.name) && !m.drained) rest.push_back(std::move(m));
      }
    }
    const size_t settled = rest.size();
    for (PlanMember& m : Spares()) rest.push_back(std::move(m));
    if (!rest.empty()) {
      const Balance balance = state().speeds.BalanceOf(rest, state().roster, state().cache.sizes());
      if (const auto ring = BestRing(balance, settled); ring.ok()) (void)trial_of(AssignmentsOf(balance, *ring));
    }
  }
  if (fitting.empty()) return shared;
  const TrialPlan* best = &fitting[0];
  for (const TrialPlan& t : fitting) {
    if (t.num_blocks < best->num_blocks) continue;
    const bool faster = chooser_.SecondsOf(t) * state().policy.rebalance.gain < chooser_.SecondsOf(*best);
    if (t.num_blocks > best->num_blocks || faster) best = &t;
  }
  return *best;
}

}  // namespace

StatusOr<TrialPlan> HandOverLayers(const PlanChooser& chooser, const std::set<std::string>& leaving) {
  return Handover(chooser, leaving).Choose();
}

}  // namespace gyre
