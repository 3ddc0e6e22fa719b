// Where attention's keys and values lie, and in which order a row on its scratch reads them.
#pragma once

#include <cstddef>

#include "kernels/cpu/kv_span.h"
#include "kernels/cpu/tiles.h"
#include "kernels/ops.h"

namespace gyre::cpu {

// The cache's sizes, divided out once.
class Pages {
 public:
  // Positions of one page that follow each other.
  struct PageSpan {
    size_t position, count;
    size_t in_page;
    size_t page;  // where it begins in either pool
  };
  // Up to kPagesPerBatch whole pages, or a partial of one.
  struct PageBatch {
    size_t count = 0, n = 0;  // pages, positions of each
    PageSpan spans[kPagesPerBatch];
    size_t End() const { return spans->position + count * n; }
  };
  // Keys or Values.
  using Selector = KvSpan (Pages::*)(const PageSpan&, size_t head) const;

  explicit Pages(const KvView& kv);

  size_t block() const { return block_; }
  KvType type() const { return kv_.type; }
  PageSpan At(const KvRow& row, size_t position, size_t count) const {
    return {position, count, position % block_, row.table[position / block_] * page_bytes_};
  }
  // The first batch of positions [from, to) of a row; none where from >= to.
  PageBatch BatchAt(const KvRow& row, size_t from, size_t to) const;
  // f(spans, position) for [from, to) of a row, a batch pages after a batch pages; position: the spans' first.
  template <typename Fn>
  void ForEachBatch(const KvRow& row, size_t from, size_t to, size_t head, Selector selector, const Fn& f) const {
    KvSpan spans[2][kPagesPerBatch];  // now and next
    size_t now = 0;
    PageBatch batch = BatchAt(row, from, to), next;
    for (Fill(batch, head, selector, spans[now]); batch.count > 0; batch = next, now ^= 1) {
      next = BatchAt(row, batch.End(), to);
      Fill(next, head, selector, spans[now ^ 1]);
      f(KvSpans{spans[now], batch.count, batch.n, next.count == batch.count && next.n == batch.n ? spans[now ^ 1] : nullptr},
        batch.spans->position);
    }
  }
  void Fill(const PageBatch& batch, size_t head, Selector selector, KvSpan* spans) const {
    for (size_t p = 0; p < batch.count; ++p) spans[p] = (this->*selector)(batch.spans[p], head);
  }
  KvSpan Keys(const PageSpan& span, size_t head) const;
  KvSpan Values(const PageSpan& span, size_t head) const;
  KvSpan NextHead(const KvSpan& span) const {
    return {span.type, span.values + head_bytes_, span.scales == nullptr ? nullptr : span.scales + head_bytes_};
  }
  // Of keys or values of n positions of a head, without scales.
  size_t SpanBytes(size_t n) const { return n * dim_ * elem_bytes_; }

 private:
  const KvView& kv_;
  const size_t block_, dim_, page_bytes_, head_bytes_, elem_bytes_;
};

// What a row on its scratch reads of a split, step by step: the keys of a batch pages, head after head, as all heads of a
// page lie side by side, those of the next batch, and so on; then the values; then, for asking only, what it sees of the
// next split. While a step is computed, the kernels ask memory for all of the next one (KvSpans::next). The hardware
// spans ahead of that by itself, but within 4 KB only: the first lines of each 4 KB are ahead for a step earlier.
class DecodeReadOrder {
 public:
  enum class Reads { kKeys, kValues, kNextSplit, kNothing };
  struct Step {
    Reads reads;
    size_t head;      // counted from the first of the order
    size_t position;  // of the spans' first
    size_t count, n;  // pages, positions of each
    KvSpan spans[kPagesPerBatch];
    size_t End() const { return position + count * n; }
  };
  DecodeReadOrder(const Pages& pages, const KvRow& row, size_t head, size_t heads, Range sees, Range next_split);

  const Step& Now() const { return ring_[now_ % kRing]; }
  KvSpans Spans() const;
  void Advance();
  // Asks for some lines more of the step after the next, for whoever has arithmetic to do that reads nothing.
  void Prefetch();

 private:
  static constexpr size_t kRing = 4;
  void Make();

  const Pages& pages_;
  const KvRow& row_;
  const size_t first_, heads_;
  const bool prefetches_;  // q8_0 has so much arithmetic that asking earlier than the kernels do costs more than it brings
  const Range sees_, next_split_;
  Reads reads_ = Reads::kKeys;  // of the step that is made next, as are
  size_t position_, head_ = 0;
  Step ring_[kRing];
  size_t made_ = 0, now_ = 0;
  size_t prefetched_ = 0;  // bytes of each of the last step's spans
};

}  // namespace gyre::cpu
