// The small ops of every instruction set against the reference, and the quantized types' values.
#include "kernels/ops.h"
#include "tests/testing/kernel_test.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

namespace gyre {
namespace {

using testing::Random;

class Ops : public testing::KernelTest {};

TEST_P(Ops, SmallOpsMatchTheReference) {
  for (size_t dim : {2u, 4u, 14u, 64u, 172u, 2048u}) {
    const size_t rows = 5;
    const auto x = Random(rows * dim, 4), y = Random(rows * dim, 6), w = Random(dim, 7);
    std::vector<float> a(rows * dim, NAN), b(rows * dim, NAN);
    auto near = [&](double relative) {
      for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(b[i], a[i], relative * (std::fabs(a[i]) + 1e-3)) << dim;
    };
    for (const float* weight : {w.data(), static_cast<const float*>(nullptr)}) {
      ref_->RmsNorm(x.data(), rows, dim, weight, 1e-5f, a.data());
      fast_->RmsNorm(x.data(), rows, dim, weight, 1e-5f, b.data());
      near(1e-6);
    }
    for (Activation act : {Activation::kSilu, Activation::kGeluTanh, Activation::kClampedSwiglu, Activation::kSigmoid,
                           Activation::kReluSquared, Activation::kGelu, Activation::kRelu}) {
      ref_->GatedActivation(x.data(), y.data(), a.size(), act, a.data());
      fast_->GatedActivation(x.data(), y.data(), b.size(), act, b.data());
      for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(b[i], a[i], 3e-6 * std::fabs(a[i]) + 1e-12) << dim;
      if (act == Activation::kClampedSwiglu) continue;  // it has two arguments
      ref_->Activate(x.data(), a.size(), act, a.data());
      b = x;
      fast_->Activate(b.data(), b.size(), act, b.data());
      for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(b[i], a[i], 3e-6 * std::fabs(a[i]) + 1e-12) << dim;
    }
    for (RopePairing pairing : {RopePairing::kInterleaved, RopePairing::kHalves}) {
      const int half = static_cast<int>(dim / 4);
      const auto c = Random(rows * dim, 8), s = Random(rows * dim, 9);
      a = b = x;
      const int head_dim = static_cast<int>(dim / 2);
      if (head_dim % 2 != 0) continue;
      ref_->Rope(a.data(), rows, 2, head_dim, c.data(), s.data(), half, pairing);
      fast_->Rope(b.data(), rows, 2, head_dim, c.data(), s.data(), half, pairing);
      for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(b[i], a[i], 2e-6) << dim;
    }
    a = b = x;
    ref_->SoftcapInPlace(a.data(), a.size(), 3.0f);
    fast_->SoftcapInPlace(b.data(), b.size(), 3.0f);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(b[i], a[i], 3.0 * 3e-7) << dim;
  }
}

TEST_P(Ops, CenterLeavesNoMean) {
  for (const size_t dim : {1u, 7u, 64u, 300u}) {
    const size_t rows = 3;
    const auto x = Random(rows * dim, 4, 3);
    std::vector<float> got(x.size(), NAN), in_place = x;
    fast_->Center(x.data(), rows, dim, got.data());
    fast_->Center(in_place.data(), rows, dim, in_place.data());
    EXPECT_EQ(got, in_place);
    for (size_t r = 0; r < rows; ++r) {
      double mean = 0;
      for (size_t i = 0; i < dim; ++i) mean += static_cast<double>(x[r * dim + i]) / static_cast<double>(dim);
      for (size_t i = 0; i < dim; ++i)
        ASSERT_NEAR(got[r * dim + i], static_cast<double>(x[r * dim + i]) - mean, 1e-6) << dim;
    }
  }
}

TEST_P(Ops, XieluBendsBothSides) {
  std::vector<float> x = {2, 0.5f, 0, -0.1f, -0.5f, -4};
  fast_->Xielu(x.data(), x.size(), {.positive = 0.8f, .negative = 1.5f, .beta = 0.5f, .eps = -0.25f});
  const auto negative = [](double v) { return 1.5 * (std::exp(std::min(v, -0.25)) - 1 - v) + 0.5 * v; };
  const double expected[] = {0.8 * 4 + 1, 0.8 * 0.25 + 0.25, negative(0), negative(-0.1), negative(-0.5), negative(-4)};
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], expected[i], 1e-6) << i;
}

