// Where attention's keys and values lie, and in which order a row on its own reads them.
#pragma once

#include <cstddef>

#include "kernels/cpu/kv_run.h"
#include "kernels/cpu/tiles.h"
#include "kernels/ops.h"

namespace gyre::cpu {

// The cache's sizes, divided out once.
class Pages {
 public:
  // Positions of one page that follow each other.
  struct Run {
    size_t position, count;
    size_t in_page;
    size_t page;  // where it begins in either pool
  };
  // Up to kPagesAtOnce whole pages, or a part of one.
  struct Few {
    size_t count = 0, n = 0;  // pages, positions of each
    Run runs[kPagesAtOnce];
    size_t End() const { return runs->position + count * n; }
  };
  // Keys or Values.
  using Kind = KvRun (Pages::*)(const Run&, size_t head) const;

  explicit Pages(const KvView& kv);

  size_t block() const { return block_; }
  KvType type() const { return kv_.type; }
  Run At(const KvRow& row, size_t position, size_t count) const {
    return {position, count, position % block_, row.table[position / block_] * page_bytes_};
  }
  // The first few of positions [from, to) of a row; none where from >= to.
  Few FewAt(const KvRow& row, size_t from, size_t to) const;
  // f(runs, position) for [from, to) of a row, a few pages after a few pages; position: the runs' first.
  template <typename Fn>
  void ForEachFew(const KvRow& row, size_t from, size_t to, size_t head, Kind kind, const Fn& f) const {
    KvRun runs[2][kPagesAtOnce];  // now and next
    size_t now = 0;
    Few few = FewAt(row, from, to), next;
    for (Fill(few, head, kind, runs[now]); few.count > 0; few = next, now ^= 1) {
      next = FewAt(row, few.End(), to);
      Fill(next, head, kind, runs[now ^ 1]);
      f(KvRuns{runs[now], few.count, few.n, next.count == few.count && next.n == few.n ? runs[now ^ 1] : nullptr},
        few.runs->position);
    }
  }
  void Fill(const Few& few, size_t head, Kind kind, KvRun* runs) const {
    for (size_t p = 0; p < few.count; ++p) runs[p] = (this->*kind)(few.runs[p], head);
  }
  KvRun Keys(const Run& run, size_t head) const;
  KvRun Values(const Run& run, size_t head) const;
  KvRun NextHead(const KvRun& run) const {
    return {run.type, run.values + head_bytes_, run.scales == nullptr ? nullptr : run.scales + head_bytes_};
  }
  // Of keys or values of n positions of a head, without scales.
  size_t RunBytes(size_t n) const { return n * dim_ * elem_bytes_; }

 private:
  const KvView& kv_;
  const size_t block_, dim_, page_bytes_, head_bytes_, elem_bytes_;
};

// What a row on its own reads of a split, step by step: the keys of a few pages, head after head, as all heads of a
// page lie side by side, those of the next few, and so on; then the values; then, for asking only, what it sees of the
// next split. While a step is computed, the kernels ask memory for all of the next one (KvRuns::next). The hardware
// runs ahead of that by itself, but within 4 KB only: the first lines of each 4 KB are asked for a step earlier.
class Walk {
 public:
  enum class Reads { kKeys, kValues, kLater, kNothing };
  struct Step {
    Reads reads;
    size_t head;      // counted from the first of the walk
    size_t position;  // of the runs' first
    size_t count, n;  // pages, positions of each
    KvRun runs[kPagesAtOnce];
    size_t End() const { return position + count * n; }
  };
  Walk(const Pages& pages, const KvRow& row, size_t head, size_t heads, Range sees, Range later);

  const Step& Now() const { return ring_[now_ % kRing]; }
  KvRuns Runs() const;
  void Advance();
  // Asks for some lines more of the step after the next, for whoever has arithmetic to do that reads nothing.
  void Ask();

 private:
  static constexpr size_t kRing = 4;
  void Make();

  const Pages& pages_;
  const KvRow& row_;
  const size_t first_, heads_;
  const bool asks_;  // q8_0 has so much arithmetic that asking earlier than the kernels do costs more than it brings
  const Range sees_, later_;
  Reads reads_ = Reads::kKeys;  // of the step that is made next, as are
  size_t position_, head_ = 0;
  Step ring_[kRing];
  size_t made_ = 0, now_ = 0;
  size_t asked_ = 0;  // bytes of each of the last step's runs
};

}  // namespace gyre::cpu
