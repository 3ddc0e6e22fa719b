#include "kernels/cpu/attention/attention_split.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/hadamard.h"

namespace gyre::cpu {
namespace {

// Values that are parts of keys become rows of f32 so many positions at a time, in the first-level cache.
constexpr size_t kExpanded = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

size_t AttentionCall::First(const KvRow& row) const {
  const size_t end = size_t{row.position} + 1, window = Size(params.window), chunk = Size(params.chunk);
  return std::max(window > 0 && end > window ? end - window : 0, chunk > 0 ? row.position / chunk * chunk : 0);
}

Range AttentionCall::Sees(const KvRow& row, size_t split) const {
  const size_t from = std::clamp(First(row), split * kSplit, (split + 1) * kSplit);
  return {from, std::clamp(size_t{row.position} + 1, from, (split + 1) * kSplit)};
}

size_t AttentionPartial::Bytes(size_t queries, size_t dim) {
  Carver carver{nullptr};
  carver.Take<double>(queries);
  carver.Take<float>(queries);
  carver.Take<float>(queries * dim);
  return carver.used;
}

AttentionPartial::AttentionPartial(std::byte* memory, size_t most, size_t dim) : dim_(dim) {
  Carver carver{memory};
  sum = carver.Take<double>(most);
  max = carver.Take<float>(most);
  acc = carver.Take<float>(most * dim);
}

void AttentionPartial::Reset(size_t n) {
  std::fill_n(sum, n, 0.0);
  std::fill_n(max, n, -kInfinity);
  std::fill_n(acc, n * dim_, 0.0f);
}

void AttentionPartial::Copy(const AttentionPartial& o, size_t n) {
  std::copy_n(o.sum, n, sum);
  std::copy_n(o.max, n, max);
  std::copy_n(o.acc, n * dim_, acc);
}

void AttentionPartial::Finish(const AttentionCall& call, const AttentionItem& item) const {
  for (size_t i = 0; i < call.Queries(item); ++i) {
    double by = 1 / sum[i];
    if (call.params.sinks != nullptr) {
      const auto sink = static_cast<double>(call.params.sinks[call.Head(item, i)]), most = static_cast<double>(max[i]);
      const double top = std::max(most, sink), own = std::exp(most - top);
      by = own / (sum[i] * own + std::exp(sink - top));
    }
    float* out = call.Result(item, i);
    for (size_t d = 0; d < dim_; ++d) out[d] = acc[i * dim_ + d] * static_cast<float>(by);
    if (call.rotated) RotateKvBlocks(out, dim_, out);
  }
}

size_t SplitAttention::Carve(const AttentionCall& call, size_t most, std::byte* memory, Scratch* scratch) {
  Carver carver{memory};
  const size_t rounded = KvHasScales(call.pages.type()) ? most * call.dim : 0, blocks = rounded / kKvBlock;
  scratch->sees = carver.Take<Range>(most);
  scratch->queries = carver.Take<float>(most * call.dim);
  scratch->scores = carver.Take<float>(most * kSplit);
  scratch->values = carver.Take<float>(call.pages.values_in_keys() ? kExpanded * call.value_dim : 0);
  scratch->rounded = {carver.Take<int8_t>(rounded), carver.Take<int8_t>(rounded), carver.Take<float>(blocks),
                      carver.Take<int32_t>(2 * blocks)};
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

void SplitAttention::Attend(const AttentionItem& item, size_t split, AttentionPartial* partial) {
  partial->Reset(call_.Queries(item));
  if (item.count == 1 && !call_.pages.values_in_keys())
    AttendDecodeRow(item, split, partial);
  else
    AttendRows(item, split, partial);
}

// An item's queries are rounded once for all splits that a thread attends to.
void SplitAttention::RoundQueries(const AttentionItem& item, const float* queries) {
  if (!ReadsCodes(ops_, call_) || rounded_ == item) return;
  ops_.round_queries(queries, call_.Queries(item) * (call_.dim / kKvBlock), call_.pages.type(), scratch_.rounded);
  rounded_ = item;
}

void SplitAttention::Score(const float* queries, size_t first, size_t n, const KvSpans& spans, float* scores) const {
  if (ReadsCodes(ops_, call_)) {
    ops_.code_scores(scratch_.rounded.From(first, call_.dim), n, spans, call_.pages.block(), call_.dim, scores, kSplit);
  } else {
    ops_.scores(queries + first * call_.dim, n, spans, call_.pages.block(), call_.dim, scores, kSplit);
  }
}

// The keys' scores are exponentiated in small groups between the last heads' keys and the first heads' values. This
// arithmetic reads no memory, so the next step is prefetched meanwhile, a few lines at a time, because a core has few
// outstanding line fills.
void SplitAttention::AttendDecodeRow(const AttentionItem& item, size_t split, AttentionPartial* partial) {
  const KvRow& row = call_.rows[item.row];
  const size_t start = split * kSplit, group = call_.group;
  const Range sees = call_.Sees(row, split);
  const float* queries = call_.Query(item, 0);
  RoundQueries(item, queries);
  DecodeReadOrder order(call_.pages, row, item.head, item.heads, sees, call_.Sees(row, split + 1));
  auto scores = [&](const DecodeReadOrder::Step& step) {
    return scratch_.scores + step.head * group * kSplit + (step.position - start);
  };
  // Between the scores of the first head and the values of the last one there are 2 * heads - 1 such pauses.
  const size_t count = call_.Queries(item), pauses = 2 * item.heads - 1;
  size_t done = 0;
  auto exp_scores_before = [&](size_t pause) {
    for (; done < count && done * pauses < pause * count; ++done) {
      order.Prefetch();
      ExpScores(scratch_.scores + done * kSplit, {sees.from - start, sees.to - start}, &partial->max[done],
                &partial->sum[done]);
    }
  };
  for (; order.Now().reads == DecodeReadOrder::Reads::kKeys; order.Advance()) {
    const DecodeReadOrder::Step& step = order.Now();
    Score(queries, step.head * group, group, order.Spans(), scores(step));
    if (step.End() == sees.to) exp_scores_before(step.head + 1);
  }
  for (; order.Now().reads == DecodeReadOrder::Reads::kValues; order.Advance()) {
    const DecodeReadOrder::Step& step = order.Now();
    ops_.weighted_sum(scores(step), kSplit, group, order.Spans(), call_.value_dim,
                      partial->acc + step.head * group * call_.value_dim);
    if (step.position == sees.from) exp_scores_before(item.heads + step.head + 1);
  }
}

// Copies the queries of several rows side by side and finds the positions that each attends to.
SplitAttention::Seen SplitAttention::Gather(const AttentionItem& item, size_t split) const {
  const size_t start = split * kSplit, end = start + kSplit;
  Seen seen{{end, start}, {start, end}};
  for (size_t i = 0; i < call_.Queries(item); ++i) {
    std::memcpy(scratch_.queries + i * call_.dim, call_.Query(item, i), call_.dim * sizeof(float));
    const Range& s = scratch_.sees[i] = call_.Sees(call_.rows[item.row + i / call_.Group(item)], split);
    if (s.from < s.to) seen.any = {std::min(seen.any.from, s.from), std::max(seen.any.to, s.to)};
    seen.all = {std::max(seen.all.from, s.from), std::min(seen.all.to, s.to)};
  }
  seen.all.to = std::max(seen.all.from, seen.all.to);
  return seen;
}

// Several rows, the query heads of one key-value head.
void SplitAttention::AttendRows(const AttentionItem& item, size_t split, AttentionPartial* partial) {
  const size_t group = call_.Group(item), n = call_.Queries(item), start = split * kSplit;
  const KvRow& row = call_.rows[item.row];  // all rows of the item have this table
  const Seen seen = Gather(item, split);
  RoundQueries(item, scratch_.queries);
  const Range* sees = scratch_.sees;
  const Pages& pages = call_.pages;
  pages.ForEachBatch(row, seen.any.from, seen.any.to, item.head, &Pages::Keys,
                     [&](const KvSpans& spans, size_t position) {
                       Score(scratch_.queries, 0, n, spans, scratch_.scores + (position - start));
                     });
  for (size_t i = 0; i < n; ++i) {
    if (sees[i].from < sees[i].to)
      ExpScores(scratch_.scores + i * kSplit, {sees[i].from - start, sees[i].to - start}, &partial->max[i],
                &partial->sum[i]);
  }
  // Positions that all queries attend to are summed for all rows at once; before and after them each row has its own.
  auto add = [&](size_t from, size_t to, size_t first, size_t how_many) {
    AddValues(item, start, {from, to}, first, how_many, partial);
  };
  for (size_t i = 0; i < n; i += group) add(sees[i].from, std::min(seen.all.from, sees[i].to), i, group);
  add(seen.all.from, seen.all.to, 0, n);
  for (size_t i = 0; i < n; i += group) add(std::max(seen.all.to, sees[i].from), sees[i].to, i, group);
}

// Adds the weighted values of positions [range.from, range.to) to queries [first, first + queries).
void SplitAttention::AddValues(const AttentionItem& item, size_t start, Range range, size_t first, size_t queries,
                               AttentionPartial* partial) const {
  if (range.from >= range.to) return;
  const Pages& pages = call_.pages;
  const KvRow& row = call_.rows[item.row];
  const size_t dim = call_.value_dim;
  float* acc = partial->acc + first * dim;
  const float* weights = scratch_.scores + first * kSplit;
  if (!pages.values_in_keys()) {
    pages.ForEachBatch(row, range.from, range.to, item.head, &Pages::Values,
                       [&](const KvSpans& spans, size_t position) {
                         ops_.weighted_sum(weights + (position - start), kSplit, queries, spans, dim, acc);
                       });
    return;
  }
  for (size_t at = range.from; at < range.to;) {
    const size_t n = std::min({range.to - at, pages.block() - at % pages.block(), kExpanded});
    ops_.expand_keys(pages.Keys(pages.At(row, at, n), item.head), pages.block(), n, dim, scratch_.values);
    const KvSpan values{KvType::kF32, reinterpret_cast<const std::byte*>(scratch_.values), nullptr};
    ops_.weighted_sum(weights + (at - start), kSplit, queries, {&values, 1, n}, dim, acc);
    at += n;
  }
}

// Replaces scores by exp(score - max) and returns their sum.
void SplitAttention::ExpScores(float* scores, Range range, float* max, double* sum) const {
  const AttentionParams& params = call_.params;
  float scale = params.scale;
  if (params.softcap > 0) {
    ops_.softcap(scores + range.from, range.to - range.from, scale, params.softcap);
    scale = 1;
  }
  *sum = static_cast<double>(ops_.exp_scores(scores, range.from, range.to, scale, max));
}

}  // namespace gyre::cpu
