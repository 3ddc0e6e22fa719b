#include "coordinator/cluster/balance.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/counted.h"

namespace gyre {
namespace {

constexpr size_t kAllOrders = 6;  // members; 720 orders

// Smaller gains end the search.
constexpr double kWorth = 0.998;

struct Candidate {
  double seconds = kNever;
  std::vector<RingStage> ring;
};

// A step of one stage alone has nothing beside it; more stages have one more step than they are, to hide the
// coordinator's turn.
double InFlight(size_t stages) { return stages == 1 ? 1 : static_cast<double>(stages) + 1; }

class RingSearch {
 public:
  explicit RingSearch(const Balance& balance);
  // To be called before Solve.
  void MakeBounds();
  size_t coordinator() const { return b_.members.size(); }
  double StageSeconds(size_t member, LayerRange layers) const;
  bool Fits(size_t member, LayerRange layers) const;
  // The time of the rows on the hop; to and from the coordinator they are ids and answers, which are small.
  double Transfer(size_t from, size_t to) const;
  double Hop(size_t from, size_t to) const;  // kNever: it is not reached

  // The best ring whose members are some of `order`, in this order, if its steps are shorter than `limit`.
  Candidate Solve(const std::vector<size_t>& order, double limit) const;

 private:
  // The ring with the smallest time of its loop by steps in flight, no stage or hop of which takes longer than `most`.
  Candidate Bounded(const std::vector<size_t>& order, double most) const;

