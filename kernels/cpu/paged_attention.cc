#include "kernels/cpu/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace gyre::cpu {
namespace {

constexpr size_t kSplit = 256;
// Queries that share keys and values in one tile, about.
constexpr size_t kTileQueries = 8;
constexpr double kMacsPerNs = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

size_t Size(int v) { return static_cast<size_t>(v); }

struct Range {
  size_t from, to;
};
// What a row sees of a split.
Range Sees(const KvRow& row, const AttentionParams& p, size_t split) {
  const size_t end = size_t{row.position} + 1, window = Size(p.window), begin = p.window > 0 && end > window ? end - window : 0;
  const size_t from = std::clamp(begin, split * kSplit, (split + 1) * kSplit);
  return {from, std::clamp(end, from, (split + 1) * kSplit)};
}
// The cache's sizes, divided out once.
class Pages {
 public:
  // Positions of one page that follow each other.
  struct Run {
    size_t position, count;
    size_t in_page;
    size_t page;  // where it begins in either pool
  };
  explicit Pages(const KvView& kv)
      : kv_(kv), block_(Size(kv.block_size)), dim_(Size(kv.head_dim)), page_bytes_(kv.PageBytes()), head_bytes_(kv.HeadBytes()), elem_bytes_(KvBytes(kv.type, 1)) {}

  size_t block() const { return block_; }
  // f(run) for [from, to) of a row, page after page.
  template <typename Fn>
  void ForEach(const KvRow& row, size_t from, size_t to, const Fn& f) const {
    for (size_t pos = from; pos < to;) {
      const size_t in_page = pos % block_, count = std::min(block_ - in_page, to - pos);
      f(Run{pos, count, in_page, row.table[pos / block_] * page_bytes_});
      pos += count;
    }
  }
  KvRun Keys(const Run& run, size_t head) const {
    const std::byte* at = kv_.k + run.page + head * head_bytes_;
    if (kv_.type != KvType::kQ8_0) return {kv_.type, at + run.in_page * elem_bytes_, nullptr};
    return {kv_.type, at + run.in_page, at + block_ * dim_ + run.in_page * 2};
  }
  KvRun Values(const Run& run, size_t head) const {
    const std::byte* at = kv_.v + run.page + head * head_bytes_;
    if (kv_.type != KvType::kQ8_0) return {kv_.type, at + run.in_page * dim_ * elem_bytes_, nullptr};
    return {kv_.type, at + run.in_page * dim_, at + block_ * dim_ + run.in_page * (dim_ / kKvBlock) * 2};
  }

 private:
  const KvView& kv_;
  const size_t block_, dim_, page_bytes_, head_bytes_, elem_bytes_;
};

}  // namespace

struct PagedAttention::Call {
  const float* q;
  std::span<const KvRow> rows;
  Pages pages;
  const AttentionParams& params;
  float* out;
  size_t heads, group, dim;  // group: heads that share keys and values

  size_t Queries(const Item& item) const { return item.count * item.heads * group; }
  size_t FirstSplit(const Item& item) const;
  size_t LastSplit(const Item& item) const { return rows[item.row + item.count - 1].position / kSplit; }
};
size_t PagedAttention::Call::FirstSplit(const Item& item) const {
  const size_t end = size_t{rows[item.row].position} + 1, window = Size(params.window);
  return (params.window > 0 && end > window ? end - window : 0) / kSplit;
}

// Weights' sums and weighted values of some queries over some positions, relative to the largest score there.
struct PagedAttention::Part {
  std::vector<float> max;     // [query]
  std::vector<double> total;  // [query]; 0 = it saw nothing there
  std::vector<float> sums;    // [query][head_dim]

  void Reset(size_t queries, size_t dim) {
    max.assign(queries, -kInfinity);
    total.assign(queries, 0.0);
    sums.assign(queries * dim, 0.0f);
  }
  void Add(const Part& o, size_t dim) {
    for (size_t i = 0; i < max.size(); ++i) {
      if (!(o.total[i] > 0)) continue;
      const float top = std::max(max[i], o.max[i]), own = std::exp(max[i] - top), other = std::exp(o.max[i] - top);
      total[i] = total[i] * static_cast<double>(own) + o.total[i] * static_cast<double>(other);
      for (size_t d = i * dim; d < (i + 1) * dim; ++d) sums[d] = sums[d] * own + o.sums[d] * other;
      max[i] = top;
    }
  }
  void Finish(size_t i, size_t dim, float* to) const {
    const auto by = static_cast<float>(1 / total[i]);
    for (size_t d = 0; d < dim; ++d) to[d] = sums[i * dim + d] * by;
  }
};

