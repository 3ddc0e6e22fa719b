#include "coordinator/cluster/plan_moves.h"

#include <algorithm>

#include "coordinator/cluster/plan_memory.h"

namespace gyre {
namespace {

bool Has(LayerRange range, int layer) { return layer >= range.begin && layer < range.end; }

const PlanMember* FindMember(const std::vector<PlanMember>& members, const std::string& name) {
  const auto it = std::find_if(members.begin(), members.end(), [&name](const PlanMember& m) { return m.name == name; });
  return it == members.end() ? nullptr : &*it;
}

// The worker that runs the layer, or "".
std::string OwnerOf(const Plan* plan, int layer) {
  if (plan == nullptr) return "";
  for (const StagePlan& s : plan->stages) {
    if (Has(s.layers, layer)) return s.worker();
  }
  return "";
}

// Counts what one member loads for its moves: an end of the model once.
class Loading {
 public:
  Loading(const ModelSizes& sizes, LayerRange holds)
      : sizes_(sizes),
        holds_(holds),
        first_(Has(holds, 0)),
        last_(holds.size() > 0 && Has(holds, sizes.num_layers() - 1)) {}
  uint64_t Take(LayerRange layers) {
    uint64_t bytes = 0;
    for (int i = layers.begin; i < layers.end; ++i) {
      if (!Has(holds_, i)) bytes += sizes_.layers[static_cast<size_t>(i)];
    }
    const bool first = first_ || layers.begin == 0, last = last_ || layers.end == sizes_.num_layers();
    bytes += EndBytes(sizes_, first, last) - EndBytes(sizes_, first_, last_);
    first_ = first, last_ = last;
    return bytes;
  }

 private:
  const ModelSizes& sizes_;
  const LayerRange holds_;
  bool first_, last_;
};

}  // namespace

std::vector<LayerMove> MovesBetween(const ModelSizes& sizes, const Plan* runs, const std::vector<PlanMember>& members,
                                    const Plan& next, const MemoryCounts& live) {
  std::vector<LayerMove> out;
  for (const StagePlan& stage : next.stages) {
    const std::string& to = stage.worker();
    const PlanMember* member = FindMember(members, to);
    Loading loading(sizes, member == nullptr ? LayerRange{} : member->holds);
    for (int begin = stage.layers.begin, end; begin < stage.layers.end; begin = end) {
      const std::string from = OwnerOf(runs, begin);
      for (end = begin + 1; end < stage.layers.end && OwnerOf(runs, end) == from;) ++end;
      if (from == to) continue;
      LayerMove move{.layers = {begin, end}, .from = from, .to = to, .weight_bytes = loading.Take({begin, end})};
      for (int i = begin; i < end && !from.empty(); ++i) move.kv_bytes += sizes.MemoryOf(i, live);
      out.push_back(std::move(move));
    }
  }
  return out;
}

std::vector<MemberShare> SharesOf(const ModelSizes& sizes, const Plan* runs, const std::vector<PlanMember>& members,
                                  const Plan& next) {
  std::vector<MemberShare> out;
  auto add = [&](const std::string& name, std::optional<LayerRange> layers) {
    MemberShare share{.name = name, .layers = layers};
    if (layers) {
      share.weight_bytes = RangeBytes(sizes, *layers);
      share.kv_bytes = sizes.MemoryOf(*layers);
    }
    if (const PlanMember* m = FindMember(members, name)) {
      share.peak_bytes = PeakBytes(sizes, *m, next);
      share.memory_bytes = m->memory;
    }
    out.push_back(std::move(share));
  };
  for (const StagePlan& s : next.stages) add(s.worker(), s.layers);
  if (runs == nullptr) return out;
  for (const StagePlan& s : runs->stages) {
    if (next.StageOf(s.worker()) < 0) add(s.worker(), std::nullopt);
  }
  return out;
}

}  // namespace gyre
