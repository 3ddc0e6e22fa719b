#include "coordinator/cluster/ring_bits.h"

#include <algorithm>
#include <set>

#include "fmt/format.h"
#include "xxhash.h"

namespace gyre {

uint64_t RingCacheNamespace(const Plan& plan, const Roster& roster, const ClusterPolicy& policy) {
  std::string text = fmt::format("{} {} {}", WireTypeName(plan.wire), KvTypeName(policy.kv_type), policy.exact);
  std::string before;
  for (const StagePlan& s : plan.stages) {
    const MemberInfo& info = roster.At(s.worker()).info;
    const std::string computes = fmt::format("{}/{}", info.isa, info.version);
    const bool same = plan.wire == WireType::kF32 && computes == before && !s.first;
    if (!same) text += fmt::format(" {} {}", s.layers.begin, computes);
    before = computes;
  }
  return XXH3_64bits(text.data(), text.size());
}

bool PrefillMatchesDecode(const Plan& plan, const Roster& roster, const ClusterPolicy& policy) {
  if (policy.exact) return true;
  return std::all_of(plan.stages.begin(), plan.stages.end(), [&roster](const StagePlan& s) {
    const Member* const m = roster.Find(s.worker());
    return m == nullptr || m->info.prefill_matches_decode;
  });
}

std::string ReplayNote(const Roster& roster, const ClusterPolicy& policy) {
  if (policy.wire != WireType::kF32) {
    return fmt::format("texts may change where a worker is lost, as activations are rounded ({})",
                       WireTypeName(policy.wire));
  }
  std::set<std::string> isas, versions;
  for (const auto& [name, m] : roster.members()) {
    isas.insert(m.info.isa);
    versions.insert(m.info.version);
  }
  const auto several = [](const char* what, const std::set<std::string>& names) {
    return fmt::format("texts may change where a worker is lost, as members {} ({})", what, fmt::join(names, ", "));
  };
  if (isas.size() > 1) return several("compute with several instruction sets", isas);
  if (versions.size() > 1) return several("run several versions of Gyre", versions);
  return "";
}

}  // namespace gyre
