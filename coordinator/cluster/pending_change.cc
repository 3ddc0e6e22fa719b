#include "coordinator/cluster/pending_change.h"

#include <algorithm>

namespace gyre {

PrepareRequest PendingChange::RequestFor(const std::string& worker, const Plan* runs, const ClusterPolicy& policy,
                                         const CacheSize& cache) const {
  PrepareRequest request{.plan = plan,
                         .stage = plan.StageOf(worker),
                         .block_size = policy.block_size,
                         .memory = whole.value_or(cache.whole()),
                         .in_use = whole.value_or(cache.CutTo(num_blocks)),
                         .fresh = BeginsAnew(cache.num_blocks()),
                         .kv_type = policy.kv_type,
                         .mtp = policy.mtp,
                         .sources = {}};
  if (restore) request.restores = restore->lost.epoch.number;
  if (request.stage < 0 || request.fresh) return request;
  // Where the pages of its new layers are now.
  const LayerRange range = plan.stages[static_cast<size_t>(request.stage)].layers;
  if (restore) {
    request.sources = restore->SourcesFor(range, worker);
  } else if (runs != nullptr) {
    for (const StagePlan& s : runs->stages) {
      const LayerRange common{std::max(range.begin, s.layers.begin), std::min(range.end, s.layers.end)};
      if (common.size() <= 0 || s.worker() == worker) continue;
      request.sources.push_back({.layers = common, .worker = s.worker(), .address = s.members[0].address});
    }
  }
  return request;
}

std::vector<Participant> ParticipantsOf(const Plan* runs, const Plan& next, const KvRestorePlan* restore) {
  std::map<std::string, Participant> by_name;
  if (runs != nullptr) {
    for (const StagePlan& s : runs->stages) by_name[s.worker()].in_old = true;
  } else if (restore != nullptr) {
    for (const StagePlan& s : next.stages) {
      for (const LayerSource& source : restore->SourcesFor(s.layers, s.worker())) by_name[source.worker].in_old = true;
    }
  }
  for (size_t i = 0; i < next.stages.size(); ++i) {
    const StagePlan& s = next.stages[i];
    const int before = runs == nullptr ? -1 : runs->StageOf(s.worker());
    const LayerRange had = before < 0 ? LayerRange{} : runs->stages[static_cast<size_t>(before)].layers;
    Participant& p = by_name[s.worker()];
    p.stage = static_cast<int>(i);
    p.copies = runs != nullptr && (s.layers.begin < had.begin || s.layers.end > had.end);
    if (restore != nullptr) p.copies = restore->Copies(s.layers, s.worker());
  }
  std::vector<Participant> out;
  for (auto& [name, p] : by_name) {
    p.worker = name;
    out.push_back(p);
  }
  return out;
}

}  // namespace gyre
