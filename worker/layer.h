// A layer as the unit of ownership: its packed weights and its page pool. Two plans can share it.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "base/stage_control.h"
#include "base/status.h"
#include "kernels/ops.h"
#include "model/weights.h"

namespace gyre {

// kInvalidArgument: the type can't hold heads of this layer's size.
Status CheckKvType(KvType type, const LayerSpec& spec);

// The pages of one layer: anonymous memory that is touched only when used.
class PagePool {
 public:
  // kResourceExhausted with the numbers. REQUIRES: ModelSpec::KvElems(spec) > 0.
  static StatusOr<std::unique_ptr<PagePool>> Make(const LayerSpec& spec, uint32_t num_blocks, int block_size,
                                                  KvType type);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  const KvView& view() const { return view_; }
  uint32_t num_blocks() const { return num_blocks_; }
  size_t bytes() const { return bytes_; }
  size_t page_bytes() const { return bytes_ / num_blocks_; }  // K and V

  // When a page was last written, by the worker's count of steps; 0 = never. The thread that writes the page stamps it.
  void Stamp(BlockId page, uint64_t step) { written_[page] = step; }
  uint64_t written(BlockId page) const { return written_[page]; }
  // The number of pools that exist in this process.
  static size_t Live();

  // A page as it travels: K, then V; page_bytes().
  void Read(BlockId page, std::byte* out) const;
  void Write(BlockId page, const std::byte* from);

 private:
  PagePool() = default;
  KvView view_;
  uint32_t num_blocks_ = 0;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
  std::vector<uint64_t> written_;
};

struct PackedFfn {
  std::shared_ptr<const PackedWeight> gate, up, down;
};

// Immutable except for the pages, which the stage's thread writes.
struct Layer {
  int index = 0;
  LayerSpec spec;
  LayerWeights weights;                                            // its matrices' views are packed here:
  std::array<std::shared_ptr<const PackedWeight>, kSlots> packed;  // null where the spec has none
  std::vector<PackedFfn> experts;
  std::shared_ptr<PagePool> pages;  // null where the layer keeps no keys and values of its own

  bool Has(Slot slot) const { return packed[Index(slot)] != nullptr; }
  const PackedWeight& matrix(Slot slot) const { return *packed[Index(slot)]; }
  const std::vector<float>& vector(Slot slot) const { return weights.vector(slot); }

  size_t weight_bytes() const;
  // The same weights, no pages.
  std::shared_ptr<Layer> Weights() const;
};

// The embedding, or the final norm and output matrix. Where both stand on one stage and are tied, one matrix serves.
struct Ends {
  std::shared_ptr<const PackedWeight> embedding;  // first stage
  std::shared_ptr<const PackedWeight> output;     // last stage
  std::vector<float> final_norm;
};

using BytesDone = std::function<void(size_t)>;

// Returns the errors of the lookups; kUnimplemented: the spec has a part that no forward pass exists for. Calls `done`
// with the number of source bytes that were packed.
StatusOr<std::shared_ptr<Layer>> LoadLayer(const Model& model, int index, Backend& backend, const BytesDone& done);
StatusOr<Ends> LoadEnds(const Model& model, bool first, bool last, Backend& backend, const BytesDone& done);

}  // namespace gyre
