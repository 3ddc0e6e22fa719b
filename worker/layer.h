// A layer as the unit of ownership: its packed weights and its page pool. Two plans can share it.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/memory_counts.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/weights.h"

namespace gyre {

// kInvalidArgument: the type can't hold heads of this layer's size.
Status CheckKvType(KvType type, const LayerSpec& spec);

// The size of the memory of sequences; the same on every stage.
struct PoolSizes {
  MemoryCounts memory;
  int block_size = 16;
  KvType type = KvType::kF16;
  bool least = false;  // a larger pool is as good
  explicit PoolSizes(const PrepareRequest& r) : memory(r.memory), block_size(r.block_size), type(r.kv_type) {}
  // In the memory of a device: units that are not used cost nothing on the host, and what they are on a device that
  // has memory of its own.
  PoolSizes(const PrepareRequest& r, const Device& device) : PoolSizes(r) {
    least = device.room().has_value() && r.in_use[kPageGroup] > 0;
    if (least) memory = r.in_use;
  }
  uint32_t UnitsOf(const LayerSpec& spec) const { return memory[spec.kv_group]; }
};

// The header of a slot's state: its sequence, and the next position (docs/memory.md).
struct SlotHeader {
  SeqId seq{};
  uint32_t incarnation = 0;
  uint32_t position = 0;  // kNoPosition while rows are applied
  uint32_t snapshot = 0;  // number of a snapshot; 0: it is none
  static constexpr uint32_t kNoPosition = 0xFFFFFFFFu;
};

// The memory of one layer, by pages: those of keys and values, or the slots of recurrent state. It lies on the device;
// stamps and headers of slots lie on the host.
class PagePool {
 public:
  // Null where the layer keeps nothing. kInvalidArgument: a type that can't hold its heads; kResourceExhausted with the
  // numbers.
  static StatusOr<std::unique_ptr<PagePool>> For(const LayerSpec& spec, int dim, const PoolSizes& size, Device& device);
  // Bytes of such a pool's pages as they travel; 0 where the layer keeps nothing.
  static size_t PageBytesOf(const LayerSpec& spec, int dim, const PoolSizes& size);
  // Pages of keys and values. REQUIRES: ModelSpec::KvElems(spec) > 0.
  static StatusOr<std::unique_ptr<PagePool>> Make(const LayerSpec& spec, uint32_t num_blocks, int block_size,
                                                  KvType type, Device& device);
  // Slots of so many floats.
  static StatusOr<std::unique_ptr<PagePool>> MakeSlots(size_t floats, uint32_t num_slots, Device& device);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  const KvView& view() const { return view_; }
  uint32_t num_blocks() const { return num_blocks_; }
  size_t bytes() const { return memory_.bytes(); }
  // A page as it travels: K and V, or a slot's header and state.
  size_t page_bytes() const { return (has_slots() ? kHeaderBytes : 0) + page_k_ + page_v_; }
  // Whether the pages are slots; then there is no view of keys and values.
  bool has_slots() const { return floats_ > 0; }
  // Whether it is what For would make for the same layer.
  bool Fits(const LayerSpec& spec, const PoolSizes& size) const;

  // Slots: the header, and the state [floats].
  const SlotHeader& Header(BlockId slot) const { return headers_[slot]; }
  void SetHeader(BlockId slot, const SlotHeader& header) { headers_[slot] = header; }
  float* State(BlockId slot) const { return reinterpret_cast<float*>(view_.k + slot * page_k_); }
  // Zeros in place of the state.
  void Clear(BlockId slot, Backend& queue) { queue.Zero(State(slot), page_k_); }
  // Copies the state, not the header.
  void CopyState(BlockId from, BlockId to, Backend& queue) { queue.Copy(State(from), State(to), page_k_); }

  // The worker's count of steps when a page was last written; 0 = never. The thread that writes the page stamps it.
  void Stamp(BlockId page, uint64_t step) { written_[page] = step; }
  uint64_t written(BlockId page) const { return written_[page]; }
  // Likewise, when the last position of a page was last written, or a snapshot was made; 0 = never.
  void StampFull(BlockId page, uint64_t step);
  uint64_t full(BlockId page) const { return full_[page]; }
  // The pages from number `from` on with a later stamp, rising. Takes as long as there are pages with a later one.
  std::vector<BlockId> FullSince(uint64_t step, BlockId from) const;
  // A number that no other pool has, in this process or another.
  uint64_t number() const { return number_; }
  // The number of pools that exist in this process.
  static size_t Live();

  // A page as it travels: page_bytes(). What is read is there, and what is written may go, after queue.Finish.
  void Read(BlockId page, std::byte* out, Backend& queue) const;
  void Write(BlockId page, const std::byte* from, Backend& queue);

 private:
  static constexpr size_t kHeaderBytes = 64;
  PagePool() = default;
  Status Allocate(uint32_t pages, size_t page_k, size_t page_v, Device& device);

