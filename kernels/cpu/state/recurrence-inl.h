// Inner loops of layers with recurrent state, in terms of a vector class V. Lanes
// are channels or elements of a value, so each element has one chain of operations: the same bits on every ISA.
#pragma once

#include <cstddef>

#include "kernels/cpu/isa/float_kernels-inl.h"

namespace gyre::cpu {
namespace {

// C registers of channels from `at` on.
template <typename V, size_t C, bool whole>
void ShortConvTile(const float* x, size_t stride, size_t count, const ShortConvParams& p, const float* state, size_t at,
                   size_t n, float* out) {
  auto load = [&](const float* from) {
    if constexpr (whole)
      return V::Load(from);
    else
      return V::LoadTail(from, n);
  };
  const size_t kept = p.taps - 1;
  for (size_t r = 0; r < count; ++r) {
    typename V::T sum[C];
    for (size_t c = 0; c < C; ++c) sum[c] = V::Zero();
    for (size_t t = 0; t < p.taps; ++t) {
      const float* in = (r + t < kept ? state + (r + t) * p.channels : x + (r + t - kept) * stride) + at;
      for (size_t c = 0; c < C; ++c)
        sum[c] = V::Fma(load(p.w + t * p.channels + at + c * V::kLanes), load(in + c * V::kLanes), sum[c]);
    }
    for (size_t c = 0; c < C; ++c) {
      if (p.bias != nullptr) sum[c] = V::Add(sum[c], load(p.bias + at + c * V::kLanes));
      if (p.silu) sum[c] = Silu<V>(sum[c]);
      float* to = out + r * p.channels + at + c * V::kLanes;
      if constexpr (whole)
        V::Store(to, sum[c]);
      else
        V::StoreTail(to, sum[c], n);
    }
  }
}

template <typename V>
void ShortConv(const float* x, size_t stride, size_t count, size_t n, const ShortConvParams& p, float* state,
               float* out) {
  ShortConvParams one = p;
  for (size_t o = 0; o < p.outputs; ++o, one.w += p.taps * p.channels, out += p.output_step) {
    size_t at = 0;
    for (; at + 4 * V::kLanes <= n; at += 4 * V::kLanes)
      ShortConvTile<V, 4, true>(x, stride, count, one, state, at, V::kLanes, out);
    for (; at + V::kLanes <= n; at += V::kLanes)
      ShortConvTile<V, 1, true>(x, stride, count, one, state, at, V::kLanes, out);
    if (at < n) ShortConvTile<V, 1, false>(x, stride, count, one, state, at, n - at, out);
  }
  // A row of the state is overwritten after it was read: the inputs move towards the first one.
  for (size_t t = 0; t + 1 < p.taps; ++t) {
    const float* from =
        t + count < p.taps - 1 ? state + (t + count) * p.channels : x + (t + count + 1 - p.taps) * stride;
    __builtin_memcpy(state + t * p.channels, from, n * sizeof(float));
  }
}

enum class ScanRule { kPlain, kDelta, kRemoval };  // StateScanParams

// C registers of elements of a value from `at` on, for `count` rows. They stay in the first-level cache from row to
// row. Where a rule reads the state first, the pass that changes it for one row also reads it for the next.
template <typename V, size_t C, ScanRule rule, bool channels, bool whole>
void ScanTile(const ScanRows& rows, size_t count, const StateScanParams& p, size_t at, size_t n, float* state,
              float* out) {
  using T = typename V::T;
  auto load = [&](const float* from) {
    if constexpr (whole)
      return V::Load(from);
    else
      return V::LoadTail(from, n);
  };
  auto store = [&](float* to, T v) {
    if constexpr (whole)
      V::Store(to, v);
    else
      V::StoreTail(to, v, n);
  };
  constexpr bool reads = rule != ScanRule::kPlain, delta = rule == ScanRule::kDelta,
                 removal = rule == ScanRule::kRemoval;
  const size_t dim = p.value_dim;
  // Where each row of S has a decay of its own, the delta rule reads S for keys times the decays.
  auto key_of = [&](size_t row, size_t i) {
    if constexpr (removal) return V::Broadcast(rows.remove[row * rows.key_stride + i]);
    const float key = rows.k[row * rows.key_stride + i];
    return V::Broadcast(channels ? key * rows.decay[row * rows.decay_stride + i] : key);
  };
  T read[C];  // S^T k, or S^T remove
  for (size_t c = 0; c < C; ++c) read[c] = V::Zero();
  for (size_t i = 0; reads && i < p.key_dim; ++i) {
    const T by = key_of(0, i);
    for (size_t c = 0; c < C; ++c) read[c] = V::Fma(load(state + i * dim + at + c * V::kLanes), by, read[c]);
  }
  for (size_t r = 0; r < count; ++r) {
    const float *q = rows.q + r * rows.key_stride, *k = rows.k + r * rows.key_stride,
                *v = rows.v + r * rows.value_stride + at;
    const float* decays = rows.decay + r * rows.decay_stride;
    const T decay = V::Broadcast(decays[0]);
    T written[C], sum[C];
    for (size_t c = 0; c < C; ++c) written[c] = load(v + c * V::kLanes);
    const T skip = V::Broadcast(rows.skip);
    T skipped[C], removed[C];
    for (size_t c = 0; c < C; ++c) skipped[c] = V::Mul(written[c], skip);
    if constexpr (delta) {
      const T less = V::Broadcast(channels ? -1.0f : -decays[0]);
      for (size_t c = 0; c < C; ++c) written[c] = V::Fma(read[c], less, written[c]);
    }
    if constexpr (!removal) {
      const T beta = V::Broadcast(rows.beta[r * rows.gate_stride]);
      for (size_t c = 0; c < C; ++c) written[c] = V::Mul(written[c], beta);
    }
    for (size_t c = 0; c < C; ++c) removed[c] = read[c];
    for (size_t c = 0; c < C; ++c) sum[c] = read[c] = V::Zero();
    auto pass = [&]<bool more>() {
      for (size_t i = 0; i < p.key_dim; ++i) {
        const T key = V::Broadcast(k[i]), query = V::Broadcast(q[i]);
        T next{}, kept = decay;
        if constexpr (more) next = key_of(r + 1, i);
        if constexpr (channels) kept = V::Broadcast(decays[i]);
        for (size_t c = 0; c < C; ++c) {
          float* s = state + i * dim + at + c * V::kLanes;
          T now = V::Fma(key, written[c], V::Mul(load(s), kept));
          if constexpr (removal) now = V::Fma(V::Broadcast(-rows.replace[r * rows.key_stride + i]), removed[c], now);
          store(s, now);
          sum[c] = V::Fma(query, now, sum[c]);
          if constexpr (more) read[c] = V::Fma(now, next, read[c]);
        }
      }
    };
    if (reads && r + 1 < count)
      pass.template operator()<true>();
    else
      pass.template operator()<false>();
    for (size_t c = 0; c < C; ++c)
      store(out + r * rows.out_stride + at + c * V::kLanes, V::Fma(sum[c], V::Broadcast(p.scale), skipped[c]));
  }
}

template <typename V, ScanRule rule, bool channels>
void ScanHead(const ScanRows& rows, size_t count, const StateScanParams& p, float* state, float* out) {
  size_t at = 0;
  for (; at + 4 * V::kLanes <= p.value_dim; at += 4 * V::kLanes)
    ScanTile<V, 4, rule, channels, true>(rows, count, p, at, V::kLanes, state, out);
  for (; at + V::kLanes <= p.value_dim; at += V::kLanes)
    ScanTile<V, 1, rule, channels, true>(rows, count, p, at, V::kLanes, state, out);
  if (at < p.value_dim) ScanTile<V, 1, rule, channels, false>(rows, count, p, at, p.value_dim - at, state, out);
}

template <typename V>
void ScanState(const ScanRows& rows, size_t count, const StateScanParams& p, float* state, float* out) {
  const auto run = [&]<ScanRule rule>() {
    (p.channel_decay ? ScanHead<V, rule, true> : ScanHead<V, rule, false>)(rows, count, p, state, out);
  };
  if (p.removal)
    run.template operator()<ScanRule::kRemoval>();
  else if (p.delta)
    run.template operator()<ScanRule::kDelta>();
  else
    run.template operator()<ScanRule::kPlain>();
}

}  // namespace
}  // namespace gyre::cpu
