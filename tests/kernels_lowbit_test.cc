// Types with few bits per weight against an independent implementation, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "kernels/ops.h"
#include "kernels/quant.h"
#include "tests/testing/lowbit_blocks.h"
#include "tests/testing/products.h"

namespace gyre {
namespace {

TEST(LowBitTest, EveryTypeGivesTheKnownValues) {
  size_t types = 0;
  std::string last;
  for (const testing::LowBitBlock& block : testing::kLowBitBlocks) {
    const DTypeInfo* info = FindDType(block.type);
    ASSERT_NE(info, nullptr) << block.type;
    ASSERT_TRUE(info->dequantizes) << block.type;
    types += last != block.type;
    last = block.type;
    std::vector<std::byte> bytes;
    for (const char* p = block.bytes; *p != 0; p += 2) {
      bytes.push_back(static_cast<std::byte>(std::strtoul(std::string(p, 2).c_str(), nullptr, 16)));
    }
    ASSERT_EQ(bytes.size(), info->block_bytes) << block.type;
    std::vector<float> values(info->block_elems);
    Dequantize(info->type, bytes.data(), values.data(), values.size());
    for (size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(values[7 * i], block.values[i]) << block.type << " " << 7 * i;
    for (float& v : values) v += 0.0f;  // turns -0 into 0
    EXPECT_EQ(Crc32c(std::as_bytes(std::span(values))), block.crc32c) << block.type;
    // A flipped bit must be noticed.
    bytes[bytes.size() / 2] ^= std::byte{1};
    std::vector<float> other(values.size());
    Dequantize(info->type, bytes.data(), other.data(), other.size());
    EXPECT_NE(values, other) << block.type;
  }
  EXPECT_EQ(types, 14u);
}

// The formats' definitions, computed in double.
double E4m3(unsigned byte) {
  const int exponent = static_cast<int>(byte >> 3 & 15), mantissa = static_cast<int>(byte & 7);
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}
double E2m1(unsigned code) {
  constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
}

std::vector<float> Values(DType type, const std::vector<uint8_t>& block) {
  EXPECT_EQ(block.size(), Info(type).block_bytes);
  std::vector<float> out(Info(type).block_elems);
  Dequantize(type, std::as_bytes(std::span(block)).data(), out.data(), out.size());
  return out;
}
std::vector<uint8_t> RandomBlock(DType type, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> block(Info(type).block_bytes);
  for (uint8_t& b : block) b = static_cast<uint8_t>(random());
  return block;
}

TEST(LowBitTest, Nvfp4IsScalesOfE4m3AndSixteenCodesEach) {
  EXPECT_EQ(static_cast<uint32_t>(DType::kNVFP4), 40u);
  std::vector<uint8_t> block = RandomBlock(DType::kNVFP4, 1);
  const uint8_t scales[] = {0x38, 0x03, 0x7E, 0x7F};  // 1, a subnormal number, the largest one, none
  std::copy_n(scales, 4, block.begin());
  const std::vector<float> values = Values(DType::kNVFP4, block);
  for (size_t s = 0; s < 4; ++s) {
    const double scale = scales[s] == 0x7F ? 0 : E4m3(scales[s]);
    for (size_t j = 0; j < 8; ++j) {
      const unsigned byte = block[4 + 8 * s + j];
      EXPECT_EQ(values[16 * s + j], scale * E2m1(byte & 15)) << s << " " << j;
      EXPECT_EQ(values[16 * s + j + 8], scale * E2m1(byte >> 4)) << s << " " << j;
    }
  }
}

TEST(LowBitTest, Q1IsSignsAndQ2IsFourLevels) {
  EXPECT_EQ(static_cast<uint32_t>(DType::kQ1_0), 41u);
  EXPECT_EQ(static_cast<uint32_t>(DType::kQ2_0), 42u);
  for (const DType type : {DType::kQ1_0, DType::kQ2_0}) {
    std::vector<uint8_t> block = RandomBlock(type, 2);
    block[0] = 0x00, block[1] = 0x3E;  // 1.5
    const std::vector<float> values = Values(type, block);
    for (size_t j = 0; j < values.size(); ++j) {
      const double expected = type == DType::kQ1_0 ? ((block[2 + j / 8] >> j % 8 & 1) != 0 ? 1.5 : -1.5)
                                                   : 1.5 * ((block[2 + j / 4] >> j % 4 * 2 & 3) - 1);
      EXPECT_EQ(values[j], expected) << Info(type).name << " " << j;
    }
  }
}

// Packing rearranges codes; the memory that a model takes is that of its file.
TEST(LowBitTest, PackedWeightsTakeAtMostATwentiethMoreThanTheFile) {
  auto backend = MakeBackend(DetectIsa(), 1);
  for (const DType type :
       {DType::kIQ1_S, DType::kIQ1_M, DType::kIQ2_XXS, DType::kIQ2_XS, DType::kIQ2_S, DType::kIQ3_XXS, DType::kIQ3_S,
        DType::kTQ1_0, DType::kTQ2_0, DType::kQ2_K, DType::kMXFP4, DType::kNVFP4, DType::kQ1_0, DType::kQ2_0}) {
    const testing::Weights w = testing::MakeWeights(type, 64, 2048, 3);
    const auto packed = backend->Pack(w.view);
    EXPECT_FALSE(packed->in_place) << Info(type).name;
    EXPECT_LE(static_cast<double>(packed->bytes), 1.05 * static_cast<double>(w.bytes.size())) << Info(type).name;
  }
}

}  // namespace
}  // namespace gyre
