// A simulated member of a cluster: what it answers to the coordinator's commands.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/stage_control.h"
#include "coordinator/cluster/cluster_state.h"

namespace gyre::testing {

using StageAnswer = decltype(StageEvent::what);

// A test can change its behaviour at any time.
struct SimulatedMember {
  MemberInfo info;
  uint64_t id = 0;                                 // of its membership
  Duration delay = std::chrono::milliseconds(10);  // before each answer
  Status load_fault;                               // of every Prepare that gives it layers
  bool reachable = true;                           // at its ring address
  bool silent = false;                             // it answers nothing
  Status restore_fault;                            // its answer to a Prepare that restores
  Status move_fault;                               // its answer to a Move
  bool moves = true;                               // it answers a Move
  std::set<ChangeVerb> deaf;                       // commands that it doesn't answer
  std::map<Epoch, PrepareRequest> prepared;        // at most one
  std::optional<Epoch> loaded;                     // it waits for its links
  LayerRange runs, retired;
  StageDone ready;                       // the answer to the last Prepare
  std::optional<PrepareRequest> ran;     // by which it got what it runs
  uint32_t blocks = 0, next_blocks = 0;  // that its pools may be filled to, and those of what is prepared
  uint64_t stream = 1;                   // of its control connection
  bool dismissed = false;                // its process ends
  // Its replica: of which plan, and up to which step it is whole.
  uint64_t replica_of = 0;
  std::optional<uint64_t> replicated = 100;
  std::vector<BlockId> lacks;              // what it says to be missing of a restore
  std::map<std::string, LinkSpeed> links;  // what it says of its links; others are fast
  bool probes = true;                      // it measures them when it is asked

  // Kept until it is committed; `num_blocks` is the size of the cache.
  void Prepare(const PrepareRequest& request, uint32_t num_blocks);
  // The bytes that it holds at most from now until the prepared stage runs and its own one is gone.
  uint64_t NeedsFor(const PrepareRequest& request, const ModelSizes& sizes) const;
  // The answer to a command other than Prepare. nullopt: it gives none.
  std::optional<StageAnswer> Tell(const Change& change);

 private:
  std::optional<StageAnswer> Move() const;
  StageAnswer Commit(Epoch epoch);
  void Release(Epoch epoch);
};

// What a process that measures links to `peers` says: these, or fast ones.
StageProbed MeasureLinks(const std::map<std::string, LinkSpeed>& links, const std::vector<WeightSource>& peers);

}  // namespace gyre::testing
