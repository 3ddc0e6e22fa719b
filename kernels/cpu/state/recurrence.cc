#include "kernels/cpu/state/recurrence.h"

#include <algorithm>
#include <cmath>

namespace gyre::cpu {
namespace {

// Rows whose queries and keys are normalized at once.
constexpr size_t kTile = 16;
constexpr size_t kChannels = 256;  // of an item of a convolution
// Multiply-adds of one core in a nanosecond, roughly: decides whether a parallel region pays.
constexpr double kScanMacsPerNs = 8, kConvMacsPerNs = 2;

size_t RowsOf(std::span<const StateRun> runs) {
  size_t rows = 0;
  for (const StateRun& run : runs) rows += run.count;
  return rows;
}

}  // namespace

void Recurrence::ShortConv(const float* x, size_t stride, std::span<const StateRun> runs, const ShortConvParams& p,
                           float* out) const {
  const size_t parts = (p.channels + kChannels - 1) / kChannels;
  const double macs = static_cast<double>(RowsOf(runs) * p.channels * p.taps * p.outputs);
  team_.For(runs.size() * parts, 1, macs / kConvMacsPerNs, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const StateRun& run = runs[i / parts];
      const size_t at = i % parts * kChannels;
      ShortConvParams part = p;
      part.w += at;
      if (part.bias != nullptr) part.bias += at;
      ops_.short_conv(x + run.first * stride + at, stride, run.count, std::min(kChannels, p.channels - at), part,
                      run.state + p.state_at + at, out + run.first * p.channels + at);
    }
  });
}

void Recurrence::ScanState(const StateScanRows& rows, std::span<const StateRun> runs, const StateScanParams& p,
                           float* out) {
  const size_t scratch = 2 * kTile * p.key_dim;
  // Here, as nothing may throw in a parallel region.
  auto* keys =
      reinterpret_cast<float*>(keys_.EnsureCapacity(scratch * sizeof(float) * static_cast<size_t>(team_.threads())));
  const double macs = static_cast<double>(RowsOf(runs) * p.value_heads * p.key_dim * p.value_dim) * 3;
  team_.For(runs.size() * p.value_heads, 1, macs / kScanMacsPerNs, [&](size_t begin, size_t end, size_t thread) {
    for (size_t i = begin; i < end; ++i)
      ScanHead(rows, runs[i / p.value_heads], i % p.value_heads, p, keys + scratch * thread, out);
  });
}

void Recurrence::ScanHead(const StateScanRows& rows, const StateRun& run, size_t head, const StateScanParams& p,
                          float* keys, float* out) const {
  const size_t key_head = p.interleaved ? head % p.key_heads : head / (p.value_heads / p.key_heads);
  const float by = 1 / std::sqrt(static_cast<float>(p.key_dim));
  float* state = run.state + p.state_at + head * p.key_dim * p.value_dim;
  for (size_t first = 0; first < run.count; first += kTile) {
    const size_t count = std::min(kTile, run.count - first), row = run.first + first;
    const float *q = rows.q + row * rows.stride + key_head * p.key_dim,
                *k = rows.k + row * rows.stride + key_head * p.key_dim;
    ScanRows scan{.q = q,
                  .k = k,
                  .key_stride = rows.stride,
                  .v = rows.v + row * rows.stride + head * p.value_dim,
                  .value_stride = rows.stride,
                  .decay = rows.decay + (row * p.value_heads + head) * p.Decays(),
                  .decay_stride = p.value_heads * p.Decays(),
                  .beta = p.removal ? nullptr : rows.beta + row * p.value_heads + head,
                  .gate_stride = p.value_heads,
                  .out_stride = p.value_heads * p.value_dim,
                  .skip = p.skip == nullptr ? 0.0f : p.skip[head]};
    if (p.removal) {
      scan.remove = rows.remove + row * rows.stride + key_head * p.key_dim;
      scan.replace = rows.replace + row * rows.stride + key_head * p.key_dim;
    }
    if (p.key_norm_eps > 0) {
      // An RMS norm is an L2 norm times the root of the width.
      auto normalize = [&](const float* from, float* to) {
        ops_.rms_norm(from, p.key_dim, nullptr, p.key_norm_eps / static_cast<float>(p.key_dim), to);
        for (size_t i = 0; i < p.key_dim; ++i) to[i] *= by;
      };
      for (size_t r = 0; r < count; ++r) {
        normalize(q + r * rows.stride, keys + 2 * r * p.key_dim);
        normalize(k + r * rows.stride, keys + (2 * r + 1) * p.key_dim);
      }
      scan.q = keys;
      scan.k = keys + p.key_dim;
      scan.key_stride = 2 * p.key_dim;
    }
    ops_.scan_state(scan, count, p, state, out + (row * p.value_heads + head) * p.value_dim);
  }
}

}  // namespace gyre::cpu
