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
  // Rows that follow each other in one sequence, which share what they read.
  struct Tile {
    size_t row, count;
  };
  struct Part;

  void RunLone(const Call& call, std::span<const size_t> rows, double macs) const;
  void RunTiles(const Call& call, std::span<const Tile> tiles, double macs) const;
  void AttendLone(const Call& call, size_t row, size_t kv_head, size_t kv_heads, size_t split, std::vector<float>* scratch, Part* part) const;
  void AttendTile(const Call& call, const Tile& tile, size_t kv_head, size_t split, std::vector<float>* scratch, Part* part) const;
  void Soften(const AttentionParams& params, float* scores, size_t from, size_t to, float* max, double* total) const;

  const IsaOps& ops_;
  const Team& team_;
  std::vector<size_t> lone_;
  std::vector<Tile> tiles_;
};

}  // namespace gyre::cpu
