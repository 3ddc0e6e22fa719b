// Who gets which layers: from measured sizes, or from what a user asked for. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/plan.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "model/weights.h"

namespace gyre {

// Sizes in bytes, as far as they decide where layers fit.
struct ModelSizes {
  std::vector<uint64_t> layers;  // weights
  uint64_t first = 0;            // the embedding
  uint64_t last = 0;             // the output matrix
  uint64_t both = 0;             // both on one stage: a tied one counts once
  // Multiplications that a row costs on each layer, with the experts that it uses, and in the output matrix. Empty: one
  // for each byte.
  std::vector<uint64_t> products;
  uint64_t last_products = 0;
  uint64_t kv_per_layer = 0;     // all its pages; the mean where layers with recurrent state are among them
  uint64_t state_per_layer = 0;  // all slots of recurrent state, the mean of all layers
  // [layer]: whether it must be on the stage of the layer before it, as layers from it on read the keys and values of
  // layers before it. Empty: none must.
  std::vector<bool> joined;
  int num_layers() const { return static_cast<int>(layers.size()); }
  bool CanBegin(int layer) const { return joined.empty() || !joined[static_cast<size_t>(layer)]; }
};

// The sizes of a model's matrices as they lie in the file, those of the pages of `num_blocks` blocks, and of slots.
StatusOr<ModelSizes> SizesOf(const Model& model, uint32_t num_blocks, int block_size, KvType kv_type,
                             uint32_t num_slots = 0);

struct PlanMember {
  std::string name;
  std::string address;
  bool local = false;
  bool drained = false;            // it gets no layers, by name neither
  uint64_t memory = 0;             // 0 = unknown: not checked
  std::optional<LayerRange> wish;  // worker --layers
  LayerRange holds;                // layers that it keeps, weights and pages, until a next plan serves
  uint64_t disk = 0;               // for weights that it fetches; 0 = not limited
};

// A resize text is at most this long, in bytes.
inline constexpr size_t kMaxResizeText = 64 << 10;

// Bytes of the embedding and the output matrix, for a member that has the first stage, the last, both or neither.
uint64_t EndBytes(const ModelSizes& sizes, bool first, bool last);
// Bytes of the weights that a range keeps.
uint64_t RangeBytes(const ModelSizes& sizes, LayerRange range);

// Contiguous ranges for `members`, so that the largest share of bytes read per token is smallest; the output matrix
// counts with the last range. Wishes are kept where they do not overlap and the members without one, in their order,
// can share the other layers; those of them for whom no layer is left get none. Where that is impossible, wishes do not
// count. The result is in ring order. kInvalidArgument: more members than layers, none, or all have a wish and these
// leave a gap or overlap or begin where no range can.
StatusOr<std::vector<Assignment>> BalanceLayers(const ModelSizes& sizes, const std::vector<PlanMember>& members);

// What `resize` takes: ranges "[NAME=]A-B,..." (A alone = A-A, NAME=- = no layers), or boundaries "8 12": the layers at
// which a range begins. Unnamed ranges go to members that are neither named nor drained, in join order, local ones
// last. kInvalidArgument (also a text that is too long), kNotFound (a name), kFailedPrecondition (a drained member gets
// layers) with the sentence. The result is not yet checked for gaps (Plan::Validate).
StatusOr<std::vector<Assignment>> ParseResize(const std::string& text, const ModelSizes& sizes,
                                              const std::vector<PlanMember>& members);

// The largest number of KV blocks, up to `num_blocks` (which sizes.kv_per_layer is for), that every member holds beside
// what it holds already and gets in `next`, and, with `reserve`, beside room for a quarter more layers, without which
// no resize would fit. 0: not one.
uint32_t FitBlocks(const ModelSizes& sizes, const std::vector<PlanMember>& members, const Plan& next,
                   uint32_t num_blocks, bool reserve);

// Bytes that a member holds while `next` takes the place of what it holds: weights and pages of both.
uint64_t PeakBytes(const ModelSizes& sizes, const PlanMember& member, const Plan& next);

struct Shortage {
  std::string worker;
  uint64_t memory = 0;  // bytes that it has
  Status why;           // kResourceExhausted with the numbers
};
// Members of `next` that can't hold the union of what they hold already and what they get, weights and pages, or whose
// disk can't hold the weights that they get.
std::vector<Shortage> FindShortages(const ModelSizes& sizes, const std::vector<PlanMember>& members, const Plan& next);

}  // namespace gyre
