#include "kernels/quant_k.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/half.h"

namespace gyre {
namespace {

constexpr size_t kBlock = 256;

// Rounds to the nearest integer, ties to even, for |v| < 2^22: adding 1.5 * 2^23 shifts the fraction out. Unlike
// nearbyint it needs no call.
float Whole(float v) { return (v + 12582912.0f) - 12582912.0f; }
int Nearest(float v, int lo, int hi) {
  return static_cast<int>(Whole(std::clamp(v, static_cast<float>(lo), static_cast<float>(hi))));
}

struct Affine {
  float scale = 0, min = 0;  // x ~ scale * q - min, both >= 0
};

// Searches grids near [min, max] of n values for the scale and minimum with the least squared error, in which value i
// counts w[i] times; q is in 0 .. top.
template <size_t n>
Affine FitAffine(const float* x, const float* w, int top) {
  float lo = 0, hi = x[0], count = 0, sx = 0;
  for (size_t i = 0; i < n; ++i) {
    lo = std::min(lo, x[i]);
    hi = std::max(hi, x[i]);
    count += w[i];
    sx += w[i] * x[i];
  }
  Affine best{.scale = 0, .min = -lo};
  if (!(hi > lo) || !(count > 0)) return best;
  float best_error = INFINITY;
  for (int step = -10; step <= 10; ++step) {
    const float inverse = (static_cast<float>(top) + 0.1f * static_cast<float>(step)) / (hi - lo);
    float sq = 0, sqq = 0, sxq = 0;
    float q[n];
    for (size_t i = 0; i < n; ++i) {
      q[i] = Whole(std::clamp((x[i] - lo) * inverse, 0.0f, static_cast<float>(top)));
      sq += w[i] * q[i];
      sqq += w[i] * (q[i] * q[i]);
      sxq += w[i] * (x[i] * q[i]);
    }
    const float det = count * sqq - sq * sq;
    Affine a{.scale = 0, .min = -1};
    if (det > 0) a = {.scale = (count * sxq - sx * sq) / det, .min = -(sqq * sx - sq * sxq) / det};
    if (a.min < 0 && sqq > 0) a = {.scale = sxq / sqq, .min = 0};  // all values are above zero
    if (!(a.scale > 0)) continue;
    float error = 0;
    for (size_t i = 0; i < n; ++i) {
      const float e = a.scale * q[i] - a.min - x[i];
      error += w[i] * (e * e);
    }
    if (error < best_error) {
      best_error = error;
      best = a;
    }
  }
  return best;
}

// Searches for the signed scale of 16 values with the least squared error; q is in -range .. range - 1.
float FitSymmetric(const float* x, const float* w, float range, float spacing) {
  constexpr size_t n = 16;
  float extreme = 0;
  for (size_t i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  if (extreme == 0) return 0;
  float best = 0, best_gain = -1;
  for (int step = -12; step <= 12; ++step) {
    const float inverse = -(range + spacing * static_cast<float>(step)) / extreme;
    float sxq = 0, sqq = 0;
    for (size_t i = 0; i < n; ++i) {
      const float q = Whole(std::clamp(x[i] * inverse, -range, range - 1));
      sxq += w[i] * (x[i] * q);
      sqq += w[i] * (q * q);
    }
    // With the best scale, sxq / sqq, this much of the squared sum is explained.
    if (sqq > 0 && sxq * sxq / sqq > best_gain) {
      best_gain = sxq * sxq / sqq;
      best = sxq / sqq;
    }
  }
  return best;
}

// Q2_K: sixteen sub-blocks of 16 with 4-bit scales and minima.
void AffinesOf2Bits(const float* x, const float* w, std::byte* b) {
  Affine fit[16];
  float max_scale = 0, max_min = 0;
  for (size_t s = 0; s < 16; ++s) {
    fit[s] = FitAffine<16>(x + 16 * s, w + 16 * s, 3);
    max_scale = std::max(max_scale, fit[s].scale);
    max_min = std::max(max_min, fit[s].min);
  }
  const float d = RoundedToHalf(max_scale / 15), dmin = RoundedToHalf(max_min / 15);
  std::memset(b, 0, 84);
  StoreHalf(max_scale / 15, b + 80);
  StoreHalf(max_min / 15, b + 82);
  for (size_t s = 0; s < 16; ++s) {
    const int scale = d > 0 ? Nearest(fit[s].scale / d, 0, 15) : 0,
              min = dmin > 0 ? Nearest(fit[s].min / dmin, 0, 15) : 0;
    b[s] = static_cast<std::byte>(scale | min << 4);
    const float step = d * static_cast<float>(scale), offset = dmin * static_cast<float>(min);
    for (size_t at = 16 * s; at < 16 * s + 16; ++at) {
      const int q = step > 0 ? Nearest((x[at] + offset) / step, 0, 3) : 0;
      b[16 + at / 128 * 32 + at % 32] |= static_cast<std::byte>(q << (at / 32 % 4 * 2));
    }
  }
}

// Q3_K: sixteen sub-blocks of 16 with signed 6-bit scales.
void SymmetricOf3Bits(const float* x, const float* w, std::byte* b) {
  float fit[16];
  float extreme = 0;
  for (size_t s = 0; s < 16; ++s) {
    fit[s] = FitSymmetric(x + 16 * s, w + 16 * s, 4, 0.06f);
    if (std::fabs(fit[s]) > std::fabs(extreme)) extreme = fit[s];
  }
  std::memset(b, 0, 110);
  const float d = RoundedToHalf(extreme / -32);
  StoreHalf(extreme / -32, b + 108);
  for (size_t s = 0; s < 16; ++s) {
    const int scale = d != 0 ? Nearest(fit[s] / d, -32, 31) + 32 : 32;
    b[96 + s % 8] |= static_cast<std::byte>((scale & 15) << (s / 8 * 4));
    b[104 + s % 4] |= static_cast<std::byte>(scale >> 4 << (s / 4 * 2));
    const float step = d * static_cast<float>(scale - 32);
    for (size_t at = 16 * s; at < 16 * s + 16; ++at) {
      const int q = step != 0 ? Nearest(x[at] / step, -4, 3) + 4 : 4;
      b[32 + at / 128 * 32 + at % 32] |= static_cast<std::byte>((q & 3) << (at / 32 % 4 * 2));
      b[at % 32] |= static_cast<std::byte>(q >> 2 << (at / 32));
    }
  }
}

// Q4_K and Q5_K: eight sub-blocks of 32 with 6-bit scales and minima.
void Affines(const float* x, const float* w, bool five, std::byte* b) {
  const int top = five ? 31 : 15;
  Affine fit[8];
  float max_scale = 0, max_min = 0;
  for (size_t s = 0; s < 8; ++s) {
    fit[s] = FitAffine<32>(x + 32 * s, w + 32 * s, top);
    max_scale = std::max(max_scale, fit[s].scale);
    max_min = std::max(max_min, fit[s].min);
  }
  const float d = RoundedToHalf(max_scale / 63), dmin = RoundedToHalf(max_min / 63);
  std::memset(b, 0, five ? 176 : 144);
  StoreHalf(max_scale / 63, b);
  StoreHalf(max_min / 63, b + 2);
  std::byte* scales = b + 4;
  std::byte* high = b + 16;
  std::byte* low = five ? b + 48 : b + 16;
  for (size_t s = 0; s < 8; ++s) {
    const int scale = d > 0 ? Nearest(fit[s].scale / d, 0, 63) : 0,
              min = dmin > 0 ? Nearest(fit[s].min / dmin, 0, 63) : 0;
    if (s < 4) {
      scales[s] |= static_cast<std::byte>(scale);
      scales[s + 4] |= static_cast<std::byte>(min);
    } else {
      scales[s + 4] |= static_cast<std::byte>((scale & 15) | (min & 15) << 4);
      scales[s - 4] |= static_cast<std::byte>(scale >> 4 << 6);
      scales[s] |= static_cast<std::byte>(min >> 4 << 6);
    }
    const float step = d * static_cast<float>(scale), offset = dmin * static_cast<float>(min);
    for (size_t i = 0; i < 32; ++i) {
      const int q = step > 0 ? Nearest((x[32 * s + i] + offset) / step, 0, top) : 0;
      low[s / 2 * 32 + i] |= static_cast<std::byte>((q & 15) << (s % 2 * 4));
      if (five) high[i] |= static_cast<std::byte>(q >> 4 << s);
    }
  }
}

// Q6_K: sixteen sub-blocks of 16 with 8-bit scales.
void Symmetric(const float* x, const float* w, std::byte* b) {
  float fit[16];
  float extreme = 0;
  for (size_t s = 0; s < 16; ++s) {
    fit[s] = FitSymmetric(x + 16 * s, w + 16 * s, 32, 0.1f);
    if (std::fabs(fit[s]) > std::fabs(extreme)) extreme = fit[s];
  }
  std::memset(b, 0, 210);
  const float d = RoundedToHalf(extreme / -128);
  StoreHalf(extreme / -128, b + 208);
  if (d == 0) return;
  for (size_t s = 0; s < 16; ++s) {
    const int scale = Nearest(fit[s] / d, -128, 127);
    b[192 + s] = static_cast<std::byte>(scale);
    const float step = d * static_cast<float>(scale);
    for (size_t i = 0; i < 16; ++i) {
      const int q = step != 0 ? Nearest(x[16 * s + i] / step, -32, 31) + 32 : 32;
      // A half has 128 elements. Its first two quarters take the low nibbles of 64 bytes, the other two the high ones.
      const size_t at = 16 * s + i, half = at / 128, quarter = at % 128 / 32, column = at % 32;
      b[half * 64 + quarter % 2 * 32 + column] |= static_cast<std::byte>((q & 15) << (quarter / 2 * 4));
      b[128 + half * 32 + column] |= static_cast<std::byte>(q >> 4 << (2 * quarter));
    }
  }
}

}  // namespace

bool QuantizeKBlock(DType type, const float* x, const float* importance, std::byte* block) {
  static_assert(kBlock == 256);
  float ones[kBlock];
  std::fill_n(ones, importance == nullptr ? kBlock : 0, 1.0f);
  const float* w = importance == nullptr ? ones : importance;
  switch (type) {
    case DType::kQ2_K: AffinesOf2Bits(x, w, block); return true;
    case DType::kQ3_K: SymmetricOf3Bits(x, w, block); return true;
    case DType::kQ4_K: Affines(x, w, false, block); return true;
    case DType::kQ5_K: Affines(x, w, true, block); return true;
    case DType::kQ6_K: Symmetric(x, w, block); return true;
    default: return false;
  }
}

}  // namespace gyre
