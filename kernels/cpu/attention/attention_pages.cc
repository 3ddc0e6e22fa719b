#include "kernels/cpu/attention/attention_pages.h"

#include <algorithm>

namespace gyre::cpu {
namespace {

// The hardware prefetcher does not cross a 4 KiB boundary; it reads lines of 64 bytes.
constexpr uintptr_t kStream = 4096, kLine = 64;
constexpr size_t kFirstLines = 2;  // two sequential misses start the hardware prefetcher
// About as many lines arrive from memory while one query's scores of a split are exponentiated.
constexpr size_t kLinesPerPrefetch = 16;

// Into the second-level cache, as these lines are read a step later.
void PrefetchLine(const std::byte* line) { __builtin_prefetch(line, 0, 2); }

}  // namespace

Pages::Pages(const KvView& kv)
    : kv_(kv),
      block_(static_cast<size_t>(kv.block_size)),
      dim_(static_cast<size_t>(kv.head_dim)),
      value_dim_(kv.ValueDim()),
      page_bytes_(kv.PageBytes()),
      value_page_bytes_(kv.ValuePageBytes()),
      head_bytes_(kv.HeadBytes()),
      value_head_bytes_(kv.ValueHeadBytes()) {}

Pages::PageBatch Pages::BatchAt(const KvRow& row, size_t from, size_t to) const {
  PageBatch batch;
  if (from >= to) return batch;
  const size_t in_page = from % block_, whole = in_page == 0 ? (to - from) / block_ : 0;
  batch.count = std::clamp<size_t>(whole, 1, kPagesPerBatch);
  batch.n = whole > 0 ? block_ : std::min(block_ - in_page, to - from);
  for (size_t p = 0; p < batch.count; ++p) batch.spans[p] = At(row, from + p * batch.n, batch.n);
  return batch;
}

KvSpan Pages::Keys(const PageSpan& span, size_t head) const {
  const std::byte* at = kv_.k + span.page * page_bytes_ + head * head_bytes_;
  if (!KvHasScales(kv_.type)) return {kv_.type, at + KvCodeBytes(kv_.type, span.in_page), nullptr};
  return {kv_.type, at + span.in_page, at + KvCodeBytes(kv_.type, block_ * dim_) + span.in_page * 2};
}

KvSpan Pages::Values(const PageSpan& span, size_t head) const {
  const std::byte* at = kv_.v + span.page * value_page_bytes_ + head * value_head_bytes_;
  const std::byte* values = at + KvCodeBytes(kv_.type, span.in_page * value_dim_);
  if (!KvHasScales(kv_.type)) return {kv_.type, values, nullptr};
  return {kv_.type, values,
          at + KvCodeBytes(kv_.type, block_ * value_dim_) + span.in_page * (value_dim_ / kKvBlock) * 2};
}

DecodeReadOrder::DecodeReadOrder(const Pages& pages, const KvRow& row, size_t head, size_t heads, Range sees,
                                 Range next_split)
    : pages_(pages),
      row_(row),
      first_(head),
      heads_(heads),
      sees_(sees),
      next_split_(next_split),
      position_(sees.from) {
  if (sees.size() == 0) reads_ = Reads::kNothing;
  for (size_t i = 0; i < 3; ++i) Make();
}

void DecodeReadOrder::Advance() {
  ++now_;
  Make();
}

KvSpans DecodeReadOrder::Spans() const {
  const Step &now = Now(), &next = ring_[(now_ + 1) % kRing];
  const bool alike = next.reads != Reads::kNothing && next.count == now.count && next.n == now.n;
  return {now.spans, now.count, now.n, alike ? next.spans : nullptr};
}

void DecodeReadOrder::Make() {
  const Step& before = ring_[(made_ + kRing - 1) % kRing];
  Step& step = ring_[made_++ % kRing];
  step.reads = reads_;
  prefetched_ = 0;
  if (reads_ == Reads::kNothing) return;
  step.head = head_;
  if (head_ > 0) {
    step.position = before.position;
    step.count = before.count;
    step.n = before.n;
    for (size_t p = 0; p < step.count; ++p) step.spans[p] = pages_.NextHead(before.spans[p], reads_ == Reads::kValues);
  } else {
    const Pages::PageBatch batch =
        pages_.BatchAt(row_, position_, reads_ == Reads::kNextSplit ? next_split_.to : sees_.to);
    step.position = position_;
    step.count = batch.count;
    step.n = batch.n;
    pages_.Fill(batch, first_, reads_ == Reads::kValues ? &Pages::Values : &Pages::Keys, step.spans);
  }
  const size_t bytes = pages_.SpanBytes(step.n, step.reads == Reads::kValues);
  const auto at = reinterpret_cast<uintptr_t>(step.spans->values), stream = (at + kStream - 1) / kStream * kStream;
  if (stream < at + bytes) {
    for (size_t line = 0; line < kFirstLines; ++line) {
      for (size_t p = 0; p < step.count; ++p) PrefetchLine(step.spans[p].values + (stream - at) + line * kLine);
    }
  }
  if (++head_ < heads_) return;
  head_ = 0;
  position_ = step.End();
  if (reads_ == Reads::kKeys && position_ == sees_.to) {
    reads_ = Reads::kValues;
    position_ = sees_.from;
  } else if (reads_ == Reads::kValues && position_ == sees_.to) {
    reads_ = next_split_.size() > 0 ? Reads::kNextSplit : Reads::kNothing;
    position_ = next_split_.from;
  } else if (reads_ == Reads::kNextSplit && position_ == next_split_.to) {
    reads_ = Reads::kNothing;
  }
}

void DecodeReadOrder::Prefetch() {
  const Step& last = ring_[(made_ - 1) % kRing];
  if (last.reads == Reads::kNothing) return;
  const size_t until = std::min(pages_.SpanBytes(last.n, last.reads == Reads::kValues),
                                prefetched_ + kLinesPerPrefetch / last.count * kLine);
  for (; prefetched_ < until; prefetched_ += kLine) {
    for (size_t p = 0; p < last.count; ++p) PrefetchLine(last.spans[p].values + prefetched_);
  }
}

}  // namespace gyre::cpu
