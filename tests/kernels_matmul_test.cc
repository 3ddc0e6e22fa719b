// Products of every instruction set and weight type against the oracle, with bounds that follow from the arithmetic,
// and the same bits for a row whatever stands beside it.
#include <cmath>

#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "tests/testing/kernel_data.h"

namespace gyre {
namespace {

using testing::AsInt8;
using testing::EveryIsa;
using testing::IsaTest;
using testing::kMatMulTypes;
using testing::NameOfIsa;
using testing::Output;
using testing::RandomFloats;
using testing::WeightData;

constexpr double kEps = 0x1p-24;

bool HasInt8Path(DType type) {
  return type == DType::kQ8_0 || type == DType::kQ4_0 || type == DType::kQ4_K || type == DType::kQ6_K;
}

struct Shape {
  size_t rows, n, k;
};

// How many outputs lie outside of their bound. x2 is what the kernel is said to compute with (x, or x as int8); `slack`
// is an allowance for each row and column on top of rounding.
template <typename Slack>
size_t Violations(const Output& out, const Shape& s, const std::vector<float>& x2, const std::vector<float>& w,
                  double roundings, Slack slack, bool has_min = false) {
  size_t bad = 0;
  for (size_t r = 0; r < s.rows; ++r) {
    for (size_t n = 0; n < s.n; ++n) {
      double exact = 0, norm = 0, x_norm = 0, w_max = 0;
      for (size_t k = 0; k < s.k; ++k) {
        const double xv = x2[r * s.k + k], wv = w[n * s.k + k];
        exact += xv * wv;
        norm += std::fabs(xv * wv);
        x_norm += std::fabs(xv);
        w_max = std::max(w_max, std::fabs(wv));
      }
      // A minimum makes two terms of a weight, each as large as the largest weight may be.
      const double bound = roundings * kEps * (norm + (has_min ? 2 * x_norm * w_max : 0.0)) + slack(r, n);
      // Written so that NaN, too, is a violation.
      if (!(std::fabs(static_cast<double>(out[r * s.n + n]) - exact) <= bound)) ++bad;
    }
  }
  return bad;
}

class KernelsMatMul : public IsaTest {
 protected:
  static Output Run(Backend& backend, const std::vector<float>& x, WeightData& w, const Shape& s, bool exact) {
    Output out(s.rows * s.n);
    const auto packed = backend.Pack(w.view());
    EXPECT_GT(packed->bytes, 0u);
    backend.MatMul(x.data(), s.rows, *packed, out.data(), exact);
    EXPECT_TRUE(out.GuardIntact());
    return out;
  }

