// Shared by the tests of products: every type of weights, and matrices of it with random codes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "kernels/codes.h"
#include "kernels/ops.h"
#include "kernels/quant_lowbit.h"
#include "tests/testing/kernel_test.h"

namespace gyre::testing {

inline constexpr Arithmetic kArithmetics[] = {Arithmetic::kExact, Arithmetic::kDecode, Arithmetic::kPrefill};
inline constexpr DType kTypes[] = {
    DType::kF32,     DType::kF16,   DType::kBF16,  DType::kQ8_0,  DType::kQ4_0,    DType::kQ4_1,   DType::kQ5_0,
    DType::kQ5_1,    DType::kQ2_K,  DType::kQ3_K,  DType::kQ4_K,  DType::kQ5_K,    DType::kQ6_K,   DType::kIQ4_NL,
    DType::kIQ4_XS,  DType::kMXFP4, DType::kIQ1_S, DType::kIQ1_M, DType::kIQ2_XXS, DType::kIQ2_XS, DType::kIQ2_S,
    DType::kIQ3_XXS, DType::kIQ3_S, DType::kTQ1_0, DType::kTQ2_0, DType::kNVFP4,   DType::kQ1_0,   DType::kQ2_0};
// Whether products of the type are sums of integers.
inline bool IsInteger(DType type) { return HasCodes(type) || IsLowBit(type); }

// The bytes of a block that hold codes. The rest are f16 scales (MXFP4: the exponent), which random bytes would make
// infinite.
struct Codes {
  size_t begin, end;
};
inline Codes CodesOf(DType type) {
  switch (type) {
    case DType::kQ2_K: return {0, 80};
    case DType::kQ3_K: return {0, 108};
    case DType::kQ6_K: return {0, 208};
    case DType::kMXFP4: return {1, 17};
    case DType::kIQ1_M: return {0, 56};
    case DType::kTQ1_0: return {0, 52};
    case DType::kTQ2_0: return {0, 64};
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ1_0:
    case DType::kQ2_0:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
    case DType::kIQ1_S:
    case DType::kIQ2_XXS:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S: return {2, Info(type).block_bytes};
    default: return {4, Info(type).block_bytes};
  }
}
// Fills blocks with random codes and keeps their scales.
inline void RandomCodes(DType type, uint32_t seed, std::vector<std::byte>* bytes) {
  std::mt19937 random(seed);
  const Codes codes = CodesOf(type);
  for (size_t at = 0; at < bytes->size(); at += Info(type).block_bytes) {
    for (size_t i = codes.begin; i < codes.end; ++i) (*bytes)[at + i] = static_cast<std::byte>(random());
    if (type != DType::kIQ1_M) continue;
    for (size_t i = 0; i < 4; ++i) {  // the scale 0x2A66, one nibble per word
      std::byte& high = (*bytes)[at + 49 + 2 * i];
      high = (high & std::byte{15}) | static_cast<std::byte>((0x2A66 >> (4 * i) & 15) << 4);
    }
  }
}

struct Weights {
  std::vector<std::byte> bytes;
  WeightView view;
};
inline WeightView ViewOf(DType type, size_t n, size_t k, const std::byte* data) {
  static constexpr float kSecondScale = 0.37f;
  WeightView w{.type = type, .n = n, .k = k, .data = data};
  if (type == DType::kNVFP4) w.scales = reinterpret_cast<const std::byte*>(&kSecondScale), w.group = n * k;
  return w;
}
// A random matrix W[n][k], in NVFP4 with a scale of the second level. Results are cached: the search for the scales of
// blocks of 256 takes longer than most tests.
inline Weights MakeWeights(DType type, size_t n, size_t k, uint32_t seed) {
  static std::map<std::tuple<DType, size_t, size_t, uint32_t>, std::vector<std::byte>> made;
  const DTypeInfo& info = Info(type);
  Weights w;
  std::vector<std::byte>& known = made[{type, n, k, seed}];
  if (!known.empty()) {
    w.bytes = known;
    w.view = ViewOf(type, n, k, w.bytes.data());
    return w;
  }
  w.bytes.resize(n * k / info.block_elems * info.block_bytes);
  if (!Quantize(type, Random(n * k, seed).data(), w.bytes.data(), n * k)) {
    // There is no quantizer for this type: the scales are about 1/16, also those of the minima.
    std::mt19937 random(seed + 1);
    const Codes codes = CodesOf(type);
    for (size_t at = 0; at < w.bytes.size(); at += info.block_bytes) {
      if (type == DType::kMXFP4) {
        w.bytes[at] = static_cast<std::byte>(120 + random() % 8);
        continue;
      }
      for (size_t i = 0; i + 1 < info.block_bytes; i += 2) {
        if (i >= codes.begin && i < codes.end) continue;
        const uint16_t half = FloatToHalf(0.05f + 0.0001f * static_cast<float>(random() % 256));
        std::memcpy(&w.bytes[at + i], &half, 2);
      }
    }
    RandomCodes(type, seed, &w.bytes);
  }
  known = w.bytes;
  w.view = ViewOf(type, n, k, w.bytes.data());
  return w;
}

struct ScaledWeights {
  std::vector<std::byte> bytes, scales;
  WeightView view;
};
// int8 with a scale for each `group`, or E4M3 with one for each group x group: types with scales of their own.
inline ScaledWeights MakeScaled(DType type, size_t n, size_t k, size_t group, size_t first_row) {
  ScaledWeights m;
  std::mt19937 random(11);
  m.bytes.resize(n * k);
  for (std::byte& b : m.bytes) {
    b = static_cast<std::byte>(random());
    if (type == DType::kF8E4M3 && (b & std::byte{127}) == std::byte{127}) b = std::byte{1};  // no NaN
  }
  const size_t count =
      type == DType::kI8 ? n * k / group : (first_row + n + group - 1) / group * ((k + group - 1) / group);
  const auto scales = Random(count, 12, 0.1f);
  m.scales.resize(count * 4);
  std::memcpy(m.scales.data(), scales.data(), m.scales.size());
  m.view = {.type = type,
            .n = n,
            .k = k,
            .data = m.bytes.data(),
            .scales = m.scales.data(),
            .group = group,
            .first_row = first_row};
  return m;
}

// x after quantization to int8 in blocks of 32, as the integer kernels multiply it, in plain code.
inline std::vector<float> Rounded(const std::vector<float>& x) {
  std::vector<float> out(x.size());
  for (size_t b = 0; b < x.size(); b += 32) {
    float amax = 0;
    for (size_t i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[b + i]));
    const float scale = amax / 127.0f, inverse = amax > 0 ? 127.0f / amax : 0.0f;
    for (size_t i = 0; i < 32; ++i) out[b + i] = std::nearbyintf(x[b + i] * inverse) * scale;
  }
  return out;
}

}  // namespace gyre::testing