TEST_P(Ops, ClampedSwigluAtItsLimits) {
  const size_t n = 203;
  const auto gate = Random(n, 4, 10), up = Random(n, 6, 10);
  std::vector<float> a(n, NAN), b(n, NAN);
  ref_->GatedActivation(gate.data(), up.data(), n, Activation::kClampedSwiglu, a.data());
  fast_->GatedActivation(gate.data(), up.data(), n, Activation::kClampedSwiglu, b.data());
  for (size_t i = 0; i < n; ++i) ASSERT_NEAR(b[i], a[i], 3e-6 * std::fabs(a[i]) + 1e-12) << gate[i] << " " << up[i];
  const std::vector<float> nan(n, NAN), one(n, 1.0f);
  for (const auto& [g, u] : {std::pair(&nan, &one), {&one, &nan}}) {
    fast_->GatedActivation(g->data(), u->data(), n, Activation::kClampedSwiglu, b.data());
    for (float v : b) ASSERT_TRUE(std::isnan(v));
  }
}

TEST_P(Ops, NormsHaveTheSameBitsEverywhere) {
  const auto simplest = MakeBackend(testing::FastIsas().front(), 1);
  for (size_t dim : {1u, 7u, 16u, 33u, 172u, 2048u}) {
    const size_t rows = 3;
    const auto x = Random(rows * dim, 4, 100), w = Random(dim, 7);
    for (const float* weight : {w.data(), static_cast<const float*>(nullptr)}) {
      std::vector<float> a(rows * dim, NAN), b = x;
      simplest->RmsNorm(x.data(), rows, dim, weight, 1e-5f, a.data());
      fast_->RmsNorm(b.data(), rows, dim, weight, 1e-5f, b.data());  // in place
      EXPECT_EQ(a, b) << dim;
    }
  }
}

TEST_P(Ops, KeysAndValuesAreRoundedAsTheReferenceDoes) {
  std::vector<float> numbers = {0.0f,   -0.0f,        INFINITY,         -INFINITY,   65504,          65519,  65520,
                                -1e30f, 6e-8f,        2.9e-8f,          3.1e-8f,     -6.1e-5f,       1e-40f, 2049,
                                2051,   1 + 0x1p-11f, 1 + 3 * 0x1p-11f, 1 + 0x1p-8f, 1 + 3 * 0x1p-8f};
  for (float f : Random(4096, 3)) numbers.push_back(f);
  for (const KvType type :
       {KvType::kF16, KvType::kBf16, KvType::kF32, KvType::kQ8_0, KvType::kQ4_0Plain, KvType::kQ4_0}) {
    for (const int head_dim : {20, 128, 300}) {
      if (KvHasScales(type) && head_dim % 32 != 0) continue;
      const BlockId table[] = {0};
      KvView view{.type = type, .block_size = 8, .kv_heads = 2, .head_dim = head_dim};
      const auto width = static_cast<size_t>(2 * head_dim);
      std::vector<KvRow> rows;
      for (uint32_t p = 0; p < 6; ++p) rows.push_back({table, p});
      std::vector<float> k(rows.size() * width), v(k.size());
      for (size_t i = 0; i < k.size(); ++i) {
        // A scale takes in no infinity.
        const auto number = [&](size_t at) {
          return numbers[KvHasScales(type) ? 19 + at % 4096 : at % numbers.size()];
        };
        k[i] = number(i);
        v[i] = number(i + 7);
      }
      std::vector<std::byte> pages[4];
      for (auto& page : pages) page.assign(view.PageBytes(), std::byte{0xAA});
      for (Backend* backend : {ref_.get(), fast_.get()}) {
        const size_t first = backend == ref_.get() ? 0 : 2;
        view.k = pages[first].data();
        view.v = pages[first + 1].data();
        backend->StoreKv(k.data(), v.data(), rows, view);
      }
      EXPECT_EQ(pages[0], pages[2]) << KvTypeName(type) << ", heads of " << head_dim;
      EXPECT_EQ(pages[1], pages[3]) << KvTypeName(type) << ", heads of " << head_dim;
    }
  }
}

TEST_P(Ops, LargeNumbersAndNanPassThroughActivations) {
  const float inf = INFINITY;
  for (size_t n : {1u, 3u, 16u, 37u}) {  // partial and whole registers
    auto all = [&](float value) { return std::vector<float>(n, value); };
    auto is = [&](const std::vector<float>& got, float want) {
      for (float v : got)
        ASSERT_TRUE(v == want || (std::isnan(v) && std::isnan(want))) << v << ", expected " << want << ", n " << n;
    };
    for (const auto& [in, want] :
         {std::pair(inf, 30.0f), {-inf, -30.0f}, {3e38f, 30.0f}, {-3e38f, -30.0f}, {0.0f, 0.0f}, {NAN, NAN}}) {
      std::vector<float> x = all(in);
      fast_->SoftcapInPlace(x.data(), n, 30.0f);
      is(x, want);
    }
    for (Activation act : {Activation::kSilu, Activation::kGeluTanh}) {
      for (const auto& [in, want] : {std::pair(1e30f, 2e30f), {inf, inf}, {200.0f, 400.0f}, {0.0f, 0.0f}, {NAN, NAN}}) {
        std::vector<float> out(n, 7.0f);
        fast_->GatedActivation(all(in).data(), all(2.0f).data(), n, act, out.data());
        is(out, want);
      }
      std::vector<float> out(n);
      fast_->GatedActivation(all(-1e20f).data(), all(1.0f).data(), n, act, out.data());
      for (float v : out) ASSERT_LE(std::fabs(v), 1e-14f) << "what is far below 0 is off";
    }
  }
}

