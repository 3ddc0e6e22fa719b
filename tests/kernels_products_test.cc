// Products of every instruction set against the reference and against each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/ops.h"
#include "tests/testing/kernel_test.h"
#include "tests/testing/products.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using testing::IsInteger;
using testing::kArithmetics;
using testing::kTypes;
using testing::MakeWeights;
using testing::Random;
using testing::RandomCodes;
using testing::Rounded;
using testing::Weights;

class Products : public testing::KernelTest {
 protected:
  // Each sum may differ by at most eps * k * sum of |products|.
  // `flip`: a byte of W of which a bit is flipped, so that the test has to notice it.
  void ExpectProducts(DType type, size_t rows, size_t n, size_t k, bool exact, int flip = -1) {
    Weights w = MakeWeights(type, n, k, static_cast<uint32_t>(n * 31 + k));
    const std::vector<float> x = Random(rows * k + 1, 5);
    // One element off alignment.
    const std::vector<float> used(x.begin() + 1, x.end());
    const std::vector<float> seen = IsInteger(type) && !exact ? Rounded(used) : used;
    std::vector<float> expected(rows * n), got(rows * n + 1, NAN);
    ref_->MatMul(seen.data(), rows, *ref_->Pack(w.view), expected.data());
    if (flip >= 0) w.bytes[static_cast<size_t>(flip)] ^= std::byte{0x40};
    fast_->MatMul(x.data() + 1, rows, *fast_->Pack(w.view), got.data() + 1,
                  exact ? Arithmetic::kExact : Arithmetic::kDecode);
    if (flip >= 0) w.bytes[static_cast<size_t>(flip)] ^= std::byte{0x40};
    std::vector<float> wide(k);
    size_t wrong = 0;
    for (size_t c = 0; c < n; ++c) {
      DequantizeRow(w.view, c, wide.data());
      for (size_t r = 0; r < rows; ++r) {
        double norm = 0;
        for (size_t i = 0; i < k; ++i)
          norm += std::fabs(static_cast<double>(seen[r * k + i]) * static_cast<double>(wide[i]));
        const double bound = 6e-8 * (4 + static_cast<double>(k) / 8) * norm + 1e-30;
        const double error =
            std::fabs(static_cast<double>(got[1 + r * n + c]) - static_cast<double>(expected[r * n + c]));
        if (!(error <= bound)) ++wrong;
      }
    }
    if (flip < 0) {
      EXPECT_EQ(wrong, 0u) << Info(type).name << " rows " << rows << " n " << n << " k " << k << " exact " << exact;
    } else {
      EXPECT_GT(wrong, 0u) << "a flipped bit went unnoticed";
    }
  }

  void ExpectPrefillProducts(DType type, size_t rows, size_t n, size_t k, int flip = -1) {
    Weights w = MakeWeights(type, n, k, static_cast<uint32_t>(n * 31 + k));
    const std::vector<float> x = Random(rows * k, 5);
    std::vector<float> expected(rows * n), got(rows * n, NAN);
    if (fast_->prefill_matches_decode()) {
      fast_->MatMul(x.data(), rows, *fast_->Pack(w.view), expected.data(), Arithmetic::kDecode);
      fast_->MatMul(x.data(), rows, *fast_->Pack(w.view), got.data(), Arithmetic::kPrefill);
      EXPECT_EQ(expected, got) << Info(type).name;
      return;
    }
    auto round = [](std::vector<float>* v) {
      for (float& f : *v) f = Bf16ToFloat(FloatToBf16(f));
    };
    std::vector<float> seen = x, wide(n * k);
    Dequantize(type, w.bytes.data(), wide.data(), n * k);
    round(&seen);
    if (type != DType::kF16 && type != DType::kF32)
      round(&wide);  // f16 and f32 become sums of two bf16 with at least 16 bits
    for (float& f : wide) f *= WholeScale(w.view);
    const WeightView rounded{
        .type = DType::kF32, .n = n, .k = k, .data = reinterpret_cast<const std::byte*>(wide.data())};
    ref_->MatMul(seen.data(), rows, *ref_->Pack(rounded), expected.data());
    if (flip >= 0) w.bytes[static_cast<size_t>(flip)] ^= std::byte{0x40};
    fast_->MatMul(x.data(), rows, *fast_->Pack(w.view), got.data(), Arithmetic::kPrefill);
    size_t wrong = 0;
    for (size_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < n; ++c) {
        double norm = 0, largest = 0;
        for (size_t i = 0; i < k; ++i) {
          const double product = std::fabs(static_cast<double>(seen[r * k + i]) * static_cast<double>(wide[c * k + i]));
          norm += product;
          largest = std::max(largest, product);
        }
        // A weight is scaled before it is rounded: two of them may be rounded to the other side of a tie.
        const double bound = (6e-8 * (4 + static_cast<double>(k) / 8) + (type == DType::kF32 ? 1e-5 : 0)) * norm +
                             (IsInteger(type) ? largest / 128 : 1e-30);
        const double error = std::fabs(static_cast<double>(got[r * n + c]) - static_cast<double>(expected[r * n + c]));
        if (!(error <= bound)) ++wrong;
      }
    }
    if (flip < 0) {
      EXPECT_EQ(wrong, 0u) << Info(type).name << " rows " << rows << " n " << n << " k " << k;
    } else {
      EXPECT_GT(wrong, 0u) << "a flipped bit of " << Info(type).name << " went unnoticed";
    }
  }
};

