// A plan: the layers that each member owns. Immutable and numbered by its epoch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/transport.h"
#include "base/wire_type.h"

namespace gyre {

// One member's share of a stage: shard i of n. n is always 1, as there is no tensor parallelism yet.
struct StageMember {
  std::string worker;
  std::string address;  // of its ring port (base/ring_address.h); "" = in the coordinator's process
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
  std::string replicated_by;  // the worker of another stage that keeps copies of this one's pages; "" = nobody does
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
  WireType wire = WireType::kF32;          // type of the activations between stages
  Transport transport = Transport::kAuto;  // the cluster's preference for links
  std::vector<StagePlan> stages;           // ring order = layer order

  // kInvalidArgument unless the ranges tile [0, num_layers) in order, no range is empty, `first` and `last` are set
  // correctly, every worker has one stage, `wire` is a type of activations, and `transport` is a valid choice.
  Status Validate() const;
  bool operator==(const Plan&) const = default;
  // The index of the worker's stage, or -1.
  int StageOf(const std::string& worker) const;
  // The address at which a hop ends: hop i leads from stage i - 1 to stage i; hop 0 begins and hop n ends at the
  // coordinator.
  const std::string& HopAddress(size_t hop) const;
};

// A secret for the links of one plan, or for those that carry weights.
RingKey RandomRingKey();

// The layer range of one worker, from which plans are made.
struct Assignment {
  std::string worker;
  std::string address;
  LayerRange layers;
  bool operator==(const Assignment&) const = default;
};

// The stages of a plan from ranges in ring order. Does not validate them.
std::vector<StagePlan> MakeStages(const std::vector<Assignment>& assignments);

// "0-7,8-11,12-15": ranges as users write them, with both ends included.
std::string FormatRanges(const Plan& plan);
// "a=0-7,b=8-11", in the form that a resize takes.
std::string FormatNamedRanges(const Plan& plan);
std::string FormatRange(LayerRange range);
// "layers 0-3", or "layer 3".
std::string LayersText(LayerRange range);

}  // namespace gyre
