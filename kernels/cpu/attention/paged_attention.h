// Attention over the pages of the KV cache, for one layer.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/attention/attention_split.h"
#include "kernels/cpu/products/packed.h"
#include "kernels/cpu/team.h"
#include "kernels/ops.h"

namespace gyre::cpu {

// The context is divided into splits of 256 positions, counted from position 0, and their partials are combined in a
// fixed tree (CombineUp). So the bits of a row depend on its context only, not on how the work is divided. One thread
// drives it; it spreads the work over the team.
class PagedAttention {
 public:
  PagedAttention(const IsaOps& ops, const Team& team) : ops_(ops), team_(team) {}
  // Backend::Attention.
  void Run(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& params, float* out);

 private:
  struct Split {
    size_t item, split;
  };
  // The n elements of the queries as keys are stored.
  const float* Rotate(const float* q, size_t n);
  void PartitionHeads(size_t wanted, size_t kv_heads);
  void PartitionQueries(size_t threads, size_t group);
  size_t MaxSplits(const AttentionCall& call, std::span<const AttentionItem> items) const;
  // Kernel: SplitAttention or TileAttention. by_splits: threads also divide the splits of one item, because there are
  // too few items for all threads.
  template <typename Kernel>
  void RunItems(const AttentionCall& call, std::span<const AttentionItem> items, bool by_splits, double macs);
  // Publishes the partial of a split, which the caller owns until then. Of two siblings the thread that finishes second
  // combines both.
  void CombineShared(const AttentionCall& call, const AttentionItem& item, const Split& of, AttentionPartial* partial);

  const IsaOps& ops_;
  const Team& team_;
  std::vector<AttentionItem> single_rows_, row_groups_;
  std::vector<Split> splits_;         // filled with by_splits only, in order
  std::vector<size_t> first_splits_;  // index in splits_ of each item's first split
  // One per entry of splits_; a partial that covers several splits is stored at its first one.
  std::vector<AttentionPartial> partials_;
  // One per entry of splits_ that begins the right half of a pair: nonzero once one half is published. Accessed through
  // std::atomic_ref.
  std::vector<uint32_t>
      waiting_;  // of each split that begins the right sum of a pair: not 0 = one of the two waits; by atomic_ref
  Buffer thread_scratch_, partial_memory_;  // of threads; of partials_
  Buffer rotated_;                          // queries
};

}  // namespace gyre::cpu
