// Attention over the pages of the KV cache, for one layer.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/attention_split.h"
#include "kernels/cpu/packed.h"
#include "kernels/cpu/team.h"
#include "kernels/ops.h"

namespace gyre::cpu {

// A row's context is summed in splits of 256 positions, counted from 0, that are added in an order of their scratch
// (CombineUp): so its bits depend on its context only, not on how the work is shared. One thread drives it; it spreads the
// work over the team.
class PagedAttention {
 public:
  PagedAttention(const IsaOps& ops, const Team& team) : ops_(ops), team_(team) {}
  // Backend::Attention.
  void Run(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& params, float* out);

 private:
  struct Split {
    size_t item, split;
  };
  void PartitionHeads(size_t wanted, size_t kv_heads);
  size_t MaxSplits(const AttentionCall& call, std::span<const AttentionItem> items) const;
  // By SplitAttention or TileAttention. by_splits: the splits of batch items are shared out too.
  template <typename Kernel>
  void RunItems(const AttentionCall& call, std::span<const AttentionItem> items, bool by_splits, double macs);
  // Hands on the sum of a split, the caller's scratch until then: whoever comes second to a pair of sums adds it.
  void CombineShared(const AttentionCall& call, const AttentionItem& item, const Split& of, AttentionPartial* partial);

  const IsaOps& ops_;
  const Team& team_;
  std::vector<AttentionItem> single_rows_, row_groups_;
  std::vector<Split> splits_;         // in order, where they are shared out
  std::vector<size_t> first_splits_;  // where each item's begin
  std::vector<AttentionPartial> partials_;  // of each split; a sum that waits for its neighbour is at its first one
  std::vector<uint32_t>
      waiting_;  // of each split that begins the right sum of a pair: not 0 = one of the two waits; by atomic_ref
  Buffer thread_scratch_, partial_memory_;  // of threads; of partials_
};

}  // namespace gyre::cpu
