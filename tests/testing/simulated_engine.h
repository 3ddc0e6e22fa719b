// The engine of a simulated cluster: its ring, what it is told, and whether that fits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/cluster/cluster_state.h"

namespace gyre::testing {

class SimulatedEngine {
 public:
  explicit SimulatedEngine(const ClusterPolicy& policy);

  // What the cluster tells it; an error: it should not.
  Status Take(const DrainEngine& a, Deadline now);
  Status Take(const RestoreCache& a);
  Status Take(const ResumeOldRing& a, Deadline now);
  Status Take(const ResumeNewRing& a);
  Status Take(const RefuseRequests& a);
  Status Take(const AwaitRing& a);
  void Take(const EndRing&) { calls.push_back("break"); }
  void Take(const GrowCache& a) { calls.push_back(fmt::format("grow {}", a.num_blocks)); }
  void Take(const ShrinkCache& a) { calls.push_back(fmt::format("{} {}", a.whole ? "cache" : "shrink", a.num_blocks)); }

  // What happens to it. All steps have come back after a DrainEngine: returns whether they have.
  bool EndDrain();
  // Returns the ring that breaks, once for each.
  std::optional<Epoch> BreakRing();

  std::optional<Epoch> ring() const { return ring_; }
  bool has_whole_ring() const { return ring_ && !ring_broken_; }
  bool stopped() const { return draining_ && !ring_broken_; }  // by a DrainEngine
  // The number of the plan whose pages may be restored: the last one that served. 0: none is.
  uint64_t restorable() const;

  bool drains = true;              // set by tests: steps come back after a DrainEngine
  std::vector<std::string> calls;  // as "drain", "old", "new 3", "shrink 4", "refuse", "await"
  std::vector<Status> losses;      // why requests are refused or wait
  bool crashed = false;            // of the last loss
  Deadline awaited_since{};        // likewise
  bool replicated = false;         // likewise: the engine keeps its cache
  uint64_t cache_namespace = 0;    // of the last ring
  bool own_member = false;         // likewise
  std::vector<BlockId> missing;    // likewise, of the cache
  uint64_t step_floor = 0;         // likewise

 private:
  const ClusterPolicy policy_;
  std::optional<Epoch> ring_;
  std::optional<Epoch> last_ring_, restored_;
  bool served_ = false;
  bool ring_broken_ = false, draining_ = false, drained_ = false;
  Deadline drain_started_{};
};

}  // namespace gyre::testing
