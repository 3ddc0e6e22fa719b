// Blocks of quantized weights as they lie in a file: their codes and scales. The layouts are those of kernels/codes.cc
// and quant_lowbit.cc. Packing reads them; products read what is packed (forms.cuh).
#pragma once

#include "kernels/codes.h"
#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/products/matrix.h"

namespace gyre::cuda {

// Blocks have an even number of bytes, except MXFP4's.
GPU_FN uint32_t Word16(const uint8_t* p) { return *reinterpret_cast<const uint16_t*>(p); }
GPU_FN uint32_t Word32(const uint8_t* p) { return Word16(p) | Word16(p + 2) << 16; }
GPU_FN float OfInt(int v) { return static_cast<float>(v); }
GPU_FN int Byte(uint32_t word, int i) { return static_cast<int>(word >> 8 * i & 255); }
GPU_FN int SignedByte(uint32_t word, int i) { return static_cast<int8_t>(word >> 8 * i & 255); }

GPU_FN float OfFp8(uint32_t b) {
  const uint32_t exponent = b >> 3 & 15, mantissa = b & 7, sign = (b & 128) << 24;
  if (exponent == 0) {
    const float v = gpu::Mul(static_cast<float>(mantissa), 1.0f / 512);
    return gpu::OfBits(gpu::Bits(v) | sign);
  }
  if (exponent == 15 && mantissa == 7) return gpu::OfBits(0x7FC00000u | sign);
  return gpu::OfBits((exponent + 120) << 23 | mantissa << 20 | sign);
}

// Four nibbles of 16 bytes whose low nibbles are the elements 0 .. 15 and whose high ones are 16 .. 31, a byte each.
GPU_FN uint32_t Nibbles(const uint8_t* p, int at) { return Word32(p + at % 16) >> (at % 32 < 16 ? 0 : 4) & 0x0F0F0F0F; }
struct Values16 {
  int8_t of_code[16];
};

// The four 2-bit codes of a half of 128 elements, whose 32 bytes have elements 32 apart.
GPU_FN uint32_t TwoBits(const uint8_t* p, int at) {
  return Word32(p + at / 128 * 32 + at % 32) >> at / 32 % 4 * 2 & 0x03030303;
}
// The scale and minimum of 32 elements of Q4_K and Q5_K.
struct ScaleMin {
  int scale, min;
};
GPU_FN ScaleMin ScaleMinOf(const uint8_t* p, int sub) {
  if (sub < 4) return {p[sub] & 63, p[sub + 4] & 63};
  return {(p[sub + 4] & 15) | p[sub - 4] >> 6 << 4, p[sub + 4] >> 4 | p[sub] >> 6 << 4};
}

// Seven sign bits and an eighth that makes their number even.
GPU_FN uint32_t EvenSigns(uint32_t seven) {
  uint32_t odd = seven & 127;
  odd ^= odd >> 4;
  odd ^= odd >> 2;
  odd ^= odd >> 1;
  return (seven & 127) | (odd & 1) << 7;
}
// The lowest bits of a number, so many for each of four bytes.
GPU_FN uint32_t Spread1(uint32_t v) { return (v & 15) * 0x00204081u & 0x01010101u; }
GPU_FN uint32_t Spread2(uint32_t v) { return (v & 3) | (v & 12) << 6 | (v & 48) << 12 | (v & 192) << 18; }
GPU_FN uint32_t Spread3(uint32_t v) { return (v & 7) | (v & 56) << 5 | (v & 448) << 10 | (v & 3584) << 15; }

// The meaning of a type's codes: value = code - zero, or the value of a table of 16.
enum class Values : uint8_t { kLinear, kTable };
struct Coding {
  int bits;
  Values values;
  int zero;
  float by;  // factor of the scales
  bool min;  // whether something is added to the product of scale and value
};
constexpr Coding CodingOf(DType type) {
  switch (type) {
    case DType::kQ8_0: return {8, Values::kLinear, 0, 1, false};
    case DType::kQ4_0: return {4, Values::kLinear, 8, 1, false};
    case DType::kQ4_1: return {4, Values::kLinear, 0, 1, true};
    case DType::kQ5_0: return {5, Values::kLinear, 16, 1, false};
    case DType::kQ5_1: return {5, Values::kLinear, 0, 1, true};
    case DType::kQ2_K: return {2, Values::kLinear, 0, 1, true};
    case DType::kQ3_K: return {3, Values::kLinear, 4, 1, false};
    case DType::kQ4_K: return {4, Values::kLinear, 0, 1, true};
    case DType::kQ5_K: return {5, Values::kLinear, 0, 1, true};
    case DType::kQ6_K: return {6, Values::kLinear, 32, 1, false};
    case DType::kIQ2_XXS:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ1_S:
    case DType::kIQ1_M: return {4, Values::kTable, 0, 0.125f, false};
    case DType::kIQ3_XXS: return {4, Values::kTable, 0, 0.25f, false};
    default: return {4, Values::kTable, 0, 1, false};  // IQ4_NL IQ4_XS MXFP4 NVFP4 IQ3_S TQ1_0 TQ2_0 Q1_0 Q2_0
  }
}
// The values of the 16 codes of a type with a table. Codes of IQ1 to IQ3 are a coordinate of a point below a sign.
constexpr Values16 TableOf(DType type) {
  Values16 v = {};
  for (int i = 0; i < 16; ++i) {
    int value = i < 4 ? i - 1 : 0;  // digits of three, and what a block of 2 bits may hold besides
    if (type == DType::kIQ4_NL || type == DType::kIQ4_XS) value = kIq4Values[i];
    if (type == DType::kMXFP4 || type == DType::kNVFP4) value = kFp4Doubled[i];
    if (type == DType::kQ1_0) value = i % 2 * 2 - 1;
    if (type == DType::kIQ2_XXS || type == DType::kIQ2_XS || type == DType::kIQ2_S) {
      const int c = i % 4, size = c == 0 ? 8 : c == 1 ? 25 : 43;
      value = i % 8 < 4 ? size : -size;
    }
    if (type == DType::kIQ3_XXS || type == DType::kIQ3_S) {
      const int c = i % 8, size = type == DType::kIQ3_S ? 2 * c + 1 : c == 7 ? 62 : 8 * c + 4;
      value = i < 8 ? size : -size;
    }
    if (type == DType::kIQ1_S || type == DType::kIQ1_M) value = 8 * (i % 4 - 1) + (i % 8 < 4 ? 1 : -1);
    v.of_code[i] = static_cast<int8_t>(value);
  }
  return v;
}

// The codes of elements at .. at + 3 of a block, a byte each. REQUIRES: at is a multiple of 4.
template <DType kType>
GPU_FN uint32_t CodesOfBlock(const uint8_t* b, int at, const Codebooks& books) {
  const int sub = at / 32, l = at % 32 / 8;
  if constexpr (kType == DType::kQ8_0) {
    return Word32(b + 2 + at);
  } else if constexpr (kType == DType::kQ4_0 || kType == DType::kIQ4_NL) {
    return Nibbles(b + 2, at);
  } else if constexpr (kType == DType::kQ4_1) {
    return Nibbles(b + 4, at);
  } else if constexpr (kType == DType::kQ5_0) {
    return Nibbles(b + 6, at) | Spread1(Word32(b + 2) >> at) << 4;
  } else if constexpr (kType == DType::kQ5_1) {
    return Nibbles(b + 8, at) | Spread1(Word32(b + 4) >> at) << 4;
  } else if constexpr (kType == DType::kMXFP4) {
    uint32_t q = 0;
    for (int i = 0; i < 4; ++i) q |= (static_cast<uint32_t>(b[1 + at % 16 + i]) >> (at < 16 ? 0 : 4) & 15) << 8 * i;
    return q;
  } else if constexpr (kType == DType::kNVFP4) {
    // The low nibbles of 8 bytes are the first 8 of 16 elements.
    return Word32(b + 4 + at / 16 * 8 + at % 8) >> (at % 16 < 8 ? 0 : 4) & 0x0F0F0F0F;
  } else if constexpr (kType == DType::kQ1_0) {
    return Spread1(static_cast<uint32_t>(b[2 + at / 8]) >> at % 8);
  } else if constexpr (kType == DType::kQ2_0) {
    return Spread2(b[2 + at / 4]);
  } else if constexpr (kType == DType::kQ2_K) {
    return TwoBits(b + 16, at);
  } else if constexpr (kType == DType::kQ3_K) {
    return TwoBits(b + 32, at) | (Word32(b + at % 32) >> sub & 0x01010101) << 2;
  } else if constexpr (kType == DType::kQ4_K) {
    return Word32(b + 16 + sub / 2 * 32 + at % 32) >> sub % 2 * 4 & 0x0F0F0F0F;
  } else if constexpr (kType == DType::kQ5_K) {
    const uint32_t low = Word32(b + 48 + sub / 2 * 32 + at % 32) >> sub % 2 * 4 & 0x0F0F0F0F;
    return low | (Word32(b + 16 + at % 32) >> sub & 0x01010101) << 4;
  } else if constexpr (kType == DType::kQ6_K) {
    const int half = at / 128, quarter = at % 128 / 32, column = at % 32;
    const uint32_t low = Word32(b + half * 64 + quarter % 2 * 32 + column) >> quarter / 2 * 4 & 0x0F0F0F0F;
    return low | (Word32(b + 128 + half * 32 + column) >> 2 * quarter & 0x03030303) << 4;
  } else if constexpr (kType == DType::kIQ4_XS) {
    return Nibbles(b + 8 + 16 * sub, at);
  } else if constexpr (kType == DType::kTQ2_0) {
    return TwoBits(b, at);
  } else if constexpr (kType == DType::kTQ1_0) {
    // Five digits of three in a byte, of 32 bytes and then of 16; four in each of the last 4 bytes.
    const int first = at < 160 ? 0 : at < 240 ? 32 : 48, bytes = at < 160 ? 32 : at < 240 ? 16 : 4;
    const int from = at < 160 ? at : at < 240 ? at - 160 : at - 240, digit = from / bytes;
    const uint32_t power = digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81;
    uint32_t q = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t fraction = b[first + from % bytes + i] * power & 255;
      q |= (fraction * 3 >> 8) << 8 * i;
    }
    return q;
  } else if constexpr (kType == DType::kIQ2_XXS) {
    const uint8_t* q = b + 2 + 8 * sub;
    return Spread2(uint32_t{books.iq2_xxs[q[l]]} >> 2 * (at % 8)) | Spread1(EvenSigns(Word32(q + 4) >> 7 * l) >> at % 8)
                                                                        << 2;
  } else if constexpr (kType == DType::kIQ2_XS) {
    const uint32_t q = Word16(b + 2 + 8 * sub + 2 * l);
    return Spread2(uint32_t{books.iq2_xs[q & 511]} >> 2 * (at % 8)) | Spread1(EvenSigns(q >> 9) >> at % 8) << 2;
  } else if constexpr (kType == DType::kIQ2_S) {
    const uint32_t index = b[2 + 4 * sub + l] | (static_cast<uint32_t>(b[66 + sub]) >> 2 * l & 3) << 8;
    return Spread2(uint32_t{books.iq2_s[index]} >> 2 * (at % 8)) |
           Spread1(static_cast<uint32_t>(b[34 + 4 * sub + l]) >> at % 8) << 2;
  } else if constexpr (kType == DType::kIQ3_XXS) {
    const uint32_t point = books.iq3_xxs[b[2 + 8 * sub + 2 * l + at / 4 % 2]];
    return Spread3(point) | Spread1(EvenSigns(Word32(b + 66 + 4 * sub) >> 7 * l) >> at % 8) << 3;
  } else if constexpr (kType == DType::kIQ3_S) {
    const int which = 2 * l + at / 4 % 2;
    const uint32_t index = b[2 + 8 * sub + which] | (static_cast<uint32_t>(b[66 + sub]) >> which & 1) << 8;
    return Spread3(books.iq3_s[index]) | Spread1(static_cast<uint32_t>(b[74 + 4 * sub + l]) >> at % 8) << 3;
  } else if constexpr (kType == DType::kIQ1_S) {
    const uint32_t high = Word16(b + 34 + 2 * sub), index = b[2 + 4 * sub + l] | (high >> 3 * l & 7) << 8;
    return Spread2(uint32_t{books.iq1[index]} >> 2 * (at % 8)) | ((high & 0x8000) != 0 ? 0x04040404u : 0u);
  } else {
    static_assert(kType == DType::kIQ1_M);
    const uint32_t high = static_cast<uint32_t>(b[32 + 2 * sub + l / 2]) >> l % 2 * 4;
    const uint32_t index = b[4 * sub + l] | (high & 7) << 8;
    return Spread2(uint32_t{books.iq1[index]} >> 2 * (at % 8)) | ((high & 8) != 0 ? 0x04040404u : 0u);
  }
}