TEST_P(Products, ProductsMatchTheReference) {
  for (DType type : testing::Grid(kTypes)) {
    const size_t block = Info(type).block_elems;
    for (size_t k : testing::Grid({block, 2 * block, 3 * block, size_t{96}, size_t{2048}})) {
      if (k % block != 0) continue;
      if (testing::kSanitized && k == 2048) continue;  // runs the same loops, only longer
      for (size_t n : {1u, 7u, 16u, 33u, 65u}) {
        if (testing::kSanitized && (n == 1 || n == 16)) continue;
        for (size_t rows : {1u, 2u, 3u, 4u, 9u, 17u}) {
          if (!testing::kSanitized || rows == 1 || rows == 3 || rows == 17) ExpectProducts(type, rows, n, k, false);
        }
      }
      ExpectProducts(type, 5, 19, k, true);
    }
  }
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (size_t k : {3u, 8u, 15u, 17u, 31u, 43u, 172u}) ExpectProducts(type, 6, 21, k, false);
  }
}

TEST_P(Products, AFlippedBitIsCaught) {
  for (DType type : kTypes) ExpectProducts(type, 2, 17, std::max<size_t>(64, Info(type).block_elems), false, 5);
}

// Tiles round both factors to bf16; without tiles prefill has the bits of decode.
TEST_P(Products, PrefillProductsMatchTheReference) {
  for (DType type : testing::Grid(kTypes)) {
    const size_t block = Info(type).block_elems;
    // More than a segment of k, a slice of columns and a block of rows (with sanitizers only the segment).
    ExpectPrefillProducts(type, testing::kSanitized ? 17 : 290, testing::kSanitized ? 33 : 70,
                          block == 1 ? 2093 : 2304);
    for (size_t k : {block, size_t{96}}) {
      for (size_t n : {1u, 16u, 33u}) {
        if (testing::kSanitized && n != 33) continue;
        for (size_t rows : {1u, 16u, 17u, 33u}) {
          if (k % block == 0 && (!fast_->prefill_matches_decode() || n == 33)) ExpectPrefillProducts(type, rows, n, k);
        }
      }
    }
    ExpectPrefillProducts(type, 2, 17, std::max<size_t>(64, block), 7);
  }
}

TEST_P(Products, SeveralProductsAtOnceAreThoseOfEach) {
  const size_t k = 512, rows = 70;
  const std::vector<float> x = Random(rows * k, 12);
  std::vector<std::shared_ptr<const PackedWeight>> packed;
  std::vector<Weights> weights;
  for (const auto& [type, n] : {std::pair(DType::kQ4_K, 40),
                                {DType::kQ4_K, 24},
                                {DType::kQ6_K, 24},
                                {DType::kQ2_K, 33},
                                {DType::kIQ4_NL, 24},
                                {DType::kQ8_0, 17},
                                {DType::kF16, 17},
                                {DType::kIQ2_XS, 20},
                                {DType::kQ4_0, 18}}) {
    weights.push_back(MakeWeights(type, static_cast<size_t>(n), k, 13));
    packed.push_back(fast_->Pack(weights.back().view));
  }
  for (const Arithmetic arithmetic : kArithmetics) {
    std::vector<std::vector<float>> alone, together;  // every other one is added to what is there
    std::vector<Backend::Product> products;
    for (const auto& w : packed) {
      alone.emplace_back(rows * w->n, NAN);
      fast_->MatMul(x.data(), rows, *w, alone.back().data(), arithmetic);
      const bool add = products.size() % 2 == 1;
      together.push_back(add ? Random(rows * w->n, 14) : std::vector<float>(rows * w->n, NAN));
      for (size_t i = 0; add && i < rows * w->n; ++i) alone.back()[i] += together.back()[i];
      products.push_back({*w, together.back().data(), add});
    }
    fast_->MatMul(x.data(), rows, products, arithmetic);
    EXPECT_EQ(alone, together) << static_cast<int>(arithmetic);
  }
}

