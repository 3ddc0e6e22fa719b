#include "kernels/cuda/sampling/ids.cuh"
#include "kernels/cuda/sampling/sampling.h"

namespace gyre::cuda {
namespace {

constexpr unsigned kThreads = 256;

// Keys rank ids: the better one is larger. NaN is below all numbers, and of equal numbers the lower id is better. 0 is
// no id.
GPU_FN uint64_t KeyOf(float logit, size_t id) {
  const uint32_t bits = gpu::Bits(logit == 0 ? 0.0f : logit);  // -0 is 0
  const uint32_t rising = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(logit != logit ? 0 : rising) << 32 | ~static_cast<uint32_t>(id);
}
GPU_FN TokenId IdOf(uint64_t key) { return static_cast<TokenId>(~static_cast<uint32_t>(key)); }

struct Keys {
  uint64_t key[kIdsOfBlock];
};
// Sorts the first n keys, the best first: a bitonic sort. REQUIRES: n is a power of two; all threads call it after a
// barrier. They see the result.
GPU_FN void Sort(Keys& keys, unsigned n) {
  for (unsigned size = 2; size <= n; size *= 2) {
    for (unsigned apart = size / 2; apart > 0; apart /= 2) {
      for (unsigned i = gpu::Thread(); i < n / 2; i += kThreads) {
        const unsigned low = i / apart * apart * 2 + i % apart, high = low + apart;
        const auto a = gpu::Load<uint64_t>(&keys.key[low]), b = gpu::Load<uint64_t>(&keys.key[high]);
        const bool falling = (low & size) == 0;
        if ((a < b) == falling) {
          gpu::Store(&keys.key[low], b);
          gpu::Store(&keys.key[high], a);
        }
      }
      gpu::SyncBlock();
    }
  }
}
GPU_FN unsigned WholePower(size_t n) {
  unsigned power = 2;
  while (power < n) power *= 2;
  return power;
}

// Grid (parts, rows): the best `most` keys of each part, to best [rows][parts][most].
GPU_KERNEL(256, 2) BestOfPartKernel(const TopKRow* rows, size_t vocab, unsigned most, uint64_t* best) {
  GPU_SHARED(Keys, s);
  const TopKRow& row = rows[gpu::BlockY()];
  const size_t part = gpu::BlockX(), first = part * kIdsOfBlock;
  const size_t left = vocab - first, count = left < kIdsOfBlock ? left : kIdsOfBlock;
  const unsigned n = WholePower(count);
  for (unsigned i = gpu::Thread(); i < n; i += kThreads) {
    const size_t id = first + i;
    gpu::Store(&s.key[i], i < count && TakesPart(row, id) ? KeyOf(row.logits[id], id) : uint64_t{0});
  }
  gpu::SyncBlock();
  Sort(s, n);
  const size_t parts = (vocab + kIdsOfBlock - 1) / kIdsOfBlock;
  uint64_t* to = best + (gpu::BlockY() * parts + part) * most;
  for (unsigned i = gpu::Thread(); i < most; i += kThreads)
    gpu::Store(to + i, i < n ? gpu::Load<uint64_t>(&s.key[i]) : uint64_t{0});
}

// A block a row.
GPU_KERNEL(256, 2) BestOfRowKernel(const TopKRow* rows, size_t parts, unsigned most, const uint64_t* best) {
  GPU_SHARED(Keys, s);
  const TopKRow& row = rows[gpu::BlockX()];
  const uint64_t* from = best + gpu::BlockX() * parts * most;
  const size_t all = parts * most;
  // The first `most` keys are the best so far; behind them come as many others as there is room for.
  size_t taken = 0;
  unsigned kept = 0;
  do {
    const size_t room = kIdsOfBlock - kept, more = all - taken < room ? all - taken : room;
    const unsigned n = WholePower(kept + more);
    for (unsigned i = kept + gpu::Thread(); i < n; i += kThreads)
      gpu::Store(&s.key[i], i - kept < more ? gpu::Load<uint64_t>(from + taken + i - kept) : uint64_t{0});
    gpu::SyncBlock();
    Sort(s, n);
    taken += more;
    kept = most;
  } while (taken < all);
  for (unsigned i = gpu::Thread(); i < row.k; i += kThreads) {
    const auto key = gpu::Load<uint64_t>(&s.key[i]);
    row.ids[i] = key == 0 ? TokenId{-1} : IdOf(key);
    row.best[i] = key == 0 ? 0.0f : row.logits[IdOf(key)];
  }
}

size_t PartsOf(size_t vocab) { return (vocab + kIdsOfBlock - 1) / kIdsOfBlock; }
constexpr size_t kMostRows = 65535;  // along y of a grid

}  // namespace

size_t TopKScratch(size_t rows, size_t vocab, uint32_t most) { return rows * PartsOf(vocab) * most; }

void TopK(Stream stream, const TopKRow* rows, size_t count, size_t vocab, uint32_t most, uint64_t* scratch) {
  if (vocab == 0 || most == 0) return;
  const size_t parts = PartsOf(vocab);
  for (size_t from = 0; from < count; from += kMostRows) {
    const auto part = static_cast<unsigned>(count - from < kMostRows ? count - from : kMostRows);
    GPU_LAUNCH(BestOfPartKernel, gpu::Grid(static_cast<unsigned>(parts), part), 256, stream, rows + from, vocab, most,
               scratch);
    GPU_LAUNCH(BestOfRowKernel, part, 256, stream, rows + from, parts, most, scratch);
  }
}

}  // namespace gyre::cuda
