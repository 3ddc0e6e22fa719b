#include "kernels/cuda/measure/measure.h"

#include "kernels/cuda/gpu.cuh"

namespace gyre::cuda {
namespace {

GPU_KERNEL(256, 4) ReadKernel(const uint8_t* x, uint32_t* out) {
  const uint8_t* from = x + static_cast<size_t>(gpu::BlockX()) * kReadBlock;
  gpu::Uint4 seen[8];
#pragma unroll
  for (size_t i = 0; i < 8; ++i) seen[i] = gpu::LoadConstant16(from + (i * 256 + gpu::Thread()) * 16);
  uint32_t all = 0;
#pragma unroll
  for (size_t i = 0; i < 8; ++i) all |= seen[i].x ^ seen[i].y ^ seen[i].z ^ seen[i].w;
  // The compiler drops reads whose values are not used; the memory holds zeros.
  if (all != 0 || gpu::Thread() == 0) out[gpu::BlockX()] = all;
}

// Eight tiles beside each other, as one alone would wait for its own sum.
template <bool kInt8>
GPU_KERNEL(kMmaWarps * 32, 4)
MultiplyKernel(size_t rounds, uint32_t seed, uint32_t* out) {
  uint32_t a[4], b[2];
  for (uint32_t i = 0; i < 4; ++i) a[i] = seed * (gpu::Lane() + i);
  for (uint32_t i = 0; i < 2; ++i) b[i] = seed * (gpu::Lane() + 8 * i);
  int whole[8][4] = {};
  float real[8][4] = {};
  for (size_t round = 0; round < rounds; ++round) {
#pragma unroll
    for (size_t tile = 0; tile < 8; ++tile) {
      if constexpr (kInt8)
        gpu::MmaInt8(whole[tile], a, b);
      else
        gpu::MmaBf16(real[tile], a, b);
    }
  }
  uint32_t all = 0;
#pragma unroll
  for (size_t tile = 0; tile < 8; ++tile) {
#pragma unroll
    for (size_t i = 0; i < 4; ++i) all |= static_cast<uint32_t>(whole[tile][i]) | gpu::Bits(real[tile][i]);
  }
  if (gpu::Lane() == 0) out[gpu::BlockX() * kMmaWarps + gpu::Warp()] = all;
}

}  // namespace

void ReadAll(Stream stream, const void* x, size_t bytes, uint32_t* out) {
  const auto blocks = static_cast<unsigned>(bytes / kReadBlock);
  if (blocks == 0) return;
  GPU_LAUNCH(ReadKernel, blocks, 256, stream, static_cast<const uint8_t*>(x), out);
}

void MultiplyTiles(Stream stream, bool int8, size_t blocks, size_t rounds, uint32_t* out) {
  const auto count = static_cast<unsigned>(blocks);
  constexpr unsigned kThreads = kMmaWarps * 32;
  if (int8)
    GPU_LAUNCH(MultiplyKernel<true>, count, kThreads, stream, rounds, 0u, out);
  else
    GPU_LAUNCH(MultiplyKernel<false>, count, kThreads, stream, rounds, 0u, out);
}

}  // namespace gyre::cuda