// With tiles no intermediate result reaches memory, which must not change a bit.
TEST_P(Products, FeedForwardIsItsProductsAndActivation) {
  struct Case {
    DType gate, up, down;
    size_t rows, k, n;  // n: columns of gate and up
  };
  const size_t many = testing::kSanitized ? 37 : 290;  // over a block of rows
  const Case cases[] = {{DType::kQ8_0, DType::kQ8_0, DType::kQ8_0, 33, 64, 96},
                        {DType::kQ4_K, DType::kQ6_K, DType::kF16, many, 2304, 45},
                        {DType::kF16, DType::kIQ2_XS, DType::kQ4_K, 17, 256, 256},
                        {DType::kIQ2_XS, DType::kF32, DType::kBF16, 16, 512, 150},
                        {DType::kQ4_0, DType::kQ8_0, DType::kF32, many, 32, 290},
                        {DType::kBF16, DType::kF16, DType::kF32, 1, 40, 17}};
  const auto threads = MakeBackend(GetParam(), 3);
  for (const Case& c : cases) {
    const std::vector<float> x = Random(c.rows * c.k, 12);
    const size_t columns = 24;
    const Weights gate = MakeWeights(c.gate, c.n, c.k, 1), up = MakeWeights(c.up, c.n, c.k, 2),
                  down = MakeWeights(c.down, columns, c.n, 3);
    const auto g = fast_->Pack(gate.view), u = fast_->Pack(up.view), d = fast_->Pack(down.view);
    for (const Arithmetic arithmetic : kArithmetics) {
      for (const Activation act : {Activation::kSilu, Activation::kGeluTanh, Activation::kClampedSwiglu}) {
        std::vector<float> gates(c.rows * c.n), ups(c.rows * c.n), expected((c.rows + 1) * columns, NAN),
            got = expected;
        fast_->MatMul(x.data(), c.rows, *g, gates.data(), arithmetic);
        fast_->MatMul(x.data(), c.rows, *u, ups.data(), arithmetic);
        fast_->GatedActivation(gates.data(), ups.data(), gates.size(), act, gates.data());
        fast_->MatMul(gates.data(), c.rows, *d, expected.data(), arithmetic);
        const std::vector<float> before = Random(expected.size(), 5);
        std::vector<float> sum = before;
        for (size_t i = 0; i < c.rows * columns; ++i) sum[i] += expected[i];
        for (Backend* backend : {fast_.get(), threads.get()}) {
          std::fill(got.begin(), got.end(), NAN);
          backend->FeedForward(x.data(), c.rows, {*g, *u, *d}, act, arithmetic, got.data());
          EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * 4), 0)
              << Info(c.gate).name << ", arithmetic " << static_cast<int>(arithmetic);
          std::vector<float> added = before;
          backend->FeedForward(x.data(), c.rows, {*g, *u, *d}, act, arithmetic, added.data(), true);
          EXPECT_EQ(added, sum) << Info(c.gate).name << ", arithmetic " << static_cast<int>(arithmetic);
        }
      }
    }
  }
}

TEST_P(Products, Int8ActivationsStayWithinTheirRounding) {
  const size_t k = 2048, n = 64;
  const Weights w = MakeWeights(DType::kQ8_0, n, k, 3);
  const std::vector<float> x = Random(k, 8);
  std::vector<float> exact(n), got(n);
  ref_->MatMul(x.data(), 1, *ref_->Pack(w.view), exact.data());
  fast_->MatMul(x.data(), 1, *fast_->Pack(w.view), got.data());
  double error = 0, norm = 0;
  for (size_t i = 0; i < n; ++i) {
    error += std::pow(static_cast<double>(got[i] - exact[i]), 2);
    norm += std::pow(static_cast<double>(exact[i]), 2);
  }
  EXPECT_GT(error, 0);
  EXPECT_LT(std::sqrt(error / norm), 0.012);  // steps of amax/127, amax about 2.7 sigma: 0.6 percent
}

