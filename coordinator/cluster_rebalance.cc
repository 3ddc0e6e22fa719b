// The part of ClusterState that measures machines and links, and proposes, makes and explains faster plans.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/describe_bytes.h"
#include "coordinator/cluster_state.h"

namespace gyre {
namespace {

constexpr Duration kConsider = std::chrono::seconds(1);
constexpr uint64_t kObservedSteps = 100;
// The reason is worked out for so many members without layers, as each costs a search.
constexpr int kExplained = 4;

std::string Millis(double seconds) { return fmt::format("{:.3g} ms", seconds * 1e3); }
std::string GigaBytes(double per_second) { return fmt::format("{:.1f} GB/s", per_second / 1e9); }

// In steps of 5%, so that what wavers by less is the same.
double Rounded(double factor) { return std::pow(1.05, std::round(std::log(factor) / std::log(1.05))); }

}  // namespace

// The members that may have layers: of the plan in ring order, then the other workers, then the local member.
std::vector<PlanMember> ClusterState::Candidates(Deadline now) const {
  std::vector<PlanMember> out;
  for (PlanMember& m : PlanMembers()) {
    const Member& member = members_.at(m.name);
    const bool out_of_reach = member.left_out_until > now || !member.detached.ok();
    if (!m.drained && !(out_of_reach && plan_->StageOf(m.name) < 0)) out.push_back(std::move(m));
  }
  const auto place = [this](const PlanMember& m) {
    const int stage = plan_->StageOf(m.name);
    return stage >= 0 ? stage : m.local ? 2 << 20 : 1 << 20;
  };
  std::stable_sort(out.begin(), out.end(),
                   [&](const PlanMember& a, const PlanMember& b) { return place(a) < place(b); });
  return out;
}

// null: the coordinator, in whose process the local member is.
HopSpeed ClusterState::HopBetween(const Member* from, const Member* to) const {
  const auto there = [](const Member* m) { return m == nullptr || m->info.local; };
  if (there(from) && there(to)) return {};
  const auto known = [&](const Member* by, const Member* of) -> const LinkSpeed* {
    const auto& found = there(by) ? links_.found : by->links.found;
    const auto it = found.find(there(of) ? "coordinator" : of->info.name);
    return it == found.end() ? nullptr : &it->second;
  };
  const LinkSpeed* const dialed = known(from, to);  // as the ring would dial it
  const LinkSpeed* const pulled = known(to, from);  // where the bytes took this way
  HopSpeed hop;
  hop.reached = dialed == nullptr || dialed->failure.empty();
  if (there(from) && dialed == nullptr) {
    // Until the coordinator has measured: whom no worker reaches, it does not reach either.
    bool tried = false, found = false;
    for (const auto& [name, m] : members_) {
      const auto it = m.links.found.find(to->info.name);
      tried |= it != m.links.found.end();
      found |= it != m.links.found.end() && it->second.failure.empty();
    }
    hop.reached = found || !tried;
  }
  for (const LinkSpeed* l : {pulled, dialed}) {
    if (l == nullptr || !l->failure.empty()) continue;
    if (hop.bytes_per_second == 0) hop.bytes_per_second = l->bytes_per_second;
    const double latency = static_cast<double>(l->round_trip_us) / 2e6;
    hop.latency = hop.latency == 0 ? latency : std::min(hop.latency, latency);
  }
  return hop;
}

Balance ClusterState::BalanceOf(const std::vector<PlanMember>& members) const {
  Balance b{.sizes = sizes_, .rows = policy_.rows, .row_bytes = policy_.row_bytes, .members = {}, .hops = {}};
  double sum = 0;
  int seen = 0;
  for (const auto& [name, m] : members_) {
    if (m.slowness > 0) sum += m.slowness, ++seen;
  }
  std::vector<const Member*> known;
  for (const PlanMember& m : members) {
    const Member& member = members_.at(m.name);
    known.push_back(&member);
    b.members.push_back({.member = m,
                         .speed = member.info.speed,
                         .slowness = member.slowness > 0 ? Rounded(member.slowness)
                                     : seen > 0          ? Rounded(sum / seen)
                                                         : 1});
  }
  FillUnknown(&b.members);
  known.push_back(nullptr);
  for (const Member* from : known) {
    b.hops.emplace_back();
    for (const Member* to : known) b.hops.back().push_back(HopBetween(from, to));
  }
  return b;
}

// All of these get layers, in their order: equal shares of the bytes, or those by speed where that makes a difference.
StatusOr<std::vector<Assignment>> ClusterState::ShareLayers(const std::vector<PlanMember>& members) const {
  StatusOr<std::vector<Assignment>> even = BalanceLayers(sizes_, members);
  const bool plain = policy_.rebalance.mode == Rebalance::kOff || members.size() < 2 ||
                     std::any_of(members.begin(), members.end(), [this](const PlanMember& m) {
                       return m.wish || members_.at(m.name).info.speed == MachineSpeed{};
                     });
  if (plain || !even.ok() || even->size() != members.size()) return even;
  const Balance b = BalanceOf(members);
  const StatusOr<std::vector<RingStage>> by_speed = BestSplit(b);
  if (!by_speed.ok()) return even;
  std::vector<RingStage> as_even;
  for (const Assignment& a : *even) {
    const auto it =
        std::find_if(members.begin(), members.end(), [&a](const PlanMember& m) { return m.name == a.worker; });
    as_even.push_back({static_cast<size_t>(it - members.begin()), a.layers});
  }
  const double gain = TimeOf(b, as_even).seconds / TimeOf(b, *by_speed).seconds;
  return gain >= policy_.rebalance.share_gain ? AssignmentsOf(b, *by_speed) : even;
}

// One member at a time measures, and none while a plan is made.
void ClusterState::ProbeNext(Deadline now) {
  if (change_ != nullptr || broken_ || ring_address_.empty()) return;
  if (links_.until > now) return;
  for (const auto& [name, m] : members_) {
    if (m.links.until > now) return;
  }
  const auto is_there = [](const Member& m) { return !m.info.local && !m.info.address.empty() && m.detached.ok(); };
  // The members whose links from `by` are to be measured now. `name`: the measuring member; "": this process.
  const auto wanted = [&](const std::string& name, Links* by) {
    std::vector<WeightSource> peers;
    const auto want = [&](const std::string& to, const std::string& address) {
      const auto asked = by->asked.find(to);
      const auto found = by->found.find(to);
      const bool failed = found != by->found.end() && !found->second.failure.empty();
      if (asked != by->asked.end() && !(failed && now - asked->second >= policy_.probe_again)) return;
      if (peers.size() >= kMaxLinkSpeeds) return;
      peers.push_back({to, address});
      by->asked[to] = now;
    };
    if (!name.empty()) want("coordinator", ring_address_);
    for (const auto& [other, o] : members_) {
      if (other != name && is_there(o)) want(other, o.info.address);
    }
    if (!peers.empty()) by->until = now + policy_.probe_answer;
    return peers;
  };
  for (auto& [name, m] : members_) {
    if (!is_there(m) || m.leaving) continue;
    if (auto peers = wanted(name, &m.links); !peers.empty()) return Do(ProbeLinks{m.id, std::move(peers)});
  }
  if (!can_probe_) return;
  if (auto peers = wanted("", &links_); !peers.empty()) Do(ProbeFromHere{std::move(peers)});
}

void ClusterState::OnProbed(const std::string& name, Links* links, const StageProbed& probed, Deadline now) {
  links->until = now;
  for (const LinkSpeed& l : probed.links) {
    // A link that was not asked for is ignored, so that a member can't fill the memory with names.
    if (links->asked.count(l.to) == 0) continue;
    if (!l.failure.empty()) Log(LogLevel::kWarn, fmt::format("{} does not reach {}: {}", name, l.to, l.failure));
    links->found[l.to] = l;
  }
}

void ClusterState::ForgetObserved() {
  observed_since_ = kNoDeadline;
  rebalance_.PlanChanged();
  best_.reset();
  considered_.clear();
  counts_.step_seconds = 0;
  owing_.clear();
  for (auto& [name, m] : members_) m.why.clear(), m.stage_seconds = 0;
}

// Notes how long the plan's steps took, compared with the measured speeds.
void ClusterState::Observe(Deadline now) {
  std::vector<PlanMember> members;
  std::vector<RingStage> ring;
  for (PlanMember& m : Candidates(now)) {
    const int stage = plan_->StageOf(m.name);
    if (stage < 0) continue;
    ring.push_back({members.size(), plan_->stages[static_cast<size_t>(stage)].layers});
    members.push_back(std::move(m));
  }
  if (ring.size() != plan_->stages.size()) return;
  const auto begin = [&] {
    observed_since_ = now;
    for (const PlanMember& m : members) members_.at(m.name).observed_from = members_.at(m.name).load;
  };
  if (observed_since_ == kNoDeadline) return begin();
  if (now - observed_since_ < policy_.observe) return;
  double rows = 1;
  bool enough = true;
  for (const PlanMember& m : members) {
    const Member& member = members_.at(m.name);
    const uint64_t steps = member.load.steps - member.observed_from.steps;
    enough &= member.load.steps >= member.observed_from.steps && steps >= kObservedSteps &&
              member.load.busy_us > member.observed_from.busy_us;
    if (!enough) break;
    const uint64_t sent = member.load.rows_sent - std::min(member.observed_from.rows_sent, member.load.rows_sent);
    rows = std::max(rows, static_cast<double>(sent) / static_cast<double>(steps));
  }
  if (enough) {
    Balance b = BalanceOf(members);
    b.rows = rows;
    for (RatedMember& m : b.members) m.slowness = 1, m.member.memory = 0;
    const RingTime expected = TimeOf(b, ring);
    for (size_t i = 0; i < ring.size() && expected.stages.size() == ring.size(); ++i) {
      Member& member = members_.at(members[i].name);
      const auto steps = static_cast<double>(member.load.steps - member.observed_from.steps);
      const double took = static_cast<double>(member.load.busy_us - member.observed_from.busy_us) / 1e6 / steps;
      const double factor = std::clamp(took / expected.stages[i], 1e-6, 1e6);
      member.slowness = member.slowness > 0 ? std::sqrt(member.slowness * factor) : factor;
    }
  }
  begin();
}

std::optional<Proposal> ClusterState::Weigh(const Balance& balance, const std::vector<RingStage>& ring,
                                            double now_seconds) const {
  const RingTime time = TimeOf(balance, ring);
  if (time.seconds == kNever) return std::nullopt;
  const StatusOr<Draft> draft = MakeDraft(AssignmentsOf(balance, ring), {});
  if (!draft.ok() || !draft->shortages.empty() || !draft->held.empty()) return std::nullopt;
  std::string more, less;
  for (const StagePlan& s : draft->plan.stages) {
    if (plan_->StageOf(s.worker()) < 0) more += (more.empty() ? "" : ", ") + s.worker();
  }
  for (const StagePlan& s : plan_->stages) {
    if (draft->plan.StageOf(s.worker()) < 0) less += (less.empty() ? "" : ", ") + s.worker();
  }
  std::string why = fmt::format("a step of {:.0f} rows is expected every {} instead of every {}", balance.rows,
                                Millis(time.seconds), Millis(now_seconds));
  if (!more.empty()) why += fmt::format("; {} gets layers", more);
  if (!less.empty()) why += fmt::format("; {} has none any more", less);
  return Proposal{.ranges = FormatNamedRanges(draft->plan),
                  .gain = now_seconds / time.seconds,
                  .step_seconds = time.seconds,
                  .step_seconds_now = now_seconds,
                  .why = std::move(why)};
}

// Why each member has the layers that it has, for `gyre layers --why`.
void ClusterState::Explain(const Balance& balance, const std::vector<RingStage>& now,
                           const std::vector<RingStage>& best) {
  Balance here = balance;
  for (RatedMember& m : here.members) m.member.memory = m.member.disk = 0;
  const RingTime time = TimeOf(here, now);
  const double best_seconds = best.empty() ? kNever : TimeOf(balance, best).seconds;
  for (auto& [name, m] : members_) m.why.clear(), m.stage_seconds = 0;
  for (size_t i = 0; i < now.size() && i < time.stages.size(); ++i) {
    const RatedMember& r = balance.members[now[i].member];
    Member& m = members_.at(r.member.name);
    m.stage_seconds = time.stages[i];
    const bool known = !(m.info.speed == MachineSpeed{});
    m.why = fmt::format("its layers {} take {} of a step of {:.0f} rows: {:.1f} MiB at {}{}{}",
                        FormatRange(now[i].layers), Millis(time.stages[i]), balance.rows,
                        static_cast<double>(RangeBytes(sizes_, now[i].layers)) / (1 << 20),
                        GigaBytes(r.speed.memory_bytes_per_second), known ? "" : " (taken to be as fast as the others)",
                        i == time.slowest ? "; it is the slowest stage" : "");
    if (m.slowness > 0) m.why += fmt::format("; its steps take {:.2f} times what was measured for", m.slowness);
  }
  int explained = 0;
  for (size_t i = 0; i < balance.members.size(); ++i) {
    const RatedMember& r = balance.members[i];
    Member& m = members_.at(r.member.name);
    if (plan_->StageOf(r.member.name) >= 0) continue;
    const auto in_best = std::find_if(best.begin(), best.end(), [i](const RingStage& s) { return s.member == i; });
    if (in_best != best.end()) {
      m.why = fmt::format("it would have layers {} in the best plan, in which a step is expected every {}",
                          FormatRange(in_best->layers), Millis(best_seconds));
      continue;
    }
    if (++explained > kExplained) continue;
    for (const auto& [to, link] : m.links.found) {
      if (!link.failure.empty()) m.why += fmt::format("it does not reach {}: {}; ", to, link.failure);
    }
    const auto unreached_by = [&](const std::string& other, const Links& links) {
      const auto link = links.found.find(r.member.name);
      if (link != links.found.end() && !link->second.failure.empty())
        m.why += fmt::format("{} does not reach it: {}; ", other, link->second.failure);
    };
    unreached_by("the coordinator", links_);
    for (const auto& [other, o] : members_) unreached_by(other, o.links);
    Balance forced = balance;
    forced.members[i].must = true;
    const StatusOr<std::vector<RingStage>> with = BestRing(forced, plan_->stages.size());
    if (with.ok()) {
      m.why += fmt::format("with it a step is expected every {} at best, and every {} without it",
                           Millis(TimeOf(forced, *with).seconds), Millis(best_seconds));
    } else if (r.member.memory != 0 || r.member.disk != 0) {
      m.why += "no plan has room for its share: it has ";
      if (r.member.memory != 0) m.why += DescribeBytes(r.member.memory) + " of memory";
      if (r.member.memory != 0 && r.member.disk != 0) m.why += " and ";
      if (r.member.disk != 0) m.why += fmt::format("room for {} of weights on its disk", DescribeBytes(r.member.disk));
    } else {
      m.why += "no plan with it can be made";
    }
  }
}

void ClusterState::Reconsider(Deadline now) {
  if (policy_.rebalance.mode == Rebalance::kOff) return;
  ProbeNext(now);
  // A fallback is left for the workers by itself.
  if (change_ != nullptr || !plan_ || broken_ || fallback_ || now < reconsider_at_) return;
  reconsider_at_ = now + kConsider;
  Observe(now);
  // Soon more is known.
  if (links_.until > now) return;
  for (const auto& [name, m] : members_) {
    if (m.links.until > now) return;
  }
  const std::vector<PlanMember> members = Candidates(now);
  std::vector<RingStage> ring;
  for (size_t i = 0; i < members.size(); ++i) {
    const int stage = plan_->StageOf(members[i].name);
    if (stage >= 0) ring.push_back({i, plan_->stages[static_cast<size_t>(stage)].layers});
  }
  if (ring.size() != plan_->stages.size()) return;  // one of them leaves
  const Balance balance = BalanceOf(members);
  // The plan serves, whatever was said of its links and memory.
  Balance as_it_is = balance;
  for (RatedMember& m : as_it_is.members) m.member.memory = m.member.disk = 0;
  for (auto& hops : as_it_is.hops) {
    for (HopSpeed& hop : hops) hop.reached = true;
  }
  const double now_seconds = TimeOf(as_it_is, ring).seconds;
  counts_.step_seconds = now_seconds;
  // The search takes a while with many members: it is made again when something it depends on has changed.
  std::string key;
  // The room of a disk wavers all the time; of interest is how many layers fit.
  const uint64_t whole = RangeBytes(sizes_, {0, sizes_.num_layers()});
  const uint64_t layer = std::max<uint64_t>(1, *std::min_element(sizes_.layers.begin(), sizes_.layers.end()));
  for (const RatedMember& m : balance.members) {
    key +=
        fmt::format("{} {} {} {:.3g} {:.3g} {} {};", m.member.name, m.member.memory,
                    m.member.disk == 0 || m.member.disk >= whole ? -1 : static_cast<int64_t>(m.member.disk / layer),
                    m.speed.memory_bytes_per_second, m.speed.operations_per_second, m.slowness, m.member.holds.begin);
  }
  for (const auto& hops : balance.hops) {
    for (const HopSpeed& hop : hops) key += fmt::format("{} {} {} ", hop.reached, hop.latency, hop.bytes_per_second);
  }
  if (key != considered_) {
    considered_ = key;
    const StatusOr<std::vector<RingStage>> best = BestRing(balance, ring.size());
    best_.reset();
    // A wish is an order.
    const bool wishes = std::any_of(members.begin(), members.end(), [](const PlanMember& m) { return m.wish; });
    if (best.ok() && !wishes) best_ = Weigh(balance, *best, now_seconds);
    Explain(balance, ring, best.ok() ? *best : std::vector<RingStage>());
  }
  std::optional<Proposal> proposed = rebalance_.proposal();
  if (proposed) {
    const StatusOr<std::vector<Assignment>> same = ParseResize(proposed->ranges, sizes_, members);
    std::vector<RingStage> as_proposed;
    for (const Assignment& a : same.ok() ? *same : std::vector<Assignment>()) {
      const auto it =
          std::find_if(members.begin(), members.end(), [&a](const PlanMember& m) { return m.name == a.worker; });
      as_proposed.push_back({static_cast<size_t>(it - members.begin()), a.layers});
    }
    if (as_proposed.empty()) proposed.reset();
    if (!as_proposed.empty()) proposed = Weigh(balance, as_proposed, now_seconds);
  }
  const bool had = rebalance_.proposal().has_value();
  rebalance_.Offer(best_, proposed, now);
  const std::optional<Proposal>& offer = rebalance_.proposal();
  if (offer && !had) {
    Log(LogLevel::kInfo,
        fmt::format("a better plan is known: {} ({:.2f} times as fast: {}){}", offer->ranges, offer->gain, offer->why,
                    policy_.rebalance.mode == Rebalance::kAsk ? "; `gyre resize --proposed` takes it" : ""));
  }
  if (!rebalance_.MakeNow(now)) return;
  const StatusOr<std::vector<Assignment>> assignments = ParseResize(offer->ranges, sizes_, PlanMembers());
  const StatusOr<Draft> draft = assignments.ok() ? MakeDraft(*assignments, {}) : assignments.status();
  if (!draft.ok()) return;
  rebalance_.Begun(FormatNamedRanges(*plan_), now);
  Begin(*draft, Why::kRebalance, now);
}

}  // namespace gyre
