// What the lanes of a warp, or the threads of a block, compute together, in a fixed order.
#pragma once

#include "kernels/cuda/gpu.cuh"

namespace gyre::cuda {

// The sum of all lanes' v, in every lane.
template <typename T>
GPU_FN T SumWarp(T v) {
#pragma unroll
  for (unsigned by = 16; by > 0; by /= 2) v = gpu::Add(v, gpu::ShflXor(v, by));
  return v;
}
// The largest; a NaN is passed over.
template <typename T>
GPU_FN T MaxWarp(T v) {
#pragma unroll
  for (unsigned by = 16; by > 0; by /= 2) {
    const T other = gpu::ShflXor(v, by);
    v = other > v ? other : v;
  }
  return v;
}

// One number of each warp of a block. REQUIRES: all threads call these, and a barrier lies between two calls.
template <typename T, int kWarps>
struct OfWarps {
  T of_warp[kWarps];

  GPU_FN T Sum(T v) {
    v = SumWarp(v);
    if (gpu::Lane() == 0) of_warp[gpu::Warp()] = v;
    gpu::SyncBlock();
    T all = of_warp[0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) all = gpu::Add(all, of_warp[i]);
    return all;
  }
  GPU_FN T Max(T v) {
    v = MaxWarp(v);
    if (gpu::Lane() == 0) of_warp[gpu::Warp()] = v;
    gpu::SyncBlock();
    T all = of_warp[0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) all = of_warp[i] > all ? of_warp[i] : all;
    return all;
  }
};

// Four elements, the first `left` of them in memory, the others 0: one load of 16 bytes where the address allows it. So
// a lane has the same elements at every address.
GPU_FN gpu::Float4 LoadFour(const float* p, size_t left) {
  if (left >= 4 && reinterpret_cast<uintptr_t>(p) % 16 == 0) return gpu::Load<gpu::Float4>(p);
  return {p[0], left > 1 ? p[1] : 0.0f, left > 2 ? p[2] : 0.0f, left > 3 ? p[3] : 0.0f};
}
GPU_FN void StoreFour(float* p, size_t left, gpu::Float4 v) {
  if (left >= 4 && reinterpret_cast<uintptr_t>(p) % 16 == 0) return gpu::Store(p, v);
  p[0] = v.x;
  if (left > 1) p[1] = v.y;
  if (left > 2) p[2] = v.z;
  if (left > 3) p[3] = v.w;
}

}  // namespace gyre::cuda
