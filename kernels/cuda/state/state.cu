#include "kernels/cuda/state/state.h"

#include "kernels/cuda/math.cuh"
#include "kernels/cuda/warp.cuh"

namespace gyre::cuda {
namespace {

// Grid (channels / 256, runs). A thread has one channel of one sequence.
GPU_KERNEL(256, 4)
ShortConvKernel(const float* x, size_t stride, const StateRun* runs, ShortConvParams p, float* out) {
  const size_t c = gpu::BlockX() * 256 + gpu::Thread();
  if (c >= p.channels) return;
  const StateRun run = runs[gpu::BlockY()];
  float* state = run.state + p.state_at;
  for (size_t r = run.first; r < run.first + run.count; ++r) {
    const float now = x[r * stride + c];
    for (size_t o = 0; o < p.outputs; ++o) {
      const float* w = p.w + o * p.taps * p.channels + c;
      float sum = 0;
      for (size_t t = 0; t + 1 < p.taps; ++t) sum = gpu::Fma(state[t * p.channels + c], w[t * p.channels], sum);
      sum = gpu::Fma(now, w[(p.taps - 1) * p.channels], sum);
      if (p.bias != nullptr) sum = gpu::Add(sum, p.bias[c]);
      out[o * p.output_step + r * p.channels + c] = p.silu ? Activated(sum, Activation::kSilu) : sum;
    }
    for (size_t t = 0; t + 1 < p.taps; ++t)
      state[t * p.channels + c] = t + 2 < p.taps ? state[(t + 1) * p.channels + c] : now;
  }
}

struct ScanShared {
  OfWarps<float, 4> q, k;
};
GPU_FN float NormOf(float sum_of_squares, float eps) {
  return gpu::Div(1.0f, gpu::Sqrt(gpu::Add(sum_of_squares, eps)));
}
// Grid (value heads, runs). A thread has elements of the value, and their columns of the state.
GPU_KERNEL(128, 8) ScanStateKernel(StateScanRows rows, const StateRun* runs, StateScanParams p, float* out) {
  GPU_SHARED(ScanShared, s);
  const StateRun run = runs[gpu::BlockY()];
  const size_t head = gpu::BlockX(),
               key_head = p.interleaved ? head % p.key_heads : head / (p.value_heads / p.key_heads);
  float* state = run.state + p.state_at + head * p.key_dim * p.value_dim;
  for (size_t r = run.first; r < run.first + run.count; ++r) {
    const size_t key_at = r * rows.stride + key_head * p.key_dim;
    const float *q = rows.q + key_at, *k = rows.k + key_at;
    const size_t gate = r * p.value_heads + head;
    const float* decays = rows.decay + gate * p.Decays();
    const float whole = decays[0];
    const float beta = p.removal ? 1.0f : rows.beta[gate];
    const float *remove = p.removal ? rows.remove + key_at : nullptr,
                *replace = p.removal ? rows.replace + key_at : nullptr;
    float of_q = 1, of_k = 1;
    if (p.key_norm_eps != 0) {
      float squares_q = 0, squares_k = 0;
      for (size_t i = gpu::Thread(); i < p.key_dim; i += 128) {
        squares_q = gpu::Fma(q[i], q[i], squares_q);
        squares_k = gpu::Fma(k[i], k[i], squares_k);
      }
      // Each sum has a barrier, so the other one's numbers of the row before are read.
      of_q = NormOf(s.q.Sum(squares_q), p.key_norm_eps);
      of_k = NormOf(s.k.Sum(squares_k), p.key_norm_eps);
    }
    for (size_t j = gpu::Thread(); j < p.value_dim; j += 128) {
      const float value = rows.v[r * rows.stride + head * p.value_dim + j];
      float written = value;
      if (p.delta) {
        float read = 0;
        for (size_t i = 0; i < p.key_dim; ++i) {
          const float kept = gpu::Mul(p.channel_decay ? decays[i] : whole, state[i * p.value_dim + j]);
          read = gpu::Fma(kept, gpu::Mul(k[i], of_k), read);
        }
        written = gpu::Add(value, -read);
      }
      written = gpu::Mul(beta, written);
      float removed = 0;
      for (size_t i = 0; p.removal && i < p.key_dim; ++i)
        removed = gpu::Fma(state[i * p.value_dim + j], remove[i], removed);
      float result = 0;
      for (size_t i = 0; i < p.key_dim; ++i) {
        float& element = state[i * p.value_dim + j];
        const float kept = gpu::Mul(p.channel_decay ? decays[i] : whole, element);
        float now = gpu::Fma(gpu::Mul(k[i], of_k), written, kept);
        if (p.removal) now = gpu::Fma(-replace[i], removed, now);
        result = gpu::Fma(now, gpu::Mul(q[i], of_q), result);
        element = now;
      }
      result = gpu::Mul(result, p.scale);
      out[gate * p.value_dim + j] = p.skip != nullptr ? gpu::Fma(p.skip[head], value, result) : result;
    }
  }
}

// log(1 + e) for 0 <= e <= 1, also where 1 + e rounds to 1.
GPU_FN double Log1p(double e) {
  const double u = gpu::Add(1.0, e);
  return u == 1.0 ? e : gpu::Mul(Log(u), gpu::Div(e, gpu::Add(u, -1.0)));
}
GPU_KERNEL(256, 4)
DecayGatesKernel(const float* x, size_t n, size_t heads, size_t width, const float* bias, const float* a,
                 DecayStep form, float* step, float* decay) {
  const size_t i = size_t{gpu::BlockX()} * 256 + gpu::Thread();
  if (i >= n) return;
  const double in = gpu::Add(static_cast<double>(x[i]), static_cast<double>(bias[i % heads]));
  const double made = form == DecayStep::kSigmoid ? gpu::Div(1.0, gpu::Add(1.0, Exp(-in)))
                                                  : gpu::Add(in > 0 ? in : 0.0, Log1p(Exp(in > 0 ? -in : in)));
  if (step != nullptr) step[i] = static_cast<float>(made);
  for (size_t j = 0; j < width; ++j)
    decay[i * width + j] = static_cast<float>(Exp(gpu::Mul(static_cast<double>(a[i % heads * width + j]), made)));
}

}  // namespace

void ShortConv(Stream stream, const float* x, size_t stride, const StateRun* runs, size_t count,
               const ShortConvParams& params, float* out) {
  if (count == 0) return;
  const gpu::Grid grid(Blocks(params.channels, 256), static_cast<unsigned>(count));
  GPU_LAUNCH(ShortConvKernel, grid, 256, stream, x, stride, runs, params, out);
}
void ScanState(Stream stream, const StateScanRows& rows, const StateRun* runs, size_t count,
               const StateScanParams& params, float* out) {
  if (count == 0) return;
  const gpu::Grid grid(static_cast<unsigned>(params.value_heads), static_cast<unsigned>(count));
  GPU_LAUNCH(ScanStateKernel, grid, 128, stream, rows, runs, params, out);
}
void DecayGates(Stream stream, const float* x, size_t rows, size_t heads, size_t width, const float* bias,
                const float* a, DecayStep form, float* step, float* decay) {
  const size_t n = rows * heads;
  if (n == 0) return;
  GPU_LAUNCH(DecayGatesKernel, Blocks(n, 256), 256, stream, x, n, heads, width, bias, a, form, step, decay);
}

}  // namespace gyre::cuda