// What the codes of 16 elements are multiplied with: d * by * scale, and the minimum that is added: m, or in blocks of
// 256 -(m * min). d and m are f16, MXFP4's and NVFP4's d is bf16.
struct BlockScale {
  uint16_t d = 0, m = 0;
  int scale = 1, min = 0;
};
// The scale of the elements at .. at + 15. REQUIRES: at is a multiple of 16.
template <DType kType>
GPU_FN BlockScale ScaleOfBlock(const uint8_t* b, int at) {
  const int sub = at / 32, sixteenth = at / 16;
  const auto half = [&](int from) { return static_cast<uint16_t>(Word16(b + from)); };
  if constexpr (kType == DType::kQ8_0 || kType == DType::kQ4_0 || kType == DType::kQ5_0 || kType == DType::kIQ4_NL ||
                kType == DType::kQ1_0 || kType == DType::kQ2_0) {
    return {half(0)};
  } else if constexpr (kType == DType::kQ4_1 || kType == DType::kQ5_1) {
    return {half(0), half(2)};
  } else if constexpr (kType == DType::kMXFP4) {
    // 2^(e - 128): below 2^-126 not a normal number
    const uint32_t e = b[0];
    return {static_cast<uint16_t>(e > 1 ? (e - 1) << 7 : uint32_t{0x20} << e)};
  } else if constexpr (kType == DType::kNVFP4) {
    // Half of an E4M3 without its sign, whose few bits a bf16 holds; not a number counts as 0.
    const uint32_t e4m3 = b[sixteenth] & 127;
    return {static_cast<uint16_t>(gpu::Bits(gpu::Mul(OfFp8(e4m3 == 127 ? 0 : e4m3), 0.5f)) >> 16)};
  } else if constexpr (kType == DType::kQ2_K) {
    return {half(80), half(82), b[sixteenth] & 15, b[sixteenth] >> 4};
  } else if constexpr (kType == DType::kQ3_K) {
    const uint8_t* s = b + 96;
    const int low = s[sixteenth % 8] >> sixteenth / 8 * 4 & 15, top = s[8 + sixteenth % 4] >> sixteenth / 4 * 2 & 3;
    return {half(108), 0, (low | top << 4) - 32};
  } else if constexpr (kType == DType::kQ4_K || kType == DType::kQ5_K) {
    const ScaleMin s = ScaleMinOf(b + 4, sub);
    return {half(0), half(2), s.scale, s.min};
  } else if constexpr (kType == DType::kQ6_K) {
    return {half(208), 0, static_cast<int8_t>(b[192 + sixteenth])};
  } else if constexpr (kType == DType::kIQ4_XS) {
    const int low = b[4 + sub / 2] >> sub % 2 * 4 & 15, high = static_cast<int>(Word16(b + 2) >> 2 * sub & 3);
    return {half(0), 0, (low | high << 4) - 32};
  } else if constexpr (kType == DType::kTQ2_0) {
    return {half(64)};
  } else if constexpr (kType == DType::kTQ1_0) {
    return {half(52)};
  } else if constexpr (kType == DType::kIQ2_XXS) {
    return {half(0), 0, static_cast<int>(2 * (Word32(b + 6 + 8 * sub) >> 28) + 1)};
  } else if constexpr (kType == DType::kIQ2_XS || kType == DType::kIQ2_S) {
    constexpr int kScales = kType == DType::kIQ2_XS ? 66 : 74;
    return {half(0), 0, 2 * (b[kScales + sub] >> sixteenth % 2 * 4 & 15) + 1};
  } else if constexpr (kType == DType::kIQ3_XXS) {
    return {half(0), 0, static_cast<int>(2 * (Word32(b + 66 + 4 * sub) >> 28) + 1)};
  } else if constexpr (kType == DType::kIQ3_S) {
    return {half(0), 0, 2 * (b[106 + sub / 2] >> sub % 2 * 4 & 15) + 1};
  } else if constexpr (kType == DType::kIQ1_S) {
    return {half(0), 0, static_cast<int>(2 * (Word16(b + 34 + 2 * sub) >> 12 & 7) + 1)};
  } else {
    static_assert(kType == DType::kIQ1_M);
    const uint8_t* s = b + 48;  // the scale of the block is spread over the top nibbles of four words
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) bits |= (Word16(s + 2 * i) >> 12) << 4 * i;
    const uint32_t word = Word16(s + sub / 2 * 2) >> sub % 2 * 6;
    return {static_cast<uint16_t>(bits), 0, static_cast<int>(2 * (word >> 3 * (sixteenth % 2) & 7) + 1)};
  }
}

