// Four weights of a matrix, straight from the blocks of the file: the values, and the bits, of DequantizeRow. The
// layouts are those of kernels/codes.cc and quant_lowbit.cc.
#pragma once

#include "kernels/codes.h"
#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/products/matrix.h"

namespace gyre::cuda {

// Blocks have an even number of bytes, except MXFP4's.
GPU_FN uint32_t Word16(const uint8_t* p) { return *reinterpret_cast<const uint16_t*>(p); }
GPU_FN uint32_t Word32(const uint8_t* p) { return Word16(p) | Word16(p + 2) << 16; }
GPU_FN float HalfAt(const uint8_t* p) { return gpu::OfHalf(static_cast<uint16_t>(Word16(p))); }
GPU_FN float OfInt(int v) { return static_cast<float>(v); }
GPU_FN int Byte(uint32_t word, int i) { return static_cast<int>(word >> 8 * i & 255); }
GPU_FN int SignedByte(uint32_t word, int i) { return static_cast<int8_t>(word >> 8 * i & 255); }

// Four nibbles of 16 bytes whose low nibbles are the elements 0 .. 15 and whose high ones are 16 .. 31, a byte each.
GPU_FN uint32_t Nibbles(const uint8_t* p, int at) { return Word32(p + at % 16) >> (at % 32 < 16 ? 0 : 4) & 0x0F0F0F0F; }
struct Values16 {
  int8_t of_code[16];
};
constexpr Values16 ValuesOf(const int8_t (&values)[16]) {
  Values16 v = {};
  for (int i = 0; i < 16; ++i) v.of_code[i] = values[i];
  return v;
}
GPU_TABLE Values16 kIq4 = ValuesOf(kIq4Values);
GPU_TABLE Values16 kFp4 = ValuesOf(kFp4Doubled);

// A block of 256: d * scale * code.
GPU_FN float Scaled(float d, int scale, int code) { return gpu::Mul(gpu::Mul(d, OfInt(scale)), OfInt(code)); }
GPU_FN float Less(float d, int scale, int code, float m, int min) {
  return gpu::Add(Scaled(d, scale, code), -gpu::Mul(m, OfInt(min)));
}
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
// scale * coordinate, negative where the bit of the element is set. A point has eight coordinates of 2 bits (the values
// 8, 25, 43) or four of 3 bits.
GPU_FN void Signed2(float scale, uint32_t point, uint32_t signs, int at, float (&w)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int bit = at % 8 + i;
    const uint32_t c = point >> 2 * bit & 3;
    const int value = c == 0 ? 8 : c == 1 ? 25 : 43;
    w[i] = gpu::Mul(scale, OfInt((signs >> bit & 1) != 0 ? -value : value));
  }
}
template <bool kOdd>  // the values 2 c + 1, otherwise 4, 12, 20, 28, 36, 44, 52, 62
GPU_FN void Signed3(float scale, uint32_t point, uint32_t signs, int at, float (&w)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int c = static_cast<int>(point >> 3 * i & 7), value = kOdd ? 2 * c + 1 : c == 7 ? 62 : 8 * c + 4;
    w[i] = gpu::Mul(scale, OfInt((signs >> (at % 8 + i) & 1) != 0 ? -value : value));
  }
}
GPU_FN void Shifted(float scale, uint32_t point, bool down, int at, float (&w)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int c = static_cast<int>(point >> 2 * (at % 8 + i) & 3);
    w[i] = gpu::Mul(scale, OfInt(8 * (c - 1) + (down ? -1 : 1)));
  }
}

GPU_FN float OfFp8(uint32_t b) {
  const uint32_t exponent = b >> 3 & 15, mantissa = b & 7, sign = (b & 128) << 24;
  if (exponent == 0) {
    const float v = gpu::Mul(static_cast<float>(mantissa), 1.0f / 512);
    return gpu::OfBits(gpu::Bits(v) | sign);
  }
  if (exponent == 15 && mantissa == 7) return gpu::OfBits(0x7FC00000u | sign);
  return gpu::OfBits((exponent + 120) << 23 | mantissa << 20 | sign);
}