  const Balance& b_;
  const int layers_;
  std::vector<double> read_, products_;     // of the layers before
  std::vector<uint64_t> weights_, memory_;  // prefix sums, too
  std::vector<double> bounds_;              // every time that a stage or a hop can take, rising
};

RingSearch::RingSearch(const Balance& balance) : b_(balance), layers_(balance.sizes.num_layers()) {
  const ModelSizes& sizes = b_.sizes;
  const auto count = static_cast<size_t>(layers_);
  read_.assign(count + 1, 0);
  products_.assign(count + 1, 0);
  weights_.assign(count + 1, 0);
  memory_.assign(count + 1, 0);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t products = sizes.products.empty() ? sizes.layers[i] : sizes.products[i];
    read_[i + 1] = read_[i] + static_cast<double>(sizes.layers[i]);
    products_[i + 1] = products_[i] + static_cast<double>(products);
    weights_[i + 1] = weights_[i] + sizes.layers[i];
    memory_[i + 1] = memory_[i] + (sizes.memory.empty() ? 0 : sizes.MemoryOf(static_cast<int>(i)));
  }
}

void RingSearch::MakeBounds() {
  for (size_t m = 0; m < b_.members.size(); ++m) {
    for (int begin = 0; begin < layers_; ++begin) {
      for (int end = begin + 1; end <= layers_; ++end) bounds_.push_back(StageSeconds(m, {begin, end}));
    }
    for (size_t to = 0; to < b_.members.size(); ++to) {
      if (to != m) bounds_.push_back(Transfer(m, to));
    }
  }
  std::sort(bounds_.begin(), bounds_.end());
  bounds_.erase(std::unique(bounds_.begin(), bounds_.end()), bounds_.end());
}

double RingSearch::StageSeconds(size_t member, LayerRange layers) const {
  const RatedMember& m = b_.members[member];
  const auto begin = static_cast<size_t>(layers.begin), end = static_cast<size_t>(layers.end);
  // A step reads every byte of a stage once but for the embedding, of which it reads its rows.
  double bytes = read_[end] - read_[begin], products = products_[end] - products_[begin];
  if (layers.end == layers_) {
    bytes += static_cast<double>(b_.sizes.last);
    products += static_cast<double>(b_.sizes.products.empty() ? b_.sizes.last : b_.sizes.last_products);
  }
  const double reading = bytes / m.speed.memory_bytes_per_second;
  const double computing = 2 * b_.rows * products / m.speed.operations_per_second;
  return m.slowdown * std::max(reading, computing);
}

bool RingSearch::Fits(size_t member, LayerRange layers) const {
  const PlanMember& m = b_.members[member].member;
  if (m.disk == 0 && m.memory == 0) return true;
  const LayerRange both{std::max(layers.begin, m.holds.begin), std::min(layers.end, m.holds.end)};
  const auto sum = [](const std::vector<uint64_t>& ends, LayerRange r) -> uint64_t {
    return r.size() <= 0 ? 0 : ends[static_cast<size_t>(r.end)] - ends[static_cast<size_t>(r.begin)];
  };
  const auto needed = [&](const std::vector<uint64_t>& ends) {
    return sum(ends, layers) + sum(ends, m.holds) - sum(ends, both);
  };
  const bool holds = m.holds.size() > 0;
  const uint64_t ends = EndBytes(b_.sizes, layers.begin == 0 || (holds && m.holds.begin == 0),
                                 layers.end == layers_ || (holds && m.holds.end == layers_));
  const uint64_t weights = needed(weights_) + ends;
  const bool fetches = weights > (holds ? RangeBytes(b_.sizes, m.holds) : 0);
  return (m.disk == 0 || !fetches || weights <= m.disk) && (m.memory == 0 || weights + needed(memory_) <= m.memory);
}

double RingSearch::Transfer(size_t from, size_t to) const {
  if (b_.hops.empty() || from == coordinator() || to == coordinator()) return 0;
  const double rate = b_.hops[from][to].bytes_per_second;
  return rate > 0 ? b_.rows * b_.row_bytes / rate : 0;
}

double RingSearch::Hop(size_t from, size_t to) const {
  if (b_.hops.empty()) return 0;
  const HopSpeed& hop = b_.hops[from][to];
  return hop.reached ? hop.latency + Transfer(from, to) : kNever;
}

Candidate RingSearch::Bounded(const std::vector<size_t>& order, double most) const {
  const size_t n = order.size(), width = static_cast<size_t>(layers_) + 1;
  // loop[i][e]: the shortest way through `stages` stages to the end of layer e - 1, the last of them at order[i].
  struct Step {
    double loop = kNever;
    size_t from = 0;  // of order
    int begin = 0;
  };
  std::vector<std::vector<Step>> steps;                         // by stages - 1, then [i * width + e]
  const auto must_between = [&](size_t after, size_t before) {  // places, both excluded
    for (size_t i = after; i < before; ++i) {
      if (b_.members[order[i]].must) return true;
    }
    return false;
  };
  Candidate best;
  size_t best_stages = 0, best_last = 0;
  const size_t all = std::min(n, static_cast<size_t>(layers_));
  for (size_t stages = 1; stages <= all; ++stages) {
    std::vector<Step> now(n * width);
    bool any = false;
    for (size_t i = stages - 1; i < n; ++i) {
      // The best way to each layer at which this stage may begin.
      std::vector<Step> in(width);
      if (stages == 1) {
        if (!must_between(0, i)) in[0] = {.loop = Hop(coordinator(), order[i])};
      } else {
        for (size_t j = stages - 2; j < i; ++j) {
          if (must_between(j + 1, i) || Transfer(order[j], order[i]) > most) continue;
          const double hop = Hop(order[j], order[i]);
          for (int e = 1; e < layers_; ++e) {
            const double loop = steps.back()[j * width + static_cast<size_t>(e)].loop + hop;
            if (loop < in[static_cast<size_t>(e)].loop) in[static_cast<size_t>(e)] = {.loop = loop, .from = j};
          }
        }
      }
      for (int begin = 0; begin < layers_; ++begin) {
        const Step& before = in[static_cast<size_t>(begin)];
        if (before.loop == kNever || !b_.sizes.CanBegin(begin)) continue;
        for (int end = begin + 1; end <= layers_; ++end) {
          const double takes = StageSeconds(order[i], {begin, end});
          if (takes > most || !Fits(order[i], {begin, end})) break;
          Step& to = now[i * width + static_cast<size_t>(end)];
          if (before.loop + takes >= to.loop) continue;
          to = {.loop = before.loop + takes, .from = before.from, .begin = begin};
          any = true;
        }
      }
      const double whole = now[i * width + width - 1].loop + Hop(order[i], coordinator());
      if (whole == kNever || must_between(i + 1, n) || whole / InFlight(stages) >= best.seconds) continue;
      best.seconds = whole / InFlight(stages);
      best_stages = stages;
      best_last = i;
    }
    steps.push_back(std::move(now));
    if (!any) break;
  }
  size_t at = best_last, end = width - 1;
  for (size_t stages = best_stages; stages > 0; --stages) {
    const Step& step = steps[stages - 1][at * width + end];
    best.ring.push_back({order[at], {step.begin, static_cast<int>(end)}});
    at = step.from;
    end = static_cast<size_t>(step.begin);
  }
  std::reverse(best.ring.begin(), best.ring.end());
  return best;
}

Candidate RingSearch::Solve(const std::vector<size_t>& order, double limit) const {
  // The larger the bound, the shorter the loop: the best is where they meet.
  size_t low = 0, high = bounds_.size();
  if (limit < kNever) {
    high = static_cast<size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), limit) - bounds_.begin());
    if (high == 0 || Bounded(order, bounds_[high - 1]).seconds >= limit) return {};
  }
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (Bounded(order, bounds_[middle]).seconds <= bounds_[middle]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  Candidate best;
  for (size_t i : {low, low - 1}) {
    if (i >= bounds_.size()) continue;
    Candidate found = Bounded(order, bounds_[i]);
    if (found.ring.empty()) continue;
    found.seconds = TimeOf(b_, found.ring).seconds;
    if (found.seconds < best.seconds) best = std::move(found);
  }
  return best;
}

