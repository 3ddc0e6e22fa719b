#include "coordinator/cluster/replicas.h"

#include <algorithm>

namespace gyre {

std::vector<std::optional<size_t>> ReplicaHolders(const std::vector<bool>& local) {
  const size_t n = local.size();
  std::vector<std::optional<size_t>> out(n);
  for (size_t stage = 0; stage < n; ++stage) {
    if (local[stage]) continue;
    for (const bool by_local : {false, true}) {
      for (size_t k = 1; k < n && !out[stage]; ++k) {
        if (local[(stage + k) % n] == by_local) out[stage] = (stage + k) % n;
      }
    }
  }
  return out;
}

std::optional<std::vector<LayerSource>> RestoreSources(const Plan& lost, LayerRange wanted, const std::string& reader,
                                                       const std::set<std::string>& survivors) {
  std::vector<LayerSource> out;
  const auto lives = [&survivors](const std::string& name) { return survivors.count(name) > 0; };
  for (const StagePlan& s : lost.stages) {
    const LayerRange common{std::max(wanted.begin, s.layers.begin), std::min(wanted.end, s.layers.end)};
    if (common.size() <= 0) continue;
    if (lives(s.worker())) {
      if (s.worker() != reader) out.push_back({common, s.worker(), s.members[0].address});
      continue;
    }
    const int holder = lost.StageOf(s.replicated_by);
    if (holder < 0 || !lives(s.replicated_by)) return std::nullopt;
    const StageMember& at = lost.stages[static_cast<size_t>(holder)].members[0];
    out.push_back({common, at.worker, at.address, lost.epoch.number});
  }
  return out;
}

}  // namespace gyre
