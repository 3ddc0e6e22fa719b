#include "kernels/cpu/attention_split.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace gyre::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

size_t AttentionCall::First(const KvRow& row) const {
  const size_t end = size_t{row.position} + 1, window = Size(params.window);
  return window > 0 && end > window ? end - window : 0;
}

Range AttentionCall::Sees(const KvRow& row, size_t split) const {
  const size_t from = std::clamp(First(row), split * kSplit, (split + 1) * kSplit);
  return {from, std::clamp(size_t{row.position} + 1, from, (split + 1) * kSplit)};
}

size_t AttentionPart::Bytes(size_t queries, size_t dim) {
  Carver carver{nullptr};
  carver.Take<double>(queries);
  carver.Take<float>(queries);
  carver.Take<float>(queries * dim);
  return carver.used;
}

AttentionPart::AttentionPart(std::byte* memory, size_t most, size_t dim) : dim_(dim) {
  Carver carver{memory};
  total = carver.Take<double>(most);
  max = carver.Take<float>(most);
  sums = carver.Take<float>(most * dim);
}

void AttentionPart::Reset(size_t n) {
  std::fill_n(total, n, 0.0);
  std::fill_n(max, n, -kInfinity);
  std::fill_n(sums, n * dim_, 0.0f);
}

void AttentionPart::Copy(const AttentionPart& o, size_t n) {
  std::copy_n(o.total, n, total);
  std::copy_n(o.max, n, max);
  std::copy_n(o.sums, n * dim_, sums);
}

void AttentionPart::Finish(const AttentionCall& call, const AttentionItem& item) const {
  for (size_t i = 0; i < call.Queries(item); ++i) {
    const auto by = static_cast<float>(1 / total[i]);
    float* out = call.out + call.At(item, i);
    for (size_t d = 0; d < dim_; ++d) out[d] = sums[i * dim_ + d] * by;
  }
}

size_t SplitAttention::Carve(const AttentionCall& call, size_t most, std::byte* memory, Scratch* scratch) {
  Carver carver{memory};
  scratch->sees = carver.Take<Range>(most);
  scratch->queries = carver.Take<float>(most * call.dim);
  scratch->scores = carver.Take<float>(most * kSplit);
  return carver.used;
}

size_t SplitAttention::Bytes(const AttentionCall& call, size_t most) {
  Scratch none;
  return Carve(call, most, nullptr, &none);
}

SplitAttention::SplitAttention(const IsaOps& ops, const AttentionCall& call, size_t most, std::byte* memory)
    : ops_(ops), call_(call) {
  Carve(call, most, memory, &scratch_);
}

void SplitAttention::Attend(const AttentionItem& item, size_t split, AttentionPart* part) const {
  part->Reset(call_.Queries(item));
  if (item.count == 1)
    AttendLone(item, split, part);
  else
    AttendTogether(item, split, part);
}

// Most scores have become weights when their values are read, the others between: arithmetic that reads nothing from
// memory, so what comes is asked for meanwhile, in small portions, as a core waits for few lines at once.
void SplitAttention::AttendLone(const AttentionItem& item, size_t split, AttentionPart* part) const {
  const KvRow& row = call_.rows[item.row];
  const size_t start = split * kSplit, group = call_.group, dim = call_.dim;
  const Range sees = call_.Sees(row, split);
  const float* queries = call_.Query(item, 0);
  Walk walk(call_.pages, row, item.head, item.heads, sees, call_.Sees(row, split + 1));
  auto scores = [&](const Walk::Step& step) {
    return scratch_.scores + step.head * group * kSplit + (step.position - start);
  };
  // Between the last scores of the first head and the first values of the last one lie 2 heads - 1 pauses.
  const size_t count = call_.Queries(item), pauses = 2 * item.heads - 1;
  size_t softened = 0;
  auto soften = [&](size_t pause) {
    for (; softened < count && softened * pauses < pause * count; ++softened) {
      walk.Ask();
      Soften(scratch_.scores + softened * kSplit, {sees.from - start, sees.to - start}, &part->max[softened],
             &part->total[softened]);
    }
  };
  for (; walk.Now().reads == Walk::Reads::kKeys; walk.Advance()) {
    const Walk::Step& step = walk.Now();
    ops_.scores(queries + step.head * group * dim, group, walk.Runs(), call_.pages.block(), dim, scores(step), kSplit);
    if (step.End() == sees.to) soften(step.head + 1);
  }
  for (; walk.Now().reads == Walk::Reads::kValues; walk.Advance()) {
    const Walk::Step& step = walk.Now();
    ops_.weighted_sum(scores(step), kSplit, group, walk.Runs(), dim, part->sums + step.head * group * dim);
    if (step.position == sees.from) soften(item.heads + step.head + 1);
  }
}

