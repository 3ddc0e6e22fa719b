// The context is cut into splits of 256 positions, counted from 0. Each split gets its softmax by itself (maximum, sum,
// weighted sum of values, positions rising), and splits are merged in rising order: a row's additions depend on its own
// position and window only. Neighbouring rows of one sequence share the passes over K and V, not the arithmetic.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace gyre {
namespace {

constexpr size_t kSplit = 256;
// Room for a split, rounded up to whole vectors from any start.
constexpr size_t kScoreStride = kSplit + 32;
// Query vectors that share a pass over K and V.
constexpr size_t kShared = 24;

struct Range {
  size_t begin = 0;
  size_t end = 0;
  bool empty() const { return begin >= end; }
  Range Within(Range other) const { return {std::max(begin, other.begin), std::min(end, other.end)}; }
  bool operator==(const Range&) const = default;
};

// What one query vector has gathered so far.
struct Gathered {
  float max = 0;
  float sum = 0;
  float part_max = 0;  // of the split at hand
  float part_sum = 0;
  bool any = false;
};

}  // namespace

// One batch of rows against one KV head.
struct Attender::Call {
  const KernelTable& kernels;
  const KvView& kv;
  const AttentionParams& params;
  std::span<const KvRow> rows;
  size_t kv_head;
  size_t group;  // query heads of a KV head
  size_t dim = static_cast<size_t>(kv.head_dim);
  size_t vectors = rows.size() * group;

  const float* queries = nullptr;  // [vectors][dim]
  float* scores = nullptr;         // [vectors][kScoreStride]
  float* part = nullptr;           // [vectors][dim], of this split
  float* total = nullptr;          // [vectors][dim]
  Gathered* gathered = nullptr;    // [vectors]

  static size_t ScratchFloats(size_t vectors, size_t dim) {
    return vectors * (3 * dim + kScoreStride + sizeof(Gathered) / sizeof(float)) + 64;
  }

  Range Seen(const KvRow& row) const {
    const size_t end = size_t{row.position} + 1, window = static_cast<size_t>(params.window);
    return {window > 0 && end > window ? end - window : 0, end};
  }

  // Calls f(positions, offset of the first one's head in the pool) page by page.
  template <typename Fn>
  void EachPage(Range range, Fn f) const {
    const auto block_size = static_cast<uint32_t>(kv.block_size);
    const size_t page_elems = kv.PageElems(), head = kv_head * block_size * dim;
    // One division: a token of a tiny model has thousands of pages.
    const auto first = static_cast<uint32_t>(range.begin);
    const BlockId* page = rows.front().table + first / block_size;
    size_t within = first % block_size;
    for (size_t p = range.begin; p < range.end; ++page, within = 0) {
      const size_t end = std::min(range.end, p + block_size - within);
      f(Range{p, end}, *page * page_elems + head + within * dim);
      p = end;
    }
  }

  void Run(float* scratch, const float* q, float* out, size_t heads);
  void Split(size_t start, Range all);
  void Values(size_t start, Range all);
  void Merge(size_t vector);
};

void Attender::Call::Run(float* scratch, const float* q, float* out, size_t heads) {
  float* gather = scratch;
  scores = gather + vectors * dim;
  part = scores + vectors * kScoreStride;
  total = part + vectors * dim;
  gathered = reinterpret_cast<Gathered*>(total + vectors * dim);
  std::fill_n(gathered, vectors, Gathered{});
  const size_t head = kv_head * group;
  queries = gather;
  if (rows.size() == 1) {
    queries = q + head * dim;
  } else {
    for (size_t r = 0; r < rows.size(); ++r) {
      std::memcpy(gather + r * group * dim, q + (r * heads + head) * dim, group * dim * sizeof(float));
    }
  }
  Range all{std::numeric_limits<size_t>::max(), 0};
  for (const KvRow& row : rows) {
    all.begin = std::min(all.begin, Seen(row).begin);
    all.end = std::max(all.end, Seen(row).end);
  }
  for (size_t start = all.begin / kSplit * kSplit; start < all.end; start += kSplit) {
    Split(start, all.Within({start, start + kSplit}));
  }
  for (size_t v = 0; v < vectors; ++v) {
    float* to = out + (v / group * heads + head + v % group) * dim;
    const float* from = total + v * dim;
    for (size_t i = 0; i < dim; ++i) to[i] = from[i] / gathered[v].sum;
  }
}

