#include "kernels/quant_lowbit.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/codebooks.h"
#include "kernels/unaligned.h"

namespace gyre {
namespace {

unsigned U8(const std::byte* p) { return static_cast<uint8_t>(*p); }
float Half(const std::byte* p) { return HalfToFloat(LoadUnaligned<uint16_t>(p)); }

// Repeats a byte in every byte of a word.
constexpr uint64_t kOnes = 0x0101010101010101;
constexpr uint64_t Every(uint64_t byte) { return byte * kOnes; }

// The codebooks expanded to one byte per coordinate, and the masks that negate coordinates.
struct Points {
  uint64_t iq2_xxs[256], iq2_xs[512], iq2_s[1024];
  uint64_t iq1[2048];  // 8 c + 128
  uint32_t iq3_xxs[256], iq3_s[512];
  uint64_t negative[256];  // 0xFF in the bytes whose bit is set
  uint64_t even[128];      // the same for seven sign bits; the eighth makes the number of set bits even

  Points() {
    using namespace codebooks;
    constexpr uint8_t kTwoBit[4] = {8, 25, 43, 0}, kThreeBit[8] = {4, 12, 20, 28, 36, 44, 52, 62};
    auto eight = [](const auto& points, auto* out, auto&& value) {
      for (const uint16_t point : points) {
        uint64_t word = 0;
        for (unsigned i = 0; i < 8; ++i) word |= uint64_t{value(point >> (2 * i) & 3)} << (8 * i);
        *out++ = word;
      }
    };
    auto four = [](const auto& points, auto* out, auto&& value) {
      for (const uint16_t point : points) {
        uint32_t word = 0;
        for (unsigned i = 0; i < 4; ++i) word |= uint32_t{value(point >> (3 * i) & 7)} << (8 * i);
        *out++ = word;
      }
    };
    auto two_bit = [&](unsigned c) { return kTwoBit[c]; };
    eight(kIq2Xxs, iq2_xxs, two_bit);
    eight(kIq2Xs, iq2_xs, two_bit);
    eight(kIq2S, iq2_s, two_bit);
    eight(kIq1S, iq1, [](unsigned c) { return static_cast<uint8_t>(120 + 8 * c); });
    four(kIq3Xxs, iq3_xxs, [&](unsigned c) { return kThreeBit[c]; });
    four(kIq3S, iq3_s, [](unsigned c) { return static_cast<uint8_t>(2 * c + 1); });
    for (unsigned bits = 0; bits < 256; ++bits) {
      negative[bits] = 0;
      for (unsigned i = 0; i < 8; ++i) negative[bits] |= (bits >> i & 1) != 0 ? uint64_t{0xFF} << (8 * i) : 0;
    }
    for (unsigned bits = 0; bits < 128; ++bits)
      even[bits] = negative[bits | static_cast<unsigned>(std::popcount(bits) & 1) << 7];
  }
};
const Points& ThePoints() {
  static const Points kPoints;
  return kPoints;
}

// Applies signs to coordinates of 1 to 127 and adds 128. The negative of a byte is its complement plus 1, which carries
// only out of 0.
uint64_t Signed(uint64_t point, uint64_t negative) { return ((point ^ negative) + (negative & kOnes)) ^ Every(0x80); }

// Layout: 64 bytes with four weights each, 32 elements apart, then d.
void Ternary2(const Points&, const std::byte* b, LowBitBlock* out) {
  std::fill_n(out->scale, 16, Half(b + 64));
  for (size_t half = 0; half < 2; ++half) {
    for (unsigned l = 0; l < 4; ++l) {
      for (size_t word = 0; word < 4; ++word) {
        out->q[half * 16 + l * 4 + word] =
            (LoadUnaligned<uint64_t>(b + half * 32 + 8 * word) >> (2 * l) & Every(3)) + Every(127);
      }
    }
  }
}

// A byte packs five ternary digits; digit n is the top of byte * 3^n modulo 256.
void Ternary1(const Points&, const std::byte* b, LowBitBlock* out) {
  std::fill_n(out->scale, 16, Half(b + 52));
  uint8_t codes[256];
  uint8_t* y = codes;
  auto run = [&](const std::byte* q, size_t bytes, unsigned digits) {
    unsigned power = 1;
    for (unsigned n = 0; n < digits; ++n, power *= 3) {
      for (size_t m = 0; m < bytes; ++m) *y++ = static_cast<uint8_t>(127 + (((U8(q + m) * power & 255u) * 3) >> 8));
    }
  };
  run(b, 32, 5);
  run(b + 32, 16, 5);
  run(b + 48, 4, 4);
  std::memcpy(out->q, codes, sizeof codes);
}

// The scales of both halves of 32 weights: (s + 1/2) * d / 4.
void Scales2(float d, unsigned nibbles, float* scale) {
  scale[0] = d * static_cast<float>(2 * (nibbles & 15) + 1);
  scale[1] = d * static_cast<float>(2 * (nibbles >> 4) + 1);
}

void Iq2Xxs(const Points& p, const std::byte* b, LowBitBlock* out) {
  const float d = Half(b) * 0.125f;
  for (size_t sub = 0; sub < 8; ++sub) {
    const std::byte* q = b + 2 + 8 * sub;
    const auto rest = LoadUnaligned<uint32_t>(q + 4);
    Scales2(d, (rest >> 28) * 17, out->scale + 2 * sub);
    for (unsigned l = 0; l < 4; ++l) out->q[4 * sub + l] = Signed(p.iq2_xxs[U8(q + l)], p.even[rest >> (7 * l) & 127]);
  }
}

void Iq2Xs(const Points& p, const std::byte* b, LowBitBlock* out) {
  const float d = Half(b) * 0.125f;
  for (size_t sub = 0; sub < 8; ++sub) {
    Scales2(d, U8(b + 66 + sub), out->scale + 2 * sub);
    for (unsigned l = 0; l < 4; ++l) {
      const unsigned q = LoadUnaligned<uint16_t>(b + 2 + 8 * sub + 2 * l);
      out->q[4 * sub + l] = Signed(p.iq2_xs[q & 511], p.even[q >> 9]);
    }
  }
}

void Iq2S(const Points& p, const std::byte* b, LowBitBlock* out) {
  const float d = Half(b) * 0.125f;
  for (size_t sub = 0; sub < 8; ++sub) {
    const unsigned high = U8(b + 66 + sub);
    Scales2(d, U8(b + 74 + sub), out->scale + 2 * sub);
    for (unsigned l = 0; l < 4; ++l) {
      const unsigned index = U8(b + 2 + 4 * sub + l) | (high >> (2 * l) & 3) << 8;
      out->q[4 * sub + l] = Signed(p.iq2_s[index], p.negative[U8(b + 34 + 4 * sub + l)]);
    }
  }
}

void Iq3Xxs(const Points& p, const std::byte* b, LowBitBlock* out) {
  const float d = Half(b) * 0.25f;
  const auto& points = p.iq3_xxs;
  for (size_t sub = 0; sub < 8; ++sub) {
    const auto rest = LoadUnaligned<uint32_t>(b + 66 + 4 * sub);
    std::fill_n(out->scale + 2 * sub, 2, d * static_cast<float>(2 * (rest >> 28) + 1));
    for (unsigned l = 0; l < 4; ++l) {
      const std::byte* q = b + 2 + 8 * sub + 2 * l;
      out->q[4 * sub + l] = Signed(points[U8(q)] | uint64_t{points[U8(q + 1)]} << 32, p.even[rest >> (7 * l) & 127]);
    }
  }
}

void Iq3S(const Points& p, const std::byte* b, LowBitBlock* out) {
  const float d = Half(b);
  const auto& points = p.iq3_s;
  for (size_t sub = 0; sub < 8; ++sub) {
    const unsigned high = U8(b + 66 + sub);
    std::fill_n(out->scale + 2 * sub, 2, d * static_cast<float>(2 * (U8(b + 106 + sub / 2) >> (sub % 2 * 4) & 15) + 1));
    for (unsigned l = 0; l < 4; ++l) {
      const std::byte* q = b + 2 + 8 * sub + 2 * l;
      const unsigned first = U8(q) | (high >> (2 * l) & 1) << 8, second = U8(q + 1) | (high >> (2 * l + 1) & 1) << 8;
      out->q[4 * sub + l] =
          Signed(points[first] | uint64_t{points[second]} << 32, p.negative[U8(b + 74 + 4 * sub + l)]);
    }
  }
}

// Eight weights of an IQ1 codebook point, shifted up or down by an eighth of the scale.
uint64_t Point1(const Points& p, unsigned index, bool down) {
  return down ? p.iq1[index] - kOnes : p.iq1[index] + kOnes;
}

void Iq1S(const Points& p, const std::byte* b, LowBitBlock* out) {
  const float d = Half(b) * 0.125f;
  for (size_t sub = 0; sub < 8; ++sub) {
    const unsigned high = LoadUnaligned<uint16_t>(b + 34 + 2 * sub);
    std::fill_n(out->scale + 2 * sub, 2, d * static_cast<float>(2 * (high >> 12 & 7) + 1));
    for (unsigned l = 0; l < 4; ++l)
      out->q[4 * sub + l] = Point1(p, U8(b + 2 + 4 * sub + l) | (high >> (3 * l) & 7) << 8, (high & 0x8000) != 0);
  }
}

void Iq1M(const Points& p, const std::byte* b, LowBitBlock* out) {
  const std::byte* scales = b + 48;
  unsigned bits = 0;  // the scale of the block is spread over the top nibbles of four words
  for (unsigned i = 0; i < 4; ++i) bits |= (LoadUnaligned<uint16_t>(scales + 2 * i) >> 12 & 15u) << (4 * i);
  const float d = HalfToFloat(static_cast<uint16_t>(bits)) * 0.125f;
  for (size_t sub = 0; sub < 8; ++sub) {
    const unsigned word = LoadUnaligned<uint16_t>(scales + sub / 2 * 2) >> (sub % 2 * 6);
    for (unsigned half = 0; half < 2; ++half)
      out->scale[2 * sub + half] = d * static_cast<float>(2 * (word >> (3 * half) & 7) + 1);
    for (unsigned l = 0; l < 4; ++l) {
      const unsigned high = U8(b + 32 + 2 * sub + l / 2) >> (l % 2 * 4);
      out->q[4 * sub + l] = Point1(p, U8(b + 4 * sub + l) | (high & 7) << 8, (high & 8) != 0);
    }
  }
}

using Expand = void (*)(const Points& points, const std::byte* block, LowBitBlock* out);

// nullptr for any other type.
Expand ExpandOf(DType type) {
  switch (type) {
    case DType::kIQ2_XXS: return Iq2Xxs;
    case DType::kIQ2_XS: return Iq2Xs;
    case DType::kIQ2_S: return Iq2S;
    case DType::kIQ3_XXS: return Iq3Xxs;
    case DType::kIQ3_S: return Iq3S;
    case DType::kIQ1_S: return Iq1S;
    case DType::kIQ1_M: return Iq1M;
    case DType::kTQ1_0: return Ternary1;
    case DType::kTQ2_0: return Ternary2;
    default: return nullptr;
  }
}

}  // namespace

bool IsLowBit(DType type) { return ExpandOf(type) != nullptr; }

void ExpandLowBit(DType type, const std::byte* b, LowBitBlock* out) { ExpandOf(type)(ThePoints(), b, out); }

void DequantizeLowBitBlock(DType type, const std::byte* block, float* out) {
  LowBitBlock expanded;
  ExpandLowBit(type, block, &expanded);
  for (size_t i = 0; i < 256; ++i) {
    out[i] =
        expanded.scale[i / 16] * static_cast<float>(static_cast<int>(expanded.q[i / 8] >> (i % 8 * 8) & 255) - 128);
  }
}

}  // namespace gyre
