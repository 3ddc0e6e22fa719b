#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/pages.cuh"
#include "kernels/cuda/quantize.cuh"
#include "kernels/hadamard.h"

namespace gyre::cuda {
namespace {

// Grid (elements of a row / 256, rows): x [rows][heads][dim].
template <KvType kType>
GPU_KERNEL(256, 4)
StorePlainKernel(const float* x, const KvRow* rows, Pages pages, size_t heads) {
  const size_t i = gpu::BlockX() * 256 + gpu::Thread(), r = gpu::BlockY(), width = heads * pages.dim;
  if (i >= width) return;
  const KvRow row = rows[r];
  std::byte* head = HeadAt(pages, row, row.position, i / pages.dim);
  const size_t at = NumberAt(pages, pages.dim, i % pages.dim, row.position);
  const float v = x[r * width + i];
  if constexpr (kType == KvType::kF32) {
    reinterpret_cast<float*>(head)[at] = v;
  } else {
    reinterpret_cast<uint16_t*>(head)[at] = kType == KvType::kF16 ? gpu::ToHalf(v) : gpu::ToBf16(v);
  }
}

// RotateKvBlocks of a warp's 32 elements: the same sums in the same order.
GPU_FN float Rotated(float v) {
  for (unsigned stride = 1; stride < kKvBlock; stride *= 2) {
    const float other = gpu::ShflXor(v, stride);
    v = (gpu::Lane() & stride) == 0 ? gpu::Add(v, other) : gpu::Add(other, -v);
  }
  return gpu::Mul(v, kHadamardScale);
}
// Grid (blocks of 32 / 8). x may be out.
GPU_KERNEL(256, 4) RotateKernel(const float* x, size_t blocks, float* out) {
  const size_t b = gpu::BlockX() * 8 + gpu::Warp();
  if (b >= blocks) return;  // the whole warp
  const size_t at = b * kKvBlock + gpu::Lane();
  out[at] = Rotated(x[at]);
}

// A warp has 32 elements of a head, which share a scale, as Quantize rounds them. Grid (blocks of a row / 8, rows).
template <KvType kType>
GPU_KERNEL(256, 4)
StoreScaledKernel(const float* x, const KvRow* rows, Pages pages, size_t heads, bool rotated) {
  const size_t b = gpu::BlockX() * 8 + gpu::Warp(), r = gpu::BlockY(), blocks = pages.dim / kKvBlock;
  if (b >= heads * blocks) return;  // the whole warp
  const unsigned lane = gpu::Lane();
  const KvRow row = rows[r];
  const float stored = x[(r * heads * blocks + b) * kKvBlock + lane], v = rotated ? Rotated(stored) : stored;
  std::byte* head = HeadAt(pages, row, row.position, b / blocks);
  const size_t first = b % blocks * kKvBlock;
  const Quantized q = kType == KvType::kQ8_0 ? QuantizeQ8(v) : QuantizeQ4(v);
  if (lane == 0) {
    auto* scales = reinterpret_cast<uint16_t*>(head + pages.code_bytes);
    scales[NumberAt(pages, blocks, b % blocks, row.position)] = q.scale;
  }
  if constexpr (kType == KvType::kQ8_0) {
    head[NumberAt(pages, pages.dim, first + lane, row.position)] = static_cast<std::byte>(q.code);
  } else {
    const int above = gpu::ShflXor(q.code, 16u);
    if (lane < 16) {
      head[NumberAt(pages, pages.dim / 2, KvNibbleByte(first) + lane, row.position)] =
          static_cast<std::byte>(q.code | above << 4);
    }
  }
}

constexpr size_t kMostRows = 65535;  // along y of a grid

void Store(Stream stream, const float* x, const KvRow* rows, size_t count, const KvView& kv, const Pages& pages) {
  const auto heads = static_cast<size_t>(kv.kv_heads);
  for (size_t from = 0; from < count; from += kMostRows) {
    const auto part = static_cast<unsigned>(count - from < kMostRows ? count - from : kMostRows);
    const float* at = x + from * heads * pages.dim;
    WithUnrotatedKvType(kv.type, [&]<KvType kType>() {
      if constexpr (KvHasScales(kType)) {
        const size_t blocks = heads * pages.dim / kKvBlock;
        GPU_LAUNCH(StoreScaledKernel<kType>, gpu::Grid(Blocks(blocks, 8), part), 256, stream, at, rows + from, pages,
                   heads, KvIsRotated(kv.type));
      } else {
        const size_t width = heads * pages.dim;
        GPU_LAUNCH(StorePlainKernel<kType>, gpu::Grid(Blocks(width, 256), part), 256, stream, at, rows + from, pages,
                   heads);
      }
    });
  }
}

}  // namespace

void StoreKv(Stream stream, const float* k, const float* v, const KvRow* rows, size_t count, const KvView& kv) {
  Store(stream, k, rows, count, kv, KeysOf(kv));
  if (!kv.values_in_keys) Store(stream, v, rows, count, kv, ValuesOf(kv));
}

void Rotate(Stream stream, const float* x, size_t n, float* out) {
  const size_t blocks = n / kKvBlock;
  GPU_LAUNCH(RotateKernel, gpu::Grid(Blocks(blocks, 8)), 256, stream, x, blocks, out);
}

}  // namespace gyre::cuda
