#include "kernels/cuda/math.cuh"
#include "kernels/cuda/rows/rows.h"
#include "kernels/cuda/warp.cuh"

namespace gyre::cuda {
namespace {

constexpr size_t kWarpDim = 256;  // heads: a warp is enough for up to so many elements
constexpr size_t kVectorsOfBlock = 8;

GPU_FN float SumOfSquares(const float* x, size_t dim, size_t first, size_t step) {
  float sum = 0;
  for (size_t i = first; i < dim; i += step) {
    const gpu::Float4 v = LoadFour(x + i, dim - i);
    sum = gpu::Fma(v.x, v.x, sum);
    sum = gpu::Fma(v.y, v.y, sum);
    sum = gpu::Fma(v.z, v.z, sum);
    sum = gpu::Fma(v.w, v.w, sum);
  }
  return sum;
}
GPU_FN void Write(const float* x, size_t dim, const float* w, float sum, float eps, size_t first, size_t step,
                  float* out) {
  const float mean = gpu::Div(sum, static_cast<float>(dim));
  const float by = gpu::Div(1.0f, gpu::Sqrt(gpu::Add(mean, eps)));
  for (size_t i = first; i < dim; i += step) {
    const size_t left = dim - i;
    const gpu::Float4 v = LoadFour(x + i, left);
    gpu::Float4 scale = {1.0f, 1.0f, 1.0f, 1.0f};
    if (w != nullptr) scale = LoadFour(w + i, left);
    StoreFour(out + i, left,
              {gpu::Mul(gpu::Mul(v.x, by), scale.x), gpu::Mul(gpu::Mul(v.y, by), scale.y),
               gpu::Mul(gpu::Mul(v.z, by), scale.z), gpu::Mul(gpu::Mul(v.w, by), scale.w)});
  }
}

// A block has one vector.
GPU_KERNEL(256, 4) NormOfRow(const float* x, size_t groups, size_t dim, const float* w, float eps, float* out) {
  using Sums = OfWarps<float, 8>;
  GPU_SHARED(Sums, s);
  const size_t vector = gpu::BlockX(), first = gpu::Thread() * 4;
  const float* from = x + vector * dim;
  const float sum = s.Sum(SumOfSquares(from, dim, first, 1024));
  Write(from, dim, w == nullptr ? nullptr : w + vector % groups * dim, sum, eps, first, 1024, out + vector * dim);
}
// A warp has one vector.
GPU_KERNEL(256, 4)
NormOfHead(const float* x, size_t vectors, size_t groups, size_t dim, const float* w, float eps, float* out) {
  const size_t vector = gpu::BlockX() * kVectorsOfBlock + gpu::Warp(), first = gpu::Lane() * 4;
  if (vector >= vectors) return;  // the whole warp
  const float* from = x + vector * dim;
  const float sum = SumWarp(SumOfSquares(from, dim, first, 128));
  Write(from, dim, w == nullptr ? nullptr : w + vector % groups * dim, sum, eps, first, 128, out + vector * dim);
}

// A block has one vector.
GPU_KERNEL(128, 8) CenterKernel(const float* x, size_t dim, float* out) {
  using Sums = OfWarps<double, 4>;
  GPU_SHARED(Sums, s);
  const float* from = x + gpu::BlockX() * dim;
  double sum = 0;
  for (size_t i = gpu::Thread(); i < dim; i += 128) sum = gpu::Add(sum, static_cast<double>(from[i]));
  const double mean = gpu::Div(s.Sum(sum), static_cast<double>(dim));
  for (size_t i = gpu::Thread(); i < dim; i += 128)
    out[gpu::BlockX() * dim + i] = static_cast<float>(gpu::Add(static_cast<double>(from[i]), -mean));
}

}  // namespace

void Center(Stream stream, const float* x, size_t rows, size_t dim, float* out) {
  if (rows > 0 && dim > 0) GPU_LAUNCH(CenterKernel, static_cast<unsigned>(rows), 128, stream, x, dim, out);
}

void RmsNorm(Stream stream, const float* x, size_t vectors, size_t groups, size_t dim, const float* w, float eps,
             float* out) {
  if (vectors == 0 || dim == 0) return;
  if (dim > kWarpDim) {
    GPU_LAUNCH(NormOfRow, static_cast<unsigned>(vectors), 256, stream, x, groups, dim, w, eps, out);
  } else {
    const auto blocks = Blocks(vectors, kVectorsOfBlock);
    GPU_LAUNCH(NormOfHead, blocks, 256, stream, x, vectors, groups, dim, w, eps, out);
  }
}

}  // namespace gyre::cuda
