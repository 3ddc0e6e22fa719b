// Attention over the pages of the KV cache, for one layer.
#pragma once

#include <span>
#include <vector>

#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/team.h"
#include "kernels/ops.h"

namespace gyre::cpu {

// A row's context is summed in splits of 256 positions, counted from 0, that are added in order: so its bits depend on its context only, not
// on how the work is shared. One thread drives it; it spreads the work over the team.
class PagedAttention {
 public:
  PagedAttention(const IsaOps& ops, const Team& team) : ops_(ops), team_(team) {}
  // Backend::Attention.
  void Run(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& params, float* out);

 private:
  struct Call;
  // Rows that follow each other in one sequence, which share what they read, by heads of keys and values: one row by several or several by one.
  struct Item {
    size_t row, count;
    size_t head, heads;
  };
  struct Part;

  void CutHeads(size_t wanted, size_t kv_heads);
  size_t MostSplits(const Call& call, std::span<const Item> items) const;
  // `splits` > 1: those of few items are shared out too, as many of each at most.
  void Sum(const Call& call, std::span<const Item> items, size_t splits, double macs) const;
  void AttendLone(const Call& call, const Item& item, size_t split, std::vector<float>* scratch, Part* part) const;
  void AttendTile(const Call& call, const Item& tile, size_t split, std::vector<float>* scratch, Part* part) const;
  void Soften(const AttentionParams& params, float* scores, size_t from, size_t to, float* max, double* total) const;

  const IsaOps& ops_;
  const Team& team_;
  std::vector<Item> lone_, tiles_;
};

}  // namespace gyre::cpu
