#include "kernels/codes.h"

#include <cmath>

#include "kernels/unaligned.h"

namespace gyre {
namespace {

unsigned Byte(const std::byte* p, size_t i) { return static_cast<uint8_t>(p[i]); }
float F(int v) { return static_cast<float>(v); }

// Layout: [d] [m] [high bits] [nibbles]. Element i is in the low nibble of byte i, element i + 16 in the high one.
void Unpack32(const std::byte* b, bool has_min, bool has_high, CodeBlock* out) {
  out->d = LoadUnaligned<uint16_t>(b);
  out->m = has_min ? LoadUnaligned<uint16_t>(b + 2) : uint16_t{0};
  b += has_min ? 4 : 2;
  uint32_t high = 0;
  if (has_high) {
    high = LoadUnaligned<uint32_t>(b);
    b += 4;
  }
  for (unsigned i = 0; i < 16; ++i) {
    out->q[i] = static_cast<uint8_t>((Byte(b, i) & 15) | (high >> i & 1) << 4);
    out->q[i + 16] = static_cast<uint8_t>(Byte(b, i) >> 4 | (high >> (i + 16) & 1) << 4);
  }
}

// The 6-bit scale and minimum j of Q4_K and Q5_K, which are packed into 12 bytes.
void ScaleMin(const std::byte* s, size_t j, CodeBlock* out) {
  if (j < 4) {
    out->scale[j] = static_cast<int8_t>(Byte(s, j) & 63);
    out->min[j] = static_cast<uint8_t>(Byte(s, j + 4) & 63);
  } else {
    out->scale[j] = static_cast<int8_t>((Byte(s, j + 4) & 15) | Byte(s, j - 4) >> 6 << 4);
    out->min[j] = static_cast<uint8_t>(Byte(s, j + 4) >> 4 | Byte(s, j) >> 6 << 4);
  }
}

void UnpackQ45K(const std::byte* b, bool has_high, CodeBlock* out) {
  out->d = LoadUnaligned<uint16_t>(b);
  out->m = LoadUnaligned<uint16_t>(b + 2);
  const std::byte* high = b + 16;
  const std::byte* q = has_high ? high + 32 : high;
  for (size_t sub = 0; sub < 8; ++sub) {
    ScaleMin(b + 4, sub, out);
    const std::byte* nibbles = q + sub / 2 * 32;
    for (size_t i = 0; i < 32; ++i) {
      unsigned v = sub % 2 == 0 ? Byte(nibbles, i) & 15 : Byte(nibbles, i) >> 4;
      if (has_high) v |= (Byte(high, i) >> sub & 1) << 4;
      out->q[sub * 32 + i] = static_cast<uint8_t>(v);
    }
  }
}

// A byte has four 2-bit codes, 32 elements apart; each half of the block has its own 32 bytes.
unsigned TwoBits(const std::byte* b, size_t element) {
  return Byte(b, element / 128 * 32 + element % 32) >> (element / 32 % 4 * 2) & 3;
}

void UnpackQ2K(const std::byte* b, CodeBlock* out) {
  out->d = LoadUnaligned<uint16_t>(b + 80);
  out->m = LoadUnaligned<uint16_t>(b + 82);
  for (size_t sub = 0; sub < 16; ++sub) {
    out->scale[sub] = static_cast<int8_t>(Byte(b, sub) & 15);
    out->min[sub] = static_cast<uint8_t>(Byte(b, sub) >> 4);
  }
  for (size_t i = 0; i < 256; ++i) out->q[i] = static_cast<uint8_t>(TwoBits(b + 16, i));
}

// Layout: [high bits: bit i / 32 of byte i % 32] [two low bits] [scales] [d].
void UnpackQ3K(const std::byte* b, CodeBlock* out) {
  const std::byte* scales = b + 96;
  out->d = LoadUnaligned<uint16_t>(b + 108);
  for (size_t sub = 0; sub < 16; ++sub) {
    // A scale has four low bits in a nibble of the first 8 bytes, and two high bits in the last 4 bytes.
    const unsigned low = Byte(scales, sub % 8) >> (sub / 8 * 4) & 15;
    const unsigned top = Byte(scales, 8 + sub % 4) >> (sub / 4 * 2) & 3;
    out->scale[sub] = static_cast<int8_t>(static_cast<int>(low | top << 4) - 32);
  }
  for (size_t i = 0; i < 256; ++i)
    out->q[i] = static_cast<uint8_t>(TwoBits(b + 32, i) | (Byte(b, i % 32) >> (i / 32) & 1) << 2);
}

// Unpacks the low nibbles of 16 bytes, then the high ones.
void Nibbles(const std::byte* b, uint8_t* q) {
  for (size_t i = 0; i < 16; ++i) {
    q[i] = static_cast<uint8_t>(Byte(b, i) & 15);
    q[i + 16] = static_cast<uint8_t>(Byte(b, i) >> 4);
  }
}

// Layout: 64 bytes with four ternary digits of two bits each, 32 elements apart, then d.
void UnpackTq2(const std::byte* b, CodeBlock* out) {
  out->d = LoadUnaligned<uint16_t>(b + 64);
  for (size_t i = 0; i < 256; ++i) out->q[i] = static_cast<uint8_t>(TwoBits(b, i));
}

// A byte packs five ternary digits; digit n is the top of byte * 3^n modulo 256.
void UnpackTq1(const std::byte* b, CodeBlock* out) {
  out->d = LoadUnaligned<uint16_t>(b + 52);
  uint8_t* y = out->q;
  auto run = [&](size_t first, size_t bytes, unsigned digits) {
    unsigned power = 1;
    for (unsigned n = 0; n < digits; ++n, power *= 3) {
      for (size_t m = 0; m < bytes; ++m) *y++ = static_cast<uint8_t>(((Byte(b, first + m) * power & 255u) * 3) >> 8);
    }
  };
  run(0, 32, 5);
  run(32, 16, 5);
  run(48, 4, 4);
}

// Layout: d, then 128 bits, the first element in the lowest bit: 0 means -d, 1 means d.
void UnpackQ1(const std::byte* b, CodeBlock* out) {
  out->d = LoadUnaligned<uint16_t>(b);
  for (size_t i = 0; i < 128; ++i) out->q[i] = static_cast<uint8_t>((Byte(b, 2 + i / 8) >> (i % 8) & 1) * 2);
}

// Layout: d, then 64 codes of two bits, four neighbours in a byte, the first one in the lowest bits.
void UnpackQ2(const std::byte* b, CodeBlock* out) {
  out->d = LoadUnaligned<uint16_t>(b);
  for (size_t i = 0; i < 64; ++i) out->q[i] = static_cast<uint8_t>(Byte(b, 2 + i / 4) >> (i % 4 * 2) & 3);
}

// Layout: four E4M3, then for each of them 8 bytes: element i in the low nibble of byte i, element i + 8 in the high
// one. The scales' signs are not used, and NaN means 0.
void UnpackNvfp4(const std::byte* b, CodeBlock* out) {
  for (size_t s = 0; s < 4; ++s) {
    const unsigned e4m3 = Byte(b, s) & 127;
    out->scale[s] = static_cast<int8_t>(e4m3 == 127 ? 0 : e4m3);
    for (size_t i = 0; i < 8; ++i) {
      out->q[16 * s + i] = static_cast<uint8_t>(Byte(b, 4 + 8 * s + i) & 15);
      out->q[16 * s + i + 8] = static_cast<uint8_t>(Byte(b, 4 + 8 * s + i) >> 4);
    }
  }
}

void UnpackIq4Xs(const std::byte* b, CodeBlock* out) {
  out->d = LoadUnaligned<uint16_t>(b);
  const unsigned high = LoadUnaligned<uint16_t>(b + 2);
  for (size_t sub = 0; sub < 8; ++sub) {
    const unsigned low = Byte(b, 4 + sub / 2) >> (sub % 2 * 4) & 15;
    out->scale[sub] = static_cast<int8_t>(static_cast<int>(low | (high >> (2 * sub) & 3) << 4) - 32);
    Nibbles(b + 8 + 16 * sub, out->q + 32 * sub);
  }
}

void UnpackQ6K(const std::byte* b, CodeBlock* out) {
  out->d = LoadUnaligned<uint16_t>(b + 208);
  for (size_t i = 0; i < 16; ++i) out->scale[i] = static_cast<int8_t>(Byte(b + 192, i));
  for (size_t half = 0; half < 2; ++half) {
    const std::byte* ql = b + half * 64;
    const std::byte* qh = b + 128 + half * 32;
    for (size_t quarter = 0; quarter < 4; ++quarter) {
      for (size_t i = 0; i < 32; ++i) {
        const unsigned low = Byte(ql, i + quarter % 2 * 32);
        out->q[half * 128 + quarter * 32 + i] =
            static_cast<uint8_t>((quarter < 2 ? low & 15 : low >> 4) | (Byte(qh, i) >> (2 * quarter) & 3) << 4);
      }
    }
  }
}

}  // namespace

float Mxfp4Scale(uint8_t exponent) { return static_cast<float>(std::ldexp(0.5, exponent - 127)); }
float Nvfp4Scale(uint8_t e4m3) { return Fp8ToFloat(e4m3) * 0.5f; }

bool HasCodes(DType type) {
  switch (type) {
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
    case DType::kMXFP4:
    case DType::kNVFP4:
    case DType::kTQ1_0:
    case DType::kTQ2_0:
    case DType::kQ1_0:
    case DType::kQ2_0: return true;
    default: return false;
  }
}

int CodeZero(DType type) {
  switch (type) {
    case DType::kQ8_0: return 128;
    case DType::kQ4_0: return 8;
    case DType::kQ5_0: return 16;
    case DType::kQ6_K: return 32;
    case DType::kQ3_K: return 4;
    case DType::kTQ1_0:
    case DType::kTQ2_0:
    case DType::kQ1_0:
    case DType::kQ2_0: return 1;
    default: return 0;
  }
}

const int8_t* CodeTable(DType type) {
  switch (type) {
    case DType::kIQ4_NL:
    case DType::kIQ4_XS: return kIq4Values;
    case DType::kMXFP4:
    case DType::kNVFP4: return kFp4Doubled;
    default: return nullptr;
  }
}

void UnpackCodes(DType type, const std::byte* b, CodeBlock* out) {
  switch (type) {
    case DType::kQ8_0:
      out->d = LoadUnaligned<uint16_t>(b);
      for (size_t i = 0; i < 32; ++i) out->q[i] = static_cast<uint8_t>(Byte(b + 2, i) ^ 0x80);
      return;
    case DType::kQ4_0: return Unpack32(b, false, false, out);
    case DType::kQ4_1: return Unpack32(b, true, false, out);
    case DType::kQ5_0: return Unpack32(b, false, true, out);
    case DType::kQ5_1: return Unpack32(b, true, true, out);
    case DType::kQ4_K: return UnpackQ45K(b, false, out);
    case DType::kQ5_K: return UnpackQ45K(b, true, out);
    case DType::kQ6_K: return UnpackQ6K(b, out);
    case DType::kQ2_K: return UnpackQ2K(b, out);
    case DType::kQ3_K: return UnpackQ3K(b, out);
    case DType::kIQ4_NL: out->d = LoadUnaligned<uint16_t>(b); return Nibbles(b + 2, out->q);
    case DType::kIQ4_XS: return UnpackIq4Xs(b, out);
    case DType::kMXFP4: out->scale[0] = static_cast<int8_t>(Byte(b, 0)); return Nibbles(b + 1, out->q);
    case DType::kNVFP4: return UnpackNvfp4(b, out);
    case DType::kTQ1_0: return UnpackTq1(b, out);
    case DType::kTQ2_0: return UnpackTq2(b, out);
    case DType::kQ1_0: return UnpackQ1(b, out);
    case DType::kQ2_0: return UnpackQ2(b, out);
    default: return;
  }
}

void DequantizeCodes(DType type, const std::byte* block, float* y) {
  CodeBlock c;
  UnpackCodes(type, block, &c);
  const float d = HalfToFloat(c.d), m = HalfToFloat(c.m);
  const int zero = CodeZero(type);
  switch (type) {
    case DType::kQ3_K:
    case DType::kQ6_K:
      for (size_t i = 0; i < 256; ++i) y[i] = d * F(c.scale[i / 16]) * F(c.q[i] - zero);
      return;
    case DType::kQ2_K:
      for (size_t i = 0; i < 256; ++i) y[i] = d * F(c.scale[i / 16]) * F(c.q[i]) - m * F(c.min[i / 16]);
      return;
    case DType::kIQ4_XS:
      for (size_t i = 0; i < 256; ++i) y[i] = d * F(c.scale[i / 32]) * F(kIq4Values[c.q[i]]);
      return;
    case DType::kIQ4_NL:
      for (size_t i = 0; i < 32; ++i) y[i] = d * F(kIq4Values[c.q[i]]);
      return;
    case DType::kMXFP4: {
      const float scale = Mxfp4Scale(static_cast<uint8_t>(c.scale[0]));
      for (size_t i = 0; i < 32; ++i) y[i] = scale * F(kFp4Doubled[c.q[i]]);
      return;
    }
    case DType::kNVFP4:
      for (size_t from = 0; from < 64; from += 16) {
        const float scale = Nvfp4Scale(static_cast<uint8_t>(c.scale[from / 16]));
        for (size_t i = from; i < from + 16; ++i) y[i] = scale * F(kFp4Doubled[c.q[i]]);
      }
      return;
    case DType::kQ4_K:
    case DType::kQ5_K:
      for (size_t i = 0; i < 256; ++i) y[i] = d * F(c.scale[i / 32]) * F(c.q[i]) - m * F(c.min[i / 32]);
      return;
    case DType::kQ4_1:
    case DType::kQ5_1:
      for (size_t i = 0; i < 32; ++i) y[i] = F(c.q[i]) * d + m;
      return;
    default:
      for (size_t i = 0; i < Info(type).block_elems; ++i) y[i] = F(c.q[i] - zero) * d;
  }
}

}  // namespace gyre