void Improve(Candidate* best, Candidate found) {
  if (found.seconds < best->seconds) *best = std::move(found);
}

Status NoRing(const Balance& balance) {
  return ResourceExhausted("no ring of {} holds {}: they lack memory, or can't reach each other",
                           Counted(balance.members.size(), "member"),
                           Counted(static_cast<uint64_t>(balance.sizes.num_layers()), "layer"));
}

}  // namespace

RingTime TimeOf(const Balance& balance, const std::vector<RingStage>& ring) {
  const RingSearch search(balance);
  RingTime time;
  double loop = 0, slowest_hop = 0;
  size_t from = search.coordinator();
  for (const RingStage& s : ring) {
    if (!search.Fits(s.member, s.layers)) return time;
    time.stages.push_back(search.StageSeconds(s.member, s.layers));
    if (time.stages.back() > time.stages[time.slowest]) time.slowest = time.stages.size() - 1;
    loop += search.Hop(from, s.member) + time.stages.back();
    slowest_hop = std::max(slowest_hop, search.Transfer(from, s.member));
    from = s.member;
  }
  if (ring.empty()) return time;
  time.loop = loop + search.Hop(from, search.coordinator());
  time.seconds = std::max({time.stages[time.slowest], slowest_hop, time.loop / InFlight(ring.size())});
  return time;
}

void FillUnknown(std::vector<RatedMember>* members) {
  for (double MachineSpeed::*part : {&MachineSpeed::memory_bytes_per_second, &MachineSpeed::operations_per_second}) {
    double sum = 0;
    size_t known = 0;
    for (const RatedMember& m : *members) {
      sum += m.speed.*part;
      known += m.speed.*part > 0;
    }
    const double mean = known > 0 ? sum / static_cast<double>(known) : 1e10;
    for (RatedMember& m : *members) {
      if (!(m.speed.*part > 0)) m.speed.*part = mean;
    }
  }
}

StatusOr<std::vector<RingStage>> BestRing(const Balance& balance, size_t settled) {
  RingSearch search(balance);
  search.MakeBounds();
  std::vector<size_t> order(balance.members.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Candidate best = search.Solve(order, kNever);
  if (order.size() <= kAllOrders) {
    while (std::next_permutation(order.begin(), order.end())) Improve(&best, search.Solve(order, best.seconds));
  } else {
    order.resize(std::min(settled, order.size()));
    for (size_t newcomer = order.size(); newcomer < balance.members.size(); ++newcomer) {
      std::vector<size_t> best_order;
      Candidate here;
      for (size_t place = order.size() + 1; place-- > 0;) {  // the end first
        std::vector<size_t> with = order;
        with.insert(with.begin() + static_cast<std::ptrdiff_t>(place), newcomer);
        Candidate found = search.Solve(with, here.seconds);
        if (!best_order.empty() && found.seconds >= here.seconds) continue;
        here = std::move(found);
        best_order = std::move(with);
      }
      order = std::move(best_order);
      const bool whole = std::none_of(balance.members.begin() + static_cast<std::ptrdiff_t>(newcomer) + 1,
                                      balance.members.end(), [](const RatedMember& m) { return m.must; });
      if (whole) Improve(&best, std::move(here));
    }
    // Then two places are exchanged, as long as that helps.
    for (bool better = true; better;) {
      better = false;
      for (size_t i = 0; i < order.size(); ++i) {
        for (size_t k = i + 1; k < order.size(); ++k) {
          std::swap(order[i], order[k]);
          Candidate found = search.Solve(order, best.seconds);
          const bool worth = found.seconds < best.seconds * kWorth;
          better |= worth;
          if (worth) best = std::move(found);
          if (!worth) std::swap(order[i], order[k]);
        }
      }
    }
  }
  if (best.ring.empty()) return NoRing(balance);
  return std::move(best.ring);
}

StatusOr<std::vector<RingStage>> BestSplit(const Balance& balance) {
  Balance all = balance;
  for (RatedMember& m : all.members) m.must = true;
  std::vector<size_t> order(all.members.size());
  std::iota(order.begin(), order.end(), size_t{0});
  RingSearch search(all);
  search.MakeBounds();
  Candidate best = search.Solve(order, kNever);
  if (best.ring.empty()) return NoRing(balance);
  return std::move(best.ring);
}

std::vector<Assignment> AssignmentsOf(const Balance& balance, const std::vector<RingStage>& ring) {
  std::vector<Assignment> out;
  for (const RingStage& s : ring) {
    const PlanMember& m = balance.members[s.member].member;
    out.push_back({m.name, m.address, s.layers});
  }
  return out;
}

}  // namespace gyre