// The elements and bytes of a block; 0 for types whose elements stand alone.
struct BlockSize {
  size_t elems, bytes;
};
constexpr BlockSize BlockSizeOf(DType type) {
  switch (type) {
    case DType::kQ4_0: return {32, 18};
    case DType::kQ4_1: return {32, 20};
    case DType::kQ5_0: return {32, 22};
    case DType::kQ5_1: return {32, 24};
    case DType::kQ8_0: return {32, 34};
    case DType::kIQ4_NL: return {32, 18};
    case DType::kMXFP4: return {32, 17};
    case DType::kNVFP4: return {64, 36};
    case DType::kQ1_0: return {128, 18};
    case DType::kQ2_0: return {64, 18};
    case DType::kQ2_K: return {256, 84};
    case DType::kQ3_K: return {256, 110};
    case DType::kQ4_K: return {256, 144};
    case DType::kQ5_K: return {256, 176};
    case DType::kQ6_K: return {256, 210};
    case DType::kIQ4_XS: return {256, 136};
    case DType::kIQ1_S: return {256, 50};
    case DType::kIQ1_M: return {256, 56};
    case DType::kIQ2_XXS: return {256, 66};
    case DType::kIQ2_XS: return {256, 74};
    case DType::kIQ2_S: return {256, 82};
    case DType::kIQ3_XXS: return {256, 98};
    case DType::kIQ3_S: return {256, 110};
    case DType::kTQ1_0: return {256, 54};
    case DType::kTQ2_0: return {256, 66};
    default: return {0, 0};
  }
}

}  // namespace gyre::cuda