// The queries of several rows, and what each sees.
SplitAttention::Seen SplitAttention::Gather(const AttentionItem& item, size_t split) const {
  const size_t start = split * kSplit, end = start + kSplit;
  Seen seen{{end, start}, {start, end}};
  for (size_t i = 0; i < call_.Queries(item); ++i) {
    std::memcpy(scratch_.queries + i * call_.dim, call_.Query(item, i), call_.dim * sizeof(float));
    const Range& s = scratch_.sees[i] = call_.Sees(call_.rows[item.row + i / call_.group], split);
    if (s.from < s.to) seen.any = {std::min(seen.any.from, s.from), std::max(seen.any.to, s.to)};
    seen.all = {std::max(seen.all.from, s.from), std::min(seen.all.to, s.to)};
  }
  seen.all.to = std::max(seen.all.from, seen.all.to);
  return seen;
}

// The heads of one key-value head of several rows.
void SplitAttention::AttendTogether(const AttentionItem& item, size_t split, AttentionPart* part) const {
  const size_t dim = call_.dim, group = call_.group, n = call_.Queries(item), start = split * kSplit;
  const KvRow& row = call_.rows[item.row];  // all have this table
  const Seen seen = Gather(item, split);
  const Range* sees = scratch_.sees;
  const Pages& pages = call_.pages;
  pages.ForEachFew(row, seen.any.from, seen.any.to, item.head, &Pages::Keys, [&](const KvRuns& runs, size_t position) {
    ops_.scores(scratch_.queries, n, runs, pages.block(), dim, scratch_.scores + (position - start), kSplit);
  });
  for (size_t i = 0; i < n; ++i) {
    if (sees[i].from < sees[i].to)
      Soften(scratch_.scores + i * kSplit, {sees[i].from - start, sees[i].to - start}, &part->max[i], &part->total[i]);
  }
  // What all see, together; before and after it each row its own.
  auto add = [&](size_t from, size_t to, size_t first, size_t how_many) {
    pages.ForEachFew(row, from, to, item.head, &Pages::Values, [&](const KvRuns& runs, size_t position) {
      ops_.weighted_sum(scratch_.scores + first * kSplit + (position - start), kSplit, how_many, runs, dim,
                        part->sums + first * dim);
    });
  };
  for (size_t i = 0; i < n; i += group) add(sees[i].from, std::min(seen.all.from, sees[i].to), i, group);
  add(seen.all.from, seen.all.to, 0, n);
  for (size_t i = 0; i < n; i += group) add(std::max(seen.all.to, sees[i].from), sees[i].to, i, group);
}

// Scores become weights.
void SplitAttention::Soften(float* scores, Range range, float* max, double* total) const {
  const AttentionParams& params = call_.params;
  float scale = params.scale;
  if (params.softcap > 0) {
    ops_.softcap(scores + range.from, range.to - range.from, scale, params.softcap);
    scale = 1;
  }
  *total = static_cast<double>(ops_.soften(scores, range.from, range.to, scale, max));
}

}  // namespace gyre::cpu