// Integer sums are exact and everything else has one order, so few rows and groups for tiles give the same bits.
TEST_P(Products, EveryInstructionSetGivesTheSameBitsForQuantizedWeights) {
  const Isa first = testing::FastIsas().front();
  if (GetParam() == first) GTEST_SKIP() << "the others are compared with it";
  auto simplest = MakeBackend(first, 1);
  const size_t n = 33;  // one panel with one column, and an empty one
  auto expect_same = [&](const WeightView& w) {
    for (size_t rows : {5u, 13u, 53u, 69u, 77u}) {
      const std::vector<float> x = Random(rows * w.k, 22);
      // The memory after the rows must not change.
      std::vector<float> expected((rows + 16) * n, NAN), got = expected;
      simplest->MatMul(x.data(), rows, *simplest->Pack(w), expected.data());
      fast_->MatMul(x.data(), rows, *fast_->Pack(w), got.data());
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * 4), 0) << Info(w.type).name << " rows " << rows;
    }
  };
  for (DType type : testing::Grid(kTypes)) {
    if (!IsInteger(type)) continue;
    Weights w = MakeWeights(type, n, Info(type).block_elems == 32 ? 1312 : 1280, 21);  // three segments, half a unit
    // Includes codes that no quantizer writes, such as -128 in Q8_0.
    RandomCodes(type, 4, &w.bytes);
    expect_same(w.view);
  }
  std::mt19937 random(5);
  std::vector<std::byte> bytes(n * 1312);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  const std::vector<float> scales = Random(bytes.size() / 32, 6, 0.01f);
  expect_same({.type = DType::kI8,
               .n = n,
               .k = 1312,
               .data = bytes.data(),
               .scales = reinterpret_cast<const std::byte*>(scales.data()),
               .group = 32});
}

// 8-bit floats with a scale for each block of 128 x 128, from their bytes: n and k that no block and no register
// divides, views that begin within a block, and each byte that there is.
TEST_P(Products, Fp8WithBlockScales) {
  for (const auto& [n, k] : {std::pair<size_t, size_t>{256, 256}, {200, 300}, {48, 96}, {17, 130}, {21, 4500}}) {
    SCOPED_TRACE(std::to_string(n) + " x " + std::to_string(k));
    std::mt19937 random(static_cast<uint32_t>(k));
    std::vector<std::byte> bytes(n * k);
    for (size_t i = 0; i < bytes.size(); ++i) {
      const auto b = n == 256 ? static_cast<uint8_t>(i + i / 256) : static_cast<uint8_t>(random());
      bytes[i] = static_cast<std::byte>((b & 0x7F) == 0x7F ? 0 : b);
    }
    const size_t down = (n + 127) / 128, across = (k + 127) / 128, most = 40;
    const std::vector<float> scales = Random(down * across, 6, 0.01f), x = Random(most * k, 7);
    const WeightView whole{.type = DType::kF8E4M3,
                           .n = n,
                           .k = k,
                           .data = bytes.data(),
                           .scales = reinterpret_cast<const std::byte*>(scales.data()),
                           .group = 128};
    for (const WeightView& w : {whole, RowsOf(whole, n / 3, n - n / 3)}) {
      const auto packed = fast_->Pack(w), right = ref_->Pack(w);
      std::vector<float> expected(most * w.n), got(most * w.n);
      ref_->MatMul(x.data(), most, *right, expected.data());
      // The scales of the first rows, against a sum of our own.
      double own = 0;
      for (size_t i = 0; i < k; ++i) {
        const size_t row = n - w.n;
        own += static_cast<double>(x[i]) *
               static_cast<double>(Fp8ToFloat(std::to_integer<uint8_t>(bytes[row * k + i]))) *
               static_cast<double>(scales[row / 128 * across + i / 128]);
      }
      EXPECT_NEAR(expected[0], own, 1e-4 * (1 + std::fabs(own)));
      for (const size_t rows : {size_t{1}, size_t{2}, size_t{5}, size_t{9}, size_t{31}, most}) {
        fast_->MatMul(x.data(), rows, *packed, got.data());
        for (size_t i = 0; i < rows * w.n; ++i)
          ASSERT_NEAR(got[i], expected[i], 2e-4f * (1 + std::fabs(expected[i]))) << rows << " rows, at " << i;
        std::vector<float> alone(w.n);
        fast_->MatMul(x.data(), 1, *packed, alone.data());
        for (size_t c = 0; c < w.n; ++c) ASSERT_EQ(alone[c], got[c]) << rows << " rows";
      }
      if (fast_->prefill_matches_decode()) continue;
      // Tiles round x to the 8 bits of a bf16.
      fast_->MatMul(x.data(), most, *packed, got.data(), Arithmetic::kPrefill);
      for (size_t i = 0; i < got.size(); ++i) {
        double magnitude = 0;
        std::vector<float> row(k);
        DequantizeRow(w, i % w.n, row.data());
        for (size_t j = 0; j < k; ++j) magnitude += std::fabs(static_cast<double>(x[i / w.n * k + j] * row[j]));
        ASSERT_NEAR(got[i], expected[i], magnitude / 100) << "at " << i;
      }
    }
  }
}

