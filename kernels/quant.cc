#include "kernels/quant.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/codes.h"
#include "kernels/quant_k.h"
#include "kernels/quant_lowbit.h"
#include "kernels/quant_table.h"
#include "kernels/unaligned.h"

namespace gyre {
namespace {

constexpr DTypeInfo kTypes[] = {
    {DType::kF32, "F32", 1, 4, true},
    {DType::kF16, "F16", 1, 2, true},
    {DType::kQ4_0, "Q4_0", 32, 18, true},
    {DType::kQ4_1, "Q4_1", 32, 20, true},
    {DType::kQ5_0, "Q5_0", 32, 22, true},
    {DType::kQ5_1, "Q5_1", 32, 24, true},
    {DType::kQ8_0, "Q8_0", 32, 34, true},
    {DType::kQ8_1, "Q8_1", 32, 36, false},
    {DType::kQ2_K, "Q2_K", 256, 84, true},
    {DType::kQ3_K, "Q3_K", 256, 110, true},
    {DType::kQ4_K, "Q4_K", 256, 144, true},
    {DType::kQ5_K, "Q5_K", 256, 176, true},
    {DType::kQ6_K, "Q6_K", 256, 210, true},
    {DType::kQ8_K, "Q8_K", 256, 292, false},
    {DType::kIQ2_XXS, "IQ2_XXS", 256, 66, true},
    {DType::kIQ2_XS, "IQ2_XS", 256, 74, true},
    {DType::kIQ3_XXS, "IQ3_XXS", 256, 98, true},
    {DType::kIQ1_S, "IQ1_S", 256, 50, true},
    {DType::kIQ4_NL, "IQ4_NL", 32, 18, true},
    {DType::kIQ3_S, "IQ3_S", 256, 110, true},
    {DType::kIQ2_S, "IQ2_S", 256, 82, true},
    {DType::kIQ4_XS, "IQ4_XS", 256, 136, true},
    {DType::kI8, "I8", 1, 1, false},
    {DType::kI16, "I16", 1, 2, false},
    {DType::kI32, "I32", 1, 4, false},
    {DType::kI64, "I64", 1, 8, false},
    {DType::kF64, "F64", 1, 8, false},
    {DType::kIQ1_M, "IQ1_M", 256, 56, true},
    {DType::kBF16, "BF16", 1, 2, true},
    {DType::kTQ1_0, "TQ1_0", 256, 54, true},
    {DType::kTQ2_0, "TQ2_0", 256, 66, true},
    {DType::kMXFP4, "MXFP4", 32, 17, true},
    {DType::kNVFP4, "NVFP4", 64, 36, true},
    {DType::kQ1_0, "Q1_0", 128, 18, true},
    {DType::kQ2_0, "Q2_0", 64, 18, true},
};

void DequantizeBlock(DType type, const std::byte* b, float* y) {
  if (HasCodes(type)) return DequantizeCodes(type, b, y);
  if (IsLowBit(type)) DequantizeLowBitBlock(type, b, y);
}

// Clamps to [lo, hi] after rounding to the nearest integer (ties to even).
int Level(float v, int lo, int hi) { return std::clamp(static_cast<int>(std::lrint(v)), lo, hi); }

void Store16(std::byte* p, uint16_t v) { std::memcpy(p, &v, 2); }

void QuantizeQ8(const float* x, std::byte* b) {
  float amax = 0;
  for (size_t i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[i]));
  const uint16_t half = FloatToHalf(amax / 127);
  const float d = HalfToFloat(half), inverse = d > 0 ? 1 / d : 0;
  Store16(b, half);
  for (size_t i = 0; i < 32; ++i) b[2 + i] = static_cast<std::byte>(Level(x[i] * inverse, -127, 127));
}

void QuantizeNibbles(DType type, const float* x, std::byte* b) {
  const bool has_min = type == DType::kQ4_1 || type == DType::kQ5_1;
  const bool has_high = type == DType::kQ5_0 || type == DType::kQ5_1;
  const int top = has_high ? 31 : 15;
  const int zero = has_min ? 0 : (top + 1) / 2;
  float lo = x[0], hi = x[0], extreme = x[0];
  for (size_t i = 0; i < 32; ++i) {
    lo = std::min(lo, x[i]);
    hi = std::max(hi, x[i]);
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  const uint16_t dh = FloatToHalf(has_min ? (hi - lo) / static_cast<float>(top) : extreme / static_cast<float>(-zero));
  const uint16_t mh = FloatToHalf(has_min ? lo : 0.0f);
  const float d = HalfToFloat(dh), m = HalfToFloat(mh), inverse = d != 0 ? 1 / d : 0;
  Store16(b, dh);
  if (has_min) Store16(b + 2, mh);
  b += has_min ? 4 : 2;
  uint32_t high = 0;
  std::byte* nibbles = has_high ? b + 4 : b;
  for (unsigned i = 0; i < 16; ++i) {
    const auto l = static_cast<unsigned>(Level((x[i] - m) * inverse + static_cast<float>(zero), 0, top));
    const auto h = static_cast<unsigned>(Level((x[i + 16] - m) * inverse + static_cast<float>(zero), 0, top));
    nibbles[i] = static_cast<std::byte>((l & 15) | (h & 15) << 4);
    high |= (l >> 4) << i | (h >> 4) << (i + 16);
  }
  if (has_high) std::memcpy(b, &high, 4);
}

}  // namespace

std::span<const DTypeInfo> DTypes() { return kTypes; }

const DTypeInfo* FindDType(uint32_t gguf_type) {
  for (const DTypeInfo& info : kTypes) {
    if (static_cast<uint32_t>(info.type) == gguf_type) return &info;
  }
  return nullptr;
}

const DTypeInfo* FindDType(std::string_view name) {
  for (const DTypeInfo& info : kTypes) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

const DTypeInfo& Info(DType type) {
  static constexpr DTypeInfo kFp8 = {DType::kF8E4M3, "F8_E4M3", 1, 1, false};
  return type == DType::kF8E4M3 ? kFp8 : *FindDType(static_cast<uint32_t>(type));
}

void Dequantize(DType type, const std::byte* src, float* dst, size_t elems) {
  switch (type) {
    case DType::kF32: std::memcpy(dst, src, elems * 4); return;
    case DType::kF16:
      for (size_t i = 0; i < elems; ++i) dst[i] = HalfToFloat(LoadUnaligned<uint16_t>(src + 2 * i));
      return;
    case DType::kBF16:
      for (size_t i = 0; i < elems; ++i) dst[i] = Bf16ToFloat(LoadUnaligned<uint16_t>(src + 2 * i));
      return;
    default: break;
  }
  const DTypeInfo& info = Info(type);
  for (size_t i = 0; i < elems; i += info.block_elems, src += info.block_bytes) DequantizeBlock(type, src, dst + i);
}

void DequantizeRow(const WeightView& w, size_t row, float* out) {
  const std::byte* data = w.data + row * w.row_bytes();
  if (w.scales == nullptr) return Dequantize(w.type, data, out, w.k);
  if (w.type == DType::kF8E4M3) {
    for (size_t i = 0; i < w.k; ++i) out[i] = Fp8ToFloat(static_cast<uint8_t>(data[i])) * BlockScale(w, row, i);
    return;
  }
  if (w.type == DType::kNVFP4) {
    float scale = 0;
    std::memcpy(&scale, w.scales + row * w.k / w.group * sizeof scale, sizeof scale);
    // The scales are multiplied first, as by every processor.
    const DTypeInfo& info = Info(w.type);
    CodeBlock c;
    for (size_t at = 0; at < w.k; at += info.block_elems, data += info.block_bytes) {
      UnpackCodes(w.type, data, &c);
      for (size_t i = 0; i < info.block_elems; ++i)
        out[at + i] =
            Nvfp4Scale(static_cast<uint8_t>(c.scale[i / 16])) * scale * static_cast<float>(kFp4Doubled[c.q[i]]);
    }
    return;
  }
  for (size_t i = 0; i < w.k; ++i) {
    float scale = 0;
    std::memcpy(&scale, w.scales + (row * w.k + i) / w.group * sizeof scale, sizeof scale);
    out[i] = static_cast<float>(static_cast<int8_t>(data[i])) * scale;
  }
}

float Fp8ToFloat(uint8_t b) {
  const int exponent = b >> 3 & 15, mantissa = b & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                          : exponent == 15 && mantissa == 7
                              ? std::nanf("")
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (b & 0x80) != 0 ? -magnitude : magnitude;
}

bool Quantize(DType type, const float* src, std::byte* dst, size_t elems, const float* importance) {
  const DTypeInfo& info = Info(type);
  for (size_t i = 0; i < elems; i += info.block_elems, dst += info.block_bytes) {
    switch (type) {
      case DType::kF32: std::memcpy(dst, src + i, 4); break;
      case DType::kF16: Store16(dst, FloatToHalf(src[i])); break;
      case DType::kBF16: Store16(dst, FloatToBf16(src[i])); break;
      case DType::kQ8_0: QuantizeQ8(src + i, dst); break;
      case DType::kQ4_0:
      case DType::kQ4_1:
      case DType::kQ5_0:
      case DType::kQ5_1: QuantizeNibbles(type, src + i, dst); break;
      default: {
        const float* weights = importance == nullptr ? nullptr : importance + i;
        if (!QuantizeKBlock(type, src + i, weights, dst) && !QuantizeTableBlock(type, src + i, weights, dst))
          return false;
      }
    }
  }
  return true;
}

float HalfToFloat(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = h >> 10 & 31, mantissa = h & 0x3FF;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float value = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -value : value;
}

uint16_t FloatToHalf(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);
  if (magnitude >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);  // rounds past 65504
  if (magnitude < 0x38800000) {  // below the smallest normal half: multiples of 2^-24, rounded by the float adder
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000));
  }
  const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1) - 0x38000000;
  return static_cast<uint16_t>(sign | rounded >> 13);
}

float Bf16ToFloat(uint16_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b) << 16); }

uint16_t FloatToBf16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace gyre