TEST_P(Ops, TopKAndLogSumExpMatchTheReference) {
  std::mt19937 random(3);
  for (size_t vocab : {1u, 5u, 64u, 1000u, 9001u}) {
    for (uint32_t k : {1u, 3u, 64u, 1024u}) {
      auto logits = Random(vocab, static_cast<uint32_t>(vocab + k), 4);
      for (size_t i = 0; i + 7 < vocab; i += 7) logits[i] = logits[i + 3];  // ties
      if (vocab > 100) logits[17] = NAN, logits[18] = -INFINITY;
      std::vector<TokenId> skip;
      std::vector<uint64_t> mask((vocab + 63) / 64);
      for (size_t i = 0; i < vocab; ++i) {
        if (random() % 9 == 0) skip.push_back(static_cast<TokenId>(i));
        if (random() % 2 == 0) mask[i / 64] |= uint64_t{1} << (i % 64);
      }
      for (const bool masked : {false, true}) {
        const std::span<const uint64_t> m = masked ? std::span<const uint64_t>(mask) : std::span<const uint64_t>();
        const auto top = [&](Backend& backend) {
          std::vector<TokenId> ids(k, 99999);
          std::vector<float> best(k, 99999);
          const TopKRow row{logits.data(), k, skip, m, ids.data(), best.data()};
          backend.TopK({&row, 1}, vocab);
          for (size_t i = 0; i < k; ++i) {
            if (ids[i] >= 0) EXPECT_EQ(std::memcmp(&best[i], &logits[static_cast<size_t>(ids[i])], 4), 0);
          }
          return ids;
        };
        EXPECT_EQ(top(*ref_), top(*fast_)) << vocab << " " << k;
        if (vocab > 100) continue;  // these have NaN, with which sums mean nothing
        for (double t : {1.0, 0.5, 3.0}) {
          double x = 0, y = 0;
          LogSumExpRow row{logits.data(), t, skip, m, &x};
          ref_->LogSumExp({&row, 1}, vocab);
          row.out = &y;
          fast_->LogSumExp({&row, 1}, vocab);
          if (std::isinf(x))
            EXPECT_EQ(x, y);
          else
            EXPECT_NEAR(x, y, 1e-11);
        }
      }
    }
  }
}

// Of many rows at once, with any number of threads, and on every processor.
TEST_P(Ops, TheBestIdsAndTheSumsOfARowDependOnItAlone) {
  constexpr size_t kRows = 5, kVocab = 9001;
  const auto logits = Random(kRows * kVocab, 5, 8);
  const std::vector<TokenId> skip{0, 63, 64, 4095, 4096, 9000};
  std::vector<uint64_t> mask((kVocab + 63) / 64, ~uint64_t{0});
  mask[3] = 0;
  struct Result {
    std::vector<TokenId> ids = std::vector<TokenId>(kRows * 40);
    std::vector<float> best = std::vector<float>(kRows * 40);
    std::vector<double> sums = std::vector<double>(kRows);
  };
  const auto of = [&](Backend& backend, size_t each) {
    Result out;
    std::vector<TopKRow> top;
    std::vector<LogSumExpRow> sums;
    for (size_t r = 0; r < kRows; ++r) {
      const std::span<const TokenId> without =
          r == 1 || r == 3 ? std::span<const TokenId>(skip) : std::span<const TokenId>();
      const std::span<const uint64_t> of = r >= 2 ? std::span<const uint64_t>(mask) : std::span<const uint64_t>();
      top.push_back({&logits[r * kVocab], 40, without, of, &out.ids[r * 40], &out.best[r * 40]});
      sums.push_back({&logits[r * kVocab], r == 4 ? 10.0 : 0.7, without, of, &out.sums[r]});
    }
    for (size_t r = 0; r < kRows; r += each) {
      backend.TopK(std::span(top).subspan(r, std::min(each, kRows - r)), kVocab);
      backend.LogSumExp(std::span(sums).subspan(r, std::min(each, kRows - r)), kVocab);
    }
    return out;
  };
  const Result expected = of(*fast_, kRows), reference = of(*ref_, 1);
  EXPECT_EQ(expected.ids, reference.ids);
  for (size_t r = 0; r < kRows; ++r) EXPECT_NEAR(expected.sums[r], reference.sums[r], 1e-12) << r;
  for (const Isa isa : testing::FastIsas()) {
    if (!IsaMissing(isa).empty()) continue;
    for (const int threads : {1, 8}) {
      const Result got = of(*MakeBackend(isa, threads), threads == 1 ? 1 : kRows);
      EXPECT_EQ(got.ids, expected.ids) << IsaName(isa);
      EXPECT_EQ(got.best, expected.best) << IsaName(isa);
      EXPECT_EQ(got.sums, expected.sums) << IsaName(isa);
    }
  }
}

