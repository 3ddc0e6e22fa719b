// A replica of a SimulatedStage's units, which it copies in rounds.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "tests/testing/simulated_stage.h"

namespace gyre::testing {

class SimulatedReplica {
 public:
  // A part of a round, up to `most` units: each group of units is asked for what became full since the round before,
  // and steps may be executed between any two of them.
  void Copy(const SimulatedStage& stage, int most);
  // Up to this step the replica is whole.
  uint64_t whole() const { return whole_; }
  const SimulatedStage::Unit* Find(SimulatedStage::Place unit) const;
  // A ring of another plan: the replica keeps what it has, and is not whole before a round is over.
  void ChangeRing();
  void Forget();

 private:
  struct Group {
    uint64_t since = 0, next_since = 0;
    std::map<BlockId, SimulatedStage::Unit> copies;
  };
  struct Round {
    int group = 0;
    BlockId from = 0;
    uint64_t step = UINT64_MAX;
  };
  std::array<Group, 3> groups_;  // by KV group
  std::optional<Round> round_;   // that is under way
  uint64_t whole_ = 0;
};

}  // namespace gyre::testing