void PagedAttention::Run(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& params, float* out) {
  const size_t heads = Size(params.heads), kv_heads = Size(kv.kv_heads), group = heads / kv_heads, dim = Size(kv.head_dim);
  const Call call{q, rows, Pages(kv), params, out, heads, group, dim};
  // Neighbours in one sequence read the same keys and values.
  const size_t most = std::max<size_t>(1, kTileQueries / group), threads = Size(team_.threads());
  tiles_.clear();
  lone_.clear();
  double lone_macs = 0, tile_macs = 0;
  for (size_t r = 0; r < rows.size();) {
    size_t count = 1;
    while (r + count < rows.size() && rows[r + count].table == rows[r].table && rows[r + count].position == rows[r].position + count) ++count;
    // Rows of a sequence on its own, as in decoding; a prompt's in tiles.
    const double macs = static_cast<double>(count) * static_cast<double>(rows[r + count - 1].position + 1) * static_cast<double>(heads * dim) * 2;
    (count == 1 ? lone_macs : tile_macs) += macs;
    if (count == 1) lone_.push_back({r, 1, 0, kv_heads});
    for (size_t i = 0; count > 1 && i < count; i += most) {
      for (size_t head = 0; head < kv_heads; ++head) tiles_.push_back({r + i, std::min(most, count - i), head, 1});
    }
    r += count;
  }
  if (!lone_.empty()) {
    const size_t splits = lone_.size() < 4 * threads ? MostSplits(call, lone_) : 1;
    CutHeads(4 * threads / splits, kv_heads);
    Sum(call, lone_, splits, lone_macs);
  }
  if (!tiles_.empty()) Sum(call, tiles_, tiles_.size() < 2 * threads ? MostSplits(call, tiles_) : 1, tile_macs);
}

// All heads of a page lie side by side, so a lone row takes them together; where rows are fewer than `wanted`, some each.
void PagedAttention::CutHeads(size_t wanted, size_t kv_heads) {
  const size_t rows = lone_.size(), cuts = team_.threads() > 1 ? std::clamp<size_t>((wanted + rows - 1) / rows, 1, kv_heads) : 1;
  if (cuts == 1) return;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t cut = 1; cut < cuts; ++cut) {
      const size_t begin = cut * kv_heads / cuts;
      lone_.push_back({lone_[r].row, 1, begin, (cut + 1) * kv_heads / cuts - begin});
    }
    lone_[r].heads = kv_heads / cuts;
  }
}

// 1 where nothing can be shared.
size_t PagedAttention::MostSplits(const Call& call, std::span<const Item> items) const {
  size_t most = 1;
  for (const Item& item : items) most = std::max(most, call.LastSplit(item) - call.FirstSplit(item) + 1);
  return team_.threads() > 1 ? most : 1;
}

void PagedAttention::Sum(const Call& call, std::span<const Item> items, size_t splits, double macs) const {
  auto attend = [&](const Item& item, size_t split, std::vector<float>* scratch, Part* part) {
    part->Reset(call.Queries(item), call.dim);
    if (item.count == 1) AttendLone(call, item, split, scratch, part);
    else AttendTile(call, item, split, scratch, part);
  };
  auto finish = [&](const Item& item, const Part& all) {
    const size_t width = item.heads * call.group;
    for (size_t i = 0; i < call.Queries(item); ++i) {
      all.Finish(i, call.dim, call.out + ((item.row + i / width) * call.heads + item.head * call.group + i % width) * call.dim);
    }
  };
  std::vector<Part> parts(splits > 1 ? items.size() * splits : 0);
  team_.For(items.size() * splits, 1, macs / kMacsPerNs, [&](size_t begin, size_t end) {
    std::vector<float> scratch;
    Part part, all;
    for (size_t i = begin; i < end; ++i) {
      if (splits > 1) {
        const Item& item = items[i / splits];
        const size_t split = call.FirstSplit(item) + i % splits;
        if (split <= call.LastSplit(item)) attend(item, split, &scratch, &parts[i]);
        continue;
      }
      // A prompt's last rows cost most: one from the front, one from the back, so that every thread gets both.
      const Item& item = items[i % 2 == 0 ? i / 2 : items.size() - 1 - i / 2];
      all.Reset(call.Queries(item), call.dim);
      for (size_t split = call.FirstSplit(item); split <= call.LastSplit(item); ++split) {
        attend(item, split, &scratch, &part);
        all.Add(part, call.dim);
      }
      finish(item, all);
    }
  });
  Part all;
  for (size_t i = 0; i < parts.size(); i += splits) {
    const Item& item = items[i / splits];
    all.Reset(call.Queries(item), call.dim);
    for (size_t s = 0; s < splits && !parts[i + s].max.empty(); ++s) all.Add(parts[i + s], call.dim);
    finish(item, all);
  }
}

