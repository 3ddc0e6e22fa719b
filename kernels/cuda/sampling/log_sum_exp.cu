#include "kernels/cuda/math.cuh"
#include "kernels/cuda/sampling/ids.cuh"
#include "kernels/cuda/sampling/sampling.h"
#include "kernels/cuda/warp.cuh"

namespace gyre::cuda {
namespace {

constexpr unsigned kThreads = 256;

struct SumShared {
  OfWarps<double, kThreads / 32> largest, sums;
};
// Grid (parts, rows): of each part the largest logit and the sum relative to it, to found [rows][parts][2].
GPU_KERNEL(256, 4) SumOfPartKernel(const LogSumExpRow* rows, size_t vocab, double* found) {
  GPU_SHARED(SumShared, s);
  const LogSumExpRow& row = rows[gpu::BlockY()];
  const size_t parts = (vocab + kIdsOfBlock - 1) / kIdsOfBlock, first = gpu::BlockX() * kIdsOfBlock;
  const size_t end = first + kIdsOfBlock < vocab ? first + kIdsOfBlock : vocab;
  double largest = -Infinity64();
  for (size_t id = first + gpu::Thread(); id < end; id += kThreads) {
    const auto logit = static_cast<double>(row.logits[id]);
    if (logit > largest && TakesPart(row, id)) largest = logit;
  }
  largest = s.largest.Max(largest);
  double sum = 0;
  const auto by = gpu::Load<double>(&row.inv_temperature);
  // Without a finite largest one there is nothing to add to.
  for (size_t id = first + gpu::Thread(); id < end && largest > -Infinity64() && largest < Infinity64();
       id += kThreads) {
    if (TakesPart(row, id))
      sum = gpu::Add(sum, Exp(gpu::Mul(gpu::Add(static_cast<double>(row.logits[id]), -largest), by)));
  }
  sum = s.sums.Sum(sum);
  if (gpu::Thread() != 0) return;
  double* to = found + (gpu::BlockY() * parts + gpu::BlockX()) * 2;
  gpu::Store(to, largest);
  gpu::Store(to + 1, sum);
}

// A thread a row.
GPU_KERNEL(32, 1) SumOfRowKernel(const LogSumExpRow* rows, size_t count, size_t parts, const double* found) {
  const size_t r = gpu::BlockX() * 32 + gpu::Thread();
  if (r >= count) return;
  const auto by = gpu::Load<double>(&rows[r].inv_temperature);
  const double* of_part = found + r * parts * 2;
  double largest = -Infinity64(), sum = 0;
  for (size_t p = 0; p < parts; ++p) {
    const auto of = gpu::Load<double>(of_part + 2 * p);
    largest = of > largest ? of : largest;
  }
  const bool finite = largest > -Infinity64() && largest < Infinity64();
  for (size_t p = 0; p < parts && finite; ++p) {
    const auto of = gpu::Load<double>(of_part + 2 * p), part = gpu::Load<double>(of_part + 2 * p + 1);
    if (of > -Infinity64()) sum = gpu::Fma(part, Exp(gpu::Mul(gpu::Add(of, -largest), by)), sum);
  }
  gpu::Store(rows[r].out, finite ? gpu::Fma(largest, by, Log(sum)) : largest);
}

// A block a row.
GPU_KERNEL(128, 8) PickKernel(const PickRow* rows) {
  const PickRow& row = rows[gpu::BlockX()];
  const TokenId* ids = row.ids.data();
  for (size_t i = gpu::Thread(); i < row.ids.size(); i += 128) row.out[i] = row.logits[ids[i]];
}

size_t PartsOf(size_t vocab) { return (vocab + kIdsOfBlock - 1) / kIdsOfBlock; }
constexpr size_t kMostRows = 65535;  // along y of a grid

}  // namespace

size_t LogSumExpScratch(size_t rows, size_t vocab) { return rows * PartsOf(vocab) * 2; }

void LogSumExp(Stream stream, const LogSumExpRow* rows, size_t count, size_t vocab, double* scratch) {
  if (vocab == 0) return;
  const size_t parts = PartsOf(vocab);
  for (size_t from = 0; from < count; from += kMostRows) {
    const size_t part = count - from < kMostRows ? count - from : kMostRows;
    GPU_LAUNCH(SumOfPartKernel, gpu::Grid(static_cast<unsigned>(parts), static_cast<unsigned>(part)), 256, stream,
               rows + from, vocab, scratch);
    GPU_LAUNCH(SumOfRowKernel, Blocks(part, 32), 32, stream, rows + from, part, parts, scratch);
  }
}

void Pick(Stream stream, const PickRow* rows, size_t count) {
  if (count > 0) GPU_LAUNCH(PickKernel, static_cast<unsigned>(count), 128, stream, rows);
}

}  // namespace gyre::cuda
