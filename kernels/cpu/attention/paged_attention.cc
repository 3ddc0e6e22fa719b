#include "kernels/cpu/attention/paged_attention.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "kernels/cpu/attention/attention_tiles.h"
#include "kernels/hadamard.h"

namespace gyre::cpu {
namespace {

// Queries that share one read of keys and values. With fewer than about 64 a long prefill is bound by memory. Tiles
// first expand keys and values, so they take up to 256 where every thread still gets kItemsPerThread items.
constexpr size_t kMinQueries = 64, kMaxQueries = 256, kItemsPerThread = 4;
// Multiply-adds of one core in a nanosecond, roughly: decides whether a parallel region pays.
constexpr double kAttentionMacsPerNs = 16;
constexpr double kRotateNs = 25;  // of one block; as roughly

}  // namespace

void PagedAttention::Run(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& params,
                         float* out) {
  const size_t heads = Size(params.heads), kv_heads = Size(kv.kv_heads), group = heads / kv_heads,
               dim = Size(kv.head_dim), value_dim = kv.ValueDim();
  const bool by_tiles = params.arithmetic == Arithmetic::kPrefill && ops_.tiles != nullptr && !kv.values_in_keys;
  if (KvIsRotated(kv.type)) q = Rotate(q, rows.size() * heads * dim);
  const AttentionCall call{q,         rows,     Pages(kv),           params, out, heads, group, dim,
                           value_dim, by_tiles, KvIsRotated(kv.type)};
  // Consecutive rows of one sequence share the keys and values that they read.
  const size_t threads = Size(team_.threads()),
               each = rows.size() * heads / (kItemsPerThread * threads) / kMinQueries * kMinQueries;
  const size_t most =
      std::max<size_t>(1, (by_tiles ? std::clamp(each, kMinQueries, kMaxQueries) : kMinQueries) / group);
  row_groups_.clear();
  single_rows_.clear();
  double single_row_macs = 0, row_group_macs = 0;
  for (size_t r = 0; r < rows.size();) {
    // Their positions rise by one, or are one where all of them see the same.
    const size_t rise = r + 1 < rows.size() && rows[r + 1].position == rows[r].position ? 0 : 1;
    size_t count = 1;
    while (r + count < rows.size() && rows[r + count].table == rows[r].table &&
           rows[r + count].position == rows[r].position + rise * count)
      ++count;
    // A decode row is alone in its sequence; a prefill chunk has several rows.
    const bool single = count == 1 && !by_tiles && !kv.values_in_keys;
    const double macs = static_cast<double>(count) * static_cast<double>(rows[r + count - 1].position + 1) *
                        static_cast<double>(heads * (dim + value_dim));
    (single ? single_row_macs : row_group_macs) += macs;
    if (single) single_rows_.push_back({r, 1, 0, kv_heads});
    for (size_t i = 0; !single && i < count; i += most) {
      for (size_t head = 0; head < kv_heads; ++head) row_groups_.push_back({r + i, std::min(most, count - i), head, 1});
    }
    r += count;
  }
  if (!single_rows_.empty()) {
    const size_t splits = single_rows_.size() < 4 * threads ? MaxSplits(call, single_rows_) : 1;
    PartitionHeads(4 * threads / splits, kv_heads);
    RunItems<SplitAttention>(call, single_rows_, splits > 1, single_row_macs);
  }
  if (row_groups_.empty()) return;
  if (kv.values_in_keys) PartitionQueries(threads, group);
  const bool by_splits = row_groups_.size() < 2 * threads && MaxSplits(call, row_groups_) > 1;
  if (by_tiles)
    RunItems<TileAttention>(call, row_groups_, by_splits, row_group_macs);
  else
    RunItems<SplitAttention>(call, row_groups_, by_splits, row_group_macs);
}

const float* PagedAttention::Rotate(const float* q, size_t n) {
  auto* rotated = reinterpret_cast<float*>(rotated_.EnsureCapacity(n * sizeof(float)));
  team_.For(n / kKvBlock, 1, static_cast<double>(n / kKvBlock) * kRotateNs, [&](size_t begin, size_t end) {
    RotateKvBlocks(q + begin * kKvBlock, (end - begin) * kKvBlock, rotated + begin * kKvBlock);
  });
  return rotated;
}

// All heads of a page are contiguous, so a single row takes all of them in one item, unless there are fewer than
// `wanted` rows: then each row becomes several items of some heads.
void PagedAttention::PartitionHeads(size_t wanted, size_t kv_heads) {
  const size_t rows = single_rows_.size(),
               shares = team_.threads() > 1 ? std::clamp<size_t>((wanted + rows - 1) / rows, 1, kv_heads) : 1;
  if (shares == 1) return;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t share = 1; share < shares; ++share) {
      const size_t begin = share * kv_heads / shares;
      single_rows_.push_back({single_rows_[r].row, 1, begin, (share + 1) * kv_heads / shares - begin});
    }
    single_rows_[r].heads = kv_heads / shares;
  }
}