// Positions `all` of the split that begins at `start`.
void Attender::Call::Split(size_t start, Range all) {
  const size_t bytes = kv.half ? 2 : 4;
  const DotFn dot = kv.half ? kernels.dot_f16 : kernels.dot_f32;
  EachPage(all, [&](Range p, size_t at) {
    dot(queries, dim, vectors, kv.k + at * bytes, dim * bytes, p.end - p.begin, dim, scores + p.begin - start,
        kScoreStride);
  });
  std::fill_n(part, vectors * dim, 0.0f);
  for (size_t v = 0; v < vectors; ++v) {
    const Range seen = Seen(rows[v / group]).Within(all);
    if (seen.empty()) continue;
    kernels.softmax_part(scores + v * kScoreStride + seen.begin - start, seen.end - seen.begin, params.scale,
                         params.softcap, &gathered[v].part_max, &gathered[v].part_sum);
  }
  Values(start, all);
  for (size_t v = 0; v < vectors; ++v) {
    if (!Seen(rows[v / group]).Within(all).empty()) Merge(v);
  }
}

// part += exponentials * V. Where all rows see a whole page they share it.
void Attender::Call::Values(size_t start, Range all) {
  const size_t bytes = kv.half ? 2 : 4;
  const WeightedSumFn weighted_sum = kv.half ? kernels.weighted_sum_f16 : kernels.weighted_sum_f32;
  EachPage(all, [&](Range page, size_t at) {
    bool shared = true;  // by all rows, this page
    for (const KvRow& row : rows) shared = shared && Seen(row).Within(page) == page;
    const size_t turns = shared ? 1 : rows.size(), vectors_a_turn = vectors / turns;
    for (size_t turn = 0; turn < turns; ++turn) {
      const Range seen = Seen(rows[turn]).Within(page);
      if (seen.empty()) continue;
      const size_t v = turn * vectors_a_turn;
      weighted_sum(scores + v * kScoreStride + seen.begin - start, kScoreStride, vectors_a_turn,
                   kv.v + (at + (seen.begin - page.begin) * dim) * bytes, seen.end - seen.begin, dim, part + v * dim);
    }
  });
}

void Attender::Call::Merge(size_t vector) {
  Gathered& g = gathered[vector];
  float* to = total + vector * dim;
  const float* from = part + vector * dim;
  if (!g.any) {
    g.any = true;
    g.max = g.part_max;
    g.sum = g.part_sum;
    std::memcpy(to, from, dim * sizeof(float));
    return;
  }
  const float max = std::max(g.max, g.part_max);
  const float keep = std::exp(g.max - max), add = std::exp(g.part_max - max);
  g.max = max;
  g.sum = g.sum * keep + g.part_sum * add;
  for (size_t i = 0; i < dim; ++i) to[i] = to[i] * keep + from[i] * add;
}

void Attender::Run(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& params,
                   float* out) {
  const auto heads = static_cast<size_t>(params.heads), kv_heads = static_cast<size_t>(kv.kv_heads);
  const size_t group = heads / kv_heads, dim = static_cast<size_t>(kv.head_dim);
  const size_t most = std::max<size_t>(1, kShared / group);
  batches_.clear();
  double positions = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (r == 0 || rows[r].table != rows[r - 1].table || r - batches_.back() == most) batches_.push_back(r);
    const size_t seen = size_t{rows[r].position} + 1, window = static_cast<size_t>(params.window);
    positions += static_cast<double>(window > 0 ? std::min(seen, window) : seen);
  }
  batches_.push_back(rows.size());
  const size_t tasks = (batches_.size() - 1) * kv_heads;
  if (rows.empty()) return;
  // About 8 multiplications a nanosecond, for K and for V.
  const double ns = positions * static_cast<double>(heads * dim) * 0.25 / static_cast<double>(tasks);
  team_.For(tasks, ns, [&](size_t task, int thread) {
    const size_t batch = task / kv_heads, first = batches_[batch];
    Call call{.kernels = kernels_,
              .kv = kv,
              .params = params,
              .rows = rows.subspan(first, batches_[batch + 1] - first),
              .kv_head = task % kv_heads,
              .group = group};
    float* scratch = scratch_[static_cast<size_t>(thread)].Reserve(Call::ScratchFloats(call.vectors, dim));
    call.Run(scratch, q + first * heads * dim, out + first * heads * dim, heads);
  });
}

}  // namespace gyre
