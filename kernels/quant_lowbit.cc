#include "kernels/quant_lowbit.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/codebooks.h"
#include "kernels/unaligned.h"

namespace gyre {
namespace {

unsigned U8(const std::byte* p) { return static_cast<uint8_t>(*p); }

constexpr uint64_t kOnes = 0x0101010101010101;
// Applies signs to coordinates of 1 to 127 and adds 128. The negative of a byte is its complement plus 1, which carries
// only out of 0.
uint64_t Signed(uint64_t point, uint64_t negative) { return ((point ^ negative) + (negative & kOnes)) ^ 0x80 * kOnes; }

void Nibbles2(unsigned byte, uint8_t* scale) {
  scale[0] = byte & 15;
  scale[1] = static_cast<uint8_t>(byte >> 4);
}
// Seven sign bits with the eighth, which makes their number even.
uint8_t EvenSigns(uint32_t bits) {
  bits &= 127;
  return static_cast<uint8_t>(bits | static_cast<unsigned>(std::popcount(bits) & 1) << 7);
}

void Iq2Xxs(const std::byte* b, BookBlock* out) {
  out->d = LoadUnaligned<uint16_t>(b);
  for (size_t sub = 0; sub < 8; ++sub) {
    const std::byte* q = b + 2 + 8 * sub;
    const auto rest = LoadUnaligned<uint32_t>(q + 4);
    Nibbles2((rest >> 28) * 17, out->scale + 2 * sub);
    for (unsigned l = 0; l < 4; ++l) {
      out->index[4 * sub + l] = static_cast<uint16_t>(U8(q + l));
      out->sign[4 * sub + l] = EvenSigns(rest >> (7 * l));
    }
  }
}

void Iq2Xs(const std::byte* b, BookBlock* out) {
  out->d = LoadUnaligned<uint16_t>(b);
  for (size_t sub = 0; sub < 8; ++sub) {
    Nibbles2(U8(b + 66 + sub), out->scale + 2 * sub);
    for (unsigned l = 0; l < 4; ++l) {
      const unsigned q = LoadUnaligned<uint16_t>(b + 2 + 8 * sub + 2 * l);
      out->index[4 * sub + l] = q & 511;
      out->sign[4 * sub + l] = EvenSigns(q >> 9);
    }
  }
}

void Iq2S(const std::byte* b, BookBlock* out) {
  out->d = LoadUnaligned<uint16_t>(b);
  for (size_t sub = 0; sub < 8; ++sub) {
    const unsigned high = U8(b + 66 + sub);
    Nibbles2(U8(b + 74 + sub), out->scale + 2 * sub);
    for (unsigned l = 0; l < 4; ++l) {
      out->index[4 * sub + l] = static_cast<uint16_t>(U8(b + 2 + 4 * sub + l) | (high >> (2 * l) & 3) << 8);
      out->sign[4 * sub + l] = static_cast<uint8_t>(U8(b + 34 + 4 * sub + l));
    }
  }
}

void Iq3Xxs(const std::byte* b, BookBlock* out) {
  out->d = LoadUnaligned<uint16_t>(b);
  for (size_t sub = 0; sub < 8; ++sub) {
    const auto rest = LoadUnaligned<uint32_t>(b + 66 + 4 * sub);
    Nibbles2((rest >> 28) * 17, out->scale + 2 * sub);
    for (unsigned l = 0; l < 8; ++l) out->index[8 * sub + l] = static_cast<uint16_t>(U8(b + 2 + 8 * sub + l));
    for (unsigned l = 0; l < 4; ++l) out->sign[4 * sub + l] = EvenSigns(rest >> (7 * l));
  }
}

void Iq3S(const std::byte* b, BookBlock* out) {
  out->d = LoadUnaligned<uint16_t>(b);
  for (size_t sub = 0; sub < 8; ++sub) {
    const unsigned high = U8(b + 66 + sub);
    Nibbles2((U8(b + 106 + sub / 2) >> (sub % 2 * 4) & 15) * 17, out->scale + 2 * sub);
    for (unsigned l = 0; l < 8; ++l)
      out->index[8 * sub + l] = static_cast<uint16_t>(U8(b + 2 + 8 * sub + l) | (high >> l & 1) << 8);
    for (unsigned l = 0; l < 4; ++l) out->sign[4 * sub + l] = static_cast<uint8_t>(U8(b + 74 + 4 * sub + l));
  }
}

void Iq1S(const std::byte* b, BookBlock* out) {
  out->d = LoadUnaligned<uint16_t>(b);
  for (size_t sub = 0; sub < 8; ++sub) {
    const unsigned high = LoadUnaligned<uint16_t>(b + 34 + 2 * sub);
    Nibbles2((high >> 12 & 7) * 17, out->scale + 2 * sub);
    for (unsigned l = 0; l < 4; ++l) {
      out->index[4 * sub + l] = static_cast<uint16_t>(U8(b + 2 + 4 * sub + l) | (high >> (3 * l) & 7) << 8);
      out->sign[4 * sub + l] = static_cast<uint8_t>(high >> 15);
    }
  }
}

void Iq1M(const std::byte* b, BookBlock* out) {
  const std::byte* scales = b + 48;
  unsigned bits = 0;  // the scale of the block is spread over the top nibbles of four words
  for (unsigned i = 0; i < 4; ++i) bits |= (LoadUnaligned<uint16_t>(scales + 2 * i) >> 12 & 15u) << (4 * i);
  out->d = static_cast<uint16_t>(bits);
  for (size_t sub = 0; sub < 8; ++sub) {
    const unsigned word = LoadUnaligned<uint16_t>(scales + sub / 2 * 2) >> (sub % 2 * 6);
    Nibbles2((word & 7) | (word >> 3 & 7) << 4, out->scale + 2 * sub);
    for (unsigned l = 0; l < 4; ++l) {
      const unsigned high = U8(b + 32 + 2 * sub + l / 2) >> (l % 2 * 4);
      out->index[4 * sub + l] = static_cast<uint16_t>(U8(b + 4 * sub + l) | (high & 7) << 8);
      out->sign[4 * sub + l] = high >> 3 & 1;
    }
  }
}

// A codebook type: the layout of its block, and what its scales are multiplied by beside d.
struct Book {
  void (*unpack)(const std::byte* block, BookBlock* out) = nullptr;
  float unit = 0;
};
Book BookOf(DType type) {
  switch (type) {
    case DType::kIQ2_XXS: return {Iq2Xxs, 0.125f};
    case DType::kIQ2_XS: return {Iq2Xs, 0.125f};
    case DType::kIQ2_S: return {Iq2S, 0.125f};
    case DType::kIQ3_XXS: return {Iq3Xxs, 0.25f};
    case DType::kIQ3_S: return {Iq3S, 1};
    case DType::kIQ1_S: return {Iq1S, 0.125f};
    case DType::kIQ1_M: return {Iq1M, 0.125f};
    default: return {};
  }
}

// The eight weights l of a block, as whole numbers with 128 added.
uint64_t Weights8(DType type, const BookBlock& b, size_t l) {
  const BookPoints& p = ThePoints();
  const auto four = [&](const uint32_t* points) {
    return points[b.index[2 * l]] | uint64_t{points[b.index[2 * l + 1]]} << 32;
  };
  switch (type) {
    case DType::kIQ2_XXS: return Signed(p.iq2_xxs[b.index[l]], p.negative[b.sign[l]]);
    case DType::kIQ2_XS: return Signed(p.iq2_xs[b.index[l]], p.negative[b.sign[l]]);
    case DType::kIQ2_S: return Signed(p.iq2_s[b.index[l]], p.negative[b.sign[l]]);
    case DType::kIQ3_XXS: return Signed(four(p.iq3_xxs), p.negative[b.sign[l]]);
    case DType::kIQ3_S: return Signed(four(p.iq3_s), p.negative[b.sign[l]]);
    // shifted up or down by an eighth of the scale
    default: return b.sign[l] != 0 ? p.iq1[b.index[l]] - kOnes : p.iq1[b.index[l]] + kOnes;
  }
}

}  // namespace

BookPoints::BookPoints() {
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
}

const BookPoints& ThePoints() {
  static const BookPoints kPoints;
  return kPoints;
}

bool IsLowBit(DType type) { return BookOf(type).unpack != nullptr; }

void UnpackBook(DType type, const std::byte* block, BookBlock* out) { BookOf(type).unpack(block, out); }

void DequantizeLowBitBlock(DType type, const std::byte* block, float* out) {
  BookBlock b;
  UnpackBook(type, block, &b);
  const float d = HalfToFloat(b.d) * BookOf(type).unit;
  for (size_t l = 0; l < 32; ++l) {
    const uint64_t eight = Weights8(type, b, l);
    const float scale = d * static_cast<float>(2 * b.scale[l / 2] + 1);
    for (size_t i = 0; i < 8; ++i)
      out[8 * l + i] = scale * static_cast<float>(static_cast<int>(eight >> 8 * i & 255) - 128);
  }
}

}  // namespace gyre
