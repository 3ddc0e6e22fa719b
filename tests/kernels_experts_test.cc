// Products that are computed together, of a mixture of experts, of heads and of several matrices, have the bits of
// separate products, whatever the types, rows and threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "tests/testing/products.h"

namespace gyre {
namespace {

using testing::Random;

class Experts : public testing::KernelTest {};

struct MixtureCase {
  DType gate, up, down;
  bool biases, gated, scales;
};

TEST_P(Experts, LimitsHoldForBothProducts) {
  constexpr size_t kDim = 64, kWidth = 32;
  const testing::Weights gate = testing::MakeWeights(DType::kF32, kWidth, kDim, 1),
                         up = testing::MakeWeights(DType::kF32, kWidth, kDim, 2),
                         down = testing::MakeWeights(DType::kF32, kDim, kWidth, 3);
  const auto g = fast_->Pack(gate.view), u = fast_->Pack(up.view), d = fast_->Pack(down.view);
  const auto x = Random(kDim, 4);
  std::vector<float> of_gate(kWidth), of_up(kWidth), expected(kDim), got(kDim);
  fast_->MatMul(x.data(), 1, *g, of_gate.data());
  fast_->MatMul(x.data(), 1, *u, of_up.data());
  size_t limited = 0;
  for (float& v : of_gate) limited += std::exchange(v, std::min(v, 0.1f)) > 0.1f ? 1 : 0;
  for (float& v : of_up) limited += std::fabs(std::exchange(v, std::clamp(v, -0.2f, 0.2f))) > 0.2f ? 1 : 0;
  EXPECT_GT(limited, 5u);
  fast_->GatedActivation(of_gate.data(), of_up.data(), kWidth, Activation::kSilu, of_gate.data());
  fast_->MatMul(of_gate.data(), 1, *d, expected.data());
  Backend::Ffn ffn{*g, *u, *d};
  ffn.gate_limit = 0.1f;
  ffn.up_limit = 0.2f;
  fast_->FeedForward(x.data(), 1, ffn, Activation::kSilu, Arithmetic::kDecode, got.data(), false);
  EXPECT_EQ(got, expected);
}

// The weights of SparseMixer, by hand: an expert's share among those near it that are still there.
TEST_P(Experts, SparseMixerWeighsAmongTheNear) {
  const std::vector<float> scores = {1.0f, 3.0f, 2.99f, -1.0f, -2.0f, -1.01f, -3.0f, -1.005f};
  std::vector<uint32_t> experts(4);
  std::vector<float> weights(4);
  fast_->ChooseExperts(scores.data(), 2, {.count = 4, .used = 2, .near = 0.02f}, nullptr, experts.data(),
                       weights.data());
  EXPECT_EQ(experts, (std::vector<uint32_t>{1, 2, 1, 3}));
  EXPECT_NEAR(weights[0], 1 / (1 + std::exp(-0.01)), 1e-6);
  EXPECT_NEAR(weights[1], 1, 1e-6);
  EXPECT_NEAR(weights[2], 1, 1e-6);  // the other was taken before
  EXPECT_NEAR(weights[3], 1 / (1 + std::exp(-0.005)), 1e-6);
}

TEST_P(Experts, OneOpHasTheBitsOfSeparateProducts) {
  constexpr size_t kCount = 6, kUsed = 3, kDim = 288, kWidth = 96;
  const MixtureCase cases[] = {{DType::kQ8_0, DType::kQ8_0, DType::kQ8_0, false, true, false},
                               {DType::kQ4_K, DType::kQ4_K, DType::kQ6_K, false, true, true},
                               {DType::kQ4_0, DType::kQ4_0, DType::kQ5_1, true, true, false},
                               {DType::kMXFP4, DType::kMXFP4, DType::kMXFP4, true, true, false},
                               {DType::kQ8_0, DType::kQ4_0, DType::kQ8_0, false, true, false},
                               {DType::kF16, DType::kF16, DType::kF16, false, true, true},
                               {DType::kQ8_0, DType::kQ8_0, DType::kQ8_0, false, false, false}};
  for (const MixtureCase& c : cases) {
    const bool super = Info(c.gate).block_elems == 256;
    const size_t dim = super ? 512 : kDim, width = super ? 256 : kWidth;
    std::vector<testing::Weights> files;
    std::vector<std::shared_ptr<const PackedWeight>> packed;
    const auto pack = [&](DType type, size_t n, size_t k) {
      files.push_back(testing::MakeWeights(type, n, k, static_cast<uint32_t>(files.size())));
      packed.push_back(fast_->Pack(files.back().view));
    };
    for (size_t e = 0; e < kCount; ++e) {
      pack(c.gate, width, dim);
      pack(c.up, width, dim);
      pack(c.down, dim, width);
    }
    const auto bias = Random(kCount * (2 * width + dim), 5, 0.1f), scales = Random(kCount, 6);
    std::vector<Backend::Ffn> experts;
    for (size_t e = 0; e < kCount; ++e) {
      Backend::Ffn ffn{*packed[3 * e + (c.gated ? 0 : 1)], *packed[3 * e + 1], *packed[3 * e + 2]};
      const float* at = &bias[e * (2 * width + dim)];
      if (c.biases) ffn.gate_bias = at, ffn.up_bias = at + width, ffn.down_bias = at + 2 * width;
      if (c.biases) ffn.gate_limit = 0.4f, ffn.up_limit = 0.3f;
      experts.push_back(ffn);
    }
    for (const size_t rows : {1u, 2u, 7u, 40u}) {
      const auto x = Random(rows * dim, static_cast<uint32_t>(rows)), weights = Random(rows * kUsed, 8);
      std::mt19937 random(static_cast<uint32_t>(rows));
      std::vector<uint32_t> chosen;
      for (size_t r = 0; r < rows; ++r) {
        // Expert 5 is never chosen, and expert 0 always where the rows are many.
        std::vector<uint32_t> some{0, 1, 2, 3, 4};
        while (some.size() > kUsed) some.erase(some.begin() + 1 + static_cast<long>(random() % (some.size() - 1)));
        chosen.insert(chosen.end(), some.begin(), some.end());
      }
      for (const Arithmetic second : {Arithmetic::kDecode, Arithmetic::kPrefill}) {
        const std::vector<Backend::RowRun> runs{{(rows + 1) / 2, Arithmetic::kDecode}, {rows / 2, second}};
        std::vector<float> expected(rows * dim);
        for (size_t r = 0; r < rows; ++r) {
          for (size_t u = 0; u < kUsed; ++u) {
            const size_t e = chosen[r * kUsed + u];
            std::vector<float> made(dim);
            fast_->FeedForward(&x[r * dim], 1, experts[e], Activation::kSilu,
                               r < (rows + 1) / 2 ? Arithmetic::kDecode : second, made.data());
            fast_->Scale(made.data(), dim, weights[r * kUsed + u] * (c.scales ? scales[e] : 1));
            fast_->AddInPlace(&expected[r * dim], made.data(), dim);
          }
        }
        for (const int threads : {1, 3}) {
          std::vector<float> got(rows * dim, NAN);
          MakeBackend(GetParam(), threads)
              ->MixExperts(x.data(), runs,
                           {.experts = experts,
                            .scales = c.scales ? scales.data() : nullptr,
                            .chosen = chosen.data(),
                            .weights = weights.data(),
                            .used = kUsed},
                           got.data());
          ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0)
              << Info(c.gate).name << ", " << rows << " rows, " << threads << " threads";
        }
      }
    }
  }
}

TEST_P(Experts, HeadsTogetherHaveTheBitsOfSeparateProducts) {
  constexpr size_t kHeads = 3;
  struct Shape {
    DType type;
    size_t n, k;
  };
  for (const Shape& s : {Shape{DType::kQ8_0, 40, 96},
                         {DType::kQ5_0, 64, 192},
                         {DType::kQ4_K, 16, 512},
                         {DType::kF16, 24, 48},
                         {DType::kBF16, 64, 40},
                         {DType::kF32, 9, 33}}) {
    std::vector<testing::Weights> files;
    std::vector<std::shared_ptr<const PackedWeight>> heads;
    for (size_t h = 0; h < kHeads; ++h) {
      files.push_back(testing::MakeWeights(s.type, s.n, s.k, static_cast<uint32_t>(h)));
      heads.push_back(fast_->Pack(files.back().view));
    }
    const size_t x_stride = s.k + 8, out_stride = s.n + 5;
    for (const size_t rows : {1u, 2u, 7u, 40u}) {
      const auto x = Random(rows * kHeads * x_stride, static_cast<uint32_t>(rows));
      for (const Arithmetic arithmetic : {Arithmetic::kDecode, Arithmetic::kPrefill, Arithmetic::kExact}) {
        std::vector<float> expected(rows * kHeads * out_stride, 3.0f);
        for (size_t r = 0; r < rows; ++r) {
          for (size_t h = 0; h < kHeads; ++h)
            fast_->MatMul(&x[(r * kHeads + h) * x_stride], 1, *heads[h], &expected[(r * kHeads + h) * out_stride],
                          arithmetic);
        }
        for (const int threads : {1, 3}) {
          std::vector<float> got(expected.size(), 3.0f);
          MakeBackend(GetParam(), threads)
              ->MatMulHeads(heads, x.data(), x_stride, rows, arithmetic, got.data(), out_stride);
          ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0)
              << Info(s.type).name << ", " << rows << " rows, " << threads << " threads";
        }
      }
    }
  }
}

