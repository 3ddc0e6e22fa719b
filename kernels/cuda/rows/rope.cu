#include "kernels/cuda/math.cuh"
#include "kernels/cuda/rows/rows.h"

namespace gyre::cuda {
namespace {

GPU_KERNEL(256, 4)
RotaryTableKernel(const KvRow* rows, size_t count, const double* frequencies, size_t half, float magnitude, float* cos,
                  float* sin) {
  const size_t i = size_t{gpu::BlockX()} * 256 + gpu::Thread();
  if (i >= count * half) return;
  const double position = static_cast<double>(rows[i / half].position);
  const SinCos at = SinCosOf(gpu::Mul(position, gpu::Load<double>(frequencies + i % half)));
  cos[i] = gpu::Mul(static_cast<float>(at.cos), magnitude);
  sin[i] = gpu::Mul(static_cast<float>(at.sin), magnitude);
}

// A thread has one pair.
GPU_KERNEL(256, 4)
RopeKernel(float* x, size_t rows, size_t heads, size_t head_dim, const float* cos, const float* sin, size_t half,
           RopePairing pairing) {
  const size_t i = size_t{gpu::BlockX()} * 256 + gpu::Thread();
  if (i >= rows * heads * half) return;
  const size_t pair = i % half, head = i / half, angle = head / heads * half + pair;
  const bool interleaved = pairing == RopePairing::kInterleaved;
  float* a = x + head * head_dim + (interleaved ? 2 * pair : pair);
  float* b = a + (interleaved ? 1 : half);
  const float c = cos[angle], s = sin[angle], x0 = *a, x1 = *b;
  *a = gpu::Fma(x0, c, -gpu::Mul(x1, s));
  *b = gpu::Fma(x0, s, gpu::Mul(x1, c));
}

}  // namespace

void RotaryTable(Stream stream, const KvRow* rows, size_t count, const double* frequencies, size_t half,
                 float magnitude, float* cos, float* sin) {
  if (count * half == 0) return;
  const auto blocks = Blocks(count * half, 256);
  GPU_LAUNCH(RotaryTableKernel, blocks, 256, stream, rows, count, frequencies, half, magnitude, cos, sin);
}

void Rope(Stream stream, float* x, size_t rows, int heads, int head_dim, const float* cos, const float* sin, int half,
          RopePairing pairing) {
  const size_t pairs = rows * static_cast<size_t>(heads) * static_cast<size_t>(half);
  if (pairs == 0) return;
  GPU_LAUNCH(RopeKernel, Blocks(pairs, 256), 256, stream, x, rows, static_cast<size_t>(heads),
             static_cast<size_t>(head_dim), cos, sin, static_cast<size_t>(half), pairing);
}

}  // namespace gyre::cuda