// Elements at .. at + 3 of a block. REQUIRES: at is a multiple of 4.
template <DType kType>
GPU_FN void FourOfBlock(const uint8_t* b, int at, const Codebooks& books, float (&w)[4]) {
  const int sub = at / 32, sixteenth = at / 16, l = at % 32 / 8;
  if constexpr (kType == DType::kQ8_0) {
    const float d = HalfAt(b);
    const uint32_t q = Word32(b + 2 + at);
    for (int i = 0; i < 4; ++i) w[i] = gpu::Mul(OfInt(SignedByte(q, i)), d);
  } else if constexpr (kType == DType::kQ4_0) {
    const float d = HalfAt(b);
    const uint32_t q = Nibbles(b + 2, at);
    for (int i = 0; i < 4; ++i) w[i] = gpu::Mul(OfInt(Byte(q, i) - 8), d);
  } else if constexpr (kType == DType::kQ4_1) {
    const float d = HalfAt(b), m = HalfAt(b + 2);
    const uint32_t q = Nibbles(b + 4, at);
    for (int i = 0; i < 4; ++i) w[i] = gpu::Add(gpu::Mul(OfInt(Byte(q, i)), d), m);
  } else if constexpr (kType == DType::kQ5_0) {
    const float d = HalfAt(b);
    const uint32_t high = Word32(b + 2) >> at, q = Nibbles(b + 6, at);
    for (int i = 0; i < 4; ++i) w[i] = gpu::Mul(OfInt((Byte(q, i) | static_cast<int>(high >> i & 1) << 4) - 16), d);
  } else if constexpr (kType == DType::kQ5_1) {
    const float d = HalfAt(b), m = HalfAt(b + 2);
    const uint32_t high = Word32(b + 4) >> at, q = Nibbles(b + 8, at);
    for (int i = 0; i < 4; ++i)
      w[i] = gpu::Add(gpu::Mul(OfInt(Byte(q, i) | static_cast<int>(high >> i & 1) << 4), d), m);
  } else if constexpr (kType == DType::kIQ4_NL) {
    const float d = HalfAt(b);
    const uint32_t q = Nibbles(b + 2, at);
    for (int i = 0; i < 4; ++i) w[i] = gpu::Mul(d, OfInt(kIq4.of_code[Byte(q, i)]));
  } else if constexpr (kType == DType::kMXFP4) {
    // 2^(e - 128): below 2^-126 not a normal number
    const uint32_t e = b[0];
    const float d = gpu::OfBits(e > 1 ? (e - 1) << 23 : uint32_t{0x200000} << e);
    for (int i = 0; i < 4; ++i) w[i] = gpu::Mul(d, OfInt(kFp4.of_code[b[1 + at % 16 + i] >> (at < 16 ? 0 : 4) & 15]));
  } else if constexpr (kType == DType::kNVFP4) {
    const uint32_t e4m3 = b[sixteenth] & 127;
    const float d = gpu::Mul(OfFp8(e4m3 == 127 ? 0 : e4m3), 0.5f);
    for (int i = 0; i < 4; ++i)
      w[i] = gpu::Mul(d, OfInt(kFp4.of_code[b[4 + 8 * sixteenth + at % 8 + i] >> (at % 16 < 8 ? 0 : 4) & 15]));
  } else if constexpr (kType == DType::kQ1_0) {
    const float d = HalfAt(b);
    for (int i = 0; i < 4; ++i) w[i] = gpu::Mul(OfInt((b[2 + at / 8] >> (at % 8 + i) & 1) * 2 - 1), d);
  } else if constexpr (kType == DType::kQ2_0) {
    const float d = HalfAt(b);
    for (int i = 0; i < 4; ++i) w[i] = gpu::Mul(OfInt((b[2 + at / 4] >> 2 * i & 3) - 1), d);
  } else if constexpr (kType == DType::kQ2_K) {
    const float d = HalfAt(b + 80), m = HalfAt(b + 82);
    const uint32_t q = TwoBits(b + 16, at);
    const int scales = b[sixteenth];
    for (int i = 0; i < 4; ++i) w[i] = Less(d, scales & 15, Byte(q, i), m, scales >> 4);
  } else if constexpr (kType == DType::kQ3_K) {
    const uint8_t* s = b + 96;
    const int low = s[sixteenth % 8] >> sixteenth / 8 * 4 & 15, top = s[8 + sixteenth % 4] >> sixteenth / 4 * 2 & 3;
    const float d = HalfAt(b + 108);
    const uint32_t q = TwoBits(b + 32, at) | (Word32(b + at % 32) >> sub & 0x01010101) << 2;
    for (int i = 0; i < 4; ++i) w[i] = Scaled(d, (low | top << 4) - 32, Byte(q, i) - 4);
  } else if constexpr (kType == DType::kQ4_K || kType == DType::kQ5_K) {
    constexpr bool kFive = kType == DType::kQ5_K;
    const float d = HalfAt(b), m = HalfAt(b + 2);
    const ScaleMin s = ScaleMinOf(b + 4, sub);
    uint32_t q = Word32(b + (kFive ? 48 : 16) + sub / 2 * 32 + at % 32) >> sub % 2 * 4 & 0x0F0F0F0F;
    if constexpr (kFive) q |= (Word32(b + 16 + at % 32) >> sub & 0x01010101) << 4;
    for (int i = 0; i < 4; ++i) w[i] = Less(d, s.scale, Byte(q, i), m, s.min);
  } else if constexpr (kType == DType::kQ6_K) {
    const int half = at / 128, quarter = at % 128 / 32, column = at % 32;
    const float d = HalfAt(b + 208);
    const uint32_t low = Word32(b + half * 64 + quarter % 2 * 32 + column) >> quarter / 2 * 4 & 0x0F0F0F0F;
    const uint32_t q = low | (Word32(b + 128 + half * 32 + column) >> 2 * quarter & 0x03030303) << 4;
    const int scale = static_cast<int8_t>(b[192 + sixteenth]);
    for (int i = 0; i < 4; ++i) w[i] = Scaled(d, scale, Byte(q, i) - 32);
  } else if constexpr (kType == DType::kIQ4_XS) {
    const float d = HalfAt(b);
    const int low = b[4 + sub / 2] >> sub % 2 * 4 & 15, high = static_cast<int>(Word16(b + 2) >> 2 * sub & 3);
    const uint32_t q = Nibbles(b + 8 + 16 * sub, at);
    for (int i = 0; i < 4; ++i) w[i] = Scaled(d, (low | high << 4) - 32, kIq4.of_code[Byte(q, i)]);
  } else if constexpr (kType == DType::kTQ2_0) {
    const float d = HalfAt(b + 64);
    const uint32_t q = TwoBits(b, at);
    for (int i = 0; i < 4; ++i) w[i] = gpu::Mul(d, OfInt(Byte(q, i) - 1));
  } else if constexpr (kType == DType::kTQ1_0) {
    // Five digits of three in a byte, of 32 bytes and then of 16; four in each of the last 4 bytes.
    const float d = HalfAt(b + 52);
    const int first = at < 160 ? 0 : at < 240 ? 32 : 48, bytes = at < 160 ? 32 : at < 240 ? 16 : 4;
    const int from = at < 160 ? at : at < 240 ? at - 160 : at - 240, digit = from / bytes;
    const uint32_t power = digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81;
    for (int i = 0; i < 4; ++i) {
      const uint32_t fraction = b[first + from % bytes + i] * power & 255;
      w[i] = gpu::Mul(d, OfInt(static_cast<int>(fraction * 3 >> 8) - 1));
    }
  } else if constexpr (kType == DType::kIQ2_XXS) {
    const uint8_t* q = b + 2 + 8 * sub;
    const uint32_t rest = Word32(q + 4);
    const float scale = gpu::Mul(gpu::Mul(HalfAt(b), 0.125f), OfInt(static_cast<int>(2 * (rest >> 28) + 1)));
    Signed2(scale, books.iq2_xxs[q[l]], EvenSigns(rest >> 7 * l), at, w);
  } else if constexpr (kType == DType::kIQ2_XS) {
    const uint32_t q = Word16(b + 2 + 8 * sub + 2 * l);
    const int s = b[66 + sub] >> sixteenth % 2 * 4 & 15;
    Signed2(gpu::Mul(gpu::Mul(HalfAt(b), 0.125f), OfInt(2 * s + 1)), books.iq2_xs[q & 511], EvenSigns(q >> 9), at, w);
  } else if constexpr (kType == DType::kIQ2_S) {
    const uint32_t index = b[2 + 4 * sub + l] | (static_cast<uint32_t>(b[66 + sub]) >> 2 * l & 3) << 8;
    const int s = b[74 + sub] >> sixteenth % 2 * 4 & 15;
    Signed2(gpu::Mul(gpu::Mul(HalfAt(b), 0.125f), OfInt(2 * s + 1)), books.iq2_s[index], b[34 + 4 * sub + l], at, w);
  } else if constexpr (kType == DType::kIQ3_XXS) {
    const uint32_t rest = Word32(b + 66 + 4 * sub);
    const float scale = gpu::Mul(gpu::Mul(HalfAt(b), 0.25f), OfInt(static_cast<int>(2 * (rest >> 28) + 1)));
    Signed3<false>(scale, books.iq3_xxs[b[2 + 8 * sub + 2 * l + at / 4 % 2]], EvenSigns(rest >> 7 * l), at, w);
  } else if constexpr (kType == DType::kIQ3_S) {
    const int which = 2 * l + at / 4 % 2, s = b[106 + sub / 2] >> sub % 2 * 4 & 15;
    const uint32_t index = b[2 + 8 * sub + which] | (static_cast<uint32_t>(b[66 + sub]) >> which & 1) << 8;
    Signed3<true>(gpu::Mul(HalfAt(b), OfInt(2 * s + 1)), books.iq3_s[index], b[74 + 4 * sub + l], at, w);
  } else if constexpr (kType == DType::kIQ1_S) {
    const uint32_t high = Word16(b + 34 + 2 * sub), index = b[2 + 4 * sub + l] | (high >> 3 * l & 7) << 8;
    const float scale = gpu::Mul(gpu::Mul(HalfAt(b), 0.125f), OfInt(static_cast<int>(2 * (high >> 12 & 7) + 1)));
    Shifted(scale, books.iq1[index], (high & 0x8000) != 0, at, w);
  } else if constexpr (kType == DType::kIQ1_M) {
    const uint8_t* s = b + 48;  // the scale of the block is spread over the top nibbles of four words
    uint32_t bits = 0;
    for (int i = 0; i < 4; ++i) bits |= (Word16(s + 2 * i) >> 12) << 4 * i;
    const float d = gpu::Mul(gpu::OfHalf(static_cast<uint16_t>(bits)), 0.125f);
    const uint32_t word = Word16(s + sub / 2 * 2) >> sub % 2 * 6, high = b[32 + 2 * sub + l / 2] >> l % 2 * 4;
    const uint32_t index = b[4 * sub + l] | (high & 7) << 8;
    const float scale = gpu::Mul(d, OfInt(static_cast<int>(2 * (word >> 3 * (sixteenth % 2) & 7) + 1)));
    Shifted(scale, books.iq1[index], (high & 8) != 0, at, w);
  }
}

