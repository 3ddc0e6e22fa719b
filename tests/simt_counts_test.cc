// The emulator's counts of sectors and bank conflicts, and its matrix instructions.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/quant.h"
#include "tests/testing/gpu_memory.h"
#include "tests/testing/simt/planted.h"

namespace gyre::simt {
namespace {

using testing::GpuVector;

class SimtCounts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kChecked) GTEST_SKIP() << "accesses are seen only where they are checked";
  }
};

TEST_F(SimtCounts, SectorsOfAWarp) {
  const GpuVector<float> x(std::vector<float>(2048, 1.0f));
  GpuVector<float> out(32);
  const auto loads = [&](int stride) {
    const Count count;
    ReadStrided(x.data(), out.data(), stride);
    EXPECT_EQ(count.counts().stores.requests, 1u);
    EXPECT_EQ(count.counts().stores.units, 4u);
    return count.counts().loads;
  };
  EXPECT_EQ(loads(1).units, 4u);
  EXPECT_EQ(loads(1).least, 4u);
  EXPECT_EQ(loads(2).units, 8u);
  EXPECT_EQ(loads(8).units, 32u);
  EXPECT_EQ(loads(8).excess(), 8);
  EXPECT_EQ(loads(0).units, 1u) << "one word for all lanes";
  EXPECT_EQ(loads(0).least, 1u);
}

TEST_F(SimtCounts, BanksOfSharedMemory) {
  GpuVector<float> out(32);
  // The kernel also fills the memory, without conflicts.
  const auto passes = [&](int stride) {
    const Count count;
    ReadSharedStrided(out.data(), stride);
    return count.counts().shared.units - 33;
  };
  EXPECT_EQ(passes(1), 1u);
  EXPECT_EQ(passes(2), 2u);
  EXPECT_EQ(passes(32), 32u);
  EXPECT_EQ(passes(33), 1u) << "rows that are padded by a word";
  EXPECT_EQ(passes(0), 1u) << "one word for all lanes";
}

TEST_F(SimtCounts, TheWorstLineOfSource) {
  const GpuVector<float> x(std::vector<float>(2048, 1.0f));
  GpuVector<float> out(32);
  const Count count;
  ReadStrided(x.data(), out.data(), 8);
  EXPECT_THAT(count.Worst(3), ::testing::MatchesRegex("planted.cu:[0-9]+: loads from global memory, 32.00 sectors a "
                                                      "request, 4.00 needed\n"));
}

TEST(SimtMatrix, ProductsOfEveryElementMatchDouble) {
  std::mt19937 random(5);
  for (const Element element : {Element::kBf16, Element::kF16, Element::kInt8, Element::kFp8}) {
    const bool two_bytes = element == Element::kBf16 || element == Element::kF16;
    const size_t depth = two_bytes ? 16 : 32;
    const auto make = [&](size_t n, std::vector<uint8_t>* bytes) {
      std::vector<double> values;
      bytes->resize(n * 32 / depth);
      for (size_t i = 0; i < n; ++i) {
        const float v = std::normal_distribution<float>()(random);
        const auto code = static_cast<uint8_t>(random() % 256);
        const uint16_t half = element == Element::kBf16 ? FloatToBf16(v) : FloatToHalf(v);
        if (two_bytes) std::memcpy(&(*bytes)[2 * i], &half, 2);
        // 0x7F and 0xFF are no numbers.
        if (!two_bytes) (*bytes)[i] = element == Element::kFp8 && (code & 127) == 127 ? uint8_t{0x38} : code;
        values.push_back(element == Element::kBf16  ? static_cast<double>(Bf16ToFloat(half))
                         : element == Element::kF16 ? static_cast<double>(HalfToFloat(half))
                         : element == Element::kFp8 ? static_cast<double>(Fp8ToFloat((*bytes)[i]))
                                                    : static_cast<double>(static_cast<int8_t>((*bytes)[i])));
      }
      return values;
    };
    std::vector<uint8_t> a_bytes, b_bytes;
    const auto a = make(16 * depth, &a_bytes), b = make(8 * depth, &b_bytes);
    const GpuVector<uint8_t> on_a(a_bytes), on_b(b_bytes);
    const auto error = [&](Mistake mistake) {
      GpuVector<uint32_t> c(128);
      MultiplyTile(mistake, element, on_a.data(), on_b.data(), c.data());
      const auto got = c.host();
      double off = 0, all = 0;
      for (size_t i = 0; i < 16; ++i) {
        for (size_t j = 0; j < 8; ++j) {
          double want = 0;
          for (size_t k = 0; k < depth; ++k) want += a[i * depth + k] * b[j * depth + k];
          const double sum = element == Element::kInt8 ? static_cast<double>(static_cast<int32_t>(got[i * 8 + j]))
                                                       : static_cast<double>(std::bit_cast<float>(got[i * 8 + j]));
          off += (sum - want) * (sum - want);
          all += want * want;
        }
      }
      return std::sqrt(off / all);
    };
    EXPECT_LT(error(Mistake::kNone), element == Element::kInt8 ? 1e-30 : 1e-6);
    EXPECT_GT(error(Mistake::kSwapped), 0.1) << "a test that sees exchanged halves of a fragment";
  }
}

TEST(SimtMatrix, ATileIsTransposedOnItsWay) {
  std::vector<uint16_t> x(256);
  std::iota(x.begin(), x.end(), uint16_t{0});
  const GpuVector<uint16_t> in(x);
  GpuVector<uint16_t> out(256);
  TransposeTile(in.data(), out.data());
  const auto got = out.host();
  for (size_t i = 0; i < 16; ++i) {
    for (size_t j = 0; j < 16; ++j) ASSERT_EQ(got[i * 16 + j], x[j * 16 + i]) << i << " " << j;
  }
}

}  // namespace
}  // namespace gyre::simt
