// Types with few bits per weight against an independent implementation, bit for bit.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "kernels/quant.h"
#include "tests/testing/lowbit_blocks.h"

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

}  // namespace
}  // namespace gyre