// The elements and bytes of a block that FourOfBlock takes; 0 for types whose elements stand alone.
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

// Elements at .. at + 3 of a row, with 0 beyond k. REQUIRES: at is a multiple of 4 and less than k.
template <DType kType>
GPU_FN void FourOfRow(const Matrix& m, size_t row, size_t at, float (&w)[4]) {
  const uint8_t* data = m.data + row * m.row_bytes;
  const size_t left = m.k - at;
  constexpr BlockSize kBlock = BlockSizeOf(kType);
  if constexpr (kBlock.elems != 0) {
    FourOfBlock<kType>(data + at / kBlock.elems * kBlock.bytes, static_cast<int>(at % kBlock.elems), m.books, w);
  } else if constexpr (kType == DType::kF32) {
    const uint8_t* p = data + 4 * at;
    if (left >= 4 && reinterpret_cast<uintptr_t>(p) % 16 == 0) {
      const auto v = gpu::Load<gpu::Float4>(p);
      w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    } else {
      for (size_t i = 0; i < 4; ++i) w[i] = i < left ? reinterpret_cast<const float*>(p)[i] : 0.0f;
    }
  } else if constexpr (kType == DType::kF16 || kType == DType::kBF16) {
    const uint8_t* p = data + 2 * at;
    uint32_t bits[4] = {};
    if (left >= 4 && reinterpret_cast<uintptr_t>(p) % 8 == 0) {
      const auto v = gpu::Load<gpu::Uint2>(p);
      bits[0] = v.x & 0xFFFF, bits[1] = v.x >> 16, bits[2] = v.y & 0xFFFF, bits[3] = v.y >> 16;
    } else {
      for (size_t i = 0; i < 4; ++i) bits[i] = i < left ? Word16(p + 2 * i) : 0;
    }
    for (int i = 0; i < 4; ++i) {
      const auto v = static_cast<uint16_t>(bits[i]);
      w[i] = kType == DType::kF16 ? gpu::OfHalf(v) : gpu::OfBf16(v);
    }
  } else {
    static_assert(kType == DType::kI8 || kType == DType::kF8E4M3);
    for (size_t i = 0; i < 4; ++i) {
      w[i] = 0;
      if (i >= left) continue;
      if constexpr (kType == DType::kI8) {
        w[i] = gpu::Mul(OfInt(static_cast<int8_t>(data[at + i])), m.scales[(row * m.k + at + i) / m.group]);
      } else {
        const size_t across = (m.k + m.group - 1) / m.group;
        w[i] = gpu::Mul(OfFp8(data[at + i]), m.scales[(m.first_row + row) / m.group * across + (at + i) / m.group]);
      }
    }
  }
}

}  // namespace gyre::cuda
