#include "coordinator/cluster/plan_memory.h"

#include <algorithm>

#include "base/describe_bytes.h"

namespace gyre {
namespace {

// The memory that a member needs while `next` replaces its present layers.
struct Need {
  LayerRange next, holds;
  MemoryCounts held;
  uint64_t weights = 0;     // bytes
  std::vector<int> layers;  // of both
  LayerRange replicas, replicas_next;
  // At most, with `counts` in the next plan. A replica is dropped when the next one begins.
  uint64_t Memory(const ModelSizes& sizes, const MemoryCounts& counts) const {
    const auto of = [&sizes](LayerRange range, const MemoryCounts& with) {
      uint64_t sum = 0;
      for (int i = range.begin; i < range.end; ++i) sum += sizes.MemoryOf(i, with);
      return sum;
    };
    const uint64_t now = of(replicas, held[kPageGroup] > 0 ? held : counts), later = of(replicas_next, counts);
    if (counts[kPageGroup] < held[kPageGroup]) return std::max(of(holds, held) + now, of(next, counts) + later);
    uint64_t sum = 0;
    for (int layer : layers) sum += sizes.MemoryOf(layer, counts);
    return sum + std::max(now, later);
  }
};
Need NeedOf(const ModelSizes& sizes, const PlanMember& member, const Plan& next) {
  Need need{.next = {}, .holds = member.holds, .held = member.held, .layers = {}};
  const LayerRange held = member.holds;
  need.replicas = member.replicas;
  need.replicas_next = ReplicatedBy(next, member.name);
  const int stage = next.StageOf(member.name);
  if (stage >= 0) need.next = next.stages[static_cast<size_t>(stage)].layers;
  const int layers = sizes.num_layers();
  for (int i = 0; i < layers; ++i) {
    if (!(i >= need.next.begin && i < need.next.end) && !(i >= held.begin && i < held.end)) continue;
    need.weights += sizes.layers[static_cast<size_t>(i)];
    need.layers.push_back(i);
  }
  auto is_first = [](LayerRange r) { return r.size() > 0 && r.begin == 0; };
  auto is_last = [layers](LayerRange r) { return r.size() > 0 && r.end == layers; };
  const bool first = is_first(need.next) || is_first(held), last = is_last(need.next) || is_last(held);
  need.weights += EndBytes(sizes, first, last);
  return need;
}

}  // namespace

uint32_t FitBlocks(const ModelSizes& sizes, const std::vector<PlanMember>& members, const Plan& next, bool reserve) {
  const auto layers = static_cast<uint64_t>(sizes.num_layers());
  // The bytes that a member lacks with this number of blocks. What more it might get are layers of the largest weights
  // and of the mean memory.
  const auto fits = [&](const PlanMember& m, const Need& need, uint32_t blocks) {
    const MemoryCounts counts = sizes.counts.Shrunk(blocks);
    const uint64_t more = reserve ? (static_cast<uint64_t>(need.next.size()) + 3) / 4 : 0;
    uint64_t bytes = need.weights + need.Memory(sizes, counts);
    if (more > 0) {
      uint64_t all = 0;
      for (int i = 0; i < sizes.num_layers(); ++i) all += sizes.MemoryOf(i, counts);
      bytes += more * (*std::max_element(sizes.layers.begin(), sizes.layers.end()) + (all + layers - 1) / layers);
    }
    return bytes <= m.memory;
  };
  uint32_t fit = sizes.counts[kPageGroup];
  for (const PlanMember& m : members) {
    if (m.memory == 0 || next.StageOf(m.name) < 0) continue;
    const Need need = NeedOf(sizes, m, next);
    if (fits(m, need, fit)) continue;
    uint32_t low = 0, high = fit;  // `low` fits, or is 0
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      (fits(m, need, middle) ? low : high) = middle;
    }
    fit = low;
  }
  return fit;
}

uint64_t PeakBytes(const ModelSizes& sizes, const PlanMember& member, const Plan& next) {
  const Need need = NeedOf(sizes, member, next);
  return need.weights + need.Memory(sizes, sizes.counts);
}

std::vector<Shortage> FindShortages(const ModelSizes& sizes, const std::vector<PlanMember>& members, const Plan& next) {
  std::vector<Shortage> out;
  for (const PlanMember& m : members) {
    if (next.StageOf(m.name) < 0) continue;
    const Need need = NeedOf(sizes, m, next);
    const std::string beside = m.holds.size() > 0 ? fmt::format(" beside {} meanwhile", FormatRange(m.holds)) : "";
    // Weights that the worker has are not fetched again, even if its disk became too small for them.
    const bool fetches = need.weights > (m.holds.size() > 0 ? RangeBytes(sizes, m.holds) : 0);
    if (m.disk != 0 && fetches && need.weights > m.disk) {
      out.push_back(
          {m.name, m.memory,
           ResourceExhausted("{} fetches its weights: {}{} take {} and its disk has room for {}", m.name,
                             LayersText(need.next), beside, DescribeBytes(need.weights), DescribeBytes(m.disk))});
      continue;
    }
    if (m.memory == 0) continue;
    const uint64_t pages = need.Memory(sizes, sizes.counts);
    if (need.weights + pages <= m.memory) continue;
    out.push_back({m.name, m.memory,
                   ResourceExhausted("{} needs {} for {}{} ({} of weights, {} of KV cache) and has {}", m.name,
                                     DescribeBytes(need.weights + pages), LayersText(need.next), beside,
                                     DescribeBytes(need.weights), DescribeBytes(pages), DescribeBytes(m.memory))});
  }
  return out;
}

}  // namespace gyre
