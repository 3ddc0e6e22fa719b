// Where the keys and values of attention lie in the KV cache, and the order in which a decode row reads them.
#pragma once

#include <cstddef>

#include "kernels/cpu/attention/kv_span.h"
#include "kernels/cpu/products/tiles.h"
#include "kernels/ops.h"

namespace gyre::cpu {

// The layout of one layer's KV pages. Sizes are computed once, as every read needs them.
class Pages {
 public:
  // Consecutive positions within one page.
  struct PageSpan {
    size_t position, count;
    size_t in_page;
    size_t page;  // its number
  };
  // Up to kPagesPerBatch whole pages, or a part of one page.
  struct PageBatch {
    size_t count = 0, n = 0;  // number of pages, positions of each
    PageSpan spans[kPagesPerBatch];
    size_t End() const { return spans->position + count * n; }
  };
  // &Pages::Keys or &Pages::Values.
  using Selector = KvSpan (Pages::*)(const PageSpan&, size_t head) const;

  explicit Pages(const KvView& kv);

  size_t block() const { return block_; }
  KvType type() const { return kv_.type; }
  PageSpan At(const KvRow& row, size_t position, size_t count) const {
    return {position, count, position % block_, row.table[position / block_]};
  }
  // Returns the first batch of positions [from, to) of a row; its count is 0 if from >= to.
  PageBatch BatchAt(const KvRow& row, size_t from, size_t to) const;
  // Calls f(spans, position) for each batch of positions [from, to) of a row; `position` is the first one of the batch.
  template <typename Fn>
  void ForEachBatch(const KvRow& row, size_t from, size_t to, size_t head, Selector selector, const Fn& f) const {
    KvSpan spans[2][kPagesPerBatch];  // this batch and the next
    size_t now = 0;
    PageBatch batch = BatchAt(row, from, to), next;
    for (Fill(batch, head, selector, spans[now]); batch.count > 0; batch = next, now ^= 1) {
      next = BatchAt(row, batch.End(), to);
      Fill(next, head, selector, spans[now ^ 1]);
      f(KvSpans{spans[now], batch.count, batch.n,
                next.count == batch.count && next.n == batch.n ? spans[now ^ 1] : nullptr},
        batch.spans->position);
    }
  }
  void Fill(const PageBatch& batch, size_t head, Selector selector, KvSpan* spans) const {
    for (size_t p = 0; p < batch.count; ++p) spans[p] = (this->*selector)(batch.spans[p], head);
  }
  KvSpan Keys(const PageSpan& span, size_t head) const;
  KvSpan Values(const PageSpan& span, size_t head) const;
  // The same positions of the next head, of keys or of values.
  KvSpan NextHead(const KvSpan& span, bool values) const {
    const size_t bytes = values ? value_head_bytes_ : head_bytes_;
    return {span.type, span.values + bytes, span.scales == nullptr ? nullptr : span.scales + bytes};
  }
  // Bytes of the keys or values of n positions of one head, without scales.
  size_t SpanBytes(size_t n, bool values) const { return KvCodeBytes(kv_.type, n * (values ? value_dim_ : dim_)); }
  // Whether values are parts of keys; then there is no Values.
  bool values_in_keys() const { return kv_.values_in_keys; }

 private:
  const KvView& kv_;
  const size_t block_, dim_, value_dim_, page_bytes_, value_page_bytes_, head_bytes_, value_head_bytes_;
};

// The order in which a decode row reads one split. All heads of a page are contiguous, so it takes the keys of one
// batch of pages head by head, then those of the next batch; then the values in the same way. After these it lists the
// keys of the next split, which are only prefetched.
// While the kernels compute a step they prefetch all of the next one (KvSpans::next). The hardware prefetcher follows a
// stream only within its 4 KiB page, so this class prefetches the first lines of each 4 KiB one step earlier.
class DecodeReadOrder {
 public:
  enum class Reads { kKeys, kValues, kNextSplit, kNothing };
  struct Step {
    Reads reads;
    size_t head;      // relative to the first head of this order
    size_t position;  // first position of the spans
    size_t count, n;  // number of pages, positions of each
    KvSpan spans[kPagesPerBatch];
    size_t End() const { return position + count * n; }
  };
  DecodeReadOrder(const Pages& pages, const KvRow& row, size_t head, size_t heads, Range sees, Range next_split);

  const Step& Now() const { return ring_[now_ % kRing]; }
  KvSpans Spans() const;
  void Advance();
  // Prefetches some lines of the step after the next. Call it between computations that read no memory, such as the
  // exponentials of scores: a core has few outstanding line fills, so small portions overlap best.
  void Prefetch();

 private:
  static constexpr size_t kRing = 4;
  void Make();

  const Pages& pages_;
  const KvRow& row_;
  const size_t first_, heads_;
  const Range sees_, next_split_;
  Reads reads_ = Reads::kKeys;  // reads_, position_ and head_ describe the step that Make adds next
  size_t position_, head_ = 0;
  Step ring_[kRing];
  size_t made_ = 0, now_ = 0;
  size_t prefetched_ = 0;  // bytes of each span of the newest step
};

}  // namespace gyre::cpu
