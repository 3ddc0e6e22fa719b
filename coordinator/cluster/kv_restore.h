// The KV pages that outlive a lost plan: of which plan there are some, at which members, and from whom the next plan
// restores them (docs/faults.md#replicas). Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/plan.h"
#include "base/status.h"
#include "coordinator/cluster/planner.h"
#include "coordinator/cluster/replicas.h"

namespace gyre {

// A restore that a plan change carries out: what is lost, and who has it.
struct KvRestorePlan {
  Plan lost;
  std::set<std::string> survivors;  // members that are as they were when the lost plan served
  bool taken_over = false;          // the coordinator's predecessor had the lost plan, so that survivors are asked, too

  // The sources of the layers' pages for this reader. REQUIRES: KvRestore::Begin chose the survivors.
  std::vector<LayerSource> SourcesFor(LayerRange layers, const std::string& reader) const;
  // Whether the reader must copy pages.
  bool Copies(LayerRange layers, const std::string& reader) const {
    return taken_over || !SourcesFor(layers, reader).empty();
  }
  // The step up to which all replicas that are needed are whole; UINT64_MAX: none is needed. nullopt: one of them is
  // not. `replicas`: the step up to which each holder's is.
  std::optional<uint64_t> Step(const std::map<std::string, std::optional<uint64_t>>& replicas) const;
};

// Not thread-safe.
class KvRestore {
 public:
  // A plan serves whose pages may be restored when it is lost. `ids`: the memberships of its members.
  void Keep(const Plan& plan, uint64_t cache_namespace, std::map<std::string, uint64_t> ids) {
    kept_ = Kept{.plan = plan, .cache_namespace = cache_namespace, .ids = std::move(ids)};
  }
  // The coordinator's predecessor had the plan: its members know what they have of it, and there are no replicas.
  void TakeOver(Plan plan, uint64_t cache_namespace, std::map<std::string, uint64_t> ids);
  // No pages are left.
  void Forget() { kept_.reset(); }
  // This plan is lost; pages of another one are left over from before and of no use.
  void Lost(Epoch epoch) {
    if (kept_ && kept_->plan.epoch != epoch) kept_.reset();
  }
  // The member drops what it holds. While no plan serves, its pages may be the ones that are missed.
  void Drops(const std::string& member) {
    if (kept_ && kept_->ids.count(member) > 0) kept_.reset();
  }

  bool possible() const { return kept_.has_value(); }
  // The layers whose replica this member holds; empty: none.
  LayerRange ReplicaAt(const std::string& member) const {
    return kept_ ? ReplicatedBy(kept_->plan, member) : LayerRange{};
  }

  // A plan is made in place of the lost one. `whole`: its cache is as large as it was. `cache_namespace`: of its ring.
  // `live`: the memberships of those members that may be asked for pages. Otherwise the status says why nothing is
  // restored, and the pages are given up.
  StatusOr<KvRestorePlan> Begin(bool whole, uint64_t cache_namespace, const std::map<std::string, uint64_t>& live,
                                int num_layers);

 private:
  struct Kept {
    Plan plan;
    uint64_t cache_namespace = 0;
    std::map<std::string, uint64_t> ids;  // of its members
    bool taken_over = false;
  };
  std::optional<Kept> kept_;  // of the plan that serves, or where there is none of the one before
};

}  // namespace gyre