// A row with a single 1 gives the weights at its place, to the bit, whatever the number of rows; the codes that are no
// numbers make the outputs of their columns NaN, and no others.
TEST_P(Products, Fp8WeightsAreExact) {
  constexpr size_t kN = 136, kK = 272, kMost = 40;
  std::vector<std::byte> bytes(kN * kK);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((i + i / kK) % 127 | (i % 3 == 0 ? 128 : 0));
  const std::vector<float> scales = Random(2 * 3, 9, 0.01f);
  const WeightView w{.type = DType::kF8E4M3,
                     .n = kN,
                     .k = kK,
                     .data = bytes.data(),
                     .scales = reinterpret_cast<const std::byte*>(scales.data()),
                     .group = 128};
  std::vector<float> row(kK), got(kMost * kN);
  for (const size_t rows : {size_t{1}, size_t{3}, size_t{8}, kMost}) {
    for (size_t first = 0; first + rows <= kK; first += rows + 5) {
      std::vector<float> x(rows * kK);
      for (size_t r = 0; r < rows; ++r) x[r * kK + first + r] = 1;
      fast_->MatMul(x.data(), rows, *fast_->Pack(w), got.data());
      for (size_t c = 0; c < kN; ++c) {
        DequantizeRow(w, c, row.data());
        for (size_t r = 0; r < rows; ++r) ASSERT_EQ(got[r * kN + c], row[first + r]) << rows << " rows, " << c;
      }
    }
  }
  for (const auto& [column, at] : {std::pair<size_t, size_t>{0, 0}, {7, 127}, {9, 128}, {131, 270}, {135, 271}}) {
    const std::byte before = bytes[column * kK + at];
    bytes[column * kK + at] = static_cast<std::byte>(at % 2 == 0 ? 0x7F : 0xFF);
    for (const size_t rows : {size_t{1}, size_t{3}, size_t{8}, kMost}) {
      fast_->MatMul(Random(rows * kK, 3).data(), rows, *fast_->Pack(w), got.data());
      for (size_t i = 0; i < rows * kN; ++i) ASSERT_EQ(std::isnan(got[i]), i % kN == column) << rows << " rows, " << i;
    }
    bytes[column * kK + at] = before;
  }
}