// Types whose panels need x in different layouts, and sizes that end within a panel.
TEST_P(Experts, MatricesTogetherHaveTheBitsOfSeparateProducts) {
  const std::pair<DType, size_t> matrices[] = {
      {DType::kQ4_K, 80}, {DType::kQ6_K, 33}, {DType::kQ8_0, 16}, {DType::kQ4_K, 1}, {DType::kQ2_K, 50}};
  constexpr size_t kDim = 512;
  std::vector<testing::Weights> files;
  std::vector<std::shared_ptr<const PackedWeight>> packed;
  for (const auto& [type, n] : matrices) {
    files.push_back(testing::MakeWeights(type, n, kDim, static_cast<uint32_t>(n)));
    packed.push_back(fast_->Pack(files.back().view));
  }
  for (const size_t rows : {1u, 2u, 7u, 40u}) {
    const auto x = Random(rows * kDim, static_cast<uint32_t>(rows));
    for (const int threads : {1, 3}) {
      const auto backend = MakeBackend(GetParam(), threads);
      std::vector<std::vector<float>> got;
      std::vector<Backend::Product> products;
      for (const auto& w : packed) got.emplace_back(rows * w->n, NAN);
      for (size_t i = 0; i < packed.size(); ++i) products.push_back({*packed[i], got[i].data()});
      backend->MatMul(x.data(), rows, products, Arithmetic::kDecode);
      for (size_t i = 0; i < packed.size(); ++i) {
        std::vector<float> expected(rows * packed[i]->n);
        for (size_t r = 0; r < rows; ++r) fast_->MatMul(&x[r * kDim], 1, *packed[i], &expected[r * packed[i]->n]);
        ASSERT_EQ(std::memcmp(got[i].data(), expected.data(), expected.size() * sizeof(float)), 0)
            << "matrix " << i << ", " << rows << " rows, " << threads << " threads";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, Experts, ::testing::ValuesIn(testing::IsasWithTiles()), testing::IsaTestName);

}  // namespace
}  // namespace gyre
