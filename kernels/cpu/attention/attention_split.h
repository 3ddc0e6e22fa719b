// Attention of a few queries over one split of their context with vector instructions, on one thread. attention_tiles.h
// does the same with matrix tiles; paged_attention.h divides the work among threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "kernels/cpu/attention/attention_pages.h"
#include "kernels/cpu/isa/isa_ops.h"
#include "kernels/ops.h"

namespace gyre::cpu {

inline size_t Size(int v) { return static_cast<size_t>(v); }

inline constexpr size_t kSplit = 256;  // positions; split s covers [s * kSplit, (s + 1) * kSplit)

// Hands out cache-line-aligned arrays from one block of memory. With memory == nullptr it only counts the bytes.
struct Carver {
  std::byte* memory;
  size_t used = 0;
  template <typename T>
  T* Take(size_t n) {
    std::byte* at = memory != nullptr ? memory + used : nullptr;
    used += (n * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }
};

// A unit of work: consecutive rows of one sequence times some key-value heads. Either one row with several heads, or
// several rows with one head, which share the keys and values they read.
struct AttentionItem {
  size_t row, count;
  size_t head, heads;
  size_t first_query = 0, queries = 0;  // of the query heads of a key-value head; 0 queries: all
  bool operator==(const AttentionItem&) const = default;
};

struct AttentionCall {
  const float* q;
  std::span<const KvRow> rows;
  Pages pages;
  const AttentionParams& params;
  float* out;
  size_t heads, group;    // group: query heads per key-value head (GQA)
  size_t dim, value_dim;  // elements of a key and of a value
  bool by_tiles;          // use IsaOps::tiles
  bool rotated;           // keys and values are (kernels/hadamard.h), and so is q

  // Query heads for each key-value head of an item.
  size_t Group(const AttentionItem& item) const { return item.queries > 0 ? item.queries : group; }
  size_t Queries(const AttentionItem& item) const { return item.count * item.heads * Group(item); }
  // The first position that the row attends to.
  size_t First(const KvRow& row) const;
  size_t FirstSplit(const AttentionItem& item) const { return First(rows[item.row]) / kSplit; }
  size_t LastSplit(const AttentionItem& item) const { return rows[item.row + item.count - 1].position / kSplit; }
  // The positions of a split that the row attends to; empty if there are none.
  Range Sees(const KvRow& row, size_t split) const;
  // The query head of query i of an item.
  size_t Head(const AttentionItem& item, size_t i) const {
    return item.head * group + item.first_query + i % (item.heads * Group(item));
  }
  // The number of query i of an item among those of q and of out.
  size_t At(const AttentionItem& item, size_t i) const {
    return (item.row + i / (item.heads * Group(item))) * heads + Head(item, i);
  }
  const float* Query(const AttentionItem& item, size_t i) const { return q + At(item, i) * dim; }
  float* Result(const AttentionItem& item, size_t i) const { return out + At(item, i) * value_dim; }
};

// A SoftmaxPartial in memory that the caller owns.
class AttentionPartial : public SoftmaxPartial {
 public:
  static size_t Bytes(size_t queries, size_t dim);
  // Takes Bytes(most, dim) bytes at `memory`, enough for `most` queries.
  AttentionPartial(std::byte* memory, size_t most, size_t dim);

  // Reset, Copy and Add work on the first n queries.
  void Reset(size_t n);
  void Copy(const AttentionPartial& o, size_t n);
  void Add(const IsaOps& ops, const AttentionPartial& o, size_t n) { ops.combine_partials(*this, o, n, dim_); }
  // Writes acc / sum to call.out, after the sinks have joined the sums, and undoes the rotation. REQUIRES: every query
  // attended to at least one position.
  void Finish(const AttentionCall& call, const AttentionItem& item) const;

 private:
  size_t dim_ = 0;
};

// Two partials that are to be combined: the first split that each of them covers.
struct SplitPair {
  size_t left, right;
};
// Combines the partials of splits [first, last] as a binary tree over split numbers: 2i with 2i + 1, then these sums,
// and so on; a node without a sibling moves up a level. The tree depends on `first` and `last` only, so the result has
// the same bits whichever threads compute it.
// Call it with a `split` whose partial is complete. It walks up and calls combine(pair, right) for each pair that
// contains this partial; `right` tells whether it is the right one. combine returns false to stop because the sibling
// is not complete. Returns true when the partial covers all splits.
template <typename Combine>
bool CombineUp(size_t first, size_t last, size_t split, const Combine& combine) {
  for (size_t level = 0;; ++level) {
    const size_t at = split >> level, middle = (at | 1) << level;
    if (at << level <= first && (at + 1) << level > last) return true;
    if (middle <= first || middle > last) continue;
    if (!combine(SplitPair{std::max(first, middle - (size_t{1} << level)), middle}, at % 2 == 1)) return false;
  }
}

class SplitAttention {
 public:
  // Scratch bytes that one thread needs for items of at most `most` queries.
  static size_t Bytes(const AttentionCall& call, size_t most);
  SplitAttention(const IsaOps& ops, const AttentionCall& call, size_t most, std::byte* memory);
  // *partial = attention of the item over this split.
  void Attend(const AttentionItem& item, size_t split, AttentionPartial* partial);

 private:
  struct Seen {
    Range any, all;  // positions that at least one query, or every query, attends to
  };
  struct Scratch {
    Range* sees;             // [query]
    float* queries;          // [query][dim]
    float* scores;           // [query][kSplit]
    float* values;           // [kExpanded][value_dim] where values are parts of keys
    RoundedQueries rounded;  // where keys are read as integers
  };
  static size_t Carve(const AttentionCall& call, size_t most, std::byte* memory, Scratch* scratch);

  static bool ReadsCodes(const IsaOps& ops, const AttentionCall& call) {
    return ops.code_scores != nullptr && KvHasScales(call.pages.type());
  }
  void RoundQueries(const AttentionItem& item, const float* queries);
  // Scores of queries [first, first + n) of the item; `queries` are all of them.
  void Score(const float* queries, size_t first, size_t n, const KvSpans& spans, float* scores) const;
  Seen Gather(const AttentionItem& item, size_t split) const;
  void ExpScores(float* scores, Range range, float* max, double* sum) const;
  void AddValues(const AttentionItem& item, size_t start, Range range, size_t first, size_t queries,
                 AttentionPartial* partial) const;
  void AttendDecodeRow(const AttentionItem& item, size_t split, AttentionPartial* partial);
  void AttendRows(const AttentionItem& item, size_t split, AttentionPartial* partial);

  const IsaOps& ops_;
  const AttentionCall& call_;
  Scratch scratch_;
  AttentionItem rounded_{};  // the item whose queries are in scratch_.rounded; count 0: none
};

}  // namespace gyre::cpu