// llama2.c's int8 with one f32 scale per group: packed into panels if each 32 positions share a scale, else expanded.
TEST_P(Products, Int8WithGroupsOfAnySize) {
  for (const auto& [group, k] :
       {std::pair<size_t, size_t>{32, 96}, {64, 128}, {128, 64}, {64, 352}, {24, 96}, {16, 80}, {352, 352}}) {
    const size_t n = 48, rows = 5;
    if (n * k % group != 0) continue;
    const bool halves = group == 352;  // scales that are the same in f16, one a row
    const bool panels = group % 32 == 0 && k % 32 == 0;
    std::mt19937 random(static_cast<uint32_t>(k));
    std::vector<std::byte> bytes(n * k);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    std::vector<float> scales = Random(n * k / group, 6, 0.01f);
    const std::vector<float> x = Random(rows * k, 7);
    for (float& s : scales) s = halves ? HalfToFloat(FloatToHalf(s)) : s;
    const WeightView w{.type = DType::kI8,
                       .n = n,
                       .k = k,
                       .data = bytes.data(),
                       .scales = reinterpret_cast<const std::byte*>(scales.data()),
                       .group = group};
    const std::vector<float> seen = panels ? Rounded(x) : x;
    std::vector<float> expected(rows * n), got(rows * n), exact(rows * n), expected_exact(rows * n);
    ref_->MatMul(seen.data(), rows, *ref_->Pack(w), expected.data());
    ref_->MatMul(x.data(), rows, *ref_->Pack(w), expected_exact.data());
    const auto packed = fast_->Pack(w);
    if (panels) EXPECT_EQ(packed->bytes, (n + 31) / 32 * 32 * ((k + 63) / 64 * 64 * (halves ? 17 : 18)) / 16);
    fast_->MatMul(x.data(), rows, *packed, got.data());
    fast_->MatMul(x.data(), rows, *packed, exact.data(), Arithmetic::kExact);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], expected[i], 1e-4f * (1 + std::fabs(expected[i])))
          << "group " << group << " k " << k << " at " << i;
      ASSERT_NEAR(exact[i], expected_exact[i], 1e-4f * (1 + std::fabs(expected_exact[i])));
    }
    if (fast_->prefill_matches_decode()) continue;
    // Tiles round both factors to the 8 bits of a bf16.
    std::vector<float> prompt(rows * n);
    fast_->MatMul(x.data(), rows, *packed, prompt.data(), Arithmetic::kPrefill);
    for (size_t i = 0; i < prompt.size(); ++i) {
      float magnitude = 0;
      for (size_t j = 0; j < k; ++j) {
        const size_t at = i % n * k + j;
        magnitude +=
            std::fabs(x[i / n * k + j] * scales[at / group] * static_cast<float>(std::to_integer<int8_t>(bytes[at])));
      }
      ASSERT_NEAR(prompt[i], expected_exact[i], magnitude / 100) << "group " << group << " k " << k << " at " << i;
    }
  }
}

// The bf16 residual of a weight is added wherever it is; a slice of weights without residuals takes one product only.
TEST_P(Products, TheBf16ResidualOfAWeightIsAdded) {
  if (fast_->prefill_matches_decode()) GTEST_SKIP() << "no tiles";
  const size_t n = 70, k = 2307, rows = 33;  // two segments and a tail, slices of 4 and 1 panels
  const std::vector<float> values = Random(n * k, 41), small = Random(rows * k, 42);
  auto to_bf16 = [](float v) { return std::bit_cast<float>(std::bit_cast<uint32_t>(v) & 0xFFFF0000u); };
  for (DType type : {DType::kF32, DType::kF16}) {
    for (const auto& [column, at] : {std::pair<size_t, size_t>{n, 0}, {0, 5}, {17, 2047}, {63, 2050}, {n - 1, k - 1}}) {
      std::vector<float> weights(n * k), x(small.size());
      for (size_t i = 0; i < weights.size(); ++i) weights[i] = to_bf16(values[i]);
      for (size_t i = 0; i < x.size(); ++i) x[i] = to_bf16(small[i]);
      if (column < n) {
        weights[column * k + at] = 1 + 0x1p-10f;  // not a bf16
        for (size_t r = 0; r < rows; ++r) x[r * k + at] = 64;
      }
      std::vector<std::byte> bytes(weights.size() * Info(type).block_bytes);
      Quantize(type, weights.data(), bytes.data(), weights.size());
      const WeightView view{.type = type, .n = n, .k = k, .data = bytes.data()};
      std::vector<float> expected(rows * n), got(rows * n, NAN);
      ref_->MatMul(x.data(), rows, *ref_->Pack(view), expected.data(), Arithmetic::kExact);
      fast_->MatMul(x.data(), rows, *fast_->Pack(view), got.data(), Arithmetic::kPrefill);
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], expected[i], 2e-3)
            << Info(type).name << " column " << column << " position " << at << " at " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, Products, ::testing::ValuesIn(testing::IsasWithTiles()), testing::IsaTestName);

}  // namespace
}  // namespace gyre
