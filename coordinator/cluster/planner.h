// The layers of each member: from measured sizes, or from the ranges of a user. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/memory_counts.h"
#include "base/plan.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "model/weights.h"

namespace gyre {

// Sizes in bytes, as far as they decide where layers fit.
struct ModelSizes {
  std::vector<uint64_t> layers;  // weights
  uint64_t first = 0;            // the embedding
  uint64_t last = 0;             // the output matrix, and the layer for drafts with its pages
  uint64_t both = 0;             // both on one stage: a tied one counts once
  // Multiplications that a row costs on each layer, with the experts that it uses, and in the output matrix. Empty: one
  // for each byte.
  std::vector<uint64_t> products;
  uint64_t last_products = 0;
  // The memory of sequences (docs/memory.md): each layer's KV group and the bytes of a unit, 0 where it keeps nothing;
  // and the number of units.
  struct LayerMemory {
    int group = kPageGroup;
    uint64_t unit = 0;
  };
  std::vector<LayerMemory> memory;
  MemoryCounts counts;
  // [layer]: whether it must be on the stage of the layer before it, as layers from it on read the keys and values of
  // layers before it. Empty: none must.
  std::vector<bool> joined;
  int num_layers() const { return static_cast<int>(layers.size()); }
  bool CanBegin(int layer) const { return joined.empty() || !joined[static_cast<size_t>(layer)]; }
  // Bytes of the memory of a layer, of a range, and of the units of one group that are said to be in use.
  uint64_t MemoryOf(int layer) const { return MemoryOf(layer, counts); }
  uint64_t MemoryOf(int layer, const MemoryCounts& of) const {
    const LayerMemory& m = memory[static_cast<size_t>(layer)];
    return m.unit * of[m.group];
  }
  // Bytes of one unit of a kind, in all layers.
  uint64_t UnitBytes(int group) const {
    uint64_t sum = 0;
    for (const LayerMemory& m : memory) sum += m.group == group ? m.unit : 0;
    return sum;
  }
  uint64_t MemoryOf(LayerRange range) const {
    uint64_t sum = 0;
    for (int i = range.begin; i < range.end; ++i) sum += MemoryOf(i);
    return sum;
  }
};

// The sizes of a model's matrices as they lie in the file, and of the memory of sequences.
// `mtp`: with the layer for drafts, which the stage of the output matrix has (kFailedPrecondition: the model has none).
StatusOr<ModelSizes> SizesOf(const Model& model, const MemoryCounts& counts, int block_size, KvType kv_type,
                             bool mtp = false);

struct PlanMember {
  std::string name;
  std::string address;
  bool local = false;
  bool drained = false;                  // it gets no layers, by name neither
  uint64_t memory = 0;                   // 0 = unknown: not checked
  std::optional<LayerRange> preference;  // worker --layers
  LayerRange holds;                      // layers that it keeps, weights and pages, until a next plan serves
  LayerRange replicas;                   // layers whose pages it keeps copies of, until then
  // The units of memory that the members have for `holds`. Where the next plan has fewer blocks, memory begins anew:
  // what is there stays until the plan serves, and only then the new one fills. Otherwise layers that stay keep theirs.
  // No blocks: as many as the next plan.
  MemoryCounts held = {};
  uint64_t disk = 0;  // for weights that it fetches; 0 = not limited
};

// The layers of the plan whose pages this member keeps copies of; empty: none.
LayerRange ReplicatedBy(const Plan& plan, const std::string& worker);

// A resize text is at most this long, in bytes.
inline constexpr size_t kMaxResizeText = 64 << 10;

// Bytes of the embedding and the output matrix, for a member that has the first stage, the last, both or neither.
uint64_t EndBytes(const ModelSizes& sizes, bool first, bool last);
// Bytes of the weights that a range keeps.
uint64_t RangeBytes(const ModelSizes& sizes, LayerRange range);

// Contiguous ranges for `members`, so that the largest share of bytes read per token is smallest; the output matrix
// counts with the last range. Preferences are kept where they do not overlap and the members without one, in their
// order, can share the other layers; those of them for whom no layer is left get none. Where that is impossible,
// preferences do not count. The result is in ring order. kInvalidArgument: more members than layers, none, or all have
// a preference and these leave a gap or overlap or begin where no range can.
StatusOr<std::vector<Assignment>> BalanceLayers(const ModelSizes& sizes, const std::vector<PlanMember>& members);

// The members in an order in which BalanceLayers leaves little to load: those that hold layers in the order of these
// layers, each other one where the member that has the most bytes to load has the fewest, and else behind.
std::vector<PlanMember> OrderByHeld(const ModelSizes& sizes, const std::vector<PlanMember>& members);

// kNotFound with the names that there are.
Status NoSuchWorker(const std::string& name, const std::vector<PlanMember>& members);

// Parses the text of `resize`: ranges "[NAME=]A-B,..." (A alone = A-A, NAME=- = no layers), or boundaries "8 12": the
// first layers of ranges. Unnamed ranges go to members that are neither named nor drained, in join order, local ones
// last. kInvalidArgument (also a text that is too long), kNotFound (a name), kFailedPrecondition (a drained member gets
// layers) with the sentence. The result is not yet checked for gaps (Plan::Validate).
StatusOr<std::vector<Assignment>> ParseResize(const std::string& text, const ModelSizes& sizes,
                                              const std::vector<PlanMember>& members);

}  // namespace gyre