  void Compare(DType type, const Shape& s) {
    SCOPED_TRACE(::testing::Message() << Info(type).name << " rows " << s.rows << " n " << s.n << " k " << s.k);
    auto backend = Make(2);
    const auto x = RandomFloats(s.rows * s.k, 1);
    WeightData w(type, s.n, s.k, 2);
    const auto floats = w.Floats();
    // A chain of k / 8 roundings, a tree of 3, the oracle's own.
    const double chain = static_cast<double>(s.k) / 8 + 5;
    auto none = [](size_t, size_t) { return 0.0; };
    EXPECT_EQ(Violations(Run(*backend, x, w, s, true), s, x, floats, chain, none), 0u);
    const Output quick = Run(*backend, x, w, s, false);
    if (!HasInt8Path(type)) {
      EXPECT_EQ(Violations(quick, s, x, floats, chain, none), 0u);
      return;
    }
    // Against the same int8 activations only the scales' products round: two or three for a block.
    std::vector<float> scales;
    const auto x8 = AsInt8(x, &scales);
    EXPECT_EQ(Violations(quick, s, x8, floats, static_cast<double>(s.k) / 32 * 3 + 8, none, type == DType::kQ4_K), 0u);
    // Against exact activations each is off by half a step at most.
    EXPECT_EQ(Violations(
                  quick, s, x, floats, chain,
                  [&](size_t r, size_t n) {
                    double half_steps = 0;
                    for (size_t k = 0; k < s.k; ++k) {
                      half_steps += 0.501 * static_cast<double>(scales[(r * s.k + k) / 32]) *
                                    std::fabs(static_cast<double>(floats[n * s.k + k]));
                    }
                    return half_steps;
                  },
                  type == DType::kQ4_K),
              0u);
  }
};

TEST_P(KernelsMatMul, FloatsOfAnyShape) {
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (size_t k : {1u, 2u, 7u, 8u, 9u, 15u, 16u, 17u, 24u, 31u, 32u, 33u, 47u, 48u, 64u, 172u}) {
      for (size_t n : {1u, 2u, 3u, 4u, 5u, 8u, 9u, 13u, 16u, 33u}) Compare(type, {n % 3 * 6 + 1, n, k});
    }
    for (size_t rows = 1; rows <= 14; ++rows) Compare(type, {rows, 21, 50});
  }
}

TEST_P(KernelsMatMul, QuantizedOfAnyShape) {
  for (DType type : kMatMulTypes) {
    const size_t block = Info(type).block_elems;
    if (block == 1) continue;
    for (size_t blocks : {1u, 2u, 3u, 5u}) {
      for (size_t n : {1u, 3u, 15u, 16u, 17u, 47u, 48u, 63u, 64u, 65u, 130u}) {
        Compare(type, {n % 4 * 3 + 1, n, blocks * block});
      }
      if (blocks < 3) {
        for (size_t rows = 1; rows <= 19; ++rows) Compare(type, {rows, 35, blocks * block});
      }
    }
  }
}

TEST_P(KernelsMatMul, ARealSize) {
  for (DType type : kMatMulTypes) Compare(type, {2, 96, 2048});
}

// The comparison above is sharp enough to see one bit of one weight.
TEST_P(KernelsMatMul, AFlippedBitIsSeen) {
  const Shape s{2, 40, 256};
  auto backend = Make();
  const auto x = RandomFloats(s.rows * s.k, 1);
  auto none = [](size_t, size_t) { return 0.0; };
  for (DType type : kMatMulTypes) {
    SCOPED_TRACE(Info(type).name);
    WeightData w(type, s.n, s.k, 2);
    const auto floats = w.Floats();
    // The lowest bit of a quant in the middle of row 7; for floats a bit in the middle of the mantissa.
    const size_t at = 7 * w.row_bytes() + (type == DType::kF32 ? 102 : type == DType::kQ6_K ? 50 : 120);
    w.data()[at] ^= std::byte{1};
    const Output out = Run(*backend, x, w, s, false);
    const auto seen = HasInt8Path(type) ? AsInt8(x) : x;
    EXPECT_GT(Violations(out, s, seen, floats, static_cast<double>(s.k) / 8 + 5, none, type == DType::kQ4_K), 0u);
  }
}

TEST_P(KernelsMatMul, NanAndInfinityStayVisible) {
  auto backend = Make();
  for (DType type : {DType::kF32, DType::kQ8_0, DType::kQ4_K}) {
    for (float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      const Shape s{2, 17, 256};
      auto x = RandomFloats(s.rows * s.k, 1);
      x[256 + 40] = poison;
      WeightData w(type, s.n, s.k, 2);
      const Output out = Run(*backend, x, w, s, false);
      for (size_t n = 0; n < s.n; ++n) {
        EXPECT_TRUE(std::isfinite(out[n]));
        EXPECT_FALSE(std::isfinite(out[s.n + n])) << Info(type).name;
      }
    }
  }
}

TEST_P(KernelsMatMul, ZeroAndTinyRows) {
  auto backend = Make();
  WeightData w(DType::kQ8_0, 20, 64, 2);
  std::vector<float> x(128, 0.0f);
  for (size_t i = 64; i < 128; ++i) x[i] = 1e-38f;
  const Output out = Run(*backend, x, w, {2, 20, 64}, false);
  for (size_t i = 0; i < 40; ++i) EXPECT_NEAR(out[i], 0, 1e-34);
}

TEST_P(KernelsMatMul, ARowHasTheSameBitsInAnyCompany) {
  constexpr size_t kRows = 64;
  for (DType type : kMatMulTypes) {
    for (const bool exact : {false, true}) {
      const Shape s{kRows, 259, Info(type).block_elems == 1 ? size_t{172} : size_t{512}};
      SCOPED_TRACE(::testing::Message() << Info(type).name << (exact ? " exact" : ""));
      const auto x = RandomFloats(kRows * s.k, 3);
      WeightData w(type, s.n, s.k, 4);
      const Output whole = Run(*Make(1), x, w, s, exact);
      for (int threads = 1; threads <= 4; ++threads) {
        auto backend = Make(threads);
        const auto packed = backend->Pack(w.view());
        for (size_t chunk : {1u, 3u, 7u, 17u, 64u}) {
          if (chunk == 1 && threads > 2) continue;
          Output out(kRows * s.n);
          for (size_t r = 0; r < kRows; r += chunk) {
            backend->MatMul(x.data() + r * s.k, std::min(chunk, kRows - r), *packed, out.data() + r * s.n, exact);
          }
          ASSERT_TRUE(whole.SameBits(out.data(), 0, out.size())) << threads << " threads, " << chunk << " rows";
        }
      }
    }
  }
}

// Integer dots are exact and the float operations are the same ones, so a mixed ring computes alike.
TEST_P(KernelsMatMul, Int8ProductsAreTheSameOnEveryInstructionSet) {
  if (!IsaMissing(Isa::kAvx2).empty()) GTEST_SKIP() << IsaMissing(Isa::kAvx2);
  const Shape s{9, 50, 512};
  const auto x = RandomFloats(s.rows * s.k, 5);
  for (DType type : kMatMulTypes) {
    if (!HasInt8Path(type)) continue;
    WeightData w(type, s.n, s.k, 6);
    const Output base = Run(*MakeBackend(Isa::kAvx2, 1), x, w, s, false);
    Output mine = Run(*Make(), x, w, s, false);
    EXPECT_TRUE(base.SameBits(mine.data(), 0, mine.size())) << Info(type).name;
  }
}

TEST_P(KernelsMatMul, EmbedGivesTheRowsThemselves) {
  auto backend = Make(2);
  for (DType type : kMatMulTypes) {
    const size_t n = 70, k = Info(type).block_elems == 1 ? 172 : 512;
    WeightData w(type, n, k, 7);
    const auto packed = backend->Pack(w.view());
    const std::vector<TokenId> ids = {0, 69, 16, 15, 33, 33};
    Output out(ids.size() * k);
    backend->Embed(ids.data(), ids.size(), *packed, out.data());
    const auto floats = w.Floats();
    for (size_t r = 0; r < ids.size(); ++r) {
      EXPECT_TRUE(out.SameBits(floats.data() + static_cast<size_t>(ids[r]) * k, r * k, k)) << Info(type).name;
    }
    EXPECT_TRUE(out.GuardIntact());
  }
}

TEST_P(KernelsMatMul, PackingTellsItsProgress) {
  auto backend = Make(2);
  for (DType type : {DType::kF32, DType::kQ8_0, DType::kQ6_K}) {
    WeightData w(type, 33, 512, 8);
    size_t told = 0;
    const auto packed = backend->Pack(w.view(), [&](size_t bytes) { told += bytes; });
    EXPECT_EQ(told, 33 * w.row_bytes());
    EXPECT_EQ(packed->type, type);
    EXPECT_EQ(packed->n, 33u);
    EXPECT_EQ(packed->k, 512u);
  }
}

INSTANTIATE_TEST_SUITE_P(All, KernelsMatMul, EveryIsa(), NameOfIsa);

}  // namespace
}  // namespace gyre
