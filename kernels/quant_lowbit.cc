#include "kernels/quant_lowbit.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/codebooks.h"

namespace gyre {
namespace {

using namespace codebooks;

template <typename T>
T Load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
unsigned U8(const std::byte* p) {
  return static_cast<uint8_t>(*p);
}
float Half(const std::byte* p) {
  return HalfToFloat(Load<uint16_t>(p));
}
float F(unsigned v) {
  return static_cast<float>(v);
}
float F(int v) {
  return static_cast<float>(v);
}

constexpr float kTwoBit[4] = {8, 25, 43, 0};
constexpr float kThreeBit[8] = {4, 12, 20, 28, 36, 44, 52, 62};

// Seven sign bits; the eighth makes their number even.
unsigned EvenSigns(unsigned seven) {
  return seven | (static_cast<unsigned>(std::popcount(seven) & 1) << 7);
}

float Signed(float v, unsigned signs, unsigned i) {
  return (signs >> i & 1) != 0 ? -v : v;
}

// Eight weights of an IQ2 point.
void Point2(uint16_t point, unsigned signs, float scale, float* y) {
  for (unsigned i = 0; i < 8; ++i) y[i] = Signed(scale * kTwoBit[point >> (2 * i) & 3], signs, i);
}

// d[2], then 64 bytes in which 4 weights share a byte, 32 apart.
void Ternary2(const std::byte* b, float* y) {
  const float d = Half(b + 64);
  for (size_t half = 0; half < 2; ++half) {
    for (unsigned l = 0; l < 4; ++l) {
      for (size_t m = 0; m < 32; ++m) *y++ = d * F(static_cast<int>(U8(b + half * 32 + m) >> (2 * l) & 3) - 1);
    }
  }
}

// Five ternary digits a byte, read as the top of byte * 3^n.
void Ternary1(const std::byte* b, float* y) {
  const float d = Half(b + 52);
  auto run = [&](const std::byte* q, size_t bytes, unsigned digits) {
    unsigned power = 1;
    for (unsigned n = 0; n < digits; ++n, power *= 3) {
      for (size_t m = 0; m < bytes; ++m) {
        const unsigned digit = ((U8(q + m) * power & 255u) * 3) >> 8;
        *y++ = d * F(static_cast<int>(digit) - 1);
      }
    }
  };
  run(b, 32, 5);
  run(b + 32, 16, 5);
  run(b + 48, 4, 4);
}

void Iq2Xxs(const std::byte* b, float* y) {
  const float d = Half(b);
  for (size_t sub = 0; sub < 8; ++sub, y += 32) {
    const std::byte* q = b + 2 + 8 * sub;
    const auto rest = Load<uint32_t>(q + 4);
    const float scale = d * (0.5f + F(rest >> 28)) * 0.25f;
    for (unsigned l = 0; l < 4; ++l) Point2(kIq2Xxs[U8(q + l)], EvenSigns(rest >> (7 * l) & 127), scale, y + 8 * l);
  }
}

void Iq2Xs(const std::byte* b, float* y) {
  const float d = Half(b);
  for (size_t sub = 0; sub < 8; ++sub, y += 32) {
    const unsigned scales = U8(b + 66 + sub);
    for (unsigned l = 0; l < 4; ++l) {
      const unsigned q = Load<uint16_t>(b + 2 + 8 * sub + 2 * l);
      Point2(kIq2Xs[q & 511], EvenSigns(q >> 9), d * (0.5f + F(scales >> (l / 2 * 4) & 15)) * 0.25f, y + 8 * l);
    }
  }
}

void Iq2S(const std::byte* b, float* y) {
  const float d = Half(b);
  for (size_t sub = 0; sub < 8; ++sub, y += 32) {
    const unsigned scales = U8(b + 74 + sub), high = U8(b + 66 + sub);
    for (unsigned l = 0; l < 4; ++l) {
      const unsigned index = U8(b + 2 + 4 * sub + l) | (high >> (2 * l) & 3) << 8;
      Point2(kIq2S[index], U8(b + 34 + 4 * sub + l), d * (0.5f + F(scales >> (l / 2 * 4) & 15)) * 0.25f, y + 8 * l);
    }
  }
}

void Iq3Xxs(const std::byte* b, float* y) {
  const float d = Half(b);
  for (size_t sub = 0; sub < 8; ++sub, y += 32) {
    const auto rest = Load<uint32_t>(b + 66 + 4 * sub);
    const float scale = d * (0.5f + F(rest >> 28)) * 0.5f;
    for (unsigned i = 0; i < 32; ++i) {
      const unsigned point = kIq3Xxs[U8(b + 2 + 8 * sub + i / 4)];
      y[i] = Signed(scale * kThreeBit[point >> (i % 4 * 3) & 7], EvenSigns(rest >> (i / 8 * 7) & 127), i % 8);
    }
  }
}

void Iq3S(const std::byte* b, float* y) {
  const float d = Half(b);
  for (size_t sub = 0; sub < 8; ++sub, y += 32) {
    const float scale = d * F(1 + 2 * (U8(b + 106 + sub / 2) >> (sub % 2 * 4) & 15));
    const unsigned high = U8(b + 66 + sub);
    for (unsigned i = 0; i < 32; ++i) {
      const unsigned point = kIq3S[U8(b + 2 + 8 * sub + i / 4) | (high >> (i / 4) & 1) << 8];
      y[i] = Signed(scale * F(2 * (point >> (i % 4 * 3) & 7) + 1), U8(b + 74 + 4 * sub + i / 8), i % 8);
    }
  }
}

// Eight weights of an IQ1 point, all moved by an eighth of the scale.
void Point1(unsigned index, bool down, float scale, float* y) {
  const float delta = down ? -0.125f : 0.125f;
  for (unsigned i = 0; i < 8; ++i) y[i] = scale * (F(static_cast<int>(kIq1S[index] >> (2 * i) & 3) - 1) + delta);
}

void Iq1S(const std::byte* b, float* y) {
  const float d = Half(b);
  for (size_t sub = 0; sub < 8; ++sub, y += 32) {
    const unsigned high = Load<uint16_t>(b + 34 + 2 * sub);
    const float scale = d * F(2 * (high >> 12 & 7) + 1);
    for (unsigned l = 0; l < 4; ++l) {
      Point1(U8(b + 2 + 4 * sub + l) | (high >> (3 * l) & 7) << 8, (high & 0x8000) != 0, scale, y + 8 * l);
    }
  }
}

void Iq1M(const std::byte* b, float* y) {
  const std::byte* scales = b + 48;
  unsigned bits = 0;  // the block's scale lies in the top nibbles of four words
  for (unsigned i = 0; i < 4; ++i) bits |= (Load<uint16_t>(scales + 2 * i) >> 12 & 15u) << (4 * i);
  const float d = HalfToFloat(static_cast<uint16_t>(bits));
  for (size_t sub = 0; sub < 8; ++sub, y += 32) {
    const unsigned word = Load<uint16_t>(scales + sub / 2 * 2) >> (sub % 2 * 6);
    for (unsigned l = 0; l < 4; ++l) {
      const unsigned high = U8(b + 32 + 2 * sub + l / 2) >> (l % 2 * 4);
      const float scale = d * F(2 * (word >> (l / 2 * 3) & 7) + 1);
      Point1(U8(b + 4 * sub + l) | (high & 7) << 8, (high & 8) != 0, scale, y + 8 * l);
    }
  }
}

}  // namespace

bool DequantizeLowBitBlock(DType type, const std::byte* b, float* y) {
  switch (type) {
    case DType::kIQ2_XXS:
      Iq2Xxs(b, y);
      return true;
    case DType::kIQ2_XS:
      Iq2Xs(b, y);
      return true;
    case DType::kIQ2_S:
      Iq2S(b, y);
      return true;
    case DType::kIQ3_XXS:
      Iq3Xxs(b, y);
      return true;
    case DType::kIQ3_S:
      Iq3S(b, y);
      return true;
    case DType::kIQ1_S:
      Iq1S(b, y);
      return true;
    case DType::kIQ1_M:
      Iq1M(b, y);
      return true;
    case DType::kTQ1_0:
      Ternary1(b, y);
      return true;
    case DType::kTQ2_0:
      Ternary2(b, y);
      return true;
    default:
      return false;
  }
}

}  // namespace gyre
