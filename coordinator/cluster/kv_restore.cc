#include "coordinator/cluster/kv_restore.h"

#include <algorithm>
#include <utility>

namespace gyre {

std::vector<LayerSource> KvRestorePlan::SourcesFor(LayerRange layers, const std::string& reader) const {
  return *RestoreSources(lost, layers, reader, survivors);
}

std::optional<uint64_t> KvRestorePlan::Step(const std::map<std::string, std::optional<uint64_t>>& replicas) const {
  uint64_t step = UINT64_MAX;
  for (const StagePlan& s : lost.stages) {
    if (survivors.count(s.worker()) > 0) continue;
    const auto replica = replicas.find(s.replicated_by);
    if (replica == replicas.end() || !replica->second) return std::nullopt;
    step = std::min(step, *replica->second);
  }
  return step;
}

void KvRestore::TakeOver(Plan plan, uint64_t cache_namespace, std::map<std::string, uint64_t> ids) {
  for (StagePlan& s : plan.stages) s.replicated_by.clear();
  kept_ = Kept{.plan = std::move(plan), .cache_namespace = cache_namespace, .ids = std::move(ids), .taken_over = true};
}

StatusOr<KvRestorePlan> KvRestore::Begin(bool whole, uint64_t cache_namespace,
                                         const std::map<std::string, uint64_t>& live, int num_layers) {
  if (!kept_) return NotFound("there are no pages of a lost plan");
  KvRestorePlan out{.lost = kept_->plan, .survivors = {}, .taken_over = kept_->taken_over};
  for (const auto& [name, id] : kept_->ids) {
    const auto member = live.find(name);
    if (member != live.end() && member->second == id) out.survivors.insert(name);
  }
  const char* why = nullptr;
  if (!whole) why = "the KV cache is cut";
  if (cache_namespace != kept_->cache_namespace)
    why = "with other stages its content would have been rounded otherwise";
  if (!RestoreSources(kept_->plan, {0, num_layers}, "", out.survivors)) why = "a stage is lost with its replica";
  if (why == nullptr) return out;
  kept_.reset();
  return FailedPrecondition("the pages of plan {} are not restored: {}", out.lost.epoch.number, why);
}

}  // namespace gyre
