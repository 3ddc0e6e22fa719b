// Attention of a few queries over one split of their context, on one thread: the arithmetic, by vectors. attention_tiles.h does the same by matrix
// tiles, paged_attention.h shares out the work.
#pragma once

#include <cstddef>
#include <span>

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

// The cache's sizes, divided out once.
class Pages {
 public:
  // Positions of one page that follow each other.
  struct Run {
    size_t position, count;
    size_t in_page;
    size_t page;  // where it begins in either pool
  };
  explicit Pages(const KvView& kv);

  size_t block() const { return block_; }
  KvType type() const { return kv_.type; }
  Run At(const KvRow& row, size_t position, size_t count) const {
    return {position, count, position % block_, row.table[position / block_] * page_bytes_};
  }
  // f(run) for [from, to) of a row, page after page.
  template <typename Fn>
  void ForEach(const KvRow& row, size_t from, size_t to, const Fn& f) const {
    for (size_t pos = from; pos < to;) {
      const size_t left = block_ - pos % block_, count = left < to - pos ? left : to - pos;
      f(At(row, pos, count));
      pos += count;
    }
  }
  // Up to kPagesAtOnce whole pages, or a part of one.
  struct Few {
    Run runs[kPagesAtOnce];
    size_t count = 0;
  };
  // f(few, next) for the same; next: what f is called for then, as many pages of as many positions, or none.
  template <typename Fn>
  void ForEachFew(const KvRow& row, size_t from, size_t to, const Fn& f) const {
    Few now{}, next{};
    auto step = [&] {
      const Few none{};
      if (now.count > 0) f(now, next.count == now.count && next.runs->count == now.runs->count ? next : none);
      now = next;
      next.count = 0;
    };
    ForEach(row, from, to, [&](const Run& run) {
      if (next.count > 0 && (run.count < block_ || next.runs->count < block_ || next.count == kPagesAtOnce)) step();
      next.runs[next.count++] = run;
    });
    step();
    step();
  }
  // f(runs, h, position) for heads `head` + h of the same, `of` what, Keys or Values; position: the runs' first. `then`: what is read after the last, as many
  // whole pages as kPagesAtOnce, or null.
  template <typename Fn>
  void ForEachFewOfHeads(const KvRow& row, size_t from, size_t to, size_t head, size_t heads, KvRun (Pages::*of)(const Run&, size_t) const, const KvRun* then,
                         const Fn& f) const {
    KvRun runs[2][kPagesAtOnce];  // of a head and of the next
    size_t now = 0;
    bool found = false;
    ForEachFew(row, from, to, [&](const Few& few, const Few& next) {
      auto find = [&](const Few& those, KvRun* at) {
        for (size_t p = 0; p < those.count; ++p) at[p] = (this->*of)(those.runs[p], head);
      };
      if (!found) find(few, runs[now]);
      found = next.count > 0;
      const size_t count = few.count, n = few.runs->count;
      for (size_t h = 0; h < heads; ++h, now ^= 1) {
        KvRun* after = runs[now ^ 1];
        const KvRun* wanted = after;
        if (h + 1 < heads) {
          for (size_t p = 0; p < count; ++p) after[p] = NextHead(runs[now][p]);
        } else if (found) {
          find(next, after);
        } else {
          wanted = count == kPagesAtOnce && n == block_ ? then : nullptr;
        }
        f(KvRuns{runs[now], count, n, wanted}, h, few.runs->position);
      }
    });
  }
  // A head of the first kPagesAtOnce pages of [from, to), at `at`; null where these are not whole.
  const KvRun* First(const KvRow& row, size_t from, size_t to, size_t head, KvRun (Pages::*of)(const Run&, size_t) const, KvRun* at) const {
    if (from % block_ > 0 || to - from < kPagesAtOnce * block_) return nullptr;
    for (size_t p = 0; p < kPagesAtOnce; ++p) at[p] = (this->*of)(At(row, from + p * block_, block_), head);
    return at;
  }
  KvRun Keys(const Run& run, size_t head) const;
  KvRun Values(const Run& run, size_t head) const;

 private:
  KvRun NextHead(const KvRun& run) const {
    return {run.type, run.values + head_bytes_, run.scales == nullptr ? nullptr : run.scales + head_bytes_};
  }

  const KvView& kv_;
  const size_t block_, dim_, page_bytes_, head_bytes_, elem_bytes_;
};

// Rows that follow each other in one sequence, which share what they read, by heads of keys and values: one row by several or several by one.
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
  // Query i of an item of one head.
  const float* Query(const AttentionItem& item, size_t i) const { return q + ((item.row + i / group) * heads + item.head * group + i % group) * dim; }
};

// Weights' sums and weighted values of some queries over some positions, relative to the largest score there. In memory that is the caller's.
class AttentionPart {
 public:
  static size_t Bytes(size_t queries, size_t dim);
  // Of `most` queries at most: Bytes(most, dim) at `memory`.
  AttentionPart(std::byte* memory, size_t most, size_t dim);

  // Of queries [from, to).
  void Reset(size_t from, size_t to);
  void Add(const IsaOps& ops, const AttentionPart& o, size_t from, size_t to);
  // out[dim] of query i, which saw something.
  void Finish(size_t i, float* out) const;

  double* total = nullptr;  // [query]; 0 = it saw nothing there
  float* max = nullptr;     // [query]
  float* sums = nullptr;    // [query][dim]

 private:
  size_t dim_ = 0;
};

class SplitAttention {
 public:
  // What one of `most` queries at most needs for itself.
  static size_t Bytes(const AttentionCall& call, size_t most);
  SplitAttention(const IsaOps& ops, const AttentionCall& call, size_t most, std::byte* memory);
  // *part = the item over that split.
  void Attend(const AttentionItem& item, size_t split, AttentionPart* part) const;

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
  void Soften(float* scores, Range range, float* max, double* total) const;
  void AttendLone(const AttentionItem& item, size_t split, AttentionPart* part) const;
  void AttendTogether(const AttentionItem& item, size_t split, AttentionPart* part) const;

  const IsaOps& ops_;
  const AttentionCall& call_;
  Scratch scratch_;
};

}  // namespace gyre::cpu
