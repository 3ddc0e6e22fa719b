#include "kernels/cpu/attention_pages.h"

#include <algorithm>

namespace gyre::cpu {
namespace {

constexpr uintptr_t kStream = 4096, kLine = 64;  // how far the hardware follows, what it reads at once
constexpr size_t kFirstLines = 2;                // as many make it follow
constexpr size_t kAskedAtOnce = 16;  // lines that memory brings while a query's scores of a split become weights, about

// Into the second-level cache.
void AskFor(const std::byte* line) { __builtin_prefetch(line, 0, 2); }

}  // namespace

Pages::Pages(const KvView& kv)
    : kv_(kv),
      block_(static_cast<size_t>(kv.block_size)),
      dim_(static_cast<size_t>(kv.head_dim)),
      page_bytes_(kv.PageBytes()),
      head_bytes_(kv.HeadBytes()),
      elem_bytes_(KvBytes(kv.type, 1)) {}

Pages::Few Pages::FewAt(const KvRow& row, size_t from, size_t to) const {
  Few few;
  if (from >= to) return few;
  const size_t in_page = from % block_, whole = in_page == 0 ? (to - from) / block_ : 0;
  few.count = std::clamp<size_t>(whole, 1, kPagesAtOnce);
  few.n = whole > 0 ? block_ : std::min(block_ - in_page, to - from);
  for (size_t p = 0; p < few.count; ++p) few.runs[p] = At(row, from + p * few.n, few.n);
  return few;
}

KvRun Pages::Keys(const Run& run, size_t head) const {
  const std::byte* at = kv_.k + run.page + head * head_bytes_;
  if (kv_.type != KvType::kQ8_0) return {kv_.type, at + run.in_page * elem_bytes_, nullptr};
  return {kv_.type, at + run.in_page, at + block_ * dim_ + run.in_page * 2};
}

KvRun Pages::Values(const Run& run, size_t head) const {
  const std::byte* at = kv_.v + run.page + head * head_bytes_;
  if (kv_.type != KvType::kQ8_0) return {kv_.type, at + run.in_page * dim_ * elem_bytes_, nullptr};
  return {kv_.type, at + run.in_page * dim_, at + block_ * dim_ + run.in_page * (dim_ / kKvBlock) * 2};
}

Walk::Walk(const Pages& pages, const KvRow& row, size_t head, size_t heads, Range sees, Range later)
    : pages_(pages),
      row_(row),
      first_(head),
      heads_(heads),
      asks_(pages.type() != KvType::kQ8_0),
      sees_(sees),
      later_(later),
      position_(sees.from) {
  if (sees.size() == 0) reads_ = Reads::kNothing;
  for (size_t i = 0; i < 3; ++i) Make();
}

void Walk::Advance() {
  ++now_;
  Make();
}

KvRuns Walk::Runs() const {
  const Step &now = Now(), &next = ring_[(now_ + 1) % kRing];
  const bool alike = next.reads != Reads::kNothing && next.count == now.count && next.n == now.n;
  return {now.runs, now.count, now.n, alike ? next.runs : nullptr};
}

void Walk::Make() {
  const Step& before = ring_[(made_ + kRing - 1) % kRing];
  Step& step = ring_[made_++ % kRing];
  step.reads = reads_;
  asked_ = 0;
  if (reads_ == Reads::kNothing) return;
  step.head = head_;
  if (head_ > 0) {
    step.position = before.position;
    step.count = before.count;
    step.n = before.n;
    for (size_t p = 0; p < step.count; ++p) step.runs[p] = pages_.NextHead(before.runs[p]);
  } else {
    const Pages::Few few = pages_.FewAt(row_, position_, reads_ == Reads::kLater ? later_.to : sees_.to);
    step.position = position_;
    step.count = few.count;
    step.n = few.n;
    pages_.Fill(few, first_, reads_ == Reads::kValues ? &Pages::Values : &Pages::Keys, step.runs);
  }
  const size_t bytes = pages_.RunBytes(step.n);
  const auto at = reinterpret_cast<uintptr_t>(step.runs->values), stream = (at + kStream - 1) / kStream * kStream;
  if (asks_ && stream < at + bytes) {
    for (size_t line = 0; line < kFirstLines; ++line) {
      for (size_t p = 0; p < step.count; ++p) AskFor(step.runs[p].values + (stream - at) + line * kLine);
    }
  }
  if (++head_ < heads_) return;
  head_ = 0;
  position_ = step.End();
  if (reads_ == Reads::kKeys && position_ == sees_.to) {
    reads_ = Reads::kValues;
    position_ = sees_.from;
  } else if (reads_ == Reads::kValues && position_ == sees_.to) {
    reads_ = later_.size() > 0 ? Reads::kLater : Reads::kNothing;
    position_ = later_.from;
  } else if (reads_ == Reads::kLater && position_ == later_.to) {
    reads_ = Reads::kNothing;
  }
}

void Walk::Ask() {
  const Step& last = ring_[(made_ - 1) % kRing];
  if (last.reads == Reads::kNothing || !asks_) return;
  const size_t until = std::min(pages_.RunBytes(last.n), asked_ + kAskedAtOnce / last.count * kLine);
  for (; asked_ < until; asked_ += kLine) {
    for (size_t p = 0; p < last.count; ++p) AskFor(last.runs[p].values + asked_);
  }
}

}  // namespace gyre::cpu
