// GPU kernels on rows against the reference: norms, rotary positions, and what is done element by element.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/cuda/rows/rows.h"
#include "tests/testing/gpu_kernel_test.h"

namespace gyre {
namespace {

using testing::GpuVector;
using testing::Random;

class CudaRows : public testing::GpuKernelTest {};

// Shapes with partial warps, partial blocks, rows at odd addresses, and one of a real model.
constexpr size_t kDims[] = {1, 2, 7, 14, 64, 127, 172, 256, 257, 300, 2048, 4096};

TEST_F(CudaRows, NormsMatchTheReference) {
  for (const size_t dim : kDims) {
    for (const size_t groups : {1u, 3u}) {
      const size_t rows = 4;
      const auto x = Random(rows * groups * dim, 1, 3), w = Random(groups * dim, 2);
      std::vector<float> expected(x.size());
      const GpuVector<float> on_w(w);
      for (const bool weighted : {true, false}) {
        if (!weighted && groups > 1) continue;
        if (weighted)
          ref_->GroupRmsNorm(x.data(), rows, groups, dim, w.data(), 1e-5f, expected.data());
        else
          ref_->RmsNorm(x.data(), rows, dim, nullptr, 1e-5f, expected.data());
        GpuVector<float> on_x(x), out(x.size());
        cuda::RmsNorm(nullptr, on_x.data(), rows * groups, groups, dim, weighted ? on_w.data() : nullptr, 1e-5f,
                      out.data());
        const auto got = out.host();
        for (size_t i = 0; i < got.size(); ++i)
          ASSERT_NEAR(got[i], expected[i], 1e-6 * (std::fabs(expected[i]) + 1e-3)) << dim << ", " << i;
        // In place, in another order of threads, and each row alone.
        simt::SetOrder(simt::Order::kRandom, dim);
        cuda::RmsNorm(nullptr, on_x.data() + groups * dim, groups, groups, dim, weighted ? on_w.data() : nullptr, 1e-5f,
                      on_x.data() + groups * dim);
        simt::SetOrder(simt::Order::kRising);
        const auto alone = on_x.host();
        for (size_t i = groups * dim; i < 2 * groups * dim; ++i) ASSERT_EQ(alone[i], got[i]) << dim << ", " << i;
      }
    }
  }
}

TEST_F(CudaRows, ActivationsMatchTheReference) {
  const size_t n = 1000;
  auto x = Random(n, 4, 4), y = Random(n, 6);
  const float edges[] = {0, -0.0f, 7, 7.5f, -7.5f, 88, -88, -104, 100, 3e38f, -1e20f, INFINITY, 1e-30f};
  std::copy(std::begin(edges), std::end(edges), x.begin());
  const GpuVector<float> on_x(x), on_y(y);
  std::vector<float> expected(n);
  GpuVector<float> out(n);
  const auto near = [&](Activation act) {
    const auto got = out.host();
    for (size_t i = 0; i < n; ++i) {
      if (got[i] == expected[i]) continue;  // infinities too
      ASSERT_NEAR(got[i], expected[i], 3e-6 * std::fabs(expected[i]) + 1e-12)
          << x[i] << " through activation " << static_cast<int>(act);
    }
  };
  for (Activation act : {Activation::kSilu, Activation::kGeluTanh, Activation::kClampedSwiglu, Activation::kSigmoid,
                         Activation::kReluSquared, Activation::kRelu}) {
    ref_->GatedActivation(x.data(), y.data(), n, act, expected.data());
    cuda::GatedActivation(nullptr, on_x.data(), on_y.data(), n, act, out.data());
    near(act);
    if (act == Activation::kClampedSwiglu) continue;  // it has two arguments
    ref_->Activate(x.data(), n, act, expected.data());
    cuda::Activate(nullptr, on_x.data(), n, act, out.data());
    near(act);
  }
  const GpuVector<float> nan(std::vector<float>(n, NAN));
  for (Activation act : {Activation::kSilu, Activation::kGeluTanh, Activation::kClampedSwiglu, Activation::kSigmoid}) {
    cuda::GatedActivation(nullptr, nan.data(), on_y.data(), n, act, out.data());
    for (const float v : out.host()) ASSERT_TRUE(std::isnan(v)) << static_cast<int>(act);
  }
}

TEST_F(CudaRows, GeluCenterAndXieluMatchTheReference) {
  const size_t rows = 4, dim = 250, n = rows * dim;
  auto x = Random(n, 4, 4);
  std::vector<float> expected(n);
  const auto near = [&](const std::vector<float>& got, double relative) {
    for (size_t i = 0; i < n; ++i) ASSERT_NEAR(got[i], expected[i], relative * std::fabs(expected[i]) + 1e-6) << x[i];
  };
  ref_->Activate(x.data(), n, Activation::kGelu, expected.data());
  GpuVector<float> on_x(x), out(n);
  cuda::Activate(nullptr, on_x.data(), n, Activation::kGelu, out.data());
  near(out.host(), 1e-5);
  ref_->Center(x.data(), rows, dim, expected.data());
  cuda::Center(nullptr, on_x.data(), rows, dim, out.data());
  near(out.host(), 1e-6);
  const XieluParams params{.positive = 0.8f, .negative = 1.5f, .beta = 0.5f, .eps = -0.25f};
  expected = x;
  ref_->Xielu(expected.data(), n, params);
  cuda::Xielu(nullptr, on_x.data(), n, params);
  near(on_x.host(), 1e-6);
  GpuVector<float> limited(x);
  cuda::Limit(nullptr, limited.data(), n, -1, 2);
  const auto got = limited.host();
  for (size_t i = 0; i < n; ++i) ASSERT_EQ(got[i], std::clamp(x[i], -1.0f, 2.0f));
}

TEST_F(CudaRows, SoftcapsMatchTheReference) {
  auto x = Random(1000, 4, 20);
  const float edges[] = {0, 1e-20f, 0.1f, 0.44f, 0.46f, INFINITY, -INFINITY, 3e38f};
  std::copy(std::begin(edges), std::end(edges), x.begin());
  for (const float cap : {3.0f, 30.0f}) {
    auto expected = x;
    ref_->SoftcapInPlace(expected.data(), expected.size(), cap);
    GpuVector<float> on_x(x);
    cuda::SoftcapInPlace(nullptr, on_x.data(), x.size(), cap);
    const auto got = on_x.host();
    // Above 0.15 tanh is 1 minus a quotient: one rounding of numbers near 1.
    for (size_t i = 0; i < x.size(); ++i) {
      const float bound = std::fabs(x[i] / cap) < 0.15f ? 5e-7f * std::fabs(expected[i]) : 2e-7f * cap;
      ASSERT_NEAR(got[i], expected[i], bound + 1e-12f) << x[i];
    }
  }
}

// Operations of one rounding have the reference's bits.
TEST_F(CudaRows, ElementwiseOpsHaveTheBitsOfTheReference) {
  for (const size_t dim : {1u, 33u, 256u, 1000u}) {
    const size_t rows = 3, n = rows * dim;
    const auto x = Random(n, 1), y = Random(n, 2), row = Random(dim, 3), each = Random(rows, 4);
    const GpuVector<float> on_y(y), on_row(row), on_each(each);
    const auto same = [&](const char* what, const std::function<void(float*)>& host,
                          const std::function<void(float*)>& device) {
      auto expected = x;
      host(expected.data());
      GpuVector<float> on_x(x);
      device(on_x.data());
      EXPECT_EQ(on_x.host(), expected) << what << " of rows of " << dim;
    };
    same(
        "MultiplyInPlace", [&](float* a) { ref_->MultiplyInPlace(a, y.data(), n); },
        [&](float* a) { cuda::MultiplyInPlace(nullptr, a, on_y.data(), n); });
    same(
        "AddInPlace", [&](float* a) { ref_->AddInPlace(a, y.data(), n); },
        [&](float* a) { cuda::AddInPlace(nullptr, a, on_y.data(), n); });
    same(
        "AddScaled", [&](float* a) { ref_->AddScaled(a, y.data(), n, 0.3f); },
        [&](float* a) { cuda::AddScaled(nullptr, a, on_y.data(), n, 0.3f); });
    same(
        "AddBias", [&](float* a) { ref_->AddBias(a, rows, dim, row.data()); },
        [&](float* a) { cuda::AddBias(nullptr, a, rows, dim, on_row.data()); });
    same(
        "ScaleColumns", [&](float* a) { ref_->ScaleColumns(a, rows, dim, row.data()); },
        [&](float* a) { cuda::ScaleColumns(nullptr, a, rows, dim, on_row.data()); });
    same(
        "Scale", [&](float* a) { ref_->Scale(a, n, 0.7f); }, [&](float* a) { cuda::Scale(nullptr, a, n, 0.7f); });
    same(
        "ScaleRows", [&](float* a) { ref_->ScaleRows(a, rows, dim, each.data()); },
        [&](float* a) { cuda::ScaleRows(nullptr, a, rows, dim, on_each.data()); });
    const size_t width = (dim + 1) / 2;
    same(
        "CopyColumns", [&](float* a) { ref_->CopyColumns(y.data(), rows, dim, width, a, dim); },
        [&](float* a) { cuda::CopyColumns(nullptr, on_y.data(), rows, dim, width, a, dim); });
    const std::vector<uint32_t> numbers = {1, 2};
    const GpuVector<uint32_t> on_numbers(numbers);
    same(
        "GatherRows in place", [&](float* a) { ref_->GatherRows(a, dim, numbers, dim, a); },
        [&](float* a) { cuda::GatherRows(nullptr, a, dim, on_numbers.data(), 2, dim, a); });
  }
  cuda::AddInPlace(nullptr, nullptr, nullptr, 0);  // nothing happens
}

TEST_F(CudaRows, ASharedExpertsGateIsASigmoid) {
  const size_t rows = 5, dim = 300;
  const auto x = Random(rows * dim, 1), w = Random(dim, 2, 0.1f);
  std::vector<float> expected(rows);
  ref_->SigmoidDot(x.data(), rows, dim, w.data(), expected.data());
  const GpuVector<float> on_x(x), on_w(w);
  GpuVector<float> out(rows);
  cuda::SigmoidDot(nullptr, on_x.data(), rows, dim, on_w.data(), out.data());
  const auto got = out.host();
  for (size_t r = 0; r < rows; ++r) EXPECT_FLOAT_EQ(got[r], expected[r]);
}

TEST_F(CudaRows, AnglesHaveTheBitsOfTheReference) {
  const size_t half = 64;
  std::vector<double> frequencies(half);
  for (size_t i = 0; i < half; ++i) frequencies[i] = std::pow(10000.0, -static_cast<double>(i) / half);
  std::vector<KvRow> rows;
  for (const uint32_t p : {0u, 1u, 2u, 17u, 4095u, 131071u, 1048576u, 4294967295u}) rows.push_back({nullptr, p});
  std::vector<float> cos(rows.size() * half), sin(cos.size());
  ref_->RotaryTable(rows, frequencies.data(), half, 1.2f, cos.data(), sin.data());
  const GpuVector<KvRow> on_rows(rows);
  const GpuVector<double> on_frequencies(frequencies);
  GpuVector<float> on_cos(cos.size()), on_sin(cos.size());
  cuda::RotaryTable(nullptr, on_rows.data(), rows.size(), on_frequencies.data(), half, 1.2f, on_cos.data(),
                    on_sin.data());
  EXPECT_EQ(on_cos.host(), cos);
  EXPECT_EQ(on_sin.host(), sin);
}

TEST_F(CudaRows, RotatedPairsMatchTheReference) {
  const size_t rows = 5;
  for (const int head_dim : {2, 16, 20, 128}) {
    for (const int half : {head_dim / 4, head_dim / 2}) {
      for (RopePairing pairing : {RopePairing::kInterleaved, RopePairing::kHalves}) {
        const int heads = 3;
        const auto x = Random(rows * 3 * static_cast<size_t>(head_dim), 1);
        const auto c = Random(rows * static_cast<size_t>(half) + 1, 2),
                   s = Random(rows * static_cast<size_t>(half) + 1, 3);
        auto expected = x;
        ref_->Rope(expected.data(), rows, heads, head_dim, c.data(), s.data(), half, pairing);
        GpuVector<float> on_x(x);
        const GpuVector<float> on_c(c), on_s(s);
        cuda::Rope(nullptr, on_x.data(), rows, heads, head_dim, on_c.data(), on_s.data(), half, pairing);
        const auto got = on_x.host();
        for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-6) << head_dim << ", " << i;
      }
    }
  }
}

TEST_F(CudaRows, WarpsTouchNoSectorThatTheyDoNotNeed) {
  if (!simt::kChecked) GTEST_SKIP() << "accesses are seen only where they are checked";
  const size_t rows = 2, dim = 2048;
  const GpuVector<float> x(Random(rows * dim, 1)), w(Random(dim, 2));
  GpuVector<float> out(Random(rows * dim, 3));
  const auto exact = [](const char* what, const std::function<void()>& launch) {
    const simt::Count count;
    launch();
    const simt::Counts counts = count.counts();
    EXPECT_GT(counts.loads.requests, 0u);
    EXPECT_EQ(counts.loads.units, counts.loads.least) << what << "\n" << count.Worst(3);
    EXPECT_EQ(counts.stores.units, counts.stores.least) << what << "\n" << count.Worst(3);
    EXPECT_EQ(counts.shared.units, counts.shared.least) << what << "\n" << count.Worst(3);
  };
  exact("norm of rows", [&] { cuda::RmsNorm(nullptr, x.data(), rows, 1, dim, w.data(), 1e-5f, out.data()); });
  exact("norm of heads", [&] { cuda::RmsNorm(nullptr, x.data(), 16, 1, 128, w.data(), 1e-5f, out.data()); });
  exact("add", [&] { cuda::AddInPlace(nullptr, out.data(), x.data(), rows * dim); });
  exact("activation",
        [&] { cuda::GatedActivation(nullptr, out.data(), x.data(), rows * dim, Activation::kSilu, out.data()); });
  exact("rope by halves",
        [&] { cuda::Rope(nullptr, out.data(), rows, 16, 128, x.data(), x.data() + 256, 64, RopePairing::kHalves); });
}

}  // namespace
}  // namespace gyre
