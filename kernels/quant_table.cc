#include "kernels/quant_table.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/codes.h"
#include "kernels/half.h"

namespace gyre {
namespace {

// Values with the weights of their squared errors.
struct Values {
  const float* x;
  const float* importance;  // or null
  size_t n;
  float weight(size_t i) const { return importance == nullptr ? 1 : importance[i]; }
  Values From(size_t at, size_t count) const {
    return {x + at, importance == nullptr ? nullptr : importance + at, count};
  }
};

float Extreme(const Values& v) {
  float extreme = 0;
  for (size_t i = 0; i < v.n; ++i) {
    if (std::fabs(v.x[i]) > std::fabs(extreme)) extreme = v.x[i];
  }
  return extreme;
}

// The code of the table's value next to v.
uint8_t Next(const int8_t (&table)[16], float v) {
  uint8_t best = 0;
  for (uint8_t code = 1; code < 16; ++code) {
    if (std::fabs(v - static_cast<float>(table[code])) < std::fabs(v - static_cast<float>(table[best]))) best = code;
  }
  return best;
}

float SquaredError(const Values& v, const int8_t (&table)[16], float scale) {
  float error = 0;
  for (size_t i = 0; i < v.n; ++i) {
    const float e = scale * static_cast<float>(table[scale != 0 ? Next(table, v.x[i] / scale) : 0]) - v.x[i];
    error += v.weight(i) * e * e;
  }
  return error;
}

void PutNibbles(const uint8_t* codes, size_t half, std::byte* to) {
  for (size_t i = 0; i < half; ++i) to[i] = static_cast<std::byte>(codes[i] | codes[i + half] << 4);
}

// Writes the codes for a scale, the first half in the low nibbles.
void PutCodes(const Values& v, const int8_t (&table)[16], float scale, std::byte* to) {
  uint8_t codes[32];
  for (size_t i = 0; i < v.n; ++i) codes[i] = scale != 0 ? Next(table, v.x[i] / scale) : Next(table, 0);
  PutNibbles(codes, v.n / 2, to);
}

// Searches for the signed scale of values of IQ4's table with the least squared error.
float FitIq4(const Values& v) {
  const float extreme = Extreme(v);
  if (extreme == 0) return 0;
  float best = 0, best_gain = -1;
  for (int step = -7; step <= 7; ++step) {
    const float inverse = (static_cast<float>(step) + static_cast<float>(kIq4Values[0])) / extreme;
    float sxq = 0, sqq = 0;
    for (size_t i = 0; i < v.n; ++i) {
      const float q = static_cast<float>(kIq4Values[Next(kIq4Values, v.x[i] * inverse)]);
      sxq += v.weight(i) * v.x[i] * q;
      sqq += v.weight(i) * q * q;
    }
    if (sqq > 0 && sxq * sxq / sqq > best_gain) {
      best_gain = sxq * sxq / sqq;
      best = sxq / sqq;
    }
  }
  return best;
}

void Iq4Nl(const Values& v, std::byte* b) {
  const float scale = FitIq4(v);
  StoreHalf(scale, b);
  PutCodes(v, kIq4Values, RoundedToHalf(scale), b + 2);
}

// Eight sub-blocks of 32 with signed 6-bit scales.
void Iq4Xs(const Values& v, std::byte* b) {
  float fit[8];
  float extreme = 0;
  for (size_t s = 0; s < 8; ++s) {
    fit[s] = FitIq4(v.From(32 * s, 32));
    if (std::fabs(fit[s]) > std::fabs(extreme)) extreme = fit[s];
  }
  std::memset(b, 0, 136);
  const float d = RoundedToHalf(extreme / -32);
  StoreHalf(extreme / -32, b);
  unsigned high = 0;
  for (size_t s = 0; s < 8; ++s) {
    const int scale = d != 0 ? std::clamp(static_cast<int>(std::lrint(fit[s] / d)), -32, 31) + 32 : 32;
    b[4 + s / 2] |= static_cast<std::byte>((scale & 15) << (s % 2 * 4));
    high |= static_cast<unsigned>(scale >> 4) << (2 * s);
    PutCodes(v.From(32 * s, 32), kIq4Values, d * static_cast<float>(scale - 32), b + 8 + 16 * s);
  }
  const auto bits = static_cast<uint16_t>(high);
  std::memcpy(b + 2, &bits, 2);
}

// A power of two: the one that OCP's specification says (the largest of the values becomes 4 to 8, and 6 is the largest
// code), or the next one, whichever gives the smaller error.
void Mxfp4(const Values& v, std::byte* b) {
  const float extreme = std::fabs(Extreme(v));
  int exponent = 0;
  if (extreme > 0) {
    const int usual = std::clamp(std::ilogb(extreme) - 2 + 127, 0, 253);
    const auto error = [&](int e) { return SquaredError(v, kFp4Doubled, Mxfp4Scale(static_cast<uint8_t>(e))); };
    exponent = error(usual + 1) < error(usual) ? usual + 1 : usual;
  }
  b[0] = static_cast<std::byte>(exponent);
  PutCodes(v, kFp4Doubled, Mxfp4Scale(static_cast<uint8_t>(exponent)), b + 1);
}

// The E4M3 next to v, without sign.
uint8_t NextE4m3(float v) {
  uint8_t best = 0;
  for (uint8_t code = 1; code < 127; ++code) {
    if (std::fabs(Fp8ToFloat(code) - v) < std::fabs(Fp8ToFloat(best) - v)) best = code;
  }
  return best;
}

// Each 16 values have a scale: one with which the largest of them becomes 6 or 4, or a neighbour of these.
void Nvfp4(const Values& all, std::byte* b) {
  for (size_t s = 0; s < 4; ++s) {
    const Values v = all.From(16 * s, 16);
    const float extreme = std::fabs(Extreme(v));
    uint8_t best = 0;
    float best_error = INFINITY;
    for (const float top : {6.0f, 4.0f}) {
      const int near = NextE4m3(extreme / top);
      for (int code = std::max(0, near - 1); code <= std::min(126, near + 1); ++code) {
        const float error = SquaredError(v, kFp4Doubled, Nvfp4Scale(static_cast<uint8_t>(code)));
        if (error < best_error) best_error = error, best = static_cast<uint8_t>(code);
      }
    }
    b[s] = static_cast<std::byte>(best);
    PutCodes(v, kFp4Doubled, Nvfp4Scale(best), b + 4 + 8 * s);
  }
}

// Signs, and the mean magnitude.
void Binary(const Values& v, std::byte* b) {
  float sum = 0, weights = 0;
  for (size_t i = 0; i < v.n; ++i) sum += v.weight(i) * std::fabs(v.x[i]), weights += v.weight(i);
  std::memset(b, 0, 18);
  StoreHalf(weights > 0 ? sum / weights : 0, b);
  for (size_t i = 0; i < v.n; ++i) b[2 + i / 8] |= static_cast<std::byte>((v.x[i] >= 0 ? 1 : 0) << (i % 8));
}

// Searches for the scale of levels `low` to `high` (whole numbers) with the least squared error.
float FitLevels(const Values& v, float low, float high) {
  const float extreme = Extreme(v);
  if (extreme == 0) return 0;
  float best = 0, best_gain = -1;
  for (const float sign : {1.0f, -1.0f}) {
    for (int step = 0; step <= 24; ++step) {
      const float inverse = sign * (0.6f + 0.1f * static_cast<float>(step)) / std::fabs(extreme);
      float sxq = 0, sqq = 0;
      for (size_t i = 0; i < v.n; ++i) {
        const float q = std::clamp(std::nearbyintf(v.x[i] * inverse), low, high);
        sxq += v.weight(i) * v.x[i] * q;
        sqq += v.weight(i) * q * q;
      }
      if (sqq > 0 && sxq * sxq / sqq > best_gain) {
        best_gain = sxq * sxq / sqq;
        best = sxq / sqq;
      }
    }
    if (low == -high) break;  // the other sign gives the same
  }
  return best;
}

// Levels -1 to 2.
void FourLevels(const Values& v, std::byte* b) {
  const float scale = FitLevels(v, -1, 2), d = RoundedToHalf(scale);
  std::memset(b, 0, 18);
  StoreHalf(scale, b);
  for (size_t i = 0; i < v.n; ++i) {
    const auto q = static_cast<int>(d != 0 ? std::clamp(std::nearbyintf(v.x[i] / d), -1.0f, 2.0f) : 0.0f);
    b[2 + i / 4] |= static_cast<std::byte>((q + 1) << (i % 4 * 2));
  }
}

// Levels -1 to 1. Weights that were trained as these keep their values.
void Ternary(const Values& v, std::byte* b) {
  const float scale = FitLevels(v, -1, 1), d = RoundedToHalf(scale);
  std::memset(b, 0, 66);
  StoreHalf(scale, b + 64);
  for (size_t i = 0; i < v.n; ++i) {
    const auto q = static_cast<int>(d != 0 ? std::clamp(std::nearbyintf(v.x[i] / d), -1.0f, 1.0f) : 0.0f);
    b[i / 128 * 32 + i % 32] |= static_cast<std::byte>((q + 1) << (i / 32 % 4 * 2));
  }
}

}  // namespace

bool QuantizeTableBlock(DType type, const float* x, const float* importance, std::byte* block) {
  const Values v{x, importance, Info(type).block_elems};
  switch (type) {
    case DType::kIQ4_NL: Iq4Nl(v, block); return true;
    case DType::kIQ4_XS: Iq4Xs(v, block); return true;
    case DType::kMXFP4: Mxfp4(v, block); return true;
    case DType::kNVFP4: Nvfp4(v, block); return true;
    case DType::kQ1_0: Binary(v, block); return true;
    case DType::kQ2_0: FourLevels(v, block); return true;
    case DType::kTQ2_0: Ternary(v, block); return true;
    default: return false;
  }
}

}  // namespace gyre
