#include "kernels/cuda/math.cuh"
#include "kernels/cuda/rows/rows.h"
#include "kernels/cuda/warp.cuh"

namespace gyre::cuda {
namespace {

// Calls op(i) for all i < n, each in a thread of its own: neighbours touch neighbours.
template <typename Op>
GPU_KERNEL(256, 4)
EachKernel(size_t n, Op op) {
  const size_t i = size_t{gpu::BlockX()} * 256 + gpu::Thread();
  if (i < n) op(i);
}
template <typename Op>
void ForEach(Stream stream, size_t n, const Op& op) {
  if (n == 0) return;
  GPU_LAUNCH(EachKernel<Op>, Blocks(n, 256), 256, stream, n, op);
}

struct ActivateOp {
  const float* x;
  Activation act;
  float* out;
  GPU_FN void operator()(size_t i) const { out[i] = Activated(x[i], act); }
};
struct XieluOp {
  float* x;
  XieluParams p;
  GPU_FN void operator()(size_t i) const {
    const auto v = static_cast<double>(x[i]), beta = gpu::Mul(static_cast<double>(p.beta), v);
    if (v > 0) {
      x[i] = static_cast<float>(gpu::Fma(gpu::Mul(static_cast<double>(p.positive), v), v, beta));
      return;
    }
    const auto eps = static_cast<double>(p.eps), low = v < eps ? v : eps;
    const double bent = gpu::Add(gpu::Add(Exp(low), -1.0), -v);
    x[i] = static_cast<float>(gpu::Fma(static_cast<double>(p.negative), bent, beta));
  }
};
struct LimitOp {
  float* x;
  float low, high;
  GPU_FN void operator()(size_t i) const { x[i] = x[i] < low ? low : x[i] > high ? high : x[i]; }
};
struct GatedOp {
  const float *gate, *up;
  Activation act;
  float* out;
  GPU_FN void operator()(size_t i) const { out[i] = Gated(gate[i], up[i], act); }
};
struct MultiplyOp {
  float* x;
  const float* y;
  GPU_FN void operator()(size_t i) const { x[i] = gpu::Mul(x[i], y[i]); }
};
struct AddOp {
  float* x;
  const float* y;
  GPU_FN void operator()(size_t i) const { x[i] = gpu::Add(x[i], y[i]); }
};
struct AddScaledOp {
  float* x;
  const float* y;
  float by;
  GPU_FN void operator()(size_t i) const { x[i] = gpu::Add(x[i], gpu::Mul(by, y[i])); }
};
struct AddBiasOp {
  float* x;
  size_t dim;
  const float* bias;
  GPU_FN void operator()(size_t i) const { x[i] = gpu::Add(x[i], bias[i % dim]); }
};
struct ScaleColumnsOp {
  float* x;
  size_t dim;
  const float* by;
  GPU_FN void operator()(size_t i) const { x[i] = gpu::Mul(x[i], by[i % dim]); }
};
struct ScaleOp {
  float* x;
  float by;
  GPU_FN void operator()(size_t i) const { x[i] = gpu::Mul(x[i], by); }
};
struct ScaleRowsOp {
  float* x;
  size_t dim;
  const float* by;
  GPU_FN void operator()(size_t i) const { x[i] = gpu::Mul(x[i], by[i / dim]); }
};
struct SoftcapOp {
  float* x;
  float cap;
  GPU_FN void operator()(size_t i) const { x[i] = gpu::Mul(cap, Tanh(gpu::Div(x[i], cap))); }
};
struct CopyColumnsOp {
  const float* from;
  size_t from_stride, width;
  float* to;
  size_t to_stride;
  GPU_FN void operator()(size_t i) const {
    to[i / width * to_stride + i % width] = from[i / width * from_stride + i % width];
  }
};
// A thread has one column of all rows: as their numbers rise, out may be x.
struct GatherOp {
  const float* x;
  size_t stride;
  const uint32_t* numbers;
  size_t count, width;
  float* out;
  GPU_FN void operator()(size_t column) const {
    for (size_t r = 0; r < count; ++r) out[r * width + column] = x[numbers[r] * stride + column];
  }
};

// A block has one row.
GPU_KERNEL(128, 8) SigmoidDotKernel(const float* x, size_t dim, const float* w, float* out) {
  using Sums = OfWarps<double, 4>;
  GPU_SHARED(Sums, s);
  const float* row = x + gpu::BlockX() * dim;
  double sum = 0;
  for (size_t i = gpu::Thread(); i < dim; i += 128)
    sum = gpu::Fma(static_cast<double>(row[i]), static_cast<double>(w[i]), sum);
  sum = s.Sum(sum);
  if (gpu::Thread() == 0) out[gpu::BlockX()] = static_cast<float>(gpu::Div(1.0, gpu::Add(1.0, Exp(-sum))));
}

}  // namespace

void Activate(Stream stream, const float* x, size_t n, Activation act, float* out) {
  ForEach(stream, n, ActivateOp{x, act, out});
}
void Xielu(Stream stream, float* x, size_t n, const XieluParams& params) { ForEach(stream, n, XieluOp{x, params}); }
void Limit(Stream stream, float* x, size_t n, float low, float high) { ForEach(stream, n, LimitOp{x, low, high}); }
void GatedActivation(Stream stream, const float* gate, const float* up, size_t n, Activation act, float* out) {
  ForEach(stream, n, GatedOp{gate, up, act, out});
}
void MultiplyInPlace(Stream stream, float* x, const float* y, size_t n) { ForEach(stream, n, MultiplyOp{x, y}); }
void AddInPlace(Stream stream, float* x, const float* y, size_t n) { ForEach(stream, n, AddOp{x, y}); }
void AddScaled(Stream stream, float* x, const float* y, size_t n, float by) {
  ForEach(stream, n, AddScaledOp{x, y, by});
}
void AddBias(Stream stream, float* x, size_t rows, size_t dim, const float* bias) {
  ForEach(stream, rows * dim, AddBiasOp{x, dim, bias});
}
void ScaleColumns(Stream stream, float* x, size_t rows, size_t dim, const float* by) {
  ForEach(stream, rows * dim, ScaleColumnsOp{x, dim, by});
}
void Scale(Stream stream, float* x, size_t n, float by) { ForEach(stream, n, ScaleOp{x, by}); }
void ScaleRows(Stream stream, float* x, size_t rows, size_t dim, const float* by) {
  ForEach(stream, rows * dim, ScaleRowsOp{x, dim, by});
}
void SoftcapInPlace(Stream stream, float* x, size_t n, float cap) { ForEach(stream, n, SoftcapOp{x, cap}); }
void CopyColumns(Stream stream, const float* from, size_t rows, size_t from_stride, size_t width, float* to,
                 size_t to_stride) {
  ForEach(stream, rows * width, CopyColumnsOp{from, from_stride, width, to, to_stride});
}
void GatherRows(Stream stream, const float* x, size_t stride, const uint32_t* numbers, size_t count, size_t width,
                float* out) {
  ForEach(stream, count == 0 ? 0 : width, GatherOp{x, stride, numbers, count, width, out});
}
void SigmoidDot(Stream stream, const float* x, size_t rows, size_t dim, const float* w, float* out) {
  if (rows > 0) GPU_LAUNCH(SigmoidDotKernel, static_cast<unsigned>(rows), 128, stream, x, dim, w, out);
}

}  // namespace gyre::cuda
