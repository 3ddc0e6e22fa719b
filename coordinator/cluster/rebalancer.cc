#include "coordinator/cluster/rebalancer.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"

namespace gyre {
namespace {

constexpr Duration kConsider = std::chrono::seconds(1);

// The plan as a proposal; nullopt: it can't be made.
std::optional<Proposal> Weigh(const PlanChooser& chooser, const Balance& balance, const std::vector<RingStage>& ring,
                              double now_seconds) {
  const RingTime time = TimeOf(balance, ring);
  if (time.seconds == kNever) return std::nullopt;
  const StatusOr<TrialPlan> trial = chooser.Try(AssignmentsOf(balance, ring));
  if (!trial.ok() || !trial->fits()) return std::nullopt;
  const Plan& runs = *chooser.state().runs;
  std::string more, less;
  for (const StagePlan& s : trial->plan.stages) {
    if (runs.StageOf(s.worker()) < 0) more += (more.empty() ? "" : ", ") + s.worker();
  }
  for (const StagePlan& s : runs.stages) {
    if (trial->plan.StageOf(s.worker()) < 0) less += (less.empty() ? "" : ", ") + s.worker();
  }
  std::string why = fmt::format("a step of {:.0f} rows is expected every {} instead of every {}", balance.rows,
                                MillisText(time.seconds), MillisText(now_seconds));
  if (!more.empty()) why += fmt::format("; {} {} layers", more, more.find(',') == std::string::npos ? "gets" : "get");
  if (!less.empty())
    why += fmt::format("; {} {} none any more", less, less.find(',') == std::string::npos ? "has" : "have");
  return Proposal{.ranges = FormatNamedRanges(trial->plan),
                  .gain = now_seconds / time.seconds,
                  .step_seconds = time.seconds,
                  .step_seconds_now = now_seconds,
                  .why = std::move(why)};
}

// Everything that the search for the best ring depends on.
std::string KeyOf(const Balance& balance) {
  std::string key;
  // The room of a disk wavers all the time; of interest is how many layers fit.
  const ModelSizes& sizes = balance.sizes;
  const uint64_t whole = RangeBytes(sizes, {0, sizes.num_layers()});
  const uint64_t layer = std::max<uint64_t>(1, *std::min_element(sizes.layers.begin(), sizes.layers.end()));
  for (const RatedMember& m : balance.members) {
    key +=
        fmt::format("{} {} {} {:.3g} {:.3g} {} {};", m.member.name, m.member.memory,
                    m.member.disk == 0 || m.member.disk >= whole ? -1 : static_cast<int64_t>(m.member.disk / layer),
                    m.speed.memory_bytes_per_second, m.speed.operations_per_second, m.slowdown, m.member.holds.begin);
  }
  for (const auto& hops : balance.hops) {
    for (const HopSpeed& hop : hops) key += fmt::format("{} {} {} ", hop.reached, hop.latency, hop.bytes_per_second);
  }
  return key;
}

}  // namespace

bool Rebalancer::Due(Deadline now) {
  if (now < due_at_) return false;
  due_at_ = now + kConsider;
  return true;
}

std::optional<Rebalancer::View> Rebalancer::ViewOf(const PlanChooser& chooser) {
  const Plan& runs = *chooser.state().runs;
  View view{.members = chooser.Candidates(), .ring = {}};
  for (size_t i = 0; i < view.members.size(); ++i) {
    const int stage = runs.StageOf(view.members[i].name);
    if (stage >= 0) view.ring.push_back({i, runs.stages[static_cast<size_t>(stage)].layers});
  }
  if (view.ring.size() != runs.stages.size()) return std::nullopt;
  return view;
}

std::optional<Proposal> Rebalancer::Look(const PlanChooser& chooser, const View& view) {
  const PlanningState& state = chooser.state();
  const std::vector<PlanMember>& members = view.members;
  const Balance balance = state.speeds.BalanceOf(members, state.roster, state.cache.sizes());
  // The plan serves, whatever was said of its links and memory.
  Balance as_it_is = balance;
  for (RatedMember& m : as_it_is.members) m.member.memory = m.member.disk = 0;
  for (auto& hops : as_it_is.hops) {
    for (HopSpeed& hop : hops) hop.reached = true;
  }
  step_seconds_ = TimeOf(as_it_is, view.ring).seconds;
  // The search takes a while with many members: it is made again when something it depends on has changed.
  if (std::string key = KeyOf(balance); key != considered_) {
    considered_ = std::move(key);
    const StatusOr<std::vector<RingStage>> best = BestRing(balance, view.ring.size());
    best_.reset();
    // A preference is an order.
    const bool preferences =
        std::any_of(members.begin(), members.end(), [](const PlanMember& m) { return m.preference; });
    if (best.ok() && !preferences) best_ = Weigh(chooser, balance, *best, step_seconds_);
    explained_ =
        ExplainLayers(balance, view.ring, best.ok() ? *best : std::vector<RingStage>(), state.roster, state.speeds);
  }
  std::optional<Proposal> proposed = policy_.proposal();
  const bool had = proposed.has_value();
  if (proposed) {
    const StatusOr<std::vector<Assignment>> same = ParseResize(proposed->ranges, state.cache.sizes(), members);
    std::vector<RingStage> as_proposed;
    for (const Assignment& a : same.ok() ? *same : std::vector<Assignment>()) {
      const auto it =
          std::find_if(members.begin(), members.end(), [&a](const PlanMember& m) { return m.name == a.worker; });
      as_proposed.push_back({static_cast<size_t>(it - members.begin()), a.layers});
    }
    proposed = as_proposed.empty() ? std::nullopt : Weigh(chooser, balance, as_proposed, step_seconds_);
  }
  policy_.Offer(best_, proposed, state.now);
  return had ? std::nullopt : policy_.proposal();
}

void Rebalancer::PlanChanged() {
  policy_.PlanChanged();
  best_.reset();
  considered_.clear();
  explained_.clear();
  step_seconds_ = 0;
}

LayersExplanation Rebalancer::Explanation(const std::string& member) const {
  const auto it = explained_.find(member);
  return it == explained_.end() ? LayersExplanation{} : it->second;
}

}  // namespace gyre
