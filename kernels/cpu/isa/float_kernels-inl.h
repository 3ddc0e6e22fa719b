// The inner loops in terms of a vector class V.
//
// V has: kLanes; kTileRows and kTileColumns (a tile's accumulators, its rows of x and one column must fit the
// registers); kChain (positions that are summed per lane before the lanes are added); kPageStreams
// (attention_kernels-inl.h); T (a register); Bytes (a register of uint8_t); Zero, Load (f32), LoadHalf, LoadBf16,
// LoadInt8, LoadFp8 (E4M3 / kFp8Unit; NaN or 1.875 for NaN), and the same with Tail (n < kLanes elements, then zeros);
// Broadcast, Fma, Add, Mul, Div, Max and Min (of NaN and b: b), Round, Floor, TimesPowerOf2 (the exponent is an integer
// in float), Store, StoreTail, StoreHalf, Sum, Largest. Doubles is a register of kDoubles f64: LoadDoubles (from f32),
// Splat, Fma, Max, Store, and PowerOf2 (2^n for n + 1.5 * 2^52).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cpu/isa/common-inl.h"
#include "kernels/cpu/isa/exponential-inl.h"
#include "kernels/cpu/isa/isa_ops.h"

namespace gyre::cpu {
namespace {

template <typename V, FloatType type>
typename V::T LoadWeights(const void* w, size_t at) {
  if constexpr (type == FloatType::kF32) return V::Load(static_cast<const float*>(w) + at);
  if constexpr (type == FloatType::kF16) return V::LoadHalf(static_cast<const uint16_t*>(w) + at);
  if constexpr (type == FloatType::kBf16) return V::LoadBf16(static_cast<const uint16_t*>(w) + at);
}

template <typename V, FloatType type>
typename V::T LoadWeightsTail(const void* w, size_t at, size_t n) {
  if constexpr (type == FloatType::kF32) return V::LoadTail(static_cast<const float*>(w) + at, n);
  if constexpr (type == FloatType::kF16) return V::LoadHalfTail(static_cast<const uint16_t*>(w) + at, n);
  if constexpr (type == FloatType::kBf16) return V::LoadBf16Tail(static_cast<const uint16_t*>(w) + at, n);
}

// The columns that a product reads, W in the templates below. w.RunEnd(at, end) is the end of a run of positions from
// `at` on; w.Run<C>(column, at, end) is that run of C columns, of which Load and LoadTail give a register of weights,
// and LoadBatch W::kBatch registers, if these are more than one.
template <typename V, FloatType type>
struct FloatColumns {
  const void* w;
  size_t k;
  struct Columns {
    const void* w;
    size_t first, k;
    typename V::T Load(size_t column, size_t at) const { return LoadWeights<V, type>(w, first + column * k + at); }
    typename V::T LoadTail(size_t column, size_t at, size_t n) const {
      return LoadWeightsTail<V, type>(w, first + column * k + at, n);
    }
  };
  static constexpr size_t kBatch = 1;
  static size_t RunEnd(size_t /*at*/, size_t end) { return end; }
  template <size_t C>
  Columns Run(size_t column, size_t /*at*/, size_t /*end*/) const {
    return {w, column * k, k};
  }
};

// Whether a code among n bytes from p on, or in other columns `stride` bytes apart, is NaN: its lower seven bits are
// ones, and adding 1 carries into the eighth.
template <typename V>
bool HasFp8Nan(const std::byte* p, size_t columns, size_t stride, size_t n) {
  using Bytes = typename V::Bytes;
  Bytes carries = {};
  for (size_t c = 0; c < columns; ++c, p += stride) {
    size_t i = 0;
    for (; i + sizeof(Bytes) <= n; i += sizeof(Bytes)) {
      Bytes b;
      __builtin_memcpy(&b, p + i, sizeof b);
      carries |= (b & 0x7F) + 1;
    }
    if (i == n) continue;
    Bytes b = {};
    __builtin_memcpy(&b, p + i, n - i);
    carries |= (b & 0x7F) + 1;
  }
  uint64_t words[sizeof(Bytes) / 8], any = 0;
  __builtin_memcpy(words, &carries, sizeof words);
  for (const uint64_t word : words) any |= word;
  return (any & 0x8080808080808080u) != 0;
}

// V::LoadFp8 gives E4M3 divided by this.
constexpr float kFp8Unit = 256;

// V::LoadFp8Batch(p, to) reads as many codes as a register has bytes, and gives NaN for NaN; so do V's other loads
// then.
template <typename V>
concept LoadsFp8Batch = requires(const std::byte* p, typename V::T (&to)[sizeof(typename V::T) / V::kLanes]) {
  V::LoadFp8Batch(p, to);
};

// A run has one scale a column. A weight is rounded to f32 once it has its scale, as ExpandFp8 does it, so both give
// the same bits.
template <typename V>
struct Fp8Columns {
  static constexpr size_t kBatch = LoadsFp8Batch<V> ? sizeof(typename V::T) / V::kLanes : 1;
  Fp8Matrix w;
  size_t k;
  template <size_t C>
  struct Columns {
    const std::byte* first;
    size_t k;
    typename V::T scales[C];
    typename V::T Load(size_t column, size_t position) const {
      return V::Mul(V::LoadFp8(first + column * k + position), scales[column]);
    }
    typename V::T LoadTail(size_t column, size_t position, size_t n) const {
      return V::Mul(V::LoadFp8Tail(first + column * k + position, n), scales[column]);
    }
    void LoadBatch(size_t column, size_t position, typename V::T (&to)[kBatch]) const {
      const std::byte* p = first + column * k + position;
      __builtin_prefetch(p + C * k, 0, 2);  // of the next columns: columns are short streams for the processor
      V::LoadFp8Batch(p, to);
      for (typename V::T& weights : to) weights = V::Mul(weights, scales[column]);
    }
  };
  size_t RunEnd(size_t at, size_t end) const {
    const size_t to = (at / w.group + 1) * w.group;
    return to < end ? to : end;
  }
  template <size_t C>
  Columns<C> Run(size_t column, size_t at, size_t end) const {
    Columns<C> run = {w.bytes + column * k, k, {}};
    const bool nan = !LoadsFp8Batch<V> && HasFp8Nan<V>(run.first + at, C, k, end - at);
    for (size_t c = 0; c < C; ++c) {
      float scale;
      __builtin_memcpy(&scale,
                       w.scales + ((w.first_row + column + c) / w.group * w.across + at / w.group) * sizeof scale,
                       sizeof scale);
      // A weight that is NaN makes each output of its column NaN, whatever it is multiplied by.
      if (nan && HasFp8Nan<V>(run.first + c * k + at, 1, k, end - at)) scale = __builtin_nanf("");
      run.scales[c] = V::Broadcast(scale * kFp8Unit);
    }
    return run;
  }
};

// R rows of x by C columns of w over positions [begin, end), added to the lanes' sums in acc[(r * C + c) * lanes]
// unless they are the first.
template <typename V, size_t R, size_t C, typename W>
void DotTile(const float* x, const W& w, size_t column, size_t begin, size_t end, bool first, float* acc) {
  typename V::T sum[R][C];
  for (size_t r = 0; r < R; ++r) {
    for (size_t c = 0; c < C; ++c) sum[r][c] = first ? V::Zero() : V::Load(acc + (r * C + c) * V::kLanes);
  }
  for (size_t at = begin; at < end;) {
    const size_t to = w.RunEnd(at, end), whole = at + (to - at) / V::kLanes * V::kLanes;
    const auto run = w.template Run<C>(column, at, to);
    size_t i = at;
    if constexpr (W::kBatch > 1) {
      for (; i + W::kBatch * V::kLanes <= whole; i += W::kBatch * V::kLanes) {
        for (size_t c = 0; c < C; ++c) {
          typename V::T ws[W::kBatch];
          run.LoadBatch(c, i, ws);
          for (size_t b = 0; b < W::kBatch; ++b) {
            for (size_t r = 0; r < R; ++r)
              sum[r][c] = V::Fma(V::Load(x + r * w.k + i + b * V::kLanes), ws[b], sum[r][c]);
          }
        }
      }
    }
    for (; i < whole; i += V::kLanes) {
      typename V::T xs[R];
      for (size_t r = 0; r < R; ++r) xs[r] = V::Load(x + r * w.k + i);
      for (size_t c = 0; c < C; ++c) {
        const typename V::T ws = run.Load(c, i);
        for (size_t r = 0; r < R; ++r) sum[r][c] = V::Fma(xs[r], ws, sum[r][c]);
      }
    }
    if (whole < to) {
      typename V::T xs[R];
      for (size_t r = 0; r < R; ++r) xs[r] = V::LoadTail(x + r * w.k + whole, to - whole);
      for (size_t c = 0; c < C; ++c) {
        const typename V::T ws = run.LoadTail(c, whole, to - whole);
        for (size_t r = 0; r < R; ++r) sum[r][c] = V::Fma(xs[r], ws, sum[r][c]);
      }
    }
    at = to;
  }
  for (size_t r = 0; r < R; ++r) {
    for (size_t c = 0; c < C; ++c) V::Store(acc + (r * C + c) * V::kLanes, sum[r][c]);
  }
}

// R rows of x over a segment of k stay in the first-level cache while the columns pass; between segments the lanes'
// sums wait in `acc` until a chain is complete. A single row always fits.
constexpr size_t kSegment = 512, kSliceColumns = 64;

template <typename V, size_t R, size_t C, typename W>
void DotRows(const float* x, const W& w, size_t n, float* out, size_t ldo) {
  static_assert(kSliceColumns % C == 0 && V::kChain % kSegment == 0);
  constexpr size_t kStep = R == 1 ? V::kChain : kSegment;
  const size_t k = w.k;
  alignas(64) float acc[R * kSliceColumns * V::kLanes];
  for (size_t first = 0; first < n; first += kSliceColumns) {
    const size_t last = n - first < kSliceColumns ? n : first + kSliceColumns;
    for (size_t begin = 0; begin < k || begin == 0; begin += kStep) {
      const size_t end = k - begin < kStep ? k : begin + kStep;
      const bool begins = begin % V::kChain == 0;
      size_t column = first;
      float* at = acc;
      for (; column + C <= last; column += C, at += R * C * V::kLanes)
        DotTile<V, R, C>(x, w, column, begin, end, begins, at);
      for (; column < last; ++column, at += R * V::kLanes) DotTile<V, R, 1>(x, w, column, begin, end, begins, at);
      if (end < k && end % V::kChain != 0) continue;
      at = acc;
      for (column = first; column < last;) {
        const size_t width = last - column >= C ? C : 1;
        for (size_t r = 0; r < R; ++r) {
          for (size_t c = 0; c < width; ++c, at += V::kLanes) {
            float& to = out[r * ldo + column + c];
            const float chain = V::Sum(V::Load(at));
            to = begin < V::kChain ? chain : to + chain;
          }
        }
        column += width;
      }
    }
  }
}

template <typename V, typename W>
void DotColumns(const float* x, size_t rows, const W& w, size_t n, float* out, size_t ldo) {
  constexpr size_t R = V::kTileRows, C = V::kTileColumns;
  size_t r = 0;
  for (; r + R <= rows; r += R) DotRows<V, R, C>(x + r * w.k, w, n, out + r * ldo, ldo);
  for (; r + 2 <= rows; r += 2) DotRows<V, 2, 4>(x + r * w.k, w, n, out + r * ldo, ldo);
  for (; r < rows; ++r) DotRows<V, 1, 8>(x + r * w.k, w, n, out + r * ldo, ldo);
}

template <typename V>
void Dot(const float* x, size_t rows, const void* w, FloatType type, size_t n, size_t k, float* out, size_t ldo) {
  switch (type) {
    case FloatType::kF32: return DotColumns<V>(x, rows, FloatColumns<V, FloatType::kF32>{w, k}, n, out, ldo);
    case FloatType::kF16: return DotColumns<V>(x, rows, FloatColumns<V, FloatType::kF16>{w, k}, n, out, ldo);
    case FloatType::kBf16: return DotColumns<V>(x, rows, FloatColumns<V, FloatType::kBf16>{w, k}, n, out, ldo);
  }
}

template <typename V>
void DotFp8(const float* x, size_t rows, const Fp8Matrix& w, size_t n, size_t k, float* out, size_t ldo) {
  DotColumns<V>(x, rows, Fp8Columns<V>{w, k}, n, out, ldo);
}

// Calls f(at, skip, n) for registers that cover [begin, end) and begin at multiples of the lanes; of the first and the
// last one only lanes [skip, skip + n) belong to the range.
template <typename V, typename Fn>
void ForAligned(size_t begin, size_t end, Fn f) {
  for (size_t at = begin; at < end;) {
    const size_t skip = at % V::kLanes, n = end - at < V::kLanes - skip ? end - at : V::kLanes - skip;
    f(at, skip, n);
    at += n;
  }
}

// Weights are summed in lane (position % lanes), so the order does not depend on where the range begins.
template <typename V>
float ExpScores(float* s, size_t begin, size_t end, float scale, float* max) {
  using T = typename V::T;
  constexpr float kLog2E = 1.44269504f;
  const T by = V::Broadcast(scale * kLog2E);
  T tops = V::Broadcast(-__builtin_inff());
  size_t i = begin;
  for (; i + V::kLanes <= end; i += V::kLanes) tops = V::Max(V::Load(s + i), tops);
  float top = V::Largest(tops);
  for (; i < end; ++i) top = s[i] > top ? s[i] : top;
  const T less = V::Broadcast(-top), least = V::Broadcast(-126.0f);
  // The difference is taken before the product: differences of large scores are exact, their products are not.
  auto weigh = [&](T scores) { return PowerOf2<V>(V::Max(V::Mul(V::Add(scores, less), by), least)); };
  float lanes[V::kLanes] = {};
  T sum = V::Zero();
  ForAligned<V>(begin, end, [&](size_t at, size_t skip, size_t n) {
    if (n == V::kLanes) {
      const T weights = weigh(V::Load(s + at));
      V::Store(s + at, weights);
      sum = V::Add(sum, weights);
      return;
    }
    float part[V::kLanes];
    V::Store(part, weigh(V::LoadTail(s + at, n)));
    for (size_t j = 0; j < n; ++j) {
      s[at + j] = part[j];
      lanes[skip + j] += part[j];
    }
  });
  *max = top * scale;
  return V::Sum(V::Add(sum, V::Load(lanes)));
}

// to = own * to + by * from
template <typename V>
void ScaleAdd(float* to, float own, const float* from, float by, size_t n) {
  const typename V::T a = V::Broadcast(own), b = V::Broadcast(by);
  size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::Store(to + i, V::Fma(V::Load(from + i), b, V::Mul(V::Load(to + i), a)));
  if (i < n)
    V::StoreTail(to + i, V::Fma(V::LoadTail(from + i, n - i), b, V::Mul(V::LoadTail(to + i, n - i), a)), n - i);
}

template <typename V>
void CombinePartials(const SoftmaxPartial& to, const SoftmaxPartial& from, size_t queries, size_t dim) {
  using T = typename V::T;
  const T minus = V::Broadcast(-1.0f);
  for (size_t i = 0; i < queries; i += V::kLanes) {
    const size_t n = queries - i < V::kLanes ? queries - i : V::kLanes;
    const T max = V::LoadTail(to.max + i, n), other = V::LoadTail(from.max + i, n), top = V::Max(max, other);
    float tops[V::kLanes], own[V::kLanes], by[V::kLanes];
    V::Store(tops, top);
    V::Store(own, Exp<V>(V::Fma(top, minus, max)));
    V::Store(by, Exp<V>(V::Fma(top, minus, other)));
    for (size_t j = 0; j < n; ++j) {
      const size_t query = i + j;
      if (!(from.sum[query] > 0)) continue;
      to.sum[query] = to.sum[query] * static_cast<double>(own[j]) + from.sum[query] * static_cast<double>(by[j]);
      to.max[query] = tops[j];
      ScaleAdd<V>(to.acc + query * dim, own[j], from.acc + query * dim, by[j], dim);
    }
  }
}

// out[i] = f(element i of each of the arrays), a register at a time.
template <typename V, typename Fn, typename... Arrays>
void Map(size_t n, float* out, const Fn& f, const Arrays*... x) {
  size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::Store(out + i, f(V::Load(x + i)...));
  if (i < n) V::StoreTail(out + i, f(V::LoadTail(x + i, n - i)...), n - i);
}

// 1 + exp(-x), with x clamped to at least -80: a quotient by it is then no denormal number and differs hardly from 0.
template <typename V>
typename V::T OnePlusExpMinus(typename V::T x) {
  return V::Add(Exp<V>(V::Min(V::Mul(x, V::Broadcast(-1.0f)), V::Broadcast(80.0f))), V::Broadcast(1.0f));
}

// out = act(gate) * up, or act(gate) where up is null.
template <typename V, typename Act>
void ActivationTimes(const float* gate, const float* up, size_t n, float* out, const Act& act) {
  using T = typename V::T;
  if (up == nullptr) return Map<V>(n, out, act, gate);
  Map<V>(
      n, out, [&act](T g, T u) { return V::Mul(act(g), u); }, gate, up);
}

template <typename V>
typename V::T Silu(typename V::T x) {
  return V::Div(x, OnePlusExpMinus<V>(x));
}

template <typename V>
void SiluTimes(const float* gate, const float* up, size_t n, float* out) {
  ActivationTimes<V>(gate, up, n, out, Silu<V>);
}

template <typename V>
void SigmoidTimes(const float* gate, const float* up, size_t n, float* out) {
  ActivationTimes<V>(gate, up, n, out,
                     [](typename V::T g) { return V::Div(V::Broadcast(1.0f), OnePlusExpMinus<V>(g)); });
}

template <typename V>
void ReluSquaredTimes(const float* gate, const float* up, size_t n, float* out) {
  ActivationTimes<V>(gate, up, n, out, [](typename V::T g) {
    const typename V::T kept = V::Max(V::Zero(), g);  // NaN stays
    return V::Mul(kept, kept);
  });
}

template <typename V>
void ReluTimes(const float* gate, const float* up, size_t n, float* out) {
  ActivationTimes<V>(gate, up, n, out, [](typename V::T g) { return V::Max(V::Zero(), g); });  // NaN stays
}

// x Phi(x) = max(x, 0) - |x| erfc(z) / 2 with z = |x| / sqrt(2). erfc(z) = t exp(p(t) - z^2) with t = 1 / (1 + z / 2),
// where p is fitted to log(erfc(z) exp(z^2) / t) at Chebyshev's points of z from 0 to 9.5, with an error of 5e-8.
// Relative error: 1.3e-6 within -4 and 4, 7.5e-6 within -9 and 9, as z^2 is rounded.
template <typename V>
void GeluErfTimes(const float* gate, const float* up, size_t n, float* out) {
  using T = typename V::T;
  ActivationTimes<V>(gate, up, n, out, [](T g) {
    // Limited, as infinity times 0 is NaN. NaN stays.
    const T size = V::Min(V::Broadcast(1e4f), V::Max(V::Mul(g, V::Broadcast(-1.0f)), g)),
            z = V::Mul(size, V::Broadcast(0.70710678f));
    const T t = V::Div(V::Broadcast(1.0f), V::Fma(z, V::Broadcast(0.5f), V::Broadcast(1.0f)));
    const T p = Polynomial<V>(t, {0.140507134f, -0.656615832f, 1.09943846f, -0.619523332f, -0.144173503f, 0.0354678628f,
                                  0.0228741432f, 0.389117147f, 0.998341449f, -1.26543349f});
    const T tail = V::Mul(V::Mul(t, V::Broadcast(-0.5f)), Exp<V>(V::Fma(V::Mul(z, V::Broadcast(-1.0f)), z, p)));
    return V::Fma(size, tail, V::Max(V::Zero(), g));
  });
}

// (1 + tanh(t)) / 2 = 1 / (1 + exp(-2 t))
template <typename V>
void GeluTimes(const float* gate, const float* up, size_t n, float* out) {
  using T = typename V::T;
  ActivationTimes<V>(gate, up, n, out, [](T g) {
    constexpr float kTwice = 2 * 0.7978845608f;  // 2 sqrt(2 / pi)
    const T cubic = V::Mul(V::Mul(g, g), V::Broadcast(kTwice * 0.044715f));
    return V::Div(g, OnePlusExpMinus<V>(V::Mul(g, V::Add(cubic, V::Broadcast(kTwice)))));
  });
}

// Min and Max give their second operand where one is NaN, so NaN stays.
template <typename V>
void ClampedSwigluTimes(const float* gate, const float* up, size_t n, float* out) {
  using T = typename V::T;
  auto one = [](T g, T u) {
    const T limit = V::Broadcast(7.0f), low = V::Min(limit, g);
    const T within = V::Max(V::Broadcast(-7.0f), V::Min(limit, u));
    return V::Mul(V::Div(low, OnePlusExpMinus<V>(V::Mul(low, V::Broadcast(1.702f)))),
                  V::Add(within, V::Broadcast(1.0f)));
  };
  Map<V>(n, out, one, gate, up);
}

// tanh(t) = 2 / (1 + exp(-2 t)) - 1, with an absolute error of 1e-7
template <typename V>
void Softcap(float* x, size_t n, float scale, float cap) {
  using T = typename V::T;
  auto one = [scale, cap](T v) {
    const T most = V::Broadcast(0x1.FFFFFEp127f), least = V::Broadcast(-0x1.FFFFFEp127f);
    // Both clamp v to the finite range, but differ for NaN: their difference is then infinite, and times 0 gives NaN
    // again.
    const T bounded = V::Min(V::Max(v, least), most), other = V::Max(V::Min(v, most), least);
    const T nothing = V::Mul(V::Fma(other, V::Broadcast(-1.0f), bounded), V::Zero());
    const T tanh =
        V::Add(V::Div(V::Broadcast(2.0f), OnePlusExpMinus<V>(V::Mul(bounded, V::Broadcast(2 * scale / cap)))),
               V::Broadcast(-1.0f));
    return V::Fma(tanh, V::Broadcast(cap), nothing);
  };
  Map<V>(n, x, one, x);
}

// The squares are exact in double; lane i % 16 sums them.
template <typename V>
void RmsNorm(const float* x, size_t n, const float* w, float eps, float* out) {
  using Floats [[gnu::vector_size(32), gnu::may_alias, gnu::aligned(4)]] = float;
  using Doubles [[gnu::vector_size(64)]] = double;
  auto add = [](const float* p, Doubles& sum) {
    const Doubles v = __builtin_convertvector(*reinterpret_cast<const Floats*>(p), Doubles);
    sum += v * v;
  };
  Doubles low = {}, high = {};
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    add(x + i, low);
    add(x + i + 8, high);
  }
  double lanes[16];
  for (size_t j = 0; j < 8; ++j) {
    lanes[j] = low[j];
    lanes[8 + j] = high[j];
  }
  for (; i < n; ++i) lanes[i % 16] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  const typename V::T by = V::Broadcast(
      static_cast<float>(1 / __builtin_sqrt(lanes[0] / static_cast<double>(n) + static_cast<double>(eps))));
  using T = typename V::T;
  if (w == nullptr)
    Map<V>(
        n, out, [by](T v) { return V::Mul(v, by); }, x);
  else
    Map<V>(
        n, out, [by](T v, T weight) { return V::Mul(V::Mul(v, by), weight); }, x, w);
}

template <typename V>
void ToHalf(const float* x, size_t n, uint16_t* out) {
  size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::StoreHalf(out + i, V::Load(x + i));
  if (i == n) return;
  uint16_t tail[V::kLanes];
  V::StoreHalf(tail, V::LoadTail(x + i, n - i));
  __builtin_memcpy(out + i, tail, (n - i) * sizeof(uint16_t));
}

template <typename V>
void ExpandFp8(const std::byte* from, size_t n, float scale, float* out) {
  const typename V::T by = V::Broadcast(scale * kFp8Unit);
  size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::Store(out + i, V::Mul(V::LoadFp8(from + i), by));
  if (i < n) V::StoreTail(out + i, V::Mul(V::LoadFp8Tail(from + i, n - i), by), n - i);
  if (!HasFp8Nan<V>(from, 1, n, n)) return;
  for (i = 0; i < n; ++i) {
    if ((from[i] & std::byte{0x7F}) == std::byte{0x7F}) out[i] = __builtin_nanf("");
  }
}
// IsaOps::largest.
template <typename V>
float LargestOf(const float* x, size_t n) {
  constexpr size_t kChains = 4;
  const float none = -__builtin_inff();
  typename V::T most[kChains];
  for (typename V::T& m : most) m = V::Broadcast(none);
  size_t i = 0;
  for (; i + kChains * V::kLanes <= n; i += kChains * V::kLanes) {
    for (size_t c = 0; c < kChains; ++c) most[c] = V::Max(V::Load(x + i + c * V::kLanes), most[c]);
  }
  float largest = V::Largest(V::Max(V::Max(most[0], most[1]), V::Max(most[2], most[3])));
  for (; i < n; ++i) largest = largest < x[i] ? x[i] : largest;
  return largest;
}

// IsaOps::sum_exp.
template <typename V>
double SumExp(const float* x, size_t n, double top, double by) {
  constexpr size_t kChains = 8, kRegisters = kChains / V::kDoubles;
  typename V::Doubles sums[kRegisters];
  for (typename V::Doubles& sum : sums) sum = V::Splat(0);
  const auto add = [&](const float* eight) {
    for (size_t i = 0; i < kRegisters; ++i) {
      const typename V::Doubles power = (V::LoadDoubles(eight + i * V::kDoubles) - V::Splat(top)) * V::Splat(by);
      sums[i] = sums[i] + ExpDoubles<V>(power);
    }
  };
  size_t i = 0;
  for (; i + kChains <= n; i += kChains) add(x + i);
  if (i < n) {
    float rest[kChains];
    for (float& v : rest) v = -__builtin_inff();
    __builtin_memcpy(rest, x + i, (n - i) * sizeof(float));
    add(rest);
  }
  double all[kChains];
  for (size_t r = 0; r < kRegisters; ++r) V::Store(all + r * V::kDoubles, sums[r]);
  return ((all[0] + all[4]) + (all[2] + all[6])) + ((all[1] + all[5]) + (all[3] + all[7]));
}

}  // namespace
}  // namespace gyre::cpu
