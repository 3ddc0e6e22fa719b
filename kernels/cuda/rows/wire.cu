// Rows as they travel between stages: kernels/wire_rows.h has their rules.
#include "kernels/cuda/quantize.cuh"
#include "kernels/cuda/rows/rows.h"
#include "kernels/wire_rows.h"

namespace gyre::cuda {
namespace {

constexpr float kLargestHalf = 65504;
constexpr uint16_t kHalfNan = 0x7E00;
constexpr size_t kBlock = 32, kQ8Bytes = 34;

GPU_FN bool IsFinite(float v) { return (gpu::Bits(v) & 0x7F800000u) != 0x7F800000u; }
// Cuts a number to +-limit and counts that; infinities and NaN stay.
GPU_FN float Saturated(float v, float limit, uint64_t* saturated) {
  const float size = v < 0 ? -v : v;
  if (!(size > limit) || !IsFinite(v)) return v;
  gpu::AtomicAdd(saturated, uint64_t{1});
  return v < 0 ? -limit : limit;
}

GPU_KERNEL(256, 4) EncodeF16Kernel(const float* x, size_t n, uint16_t* out, uint64_t* saturated) {
  const size_t i = size_t{gpu::BlockX()} * 256 + gpu::Thread();
  if (i < n) out[i] = gpu::ToHalf(Saturated(x[i], kLargestHalf, saturated));
}
GPU_KERNEL(256, 4) DecodeF16Kernel(const uint16_t* in, size_t n, float* x) {
  const size_t i = size_t{gpu::BlockX()} * 256 + gpu::Thread();
  if (i < n) x[i] = gpu::OfHalf(in[i]);
}

// A warp has 32 elements of a row; the last ones of a row may be missing.
GPU_KERNEL(256, 4) EncodeQ8Kernel(const float* x, size_t all, size_t dim, std::byte* out, uint64_t* saturated) {
  const size_t b = size_t{gpu::BlockX()} * 8 + gpu::Warp(), blocks = (dim + kBlock - 1) / kBlock;
  if (b >= all) return;  // the whole warp
  const size_t column = b % blocks * kBlock + gpu::Lane();
  const float v = column < dim ? Saturated(x[b / blocks * dim + column], 127 * kLargestHalf, saturated) : 0.0f;
  // A NaN as the scale makes every value of the block NaN: q8 has no other way to carry one.
  const bool broken = gpu::Ballot(!IsFinite(v)) != 0;
  const Quantized q = QuantizeQ8(broken ? 0.0f : v);
  std::byte* to = out + b * kQ8Bytes;
  if (gpu::Lane() == 0) *reinterpret_cast<uint16_t*>(to) = broken ? kHalfNan : q.scale;
  to[2 + gpu::Lane()] = static_cast<std::byte>(q.code);
}
GPU_KERNEL(256, 4) DecodeQ8Kernel(const std::byte* in, size_t n, size_t dim, float* x) {
  const size_t i = size_t{gpu::BlockX()} * 256 + gpu::Thread();
  if (i >= n) return;
  const size_t blocks = (dim + kBlock - 1) / kBlock, column = i % dim;
  const std::byte* from = in + (i / dim * blocks + column / kBlock) * kQ8Bytes;
  const float d = gpu::OfHalf(*reinterpret_cast<const uint16_t*>(from));
  x[i] = gpu::Mul(static_cast<float>(static_cast<int8_t>(from[2 + column % kBlock])), d);
}

}  // namespace

void EncodeRows(Stream stream, DType type, const float* x, size_t rows, size_t dim, std::byte* out,
                uint64_t* saturated) {
  const size_t n = rows * dim, blocks = rows * ((dim + kBlock - 1) / kBlock);
  if (n == 0) return;
  if (type == DType::kF16) {
    GPU_LAUNCH(EncodeF16Kernel, Blocks(n, 256), 256, stream, x, n, reinterpret_cast<uint16_t*>(out), saturated);
  } else {
    GPU_LAUNCH(EncodeQ8Kernel, Blocks(blocks, 8), 256, stream, x, blocks, dim, out, saturated);
  }
}

void DecodeRows(Stream stream, DType type, const std::byte* in, size_t rows, size_t dim, float* x) {
  const size_t n = rows * dim;
  if (n == 0) return;
  if (type == DType::kF16) {
    GPU_LAUNCH(DecodeF16Kernel, Blocks(n, 256), 256, stream, reinterpret_cast<const uint16_t*>(in), n, x);
  } else {
    GPU_LAUNCH(DecodeQ8Kernel, Blocks(n, 256), 256, stream, in, n, dim, x);
  }
}

}  // namespace gyre::cuda
