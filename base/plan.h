// Who owns which layers: immutable, numbered by epoch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/wire_type.h"

namespace gyre {

// One member's share of a stage. shard i of n; n is 1 until tensor parallelism comes.
struct StageMember {
  std::string worker;
  std::string address;  // of its ring port; "" = in the coordinator's process
  int shard = 0;
  int shards = 1;
  bool operator==(const StageMember&) const = default;
};

// A contiguous layer range. The first stage also embeds, the last applies the final norm and the output head.
struct StagePlan {
  LayerRange layers;
  bool first = false;
  bool last = false;
  std::vector<StageMember> members;
  const std::string& worker() const { return members.front().worker; }
  bool operator==(const StagePlan&) const = default;
};

struct Plan {
  Epoch epoch;
  uint32_t model = 0;
  uint64_t model_hash = 0;
  int num_layers = 0;
  std::string coordinator_address;  // of its ring port; "" without sockets
  RingKey key{};
  WireType wire = WireType::kF32;  // of the activations between its stages
  std::vector<StagePlan> stages;   // ring order = layer order

  // kInvalidArgument unless the ranges tile [0, num_layers) in order, none empty, first and last set right, no
  // worker has two, and wire is a type of activations.
  Status Validate() const;
  // Index of the worker's stage, or -1.
  int StageOf(const std::string& worker) const;
  // Where hop `hop` ends: hop i leads from stage i-1 to stage i, hop 0 from and hop n to the coordinator.
  const std::string& HopAddress(size_t hop) const;
};

// One worker's range, as plans are made of.
struct Assignment {
  std::string worker;
  std::string address;
  LayerRange layers;
  bool operator==(const Assignment&) const = default;
};

// The stages of a plan from ranges in ring order; not yet validated.
std::vector<StagePlan> MakeStages(const std::vector<Assignment>& assignments);

// "0-7,8-11,12-15": both ends inclusive, as users write it.
std::string FormatRanges(const Plan& plan);
std::string FormatRange(LayerRange range);

}  // namespace gyre