  KvView view_;
  size_t page_k_ = 0, page_v_ = 0;  // bytes on the device
  size_t floats_ = 0;               // of a slot
  uint32_t num_blocks_ = 0;
  DeviceMemory memory_;
  std::vector<uint64_t> written_, full_;
  // A doubly linked list of the full pages in the order of their stamps: each page's predecessor and successor. The
  // entry behind the last page is the list's sentinel.
  std::vector<BlockId> before_, after_;
  uint64_t number_ = 0;
  std::vector<SlotHeader> headers_;
};

struct PackedFfn {
  std::shared_ptr<const PackedWeight> gate, up, down;
};

// LowRankWeights, packed.
struct PackedLowRank {
  Slot slot{};
  std::shared_ptr<const PackedWeight> a, b;
  float scale = 1;
};

// Vectors of a layer on its device, together in one piece of memory.
class DeviceVectors {
 public:
  // The k-th of them is `host[k]`, which may be empty and stays as it is until queue.Finish. Throws OutOfDeviceMemory.
  static DeviceVectors Upload(std::span<const std::vector<float>> host, Backend& queue);
  // Null where it is empty.
  const float* operator[](size_t k) const { return places_[k]; }

 private:
  std::shared_ptr<const DeviceMemory> memory_;
  std::vector<const float*> places_;
};

// Immutable except for the pages, which the stage's thread writes.
struct Layer {
  int index = 0;
  LayerSpec spec;
  LayerWeights weights;                                            // as the host has them, and for ops:
  std::array<std::shared_ptr<const PackedWeight>, kSlots> packed;  // null where the spec has none
  DeviceVectors vectors;
  std::vector<PackedFfn> experts;
  std::vector<std::shared_ptr<const PackedWeight>> key_heads, value_heads;  // of latent attention, one a head
  std::vector<std::vector<PackedLowRank>> adapters;                         // of each of the model's
  std::shared_ptr<PagePool> pages;  // null where the layer keeps nothing of its own

  // What the adapter with this number, 1 or more, adds to the product of a slot; null: nothing.
  const PackedLowRank* FindAdapter(uint32_t adapter, Slot slot) const;
  bool Has(Slot slot) const { return packed[Index(slot)] != nullptr; }
  const PackedWeight& matrix(Slot slot) const { return *packed[Index(slot)]; }
  const float* vector(Slot slot) const { return vectors[Index(slot)]; }  // on the device; null where there is none

  size_t weight_bytes() const;
  // The same weights, no pages.
  std::shared_ptr<Layer> Weights() const;
};

// The layer for drafts, which stands with the output matrix (docs/speculation.md, MTP).
struct MtpHead {
  std::shared_ptr<const Layer> layer;          // with pages of its own
  std::shared_ptr<const PackedWeight> join;    // MtpWeights::join
  std::shared_ptr<const PackedWeight> output;  // null: the model's
  WeightView embedding;                        // as it lies in the file
  DeviceVectors vectors;
  const float* embedding_norm() const { return vectors[0]; }
  const float* hidden_norm() const { return vectors[1]; }
  const float* head_norm() const { return vectors[2]; }
};

// The embedding, or the final norm and output matrix. Where both stand on one stage and are tied, one matrix serves.
struct Ends {
  std::shared_ptr<const PackedWeight> embedding;  // first stage
  std::shared_ptr<const PackedWeight> output;     // last stage; null: an encoder has none
  std::shared_ptr<const PackedWeight> positions;  // first stage; null: there are none
  std::shared_ptr<const MtpHead> mtp;             // last stage; null: it makes no drafts
  // Of a model with several streams, those behind the first (Streams): first stage, and last stage.
  std::vector<std::shared_ptr<const PackedWeight>> streams_begin, streams_end;
  DeviceVectors embedding_vectors;  // first stage: EmbeddingVectors' three, where the model has them
  DeviceVectors vectors;            // last stage: the final norm, its bias, and that of the output
  const float* token_type() const { return embedding_vectors[0]; }
  const float* embedding_norm() const { return embedding_vectors[1]; }
  const float* embedding_norm_bias() const { return embedding_vectors[2]; }
  const float* final_norm() const { return vectors[0]; }
  const float* final_norm_bias() const { return vectors[1]; }
  const float* bias() const { return vectors[2]; }
};

using BytesDone = std::function<void(size_t)>;

// Return the errors of the lookups. Call `done` with the number of source bytes that were packed. Everything is on the
// device when they return.
// `exact`: the layer computes with f32 activations, which reads weights as the file has them: they stay in memory also
// where the file has them in another order.
StatusOr<std::shared_ptr<Layer>> LoadLayer(const Model& model, int index, Backend& queue, const BytesDone& done,
                                           bool exact = false);
StatusOr<std::shared_ptr<MtpHead>> LoadMtp(const Model& model, Backend& queue, const BytesDone& done);
StatusOr<Ends> LoadEnds(const Model& model, bool first, bool last, Backend& queue, const BytesDone& done);

}  // namespace gyre
