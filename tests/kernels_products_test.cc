// Products of every instruction set against the reference and each other, and the promise that a row never depends on
// its company.
#include "kernels/codes.h"
#include "kernels/ops.h"
#include "kernels/quant_lowbit.h"
#include "tests/testing/kernel_test.h"
#include "tests/testing/sanitized.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <tuple>

namespace gyre {
namespace {

using testing::Random;

constexpr Arithmetic kArithmetics[] = {Arithmetic::kExact, Arithmetic::kDecode, Arithmetic::kPrefill};
constexpr DType kTypes[] = {DType::kF32,   DType::kF16,     DType::kBF16,  DType::kQ8_0,    DType::kQ4_0,
                            DType::kQ4_1,  DType::kQ5_0,    DType::kQ5_1,  DType::kQ2_K,    DType::kQ3_K,
                            DType::kQ4_K,  DType::kQ5_K,    DType::kQ6_K,  DType::kIQ4_NL,  DType::kIQ4_XS,
                            DType::kMXFP4, DType::kIQ1_S,   DType::kIQ1_M, DType::kIQ2_XXS, DType::kIQ2_XS,
                            DType::kIQ2_S, DType::kIQ3_XXS, DType::kIQ3_S, DType::kTQ1_0,   DType::kTQ2_0};
// Types whose products are of whole numbers.
bool IsInteger(DType type) { return HasCodes(type) || IsLowBit(type); }

// A quantized block but for its f16 scales (MXFP4: the exponent), which random bytes would make infinite.
struct Codes {
  size_t begin, end;
};
Codes CodesOf(DType type) {
  switch (type) {
    case DType::kQ2_K: return {0, 80};
    case DType::kQ3_K: return {0, 108};
    case DType::kQ6_K: return {0, 208};
    case DType::kMXFP4: return {1, 17};
    case DType::kIQ1_M: return {0, 56};
    case DType::kTQ1_0: return {0, 52};
    case DType::kTQ2_0: return {0, 64};
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
    case DType::kIQ1_S:
    case DType::kIQ2_XXS:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S: return {2, Info(type).block_bytes};
    default: return {4, Info(type).block_bytes};
  }
}
// Blocks with random codes; scales as `bytes` has them.
void RandomCodes(DType type, uint32_t seed, std::vector<std::byte>* bytes) {
  std::mt19937 random(seed);
  const Codes codes = CodesOf(type);
  for (size_t at = 0; at < bytes->size(); at += Info(type).block_bytes) {
    for (size_t i = codes.begin; i < codes.end; ++i) (*bytes)[at + i] = static_cast<std::byte>(random());
    if (type != DType::kIQ1_M) continue;
    for (size_t i = 0; i < 4; ++i) {  // the scale 0x2A66, a nibble a word
      std::byte& high = (*bytes)[at + 49 + 2 * i];
      high = (high & std::byte{15}) | static_cast<std::byte>((0x2A66 >> (4 * i) & 15) << 4);
    }
  }
}

struct Weights {
  std::vector<std::byte> bytes;
  WeightView view;
};
// Made once each: searching for the scales of blocks of 256 takes longer than most tests.
Weights MakeWeights(DType type, size_t n, size_t k, uint32_t seed) {
  static std::map<std::tuple<DType, size_t, size_t, uint32_t>, std::vector<std::byte>> made;
  const DTypeInfo& info = Info(type);
  Weights w;
  std::vector<std::byte>& known = made[{type, n, k, seed}];
  if (!known.empty()) {
    w.bytes = known;
    w.view = {.type = type, .n = n, .k = k, .data = w.bytes.data()};
    return w;
  }
  w.bytes.resize(n * k / info.block_elems * info.block_bytes);
  if (!Quantize(type, Random(n * k, seed).data(), w.bytes.data(), n * k)) {
    // No quantizer for this one: scales about 1/16, the minima's too.
    std::mt19937 random(seed + 1);
    const Codes codes = CodesOf(type);
    for (size_t at = 0; at < w.bytes.size(); at += info.block_bytes) {
      if (type == DType::kMXFP4) {
        w.bytes[at] = static_cast<std::byte>(120 + random() % 8);
        continue;
      }
      for (size_t i = 0; i + 1 < info.block_bytes; i += 2) {
        if (i >= codes.begin && i < codes.end) continue;
        const uint16_t half = FloatToHalf(0.05f + 0.0001f * static_cast<float>(random() % 256));
        std::memcpy(&w.bytes[at + i], &half, 2);
      }
    }
    RandomCodes(type, seed, &w.bytes);
  }
  known = w.bytes;
  w.view = {.type = type, .n = n, .k = k, .data = w.bytes.data()};
  return w;
}

// x as int8 per 32 sees it: what the integer kernels multiply, in plain code.
std::vector<float> Rounded(const std::vector<float>& x) {
  std::vector<float> out(x.size());
  for (size_t b = 0; b < x.size(); b += 32) {
    float amax = 0;
    for (size_t i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[b + i]));
    const float scale = amax / 127.0f, inverse = amax > 0 ? 127.0f / amax : 0.0f;
    for (size_t i = 0; i < 32; ++i) out[b + i] = std::nearbyintf(x[b + i] * inverse) * scale;
  }
  return out;
}

class Products : public testing::KernelTest {
 protected:
  // |sum| differs by at most eps * k * sum of |products|.
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
    const size_t row_bytes = w.bytes.size() / n;
    size_t wrong = 0;
    for (size_t c = 0; c < n; ++c) {
      Dequantize(type, w.bytes.data() + c * row_bytes, wide.data(), k);
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

  void ExpectPromptProducts(DType type, size_t rows, size_t n, size_t k, int flip = -1) {
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
    if (type != DType::kF16 && type != DType::kF32) round(&wide);  // those are sums of two bf16: 16 bits at least
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
        // A weight is a sum that is rounded before: two of these may be on the other side of a tie.
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
  for (DType type : kTypes) {
    const size_t block = Info(type).block_elems;
    for (size_t k : {block, 2 * block, 3 * block, size_t{96}, size_t{2048}}) {
      if (k % block != 0) continue;
      if (testing::kSanitized && k == 2048) continue;  // the same loops, only longer
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

// Tiles round both factors to bf16; without tiles a prompt's rows are as generated ones.
TEST_P(Products, PromptProductsMatchTheReference) {
  for (DType type : kTypes) {
    const size_t block = Info(type).block_elems;
    // Over a segment of k, a slice of columns, a block of rows (sanitized, over the segment only).
    ExpectPromptProducts(type, testing::kSanitized ? 17 : 290, testing::kSanitized ? 33 : 70, block == 1 ? 2093 : 2304);
    for (size_t k : {block, size_t{96}}) {
      for (size_t n : {1u, 16u, 33u}) {
        if (testing::kSanitized && n != 33) continue;
        for (size_t rows : {1u, 16u, 17u, 33u}) {
          if (k % block == 0 && (!fast_->prefill_matches_decode() || n == 33)) ExpectPromptProducts(type, rows, n, k);
        }
      }
    }
    ExpectPromptProducts(type, 2, 17, std::max<size_t>(64, block), 7);
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

// By tiles nothing of it is in memory between; no bit may tell.
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
      for (const Activation act : {Activation::kSilu, Activation::kGeluTanh}) {
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

// The exact integer sums and the one order of the rest leave nothing to differ, with few rows or in groups for tiles.
TEST_P(Products, EveryInstructionSetGivesTheSameBitsForQuantizedWeights) {
  const Isa first = testing::FastIsas().front();
  if (GetParam() == first) GTEST_SKIP() << "the others are compared with it";
  auto simplest = MakeBackend(first, 1);
  const size_t n = 33;  // a panel of one column, and one of none
  auto expect_same = [&](const WeightView& w) {
    for (size_t rows : {5u, 13u, 53u, 69u, 77u}) {
      const std::vector<float> x = Random(rows * w.k, 22);
      // Behind the rows lies what must stay.
      std::vector<float> expected((rows + 16) * n, NAN), got = expected;
      simplest->MatMul(x.data(), rows, *simplest->Pack(w), expected.data());
      fast_->MatMul(x.data(), rows, *fast_->Pack(w), got.data());
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * 4), 0) << Info(w.type).name << " rows " << rows;
    }
  };
  for (DType type : kTypes) {
    if (!IsInteger(type)) continue;
    Weights w = MakeWeights(type, n, Info(type).block_elems == 32 ? 1312 : 1280, 21);  // three segments, half a unit
    // Codes that no quantizer writes, as -128 of Q8_0.
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

// llama2.c's int8 with an f32 scale a group: in panels where each 32 positions have one scale, else expanded.
TEST_P(Products, Int8WithGroupsOfAnySize) {
  for (const auto& [group, k] :
       {std::pair<size_t, size_t>{32, 96}, {64, 128}, {128, 64}, {64, 352}, {24, 96}, {16, 80}}) {
    const size_t n = 48, rows = 5;
    if (n * k % group != 0) continue;
    const bool panels = group % 32 == 0 && k % 32 == 0;
    std::mt19937 random(static_cast<uint32_t>(k));
    std::vector<std::byte> bytes(n * k);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    const std::vector<float> scales = Random(n * k / group, 6, 0.01f), x = Random(rows * k, 7);
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
    fast_->MatMul(x.data(), rows, *packed, got.data());
    fast_->MatMul(x.data(), rows, *packed, exact.data(), Arithmetic::kExact);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], expected[i], 1e-4f * (1 + std::fabs(expected[i])))
          << "group " << group << " k " << k << " at " << i;
      ASSERT_NEAR(exact[i], expected_exact[i], 1e-4f * (1 + std::fabs(expected_exact[i])));
    }
    if (fast_->prefill_matches_decode()) continue;
    // By tiles both factors are rounded to 8 bits.
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

TEST_P(Products, ARowDoesNotDependOnItsCompanyOrOnThreads) {
  const size_t n = 70, rows = testing::kSanitized ? 8 : 24;
  for (DType type : kTypes) {
    const size_t k = Info(type).block_elems == 1 ? 1283 : 1280;  // three segments of k, of floats a tail too
    for (const Arithmetic arithmetic : kArithmetics) {
      if (arithmetic == Arithmetic::kPrefill && fast_->prefill_matches_decode()) continue;
      const Weights w = MakeWeights(type, n, k, 11);
      const std::vector<float> x = Random(rows * k, 12);
      std::vector<float> alone(rows * n);
      const auto one = MakeBackend(GetParam(), 1);
      for (size_t r = 0; r < rows; ++r) one->MatMul(&x[r * k], 1, *one->Pack(w.view), &alone[r * n], arithmetic);
      for (int threads = 1; threads <= 8; ++threads) {
        if (testing::kSanitized && threads != 1 && threads != 3 && threads != 8) continue;
        auto backend = MakeBackend(GetParam(), threads);
        const auto packed = backend->Pack(w.view);
        for (size_t chunk : {1u, 3u, 7u, 17u, 24u}) {
          if (threads > 4 && chunk != 7 && chunk != 24) continue;
          std::vector<float> got(rows * n, NAN);
          for (size_t r = 0; r < rows; r += chunk) {
            backend->MatMul(&x[r * k], std::min(chunk, rows - r), *packed, &got[r * n], arithmetic);
          }
          ASSERT_EQ(std::memcmp(got.data(), alone.data(), got.size() * 4), 0)
              << Info(type).name << " threads " << threads << " chunk " << chunk << " arithmetic "
              << static_cast<int>(arithmetic);
        }
      }
    }
  }
}

// Rows in one product have the bits of the same rows in chunks.
void ExpectSameInChunks(Backend& backend, const Weights& w, size_t rows, Arithmetic arithmetic,
                        std::initializer_list<size_t> chunks) {
  const size_t n = w.view.n, k = w.view.k;
  const std::vector<float> x = Random(rows * k, 32);
  std::vector<float> all(rows * n, NAN);
  const auto packed = backend.Pack(w.view);
  backend.MatMul(x.data(), rows, *packed, all.data(), arithmetic);
  for (size_t chunk : chunks) {
    std::vector<float> got(rows * n, NAN);
    for (size_t r = 0; r < rows; r += chunk)
      backend.MatMul(&x[r * k], std::min(chunk, rows - r), *packed, &got[r * n], arithmetic);
    ASSERT_EQ(std::memcmp(got.data(), all.data(), got.size() * 4), 0) << Info(w.view.type).name << " chunk " << chunk;
  }
}

// Sums that wait in the output between segments of k, and several blocks of rows.
TEST_P(Products, TilesKeepARowsBitsOverSegmentsAndBlocks) {
  if (fast_->prefill_matches_decode()) GTEST_SKIP() << "no tiles";
  const size_t k = 2304, n = 70, rows = testing::kSanitized ? 33 : 290;
  for (DType type : {DType::kF32, DType::kBF16, DType::kQ4_K, DType::kIQ2_XS})
    ExpectSameInChunks(*fast_, MakeWeights(type, n, k, static_cast<uint32_t>(n * 31 + k)), rows, Arithmetic::kPrefill,
                       {1, 33, 257});
}

// VNNI unpacks codes for 24 rows and more, hardware takes int8 tiles from 64 on for codes of 8 bits, every rest of rows
// has a loop of its own.
TEST_P(Products, ManyGeneratedRowsDoNotDependOnTheirNumber) {
  const auto backend = MakeBackend(GetParam(), 2);
  for (DType type : kTypes)
    ExpectSameInChunks(*backend, MakeWeights(type, 70, 1280, 31), 70, Arithmetic::kDecode, {4, 5, 23, 24, 62, 63});
}

// More rows than AVX2 takes together, twice, and some.
TEST_P(Products, RowsOfManyBlocksOfThem) {
  for (DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ6_K})
    ExpectSameInChunks(*fast_, MakeWeights(type, 70, 768, 31), testing::kSanitized ? 523 : 1037, Arithmetic::kDecode,
                       {1, 61});
}

// Strips and rows by themselves: over chains of k, with every rest of rows and of columns.
TEST_P(Products, FloatsDoNotDependOnTheNumberOfRows) {
  for (DType type : {DType::kF16, DType::kBF16, DType::kF32}) {
    for (size_t n : {21u, 53u, 93u}) {
      for (size_t k : {75u, 2100u, 4139u})
        ExpectSameInChunks(*fast_, MakeWeights(type, n, k, 31), 70, Arithmetic::kDecode, {1, 11, 12, 35, 37});
    }
  }
}

// The same by several threads, and of quantized weights that become f32.
TEST_P(Products, StripsDoNotDependOnThreads) {
  for (int threads : {1, 2, 3, 8}) {
    const auto backend = MakeBackend(GetParam(), threads);
    for (const auto& [type, arithmetic] : {std::pair{DType::kBF16, Arithmetic::kDecode},
                                           {DType::kF32, Arithmetic::kExact},
                                           {DType::kQ4_K, Arithmetic::kExact}})
      ExpectSameInChunks(*backend, MakeWeights(type, 453, 512, 31), 70, arithmetic, {1, 35});
  }
}

// What rounding weights to bf16 leaves is added wherever it is, and a slice of weights without any takes one product.
TEST_P(Products, WhatBf16LeavesOfAWeightIsAdded) {
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
        weights[column * k + at] = 1 + 0x1p-10f;  // no bf16
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
