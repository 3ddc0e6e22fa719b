#include "kernels/cuda/products/dequantize.cuh"
#include "kernels/cuda/products/products.h"
#include "kernels/cuda/warp.cuh"

namespace gyre::cuda {
namespace {

constexpr size_t kRows = 8;     // that share the weights that a warp has dequantized
constexpr size_t kOutputs = 4;  // of a block: a warp each
constexpr size_t kFewRows = 65535 * kRows;

// Grid (outputs / 4, rows / 8): the rows from `from` on.
template <DType kType>
GPU_KERNEL(128, 4)
ProductExactKernel(Matrix w, RowsIn in, RowsOut out, size_t from) {
  const size_t n = gpu::BlockX() * kOutputs + gpu::Warp();
  const size_t begin = in.bounds == nullptr ? 0 : in.bounds[0], end = in.bounds == nullptr ? in.rows : in.bounds[1];
  const size_t first = begin + from + gpu::BlockY() * kRows;
  if (n >= w.n || first >= end) return;  // the whole warp
  float sums[kRows] = {};
  for (size_t at = 4 * gpu::Lane(); at < w.k; at += 128) {
    float v[4];
    FourOfRow<kType>(w, n, at, v);
#pragma unroll
    for (size_t r = 0; r < kRows; ++r) {
      if (first + r >= end) continue;
      const gpu::Float4 x = LoadFour(in.x + (first + r) * in.stride + at, w.k - at);
      sums[r] = gpu::Fma(x.x, v[0], sums[r]);
      sums[r] = gpu::Fma(x.y, v[1], sums[r]);
      sums[r] = gpu::Fma(x.z, v[2], sums[r]);
      sums[r] = gpu::Fma(x.w, v[3], sums[r]);
    }
  }
#pragma unroll
  for (size_t r = 0; r < kRows; ++r) {
    const float sum = SumWarp(sums[r]);
    if (gpu::Lane() != r || first + r >= end) continue;
    float* to = out.out + (first + r) * out.stride + n;
    *to = out.add ? gpu::Add(sum, *to) : sum;
  }
}

template <DType kType>
GPU_KERNEL(128, 4)
EmbedKernel(const TokenId* ids, Matrix w, float* out) {
  const size_t at = (gpu::BlockY() * 128 + gpu::Thread()) * 4, row = gpu::BlockX();
  if (at >= w.k) return;
  float v[4];
  FourOfRow<kType>(w, static_cast<size_t>(ids[row]), at, v);
  StoreFour(out + row * w.k + at, w.k - at, {v[0], v[1], v[2], v[3]});
}

// Calls f.template operator()<type>().
template <typename Fn>
void WithType(DType type, const Fn& f) {
  switch (type) {
#define GYRE_TYPE(name) \
  case DType::name: return f.template operator()<DType::name>();
    GYRE_TYPE(kF32)
    GYRE_TYPE(kF16)
    GYRE_TYPE(kBF16)
    GYRE_TYPE(kQ4_0)
    GYRE_TYPE(kQ4_1)
    GYRE_TYPE(kQ5_0)
    GYRE_TYPE(kQ5_1)
    GYRE_TYPE(kQ8_0)
    GYRE_TYPE(kQ2_K)
    GYRE_TYPE(kQ3_K)
    GYRE_TYPE(kQ4_K)
    GYRE_TYPE(kQ5_K)
    GYRE_TYPE(kQ6_K)
    GYRE_TYPE(kIQ1_S)
    GYRE_TYPE(kIQ1_M)
    GYRE_TYPE(kIQ2_XXS)
    GYRE_TYPE(kIQ2_XS)
    GYRE_TYPE(kIQ2_S)
    GYRE_TYPE(kIQ3_XXS)
    GYRE_TYPE(kIQ3_S)
    GYRE_TYPE(kIQ4_NL)
    GYRE_TYPE(kIQ4_XS)
    GYRE_TYPE(kTQ1_0)
    GYRE_TYPE(kTQ2_0)
    GYRE_TYPE(kMXFP4)
    GYRE_TYPE(kNVFP4)
    GYRE_TYPE(kQ1_0)
    GYRE_TYPE(kQ2_0)
    GYRE_TYPE(kI8)
    GYRE_TYPE(kF8E4M3)
#undef GYRE_TYPE
    default: return;
  }
}

}  // namespace

void ProductExact(Stream stream, const Matrix& w, const RowsIn& in, const RowsOut& out) {
  if (w.n == 0) return;
  // A grid has at most 65,535 blocks along y.
  for (size_t from = 0; from < in.rows; from += kFewRows) {
    const size_t rows = in.rows - from < kFewRows ? in.rows - from : kFewRows;
    const gpu::Grid grid(Blocks(w.n, kOutputs), Blocks(rows, kRows));
    WithType(w.type,
             [&]<DType kType>() { GPU_LAUNCH(ProductExactKernel<kType>, grid, 128, stream, w, in, out, from); });
  }
}

void Embed(Stream stream, const TokenId* ids, size_t rows, const Matrix& w, float* out) {
  if (rows == 0 || w.k == 0) return;
  const gpu::Grid grid(static_cast<unsigned>(rows), Blocks(w.k, 512));
  WithType(w.type, [&]<DType kType>() { GPU_LAUNCH(EmbedKernel<kType>, grid, 128, stream, ids, w, out); });
}

}  // namespace gyre::cuda