// One row over the positions of one split. Page after page, as all heads of a page lie side by side.
void PagedAttention::AttendLone(const Call& call, const Item& item, size_t split, std::vector<float>* scratch, Part* part) const {
  const Pages& pages = call.pages;
  const KvRow& place = call.rows[item.row];
  const size_t n = call.Queries(item), start = split * kSplit;
  const Range sees = Sees(place, call.params, split);
  scratch->resize(n * kSplit);
  float* scores = scratch->data();
  const float* queries = call.q + (item.row * call.heads + item.head * call.group) * call.dim;
  Pages::Run runs[kSplit];
  size_t count = 0;
  pages.ForEach(place, sees.from, sees.to, [&](const Pages::Run& run) { runs[count++] = run; });
  for (size_t i = 0; i < count;) {
    const bool pair = i + 1 < count && runs[i].count == pages.block() && runs[i + 1].count == pages.block();
    for (size_t h = 0; h < item.heads; ++h) {
      const float* q = queries + h * call.group * call.dim;
      float* to = scores + h * call.group * kSplit + (runs[i].position - start);
      if (pair) {
        ops_.scores_pair(q, call.group, pages.Keys(runs[i], item.head + h), pages.Keys(runs[i + 1], item.head + h), pages.block(), call.dim, to, kSplit);
      } else {
        ops_.scores(q, call.group, pages.Keys(runs[i], item.head + h), pages.block(), runs[i].count, call.dim, to, kSplit);
      }
    }
    i += pair ? 2 : 1;
  }
  for (size_t i = 0; i < n; ++i) Soften(call.params, scores + i * kSplit, sees.from - start, sees.to - start, &part->max[i], &part->total[i]);
  for (size_t i = 0; i < count; ++i) {
    for (size_t h = 0; h < item.heads; ++h) {
      ops_.weighted_sum(scores + h * call.group * kSplit + (runs[i].position - start), kSplit, call.group, pages.Values(runs[i], item.head + h),
                        runs[i].count, call.dim, part->sums.data() + h * call.group * call.dim);
    }
  }
}

// The heads of one key-value head over the positions of one split, whatever else is in the tile.
void PagedAttention::AttendTile(const Call& call, const Item& tile, size_t number, std::vector<float>* scratch, Part* part) const {
  const Pages& pages = call.pages;
  const size_t dim = call.dim, group = call.group, n = call.Queries(tile), split = number * kSplit;
  const KvRow& row = call.rows[tile.row];  // all have this table
  scratch->resize(n * (dim + kSplit));
  float* queries = scratch->data();
  float* scores = queries + n * dim;
  std::vector<Range> sees(n);
  size_t any_from = split + kSplit, any_to = 0, all_from = split, all_to = split + kSplit;
  for (size_t i = 0; i < n; ++i) {
    const size_t r = tile.row + i / group;
    std::memcpy(queries + i * dim, call.q + (r * call.heads + tile.head * group + i % group) * dim, dim * sizeof(float));
    const Range& s = sees[i] = Sees(call.rows[r], call.params, number);
    if (s.from < s.to) {
      any_from = std::min(any_from, s.from);
      any_to = std::max(any_to, s.to);
    }
    all_from = std::max(all_from, s.from);
    all_to = std::min(all_to, s.to);
  }
  all_to = std::max(all_from, all_to);
  pages.ForEach(row, any_from, any_to, [&](const Pages::Run& run) {
    ops_.scores(queries, n, pages.Keys(run, tile.head), pages.block(), run.count, dim, scores + (run.position - split), kSplit);
  });
  for (size_t i = 0; i < n; ++i) {
    if (sees[i].from < sees[i].to) Soften(call.params, scores + i * kSplit, sees[i].from - split, sees[i].to - split, &part->max[i], &part->total[i]);
  }
  // What all see, together; before and after it each query its own.
  auto add = [&](size_t from, size_t to, size_t first, size_t how_many) {
    pages.ForEach(row, from, to, [&](const Pages::Run& run) {
      ops_.weighted_sum(scores + first * kSplit + (run.position - split), kSplit, how_many, pages.Values(run, tile.head), run.count, dim,
                        part->sums.data() + first * dim);
    });
  };
  for (size_t i = 0; i < n; ++i) add(sees[i].from, std::min(all_from, sees[i].to), i, 1);
  add(all_from, all_to, 0, n);
  for (size_t i = 0; i < n; ++i) add(std::max(all_to, sees[i].from), sees[i].to, i, 1);
}

// The scores [from, to) of a split become weights.
void PagedAttention::Soften(const AttentionParams& params, float* scores, size_t from, size_t to, float* max, double* total) const {
  *max = ops_.scale_max(scores, from, to, params.scale);
  if (params.softcap > 0) {
    *max = -kInfinity;
    for (size_t i = from; i < to; ++i) {
      scores[i] = params.softcap * std::tanh(scores[i] / params.softcap);
      *max = std::max(*max, scores[i]);
    }
  }
  *total = static_cast<double>(ops_.exp_sum(scores, from, to, *max));
}

}  // namespace gyre::cpu
