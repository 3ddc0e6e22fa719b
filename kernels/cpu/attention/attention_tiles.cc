#include "kernels/cpu/attention/attention_tiles.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

namespace gyre::cpu {
namespace {

constexpr size_t kBlockQueries = 64;
static_assert(kBlockQueries % (2 * kTileRows) == 0);
constexpr size_t kSplitDepth = TileDepth(kSplit);
// It is not a power of two: else the rows of a tile would compete for few sets of the first-level cache.
constexpr size_t kScoreStride = kSplit + kTileRows;

constexpr size_t Groups(size_t n) { return (n + kTileRows - 1) / kTileRows; }

// Whether the 16 positions of a tile always lie in one page.
bool WholeTiles(const AttentionCall& call) { return call.pages.block() % kTileRows == 0; }

}  // namespace

size_t TileAttention::Carve(const AttentionCall& call, size_t most, std::byte* memory, Scratch* scratch) {
  const size_t depth = TileDepth(call.dim), block = std::min(most, kBlockQueries);
  Carver carver{memory};
  scratch->sees = carver.Take<Range>(most);
  scratch->queries = carver.Take<float>(kTileRows * call.dim);
  scratch->scores = carver.Take<float>(block * kScoreStride);
  scratch->x = carver.Take<std::byte>(Groups(most) * depth * kTileBytes);
  scratch->weights = carver.Take<std::byte>(Groups(block) * kSplitDepth * kTileBytes);
  scratch->keys = carver.Take<std::byte>(Groups(kSplit) * 2 * depth * kTileBytes);
  scratch->values = carver.Take<std::byte>(Groups(call.value_dim) * 2 * kSplitDepth * kTileBytes);
  if (!WholeTiles(call)) {
    const size_t elements = kTileRows * std::max(call.dim, call.value_dim);
    scratch->codes = carver.Take<std::byte>(KvCodeBytes(call.pages.type(), elements));
    scratch->scales = carver.Take<std::byte>(elements / kKvBlock * sizeof(uint16_t));
  }
  return carver.used;
}

size_t TileAttention::Bytes(const AttentionCall& call, size_t most) {
  Scratch none;
  return Carve(call, most, nullptr, &none);
}

TileAttention::TileAttention(const IsaOps& ops, const AttentionCall& call, size_t most, std::byte* memory)
    : ops_(ops), call_(call), depth_(TileDepth(call.dim)), has_residual_(call.pages.type() != KvType::kBf16) {
  Carve(call, most, memory, &scratch_);
}

void TileAttention::Attend(const AttentionItem& item, size_t split, AttentionPartial* partial) {
  const size_t n = call_.Queries(item);
  partial->Reset(n);
  for (size_t i = 0; i < n; ++i) scratch_.sees[i] = call_.Sees(call_.rows[item.row + i / call_.group], split);
  const Range any = Any(0, n);
  if (any.from >= any.to) return;
  if (rounded_.row != item.row || rounded_.head != item.head || rounded_.count != item.count) RoundQueries(item);
  ops_.tiles->begin();
  ExpandKeys(item, any);
  ExpandValues(item, any);
  for (size_t first = 0; first < n; first += kBlockQueries) {
    const size_t count = std::min(kBlockQueries, n - first);
    const Block block{first, count, Any(first, count)};
    if (block.any.from >= block.any.to) continue;
    Score(block);
    AddValues(block, ExpBlock(block, split * kSplit, partial), partial);
  }
  ops_.tiles->end();
}

void TileAttention::RoundQueries(const AttentionItem& item) {
  const size_t n = call_.Queries(item), dim = call_.dim;
  for (size_t first = 0; first < n; first += kTileRows) {
    const size_t count = std::min(kTileRows, n - first);
    for (size_t i = 0; i < count; ++i)
      std::memcpy(scratch_.queries + i * dim, call_.Query(item, first + i), dim * sizeof(float));
    ops_.tiles->round_rows(scratch_.queries, dim, count, dim, scratch_.x + first / kTileRows * depth_ * kTileBytes);
  }
  rounded_ = item;
}

// The positions that at least one of the queries attends to.
Range TileAttention::Any(size_t first, size_t count) const {
  Range any{SIZE_MAX, 0};
  for (const Range& sees : std::span(scratch_.sees + first, count)) {
    if (sees.from < sees.to) any = {std::min(any.from, sees.from), std::max(any.to, sees.to)};
  }
  return any;
}

// Calls f(span, position - first) for the pages that hold positions [from, to) of an item.
template <typename Fn>
void TileAttention::ForEachPage(const AttentionItem& item, size_t from, size_t to, const Fn& f) const {
  const KvRow& row = call_.rows[item.row];  // all rows of the item have this table
  for (size_t at = from; at < to;) {
    const size_t n = std::min(to - at, call_.pages.block() - at % call_.pages.block());
    f(call_.pages.At(row, at, n), at - from);
    at += n;
  }
}

// Copies keys from pages that are smaller than a tile or not aligned to one, so that a row's bits do not depend on the
// size of pages. The copy looks like a page of 16 positions that begins at position `first`. Only the positions
// [from, to) are copied, as others may lie in no page.
KvSpan TileAttention::CopyKeys(const AttentionItem& item, size_t first, size_t from, size_t to) const {
  const KvType type = call_.pages.type();
  const size_t bytes = KvHasScales(type) ? 1 : KvCodeBytes(type, 1), lines = KvCodeBytes(type, call_.dim) / bytes,
               stride = call_.pages.block();
  ForEachPage(item, from, to, [&](const Pages::PageSpan& span, size_t at) {
    const KvSpan keys = call_.pages.Keys(span, item.head);
    at += from - first;
    for (size_t i = 0; i < lines; ++i) {
      std::memcpy(scratch_.codes + (i * kTileRows + at) * bytes, keys.values + i * stride * bytes, span.count * bytes);
    }
    for (size_t i = 0; keys.scales != nullptr && i < call_.dim / kKvBlock; ++i) {
      std::memcpy(scratch_.scales + (i * kTileRows + at) * sizeof(uint16_t),
                  keys.scales + i * stride * sizeof(uint16_t), span.count * sizeof(uint16_t));
    }
  });
  return {type, scratch_.codes, KvHasScales(type) ? scratch_.scales : nullptr};
}

// Copies the values of positions [from, to), for the same reason.
KvSpan TileAttention::CopyValues(const AttentionItem& item, size_t from, size_t to) const {
  const KvType type = call_.pages.type();
  const size_t bytes = KvCodeBytes(type, call_.value_dim), scales = call_.value_dim / kKvBlock * sizeof(uint16_t);
  ForEachPage(item, from, to, [&](const Pages::PageSpan& span, size_t at) {
    const KvSpan values = call_.pages.Values(span, item.head);
    std::memcpy(scratch_.codes + at * bytes, values.values, span.count * bytes);
    if (values.scales != nullptr) std::memcpy(scratch_.scales + at * scales, values.scales, span.count * scales);
  });
  return {type, scratch_.codes, KvHasScales(type) ? scratch_.scales : nullptr};
}

// Expands whole tiles. Keys that no query attends to may hold anything, as each position is a column of its own.
void TileAttention::ExpandKeys(const AttentionItem& item, Range any) const {
  for (size_t at = any.from / kTileRows * kTileRows; at < any.to; at += kTileRows) {
    const bool whole = WholeTiles(call_);
    const KvSpan keys = whole ? call_.pages.Keys(call_.pages.At(call_.rows[item.row], at, kTileRows), item.head)
                              : CopyKeys(item, at, std::max(at, any.from), std::min(at + kTileRows, any.to));
    std::byte* to = scratch_.keys + at % kSplit / kTileRows * 2 * depth_ * kTileBytes;
    ops_.tiles->expand_keys(keys, whole ? call_.pages.block() : kTileRows, call_.dim, to,
                            has_residual_ ? to + ResidualOffset(depth_) : nullptr);
  }
}

// Expands whole tiles, with zeros at positions that no query attends to: their weights are 0, but 0 * NaN is NaN.
void TileAttention::ExpandValues(const AttentionItem& item, Range any) const {
  for (size_t at = any.from / kTileDepth * kTileDepth; at < any.to; at += kTileDepth) {
    for (size_t half = at; half < at + kTileDepth; half += kTileRows) {
      const size_t from = std::clamp(any.from, half, half + kTileRows),
                   count = std::clamp(any.to, from, half + kTileRows) - from;
      KvSpan values{};
      if (count > 0) {
        values = WholeTiles(call_) ? call_.pages.Values(call_.pages.At(call_.rows[item.row], from, count), item.head)
                                   : CopyValues(item, from, from + count);
      }
      std::byte* to =
          scratch_.values + at % kSplit / kTileDepth * kTileBytes + (half - at) / kTileRows * (kTileBytes / 2);
      for (size_t column = 0; column < call_.value_dim; column += kTileRows, to += 2 * kSplitDepth * kTileBytes) {
        ops_.tiles->expand_values(values, from - half, count, call_.value_dim, column, to,
                                  has_residual_ ? to + ResidualOffset(kSplitDepth) : nullptr);
      }
    }
  }
}

void TileAttention::Score(const Block& block) const {
  const size_t x_stride = depth_ * kTileBytes, stride = 2 * depth_ * kTileBytes;
  for (size_t at = block.any.from / kTileRows * kTileRows; at < block.any.to; at += 2 * kTileRows) {
    const size_t columns = at + kTileRows < block.any.to ? 2 * kTileRows : kTileRows;
    for (size_t i = 0; i < block.count; i += 2 * kTileRows) {
      ops_.tiles->multiply(scratch_.x + (block.first + i) / kTileRows * x_stride, x_stride, block.count - i,
                           {scratch_.keys + at % kSplit / kTileRows * stride, stride, ResidualOffset(depth_)}, columns,
                           depth_, true, scratch_.scores + i * kScoreStride + at % kSplit, kScoreStride);
    }
  }
}

// Replaces scores by softmax weights in tiles; positions that a query does not attend to get the weight 0. Returns the
// positions of the tiles that were written, relative to the split's first.
Range TileAttention::ExpBlock(const Block& block, size_t start, AttentionPartial* partial) const {
  const AttentionParams& params = call_.params;
  const Range whole{(block.any.from - start) / kTileDepth * kTileDepth, TileDepth(block.any.to - start) * kTileDepth};
  for (size_t i = 0; i < Groups(block.count) * kTileRows; ++i) {
    std::byte* row =
        scratch_.weights + (i / kTileRows * kSplitDepth + whole.from / kTileDepth) * kTileBytes + i % kTileRows * 64;
    Range sees{0, 0};
    if (i < block.count)
      sees = {scratch_.sees[block.first + i].from - start, scratch_.sees[block.first + i].to - start};
    if (sees.from >= sees.to) {
      for (size_t at = whole.from; at < whole.to; at += kTileDepth, row += kTileBytes) std::memset(row, 0, 64);
      continue;
    }
    float *scores = scratch_.scores + i * kScoreStride, scale = params.scale;
    if (params.softcap > 0) {
      ops_.softcap(scores + sees.from, sees.to - sees.from, scale, params.softcap);
      scale = 1;
    }
    const size_t query = block.first + i;
    partial->sum[query] =
        static_cast<double>(ops_.tiles->exp_scores(scores, whole, sees, scale, &partial->max[query], row));
  }
  return whole;
}

void TileAttention::AddValues(const Block& block, Range whole, AttentionPartial* partial) const {
  const size_t first = whole.from / kTileDepth * kTileBytes, depth = TileDepth(whole.to - whole.from),
               x_stride = kSplitDepth * kTileBytes, stride = 2 * x_stride;
  for (size_t column = 0; column < call_.value_dim; column += 2 * kTileRows) {
    const size_t columns = std::min(2 * kTileRows, call_.value_dim - column);
    for (size_t i = 0; i < block.count; i += 2 * kTileRows) {
      ops_.tiles->multiply(scratch_.weights + i / kTileRows * x_stride + first, x_stride, block.count - i,
                           {scratch_.values + column / kTileRows * stride + first, stride, ResidualOffset(kSplitDepth)},
                           columns, depth, true, partial->acc + (block.first + i) * call_.value_dim + column,
                           call_.value_dim);
    }
  }
}

}  // namespace gyre::cpu
