#include "kernels/cpu/paged_attention.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "kernels/cpu/attention_tiles.h"

namespace gyre::cpu {
namespace {

// Queries that share keys and values, about: with fewer, a long prompt waits for memory. By tiles, which have to be
// made of them, up to the latter, where there is enough for every thread then.
constexpr size_t kQueries = 64, kMostQueries = 256, kItemsOfAThread = 4;
// A core in a nanosecond, to decide whether a parallel region pays.
constexpr double kAttentionMacsPerNs = 16;

}  // namespace

void PagedAttention::Run(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& params,
                         float* out) {
  const size_t heads = Size(params.heads), kv_heads = Size(kv.kv_heads), group = heads / kv_heads,
               dim = Size(kv.head_dim);
  const bool by_tiles =
      params.arithmetic == Arithmetic::kPrompt && ops_.tiles != nullptr && Size(kv.block_size) % kTileRows == 0;
  const AttentionCall call{q, rows, Pages(kv), params, out, heads, group, dim, by_tiles};
  // Neighbours in one sequence read the same keys and values.
  const size_t threads = Size(team_.threads()),
               each = rows.size() * heads / (kItemsOfAThread * threads) / kQueries * kQueries;
  const size_t most = std::max<size_t>(1, (by_tiles ? std::clamp(each, kQueries, kMostQueries) : kQueries) / group);
  together_.clear();
  lone_.clear();
  double lone_macs = 0, together_macs = 0;
  for (size_t r = 0; r < rows.size();) {
    size_t count = 1;
    while (r + count < rows.size() && rows[r + count].table == rows[r].table &&
           rows[r + count].position == rows[r].position + count)
      ++count;
    // Rows of a sequence on its own, as in decoding; a prompt's several at once.
    const bool lone = count == 1 && !by_tiles;
    const double macs = static_cast<double>(count) * static_cast<double>(rows[r + count - 1].position + 1) *
                        static_cast<double>(heads * dim) * 2;
    (lone ? lone_macs : together_macs) += macs;
    if (lone) lone_.push_back({r, 1, 0, kv_heads});
    for (size_t i = 0; !lone && i < count; i += most) {
      for (size_t head = 0; head < kv_heads; ++head) together_.push_back({r + i, std::min(most, count - i), head, 1});
    }
    r += count;
  }
  if (!lone_.empty()) {
    const size_t splits = lone_.size() < 4 * threads ? MostSplits(call, lone_) : 1;
    CutHeads(4 * threads / splits, kv_heads);
    Sum<SplitAttention>(call, lone_, splits > 1, lone_macs);
  }
  if (together_.empty()) return;
  const bool by_splits = together_.size() < 2 * threads && MostSplits(call, together_) > 1;
  if (by_tiles)
    Sum<TileAttention>(call, together_, by_splits, together_macs);
  else
    Sum<SplitAttention>(call, together_, by_splits, together_macs);
}

// All heads of a page lie side by side, so a lone row takes them together; where rows are fewer than `wanted`, some
// each.
void PagedAttention::CutHeads(size_t wanted, size_t kv_heads) {
  const size_t rows = lone_.size(),
               cuts = team_.threads() > 1 ? std::clamp<size_t>((wanted + rows - 1) / rows, 1, kv_heads) : 1;
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
size_t PagedAttention::MostSplits(const AttentionCall& call, std::span<const AttentionItem> items) const {
  size_t most = 1;
  for (const AttentionItem& item : items) most = std::max(most, call.LastSplit(item) - call.FirstSplit(item) + 1);
  return team_.threads() > 1 ? most : 1;
}

template <typename Kernel>
void PagedAttention::Sum(const AttentionCall& call, std::span<const AttentionItem> items, bool by_splits, double macs) {
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
  // All memory here: nothing may throw within a region.
  const size_t part_bytes = AttentionPart::Bytes(most, call.dim), kernel_bytes = Kernel::Bytes(call, most),
               own_bytes = kernel_bytes + deepest * part_bytes;
  std::byte* own = own_.Room(own_bytes * Size(team_.threads()));
  std::byte* shared = shared_.Room(splits_.size() * part_bytes);
  parts_.clear();
  for (size_t i = 0; i < splits_.size(); ++i) parts_.emplace_back(shared + i * part_bytes, most, call.dim);
  waiting_.assign(splits_.size(), 0);
  team_.For(by_splits ? splits_.size() : items.size(), 1, macs / kAttentionMacsPerNs,
            [&](size_t begin, size_t end, size_t thread) {
              std::byte* mine = own + own_bytes * thread;
              Kernel attention(ops_, call, most, mine);
              auto part_at = [&](size_t depth) {
                return AttentionPart(mine + kernel_bytes + depth * part_bytes, most, call.dim);
              };
              for (size_t i = begin; i < end; ++i) {
                if (by_splits) {
                  AttentionPart part = part_at(0);
                  attention.Attend(items[splits_[i].item], splits_[i].split, &part);
                  Share(call, items[splits_[i].item], splits_[i], &part);
                  continue;
                }
                // A prompt's last rows cost most: one from the front, one from the back, so that every thread gets
                // both.
                const AttentionItem& item = items[i % 2 == 0 ? i / 2 : items.size() - 1 - i / 2];
                const size_t first = call.FirstSplit(item), last = call.LastSplit(item);
                size_t depth = 0;  // sums that wait, before the current one
                for (size_t split = first; split <= last; ++split, ++depth) {
                  AttentionPart part = part_at(depth);
                  attention.Attend(item, split, &part);
                  Climb(first, last, split, [&](const Pair&, bool right) {
                    if (right) part_at(depth - 1).Add(ops_, part_at(depth), call.Queries(item)), --depth;
                    return right;
                  });
                }
                part_at(0).Finish(call, item);
              }
            });
}

// Of two threads that come to a pair at once, both leave what they have, and the second goes on.
void PagedAttention::Share(const AttentionCall& call, const AttentionItem& item, const Split& of, AttentionPart* part) {
  const size_t first = call.FirstSplit(item), queries = call.Queries(item), place = first_splits_[of.item] - first;
  const bool all = Climb(first, call.LastSplit(item), of.split, [&](const Pair& pair, bool right) {
    AttentionPart &left_one = parts_[place + pair.left], &right_one = parts_[place + pair.right],
                  &mine = right ? right_one : left_one;
    const std::atomic_ref waiting(waiting_[place + pair.right]);
    if (waiting.load(std::memory_order_acquire) == 0) {
      if (part != &mine) mine.Copy(*part, queries);
      if (waiting.exchange(1, std::memory_order_acq_rel) == 0) return false;
    }
    if (right) {
      left_one.Add(ops_, *part, queries);
      part = &left_one;
    } else {
      part->Add(ops_, right_one, queries);
    }
    return true;
  });
  if (all) part->Finish(call, item);
}

}  // namespace gyre::cpu