// Latent attention has one head of keys for all query heads, so items that are fewer than the threads are divided by
// these. Each part expands the values that it reads, so there are no more parts than threads need.
void PagedAttention::PartitionQueries(size_t threads, size_t group) {
  const size_t items = row_groups_.size(), shares = std::min((threads + items - 1) / items, group);
  if (shares <= 1) return;
  for (size_t i = 0; i < items; ++i) {
    const AttentionItem whole = row_groups_[i];
    for (size_t share = 0; share < shares; ++share) {
      AttentionItem part = whole;
      part.first_query = share * group / shares;
      part.queries = (share + 1) * group / shares - part.first_query;
      if (share == 0)
        row_groups_[i] = part;
      else
        row_groups_.push_back(part);
    }
  }
}

// Returns 1 with one thread, as there is nothing to divide.
size_t PagedAttention::MaxSplits(const AttentionCall& call, std::span<const AttentionItem> items) const {
  size_t most = 1;
  for (const AttentionItem& item : items) most = std::max(most, call.LastSplit(item) - call.FirstSplit(item) + 1);
  return team_.threads() > 1 ? most : 1;
}

template <typename Kernel>
void PagedAttention::RunItems(const AttentionCall& call, std::span<const AttentionItem> items, bool by_splits,
                              double macs) {
  size_t most = 0, deepest = 1;
  splits_.clear();
  first_splits_.clear();
  for (size_t i = 0; i < items.size(); ++i) {
    most = std::max(most, call.Queries(items[i]));
    first_splits_.push_back(splits_.size());
    if (!by_splits) deepest = std::max<size_t>(deepest, std::bit_width(call.LastSplit(items[i])) + 1);
    for (size_t split = call.FirstSplit(items[i]); by_splits && split <= call.LastSplit(items[i]); ++split)
      splits_.push_back({i, split});
  }
  // All memory is allocated here, because nothing may throw inside a parallel region.
  const size_t partial_bytes = AttentionPartial::Bytes(most, call.value_dim), kernel_bytes = Kernel::Bytes(call, most),
               scratch_bytes = kernel_bytes + deepest * partial_bytes;
  std::byte* scratch = thread_scratch_.EnsureCapacity(scratch_bytes * Size(team_.threads()));
  std::byte* shared = partial_memory_.EnsureCapacity(splits_.size() * partial_bytes);
  partials_.clear();
  for (size_t i = 0; i < splits_.size(); ++i) partials_.emplace_back(shared + i * partial_bytes, most, call.value_dim);
  waiting_.assign(splits_.size(), 0);
  team_.For(by_splits ? splits_.size() : items.size(), 1, macs / kAttentionMacsPerNs,
            [&](size_t begin, size_t end, size_t thread) {
              std::byte* mine = scratch + scratch_bytes * thread;
              Kernel attention(ops_, call, most, mine);
              auto partial_at = [&](size_t depth) {
                return AttentionPartial(mine + kernel_bytes + depth * partial_bytes, most, call.value_dim);
              };
              for (size_t i = begin; i < end; ++i) {
                if (by_splits) {
                  AttentionPartial partial = partial_at(0);
                  attention.Attend(items[splits_[i].item], splits_[i].split, &partial);
                  CombineShared(call, items[splits_[i].item], splits_[i], &partial);
                  continue;
                }
                // The last rows of a prefill cost most, so items are taken alternately from the front and the back:
                // every thread gets cheap and expensive ones.
                const AttentionItem& item = items[i % 2 == 0 ? i / 2 : items.size() - 1 - i / 2];
                const size_t first = call.FirstSplit(item), last = call.LastSplit(item);
                size_t depth = 0;  // partials that wait for their right sibling
                for (size_t split = first; split <= last; ++split, ++depth) {
                  AttentionPartial partial = partial_at(depth);
                  attention.Attend(item, split, &partial);
                  CombineUp(first, last, split, [&](const SplitPair&, bool right) {
                    if (right) partial_at(depth - 1).Add(ops_, partial_at(depth), call.Queries(item)), --depth;
                    return right;
                  });
                }
                partial_at(0).Finish(call, item);
              }
            });
}

// If two threads reach a pair at the same time, both publish their partial, and the second one continues.
void PagedAttention::CombineShared(const AttentionCall& call, const AttentionItem& item, const Split& of,
                                   AttentionPartial* partial) {
  const size_t first = call.FirstSplit(item), queries = call.Queries(item), place = first_splits_[of.item] - first;
  const bool all = CombineUp(first, call.LastSplit(item), of.split, [&](const SplitPair& pair, bool right) {
    AttentionPartial &left_one = partials_[place + pair.left], &right_one = partials_[place + pair.right],
                     &mine = right ? right_one : left_one;
    const std::atomic_ref waiting(waiting_[place + pair.right]);
    if (waiting.load(std::memory_order_acquire) == 0) {
      if (partial != &mine) mine.Copy(*partial, queries);
      if (waiting.exchange(1, std::memory_order_acq_rel) == 0) return false;
    }
    if (right) {
      left_one.Add(ops_, *partial, queries);
      partial = &left_one;
    } else {
      partial->Add(ops_, right_one, queries);
    }
    return true;
  });
  if (all) partial->Finish(call, item);
}

}  // namespace gyre::cpu