TEST_P(Ops, ASharedExpertsGateIsASigmoid) {
  const float x[] = {1, -2, 0.5f, 1, -2, 0.5f}, w[] = {0.5f, 0.25f, 1}, low[] = {-100, 0, 0};
  for (Backend* backend : {fast_.get(), ref_.get()}) {
    float out[2];
    backend->SigmoidDot(x, 2, 3, w, out);
    EXPECT_FLOAT_EQ(out[0], static_cast<float>(1 / (1 + std::exp(-0.5))));
    EXPECT_EQ(out[0], out[1]);
    backend->SigmoidDot(x, 1, 3, low, out);
    EXPECT_FLOAT_EQ(out[0], static_cast<float>(std::exp(-100.0)));
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, Ops, ::testing::ValuesIn(testing::FastIsas()), testing::IsaTestName);

TEST(QuantTest, HalfsRoundTripAndRoundToEven) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = HalfToFloat(static_cast<uint16_t>(h));
    if (std::isnan(f)) continue;
    ASSERT_EQ(FloatToHalf(f), h);
  }
  EXPECT_EQ(FloatToHalf(2049.0f), FloatToHalf(2048.0f));
  EXPECT_EQ(FloatToHalf(2051.0f), FloatToHalf(2052.0f));
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7C00);
  EXPECT_EQ(FloatToHalf(65519.0f), 0x7BFF);
  EXPECT_EQ(FloatToBf16(1.00390625f), 0x3F80);  // a tie: to even
}

TEST(QuantTest, BlocksDequantizeToHandMadeValues) {
  // d = 2; m = 0.5 in the types that have it.
  const uint16_t two = FloatToHalf(2), half = FloatToHalf(0.5f);
  std::vector<std::byte> b(256);
  auto put = [&](size_t at, uint16_t v) { std::memcpy(&b[at], &v, 2); };
  float y[256];
  put(0, two);
  b[2] = std::byte{0x9F};  // low nibble 15, high 9
  Dequantize(DType::kQ4_0, b.data(), y, 32);
  EXPECT_EQ(y[0], 14);
  EXPECT_EQ(y[16], 2);
  put(2, half);
  b[4] = std::byte{0x9F};
  Dequantize(DType::kQ4_1, b.data(), y, 32);
  EXPECT_EQ(y[0], 30.5f);
  EXPECT_EQ(y[16], 18.5f);
  std::fill(b.begin(), b.end(), std::byte{0});
  put(0, two);
  b[2] = std::byte{1};  // high bit of element 0
  b[6] = std::byte{0x31};
  Dequantize(DType::kQ5_0, b.data(), y, 32);
  EXPECT_EQ(y[0], 2);     // (16 + 1 - 16) * 2
  EXPECT_EQ(y[16], -26);  // (3 - 16) * 2
  std::fill(b.begin(), b.end(), std::byte{0});
  put(0, two);  // Q4_K: d 2, dmin 0.5
  put(2, half);
  b[4] = std::byte{3};  // scale 0
  b[8] = std::byte{4};  // minimum 0
  b[5] = std::byte{5};  // scale 1
  b[16] = std::byte{0x72};
  Dequantize(DType::kQ4_K, b.data(), y, 256);
  EXPECT_EQ(y[0], 2 * 3 * 2 - 0.5f * 4);
  EXPECT_EQ(y[32], 2 * 5 * 7);
  std::fill(b.begin(), b.end(), std::byte{0});
  put(208, two);  // Q6_K
  b[192] = std::byte{3};
  b[0] = std::byte{0x0F};
  b[128] = std::byte{2};
  Dequantize(DType::kQ6_K, b.data(), y, 256);
  EXPECT_EQ(y[0], 2 * 3 * (15 + 32 - 32));
  EXPECT_EQ(y[1], 2 * 3 * -32);
}

}  // namespace
}  // namespace gyre
