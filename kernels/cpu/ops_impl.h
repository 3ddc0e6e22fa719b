// The ops without a matrix, for one row or one run of elements. Included after vec_math.h; unnamed namespace, on
// purpose: see dequant_blocks.h.
#pragma once

#include <cstddef>
#include <cstring>

#include "kernels/cpu/kernel_table.h"
#include "kernels/dequant_blocks.h"

namespace gyre {
namespace {

// Calls f(offset, count) for whole vectors and a last partial one.
template <typename Fn>
inline void EachVec(size_t n, Fn f) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, kLanes);
  if (i < n) f(i, n - i);
}
inline Vec LoadUpTo(const float* p, size_t n) {
  return n == kLanes ? Load(p) : LoadPart(p, n);
}
inline void StoreUpTo(float* p, Vec v, size_t n) {
  if (n == kLanes) {
    Store(p, v);
  } else {
    StorePart(p, v, n);
  }
}

inline double SumAcrossD(VecD v) {
  double lanes[kLanesD];
  StoreD(lanes, v);
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

void RmsNormRow(const float* x, size_t dim, const float* w, float eps, float* out) {
  // Squares add up in double, which costs little: this is the one sum that scales a whole row.
  VecD even = SetD(0), odd = SetD(0);
  size_t i = 0;
  for (; i + 2 * kLanesD <= dim; i += 2 * kLanesD) {
    const VecD a = LoadAsDouble(x + i), b = LoadAsDouble(x + i + kLanesD);
    even = FmaD(a, a, even);
    odd = FmaD(b, b, odd);
  }
  double sum = SumAcrossD(AddD(even, odd));
  for (; i < dim; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const double mean = sum / static_cast<double>(dim);
  const Vec inverse = Set(static_cast<float>(1 / __builtin_sqrt(mean + static_cast<double>(eps))));
  EachVec(dim, [&](size_t at, size_t n) {
    Vec v = Mul(LoadUpTo(x + at, n), inverse);
    if (w != nullptr) v = Mul(v, LoadUpTo(w + at, n));
    StoreUpTo(out + at, v, n);
  });
}

void RopeRow(float* x, int heads, int head_dim, const float* cos, const float* sin, int half, RopePairing pairing) {
  for (int head = 0; head < heads; ++head, x += head_dim) {
    if (pairing == RopePairing::kInterleaved) {
      for (int i = 0; i < half; ++i) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cos[i] - b * sin[i];
        x[2 * i + 1] = a * sin[i] + b * cos[i];
      }
    } else {
      float* y = x + half;
      for (int i = 0; i < half; ++i) {
        const float a = x[i], b = y[i];
        x[i] = a * cos[i] - b * sin[i];
        y[i] = a * sin[i] + b * cos[i];
      }
    }
  }
}

void Gated(const float* gate, const float* up, size_t n, Activation act, float* out) {
  if (act == Activation::kSilu) {
    EachVec(n,
            [&](size_t i, size_t m) { StoreUpTo(out + i, Mul(Silu(LoadUpTo(gate + i, m)), LoadUpTo(up + i, m)), m); });
  } else {
    EachVec(n, [&](size_t i, size_t m) {
      StoreUpTo(out + i, Mul(GeluTanh(LoadUpTo(gate + i, m)), LoadUpTo(up + i, m)), m);
    });
  }
}

void Softcap(float* x, size_t n, float cap) {
  const Vec c = Set(cap);
  EachVec(n, [&](size_t i, size_t m) { StoreUpTo(x + i, Mul(c, Tanh(Div(LoadUpTo(x + i, m), c))), m); });
}

void ToHalf(const float* x, uint16_t* out, size_t n) {
  EachVec(n, [&](size_t i, size_t m) {
    if (m == kLanes) {
      StoreHalf(out + i, Load(x + i));
    } else {
      uint16_t part[kLanes];
      StoreHalf(part, LoadPart(x + i, m));
      std::memcpy(out + i, part, m * sizeof(uint16_t));
    }
  });
}

// s has room for n rounded up to 16.
void SoftmaxPart(float* s, size_t n, float scale, float softcap, float* max, float* sum) {
  const Vec factor = Set(scale);
  const size_t padded = (n + kLanes - 1) / kLanes * kLanes;
  for (size_t i = n; i < padded; ++i) s[i] = 0;
  for (size_t i = 0; i < padded; i += kLanes) Store(s + i, Mul(Load(s + i), factor));
  if (softcap > 0) Softcap(s, padded, softcap);
  for (size_t i = n; i < padded; ++i) s[i] = -__builtin_inff();
  Vec highest = Load(s);
  for (size_t i = kLanes; i < padded; i += kLanes) highest = Max(Load(s + i), highest);
  *max = MaxAcross(highest);
  const Vec shift = Set(*max);
  Vec total = Zero();
  for (size_t i = 0; i < padded; i += kLanes) {
    const Vec e = Exp(Sub(Load(s + i), shift));
    Store(s + i, e);
    total = Add(total, e);
  }
  *sum = SumAcross(total);
}

size_t FindAbove(const float* x, size_t begin, size_t n, float threshold) {
  const Vec t = Set(threshold);
  size_t i = begin;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    const unsigned any = NotLessEqual(Load(x + i), t) | NotLessEqual(Load(x + i + kLanes), t) |
                         NotLessEqual(Load(x + i + 2 * kLanes), t) | NotLessEqual(Load(x + i + 3 * kLanes), t);
    if (any != 0) break;
  }
  for (; i + kLanes <= n; i += kLanes) {
    const unsigned above = NotLessEqual(Load(x + i), t);
    if (above != 0) return i + static_cast<size_t>(__builtin_ctz(above));
  }
  while (i < n && x[i] <= threshold) ++i;
  return i;
}

