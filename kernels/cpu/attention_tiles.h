// Attention of many queries over one split of their context by matrix tiles (IsaOps::tiles), on one thread: 16 queries
// by 16 positions, then 16 queries by 16 elements. Queries and weights are rounded to bf16, keys and values become acc
// of two bf16.
#pragma once

#include <cstddef>

#include "kernels/cpu/attention_split.h"

namespace gyre::cpu {

class TileAttention {
 public:
  // What one of `most` queries at most needs for itself.
  static size_t Bytes(const AttentionCall& call, size_t most);
  // A page is a whole number of tiles' rows.
  TileAttention(const IsaOps& ops, const AttentionCall& call, size_t most, std::byte* memory);
  // *partial = the item, which has one head, over that split.
  void Attend(const AttentionItem& item, size_t split, AttentionPartial* partial);

 private:
  // Queries that pass over keys and values together, so that their scores stay in the cache.
  struct Block {
    size_t first, count;
    Range any;  // what some of them see
  };
  struct Scratch {
    Range* sees;         // [query]
    float* queries;      // [16][dim]
    float* scores;       // [a block's query][kScoreStride]
    std::byte* x;        // tiles of queries, 16 after 16
    std::byte* weights;  // of a block's weights, 16 queries after 16
    std::byte* keys;     // of 16 positions after 16, then what rounding left of them
    std::byte* values;   // of 16 elements after 16, the same
  };
  static size_t Carve(const AttentionCall& call, size_t most, std::byte* memory, Scratch* scratch);

  void RoundQueries(const AttentionItem& item);
  Range Any(size_t first, size_t count) const;
  void ExpandKeys(const AttentionItem& item, Range any) const;
  void ExpandValues(const AttentionItem& item, Range any) const;
  void Score(const Block& block) const;
  Range ExpBlock(const Block& block, size_t start, AttentionPartial* partial) const;
  void AddValues(const Block& block, Range whole, AttentionPartial* partial) const;
  // From tiles of keys or values to what rounding left of them; 0: nothing.
  size_t ResidualOffset(size_t depth) const { return has_residual_ ? depth * kTileBytes : 0; }

  const IsaOps& ops_;
  const AttentionCall& call_;
  const size_t depth_;  // tiles of an element's positions: dim / 32
  const bool has_residual_;      // keys and values are acc of two bf16
  Scratch scratch_;
  AttentionItem rounded_{};  // whose queries lie in scratch_.x; count 0: none
};

}  // namespace gyre::cpu
