// Attention of many queries over one split of their context with matrix tiles (IsaOps::tiles), on one thread: first 16
// queries by 16 positions, then 16 queries by 16 elements. Queries and softmax weights are rounded to bf16; keys and
// values are split into two bf16 numbers each.
#pragma once

#include <cstddef>

#include "kernels/cpu/attention/attention_split.h"

namespace gyre::cpu {

class TileAttention {
 public:
  // Scratch bytes that one thread needs for items of at most `most` queries.
  static size_t Bytes(const AttentionCall& call, size_t most);
  TileAttention(const IsaOps& ops, const AttentionCall& call, size_t most, std::byte* memory);
  // *partial = attention of the item, which has one key-value head, over this split.
  void Attend(const AttentionItem& item, size_t split, AttentionPartial* partial);

 private:
  // Queries that pass over keys and values together: few enough that their scores stay in the cache.
  struct Block {
    size_t first, count;
    Range any;  // positions that at least one of them attends to
  };
  struct Scratch {
    Range* sees;         // [query]
    float* queries;      // [16][dim]
    float* scores;       // [query of a block][kScoreStride]
    std::byte* x;        // tiles of the queries, one group of 16 after another
    std::byte* weights;  // tiles of a block's softmax weights, one group of 16 queries after another
    std::byte* keys;     // for each 16 positions: their tiles, then the tiles of the bf16 residuals
    std::byte* values;   // for each 16 elements: the same
    // A copy of the keys or values of 16 positions, where these lie in several pages.
    std::byte *codes = nullptr, *scales = nullptr;
  };
  static size_t Carve(const AttentionCall& call, size_t most, std::byte* memory, Scratch* scratch);

  void RoundQueries(const AttentionItem& item);
  Range Any(size_t first, size_t count) const;
  template <typename Fn>
  void ForEachPage(const AttentionItem& item, size_t from, size_t to, const Fn& f) const;
  KvSpan CopyKeys(const AttentionItem& item, size_t first, size_t from, size_t to) const;
  KvSpan CopyValues(const AttentionItem& item, size_t from, size_t to) const;
  void ExpandKeys(const AttentionItem& item, Range any) const;
  void ExpandValues(const AttentionItem& item, Range any) const;
  void Score(const Block& block) const;
  Range ExpBlock(const Block& block, size_t start, AttentionPartial* partial) const;
  void AddValues(const Block& block, Range whole, AttentionPartial* partial) const;
  // Bytes from the tiles of keys or values to those of their bf16 residuals; 0: there are none.
  size_t ResidualOffset(size_t depth) const { return has_residual_ ? depth * kTileBytes : 0; }

  const IsaOps& ops_;
  const AttentionCall& call_;
  const size_t depth_;       // tiles along head_dim: dim / 32, rounded up
  const bool has_residual_;  // keys and values are sums of two bf16; false for bf16 caches
  Scratch scratch_;
  AttentionItem rounded_{};  // the item whose queries are in scratch_.x; count 0: none
};

}  // namespace gyre::cpu