float MaxOf(const float* x, size_t n) {
  Vec highest = Set(-__builtin_inff());
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) highest = Max(Load(x + i), highest);
  float max = MaxAcross(highest);
  for (; i < n; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

double SumExp(const float* x, size_t n, double max, double by) {
  const VecD shift = SetD(max), factor = SetD(by);
  VecD even = SetD(0), odd = SetD(0);
  size_t i = 0;
  for (; i + 2 * kLanesD <= n; i += 2 * kLanesD) {
    even = AddD(even, ExpD(MulD(SubD(LoadAsDouble(x + i), shift), factor)));
    odd = AddD(odd, ExpD(MulD(SubD(LoadAsDouble(x + i + kLanesD), shift), factor)));
  }
  for (; i < n; i += kLanesD) {
    float part[kLanesD];
    const size_t m = n - i < kLanesD ? n - i : kLanesD;
    for (float& v : part) v = -__builtin_inff();
    std::memcpy(part, x + i, m * sizeof(float));
    even = AddD(even, ExpD(MulD(SubD(LoadAsDouble(part), shift), factor)));
  }
  return SumAcrossD(AddD(even, odd));
}

void DequantizeRun(DType type, const std::byte* src, float* dst, size_t elems) {
  switch (type) {
    case DType::kF32:
      std::memcpy(dst, src, elems * sizeof(float));
      return;
    case DType::kF16:
      EachVec(elems, [&](size_t i, size_t n) {
        StoreUpTo(dst + i, n == kLanes ? LoadHalf(src + 2 * i) : LoadHalfPart(src + 2 * i, n), n);
      });
      return;
    case DType::kBF16:
      EachVec(elems, [&](size_t i, size_t n) {
        StoreUpTo(dst + i, n == kLanes ? LoadBf16(src + 2 * i) : LoadBf16Part(src + 2 * i, n), n);
      });
      return;
    default:
      break;
  }
  const DTypeInfo& info = Info(type);
  for (size_t i = 0; i < elems; i += info.block_elems, src += info.block_bytes) DequantizeBlock(type, src, dst + i);
}

}  // namespace
}  // namespace gyre
