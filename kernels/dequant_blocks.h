// The block formats as loops over bytes, compiled once for the baseline (quant.cc) and once for every instruction set,
// where the compiler vectorizes them; products and sums are never contracted, so all give the same bits. An unnamed
// namespace in a header, on purpose: code built with an instruction set's flags must not be merged with the baseline's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/quant.h"

namespace gyre {
namespace {

inline uint16_t Load16(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}
inline float HalfAt(const std::byte* p) {
  return HalfToFloat(Load16(p));
}
inline int Byte(const std::byte* p, size_t i) {
  return static_cast<int>(static_cast<uint8_t>(p[i]));
}
inline int Signed(const std::byte* p, size_t i) {
  return static_cast<int>(static_cast<int8_t>(p[i]));
}
inline float F(int v) {
  return static_cast<float>(v);
}

// Blocks of 32: [d] [m] [high bits] [nibbles]. Element i has the low nibble of byte i, element i + 16 the high one.
inline void Block32(const std::byte* b, bool has_min, bool has_high, float* y) {
  const float d = HalfAt(b);
  const float m = has_min ? HalfAt(b + 2) : 0.0f;
  b += has_min ? 4 : 2;
  uint32_t high = 0;
  if (has_high) {
    std::memcpy(&high, b, 4);
    b += 4;
  }
  const int zero = has_min ? 0 : (has_high ? 16 : 8);
  for (unsigned i = 0; i < 16; ++i) {
    const int lo = (Byte(b, i) & 15) | static_cast<int>((high >> i & 1) << 4);
    const int hi = (Byte(b, i) >> 4) | static_cast<int>((high >> (i + 16) & 1) << 4);
    y[i] = F(lo - zero) * d + m;
    y[i + 16] = F(hi - zero) * d + m;
  }
}

// The 6-bit scale and minimum number j of Q4_K and Q5_K, packed into 12 bytes.
inline void ScaleMin(const std::byte* s, size_t j, int* scale, int* min) {
  if (j < 4) {
    *scale = Byte(s, j) & 63;
    *min = Byte(s, j + 4) & 63;
  } else {
    *scale = (Byte(s, j + 4) & 15) | (Byte(s, j - 4) >> 6 << 4);
    *min = (Byte(s, j + 4) >> 4) | (Byte(s, j) >> 6 << 4);
  }
}

inline void BlockQ45K(const std::byte* b, bool has_high, float* y) {
  const float d = HalfAt(b), dmin = HalfAt(b + 2);
  const std::byte* scales = b + 4;
  const std::byte* high = b + 16;
  const std::byte* q = has_high ? high + 32 : high;
  for (size_t sub = 0; sub < 8; ++sub) {
    int scale = 0, min = 0;
    ScaleMin(scales, sub, &scale, &min);
    const float ds = d * F(scale), dm = dmin * F(min);
    const std::byte* nibbles = q + sub / 2 * 32;
    for (size_t i = 0; i < 32; ++i) {
      int v = sub % 2 == 0 ? Byte(nibbles, i) & 15 : Byte(nibbles, i) >> 4;
      if (has_high) v |= (Byte(high, i) >> sub & 1) << 4;
      y[sub * 32 + i] = ds * F(v) - dm;
    }
  }
}

// Element i of a block of Q6_K before its zero (32) is taken off: halves of 128, in each four quarters of 32.
inline int Q6At(const std::byte* b, size_t i) {
  const size_t half = i / 128, quarter = i % 128 / 32, at = i % 32;
  const int low = Byte(b, half * 64 + quarter % 2 * 32 + at);
  return (quarter < 2 ? low & 15 : low >> 4) | ((Byte(b + 128, half * 32 + at) >> (2 * quarter) & 3) << 4);
}

inline void BlockQ6K(const std::byte* b, float* y) {
  const float d = HalfAt(b + 208);
  for (size_t part = 0; part < 16; ++part) {
    const float scale = d * F(Signed(b + 192, part));
    for (size_t i = 0; i < 16; ++i) y[part * 16 + i] = scale * F(Q6At(b, part * 16 + i) - 32);
  }
}

inline void DequantizeBlock(DType type, const std::byte* b, float* y) {
  switch (type) {
    case DType::kQ8_0: {
      const float d = HalfAt(b);
      for (size_t i = 0; i < 32; ++i) y[i] = d * F(Signed(b + 2, i));
      return;
    }
    case DType::kQ4_0:
      return Block32(b, false, false, y);
    case DType::kQ4_1:
      return Block32(b, true, false, y);
    case DType::kQ5_0:
      return Block32(b, false, true, y);
    case DType::kQ5_1:
      return Block32(b, true, true, y);
    case DType::kQ4_K:
      return BlockQ45K(b, false, y);
    case DType::kQ5_K:
      return BlockQ45K(b, true, y);
    case DType::kQ6_K:
      return BlockQ6K(b, y);
    default:
      return;
  }
}

}  // namespace
}  // namespace gyre
