// Attention of a batch queries over one split of their context, on one thread: the arithmetic, by vectors.
// attention_tiles.h does the same by matrix tiles, paged_attention.h shares out the work.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "kernels/cpu/attention_pages.h"
#include "kernels/cpu/isa_ops.h"
#include "kernels/ops.h"

namespace gyre::cpu {

inline size_t Size(int v) { return static_cast<size_t>(v); }

inline constexpr size_t kSplit = 256;  // positions, counted from 0

// Takes pieces of whole cache lines from memory; without any it only counts.
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

// Rows that follow each other in one sequence, which share what they read, by heads of keys and values: one row by
// several or several by one.
struct AttentionItem {
  size_t row, count;
  size_t head, heads;
};

struct AttentionCall {
  const float* q;
  std::span<const KvRow> rows;
  Pages pages;
  const AttentionParams& params;
  float* out;
  size_t heads, group, dim;  // group: heads that share keys and values
  bool by_tiles;             // IsaOps::tiles; a page is a whole number of them

  size_t Queries(const AttentionItem& item) const { return item.count * item.heads * group; }
  // The first position that a row sees.
  size_t First(const KvRow& row) const;
  size_t FirstSplit(const AttentionItem& item) const { return First(rows[item.row]) / kSplit; }
  size_t LastSplit(const AttentionItem& item) const { return rows[item.row + item.count - 1].position / kSplit; }
  // What a row sees of a split; from == to: nothing.
  Range Sees(const KvRow& row, size_t split) const;
  // Where query i of an item is in q and out.
  size_t At(const AttentionItem& item, size_t i) const {
    const size_t of_row = item.heads * group;
    return ((item.row + i / of_row) * heads + item.head * group + i % of_row) * dim;
  }
  const float* Query(const AttentionItem& item, size_t i) const { return q + At(item, i); }
};

// In memory that is the caller's.
class AttentionPartial : public SoftmaxPartial {
 public:
  static size_t Bytes(size_t queries, size_t dim);
  // Of `most` queries at most: Bytes(most, dim) at `memory`.
  AttentionPartial(std::byte* memory, size_t most, size_t dim);

  // Of the first n queries.
  void Reset(size_t n);
  void Copy(const AttentionPartial& o, size_t n);
  void Add(const IsaOps& ops, const AttentionPartial& o, size_t n) { ops.combine_partials(*this, o, n, dim_); }
  // call.out of an item, whose queries saw something.
  void Finish(const AttentionCall& call, const AttentionItem& item) const;

 private:
  size_t dim_ = 0;
};

// The order in which splits [first, last] are added up, so that no bit depends on who adds them: two neighbours, two
// such acc, and so on, where `split` / 2^n begins what becomes one sum; whoever has no neighbour waits for the next
// round. Climbs from a split whose sum is known: combine(SplitPair, right) with the two acc of which this is one, `right` if
// it is the latter; false = the other has to come first. True where it ends with the sum of all.
struct SplitPair {
  size_t left, right;  // the first split of each
};
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
  // What one of `most` queries at most needs for itself.
  static size_t Bytes(const AttentionCall& call, size_t most);
  SplitAttention(const IsaOps& ops, const AttentionCall& call, size_t most, std::byte* memory);
  // *partial = the item over that split.
  void Attend(const AttentionItem& item, size_t split, AttentionPartial* partial) const;

 private:
  struct Seen {
    Range any, all;  // what some or all queries see
  };
  struct Scratch {
    Range* sees;     // [query]
    float* queries;  // [query][dim]
    float* scores;   // [query][kSplit]
  };
  static size_t Carve(const AttentionCall& call, size_t most, std::byte* memory, Scratch* scratch);

  Seen Gather(const AttentionItem& item, size_t split) const;
  void ExpScores(float* scores, Range range, float* max, double* sum) const;
  void AttendDecodeRow(const AttentionItem& item, size_t split, AttentionPartial* partial) const;
  void AttendRows(const AttentionItem& item, size_t split, AttentionPartial* partial) const;

  const IsaOps& ops_;
  const AttentionCall& call_;
  Scratch scratch_;
};

}  // namespace gyre::cpu
