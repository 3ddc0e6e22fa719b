// GPU products of dequantized weights, and rows of embeddings, against the reference: every type of weights.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/cuda/products/products.h"
#include "tests/testing/gpu_kernel_test.h"
#include "tests/testing/gpu_matrix.h"
#include "tests/testing/products.h"

namespace gyre {
namespace {

using testing::GpuMatrix;
using testing::GpuVector;
using testing::Random;

class CudaProducts : public testing::GpuKernelTest {
 protected:
  std::vector<float> Product(const cuda::Matrix& w, const std::vector<float>& x, size_t rows) {
    const GpuVector<float> on_x(x);
    GpuVector<float> out(rows * w.n);
    cuda::ProductExact(nullptr, w, {on_x.data(), rows, w.k}, {out.data(), w.n});
    return out.host();
  }
  const testing::GpuCodebooks books_{};
};

TEST_F(CudaProducts, EveryTypeMatchesTheReferenceAndTheRowAlone) {
  for (const DType type : testing::kTypes) {
    const size_t unit = Info(type).block_elems;
    for (const size_t k : {unit == 1 ? size_t{173} : unit, size_t{512}}) {
      for (const size_t rows : {1u, 9u}) {
        if (rows == 9 && k == 512 && unit == 256 && testing::kSanitized) continue;
        const size_t n = 9;
        const auto w = testing::MakeWeights(type, n, k, 1);
        const auto x = Random(rows * k, 2);
        const auto packed = ref_->Pack(w.view);
        std::vector<float> expected(rows * n);
        ref_->MatMul(x.data(), rows, *packed, expected.data(), Arithmetic::kExact);
        const GpuMatrix on_w(w.view, books_);
        const auto got = Product(on_w.matrix(), x, rows);
        EXPECT_LT(testing::Distance(got, expected), 1e-6) << Info(type).name << ", k " << k << ", rows " << rows;
        if (rows == 1) continue;
        simt::SetOrder(simt::Order::kRandom, k);
        const auto alone = Product(on_w.matrix(), {x.end() - static_cast<std::ptrdiff_t>(k), x.end()}, 1);
        simt::SetOrder(simt::Order::kRising);
        EXPECT_EQ(std::memcmp(alone.data(), &got[8 * n], n * sizeof(float)), 0) << Info(type).name << ", k " << k;
      }
    }
  }
}

TEST_F(CudaProducts, RowsOfEmbeddingsHaveTheBitsOfTheReference) {
  for (const DType type : testing::kTypes) {
    const size_t n = 5, k = Info(type).block_elems == 1 ? 173 : 768;
    auto w = testing::MakeWeights(type, n, k, 3);
    if (testing::IsInteger(type)) testing::RandomCodes(type, 4, &w.bytes);  // every code, and every point
    w.view.data = w.bytes.data();
    const std::vector<TokenId> ids = {4, 0, 4, 2};
    const auto packed = ref_->Pack(w.view);
    std::vector<float> expected(ids.size() * k);
    ref_->Embed(ids.data(), ids.size(), *packed, expected.data());
    const GpuMatrix on_w(w.view, books_);
    const GpuVector<TokenId> on_ids(ids);
    GpuVector<float> out(expected.size());
    cuda::Embed(nullptr, on_ids.data(), ids.size(), on_w.matrix(), out.data());
    const auto got = out.host();
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], expected[i]) << Info(type).name << ", element " << i;
  }
}

TEST_F(CudaProducts, TypesWithScalesOfTheirOwn) {
  for (const testing::ScaledWeights& m :
       {testing::MakeScaled(DType::kI8, 6, 96, 32, 0), testing::MakeScaled(DType::kF8E4M3, 6, 90, 4, 3)}) {
    std::vector<float> expected(m.view.n * m.view.k);
    for (size_t r = 0; r < m.view.n; ++r) DequantizeRow(m.view, r, &expected[r * m.view.k]);
    const GpuMatrix on_w(m.view, books_);
    const GpuVector<TokenId> ids(std::vector<TokenId>{0, 1, 2, 3, 4, 5});
    GpuVector<float> out(expected.size());
    cuda::Embed(nullptr, ids.data(), 6, on_w.matrix(), out.data());
    EXPECT_EQ(out.host(), expected);
    const auto x = Random(2 * m.view.k, 2);
    std::vector<float> products(2 * m.view.n);
    ref_->MatMul(x.data(), 2, *ref_->Pack(m.view), products.data(), Arithmetic::kExact);
    if (m.view.type == DType::kF8E4M3 || m.view.type == DType::kI8) {
      EXPECT_LT(testing::Distance(Product(on_w.matrix(), x, 2), products), 1e-6);
    }
  }
}

TEST_F(CudaProducts, AddsToWhatIsThereAndKeepsToItsColumns) {
  const size_t n = 6, k = 64, rows = 3;
  const auto w = testing::MakeWeights(DType::kF32, n, k, 1);
  const auto x = Random(rows * 2 * k, 2), before = Random(rows * 10, 3);
  const GpuMatrix on_w(w.view, books_);
  const GpuVector<float> on_x(x);
  GpuVector<float> out(before);
  // The second half of rows of 2 k, to columns 2 .. 7 of rows of 10.
  cuda::ProductExact(nullptr, on_w.matrix(), {on_x.data() + k, rows, 2 * k}, {out.data() + 2, 10, true});
  const auto got = out.host();
  for (size_t r = 0; r < rows; ++r) {
    const auto alone = Product(on_w.matrix(), {&x[(2 * r + 1) * k], &x[(2 * r + 1) * k] + k}, 1);
    for (size_t c = 0; c < 10; ++c) {
      const float was = before[r * 10 + c];
      EXPECT_EQ(got[r * 10 + c], c >= 2 && c < 8 ? alone[c - 2] + was : was) << r << ", " << c;
    }
  }
}

TEST_F(CudaProducts, OnlyRowsBetweenTheBoundsTakePart) {
  const size_t n = 6, k = 64, rows = 30;
  const auto w = testing::MakeWeights(DType::kQ8_0, n, k, 1);
  const auto x = Random(rows * k, 2), before = Random(rows * n, 3);
  const GpuMatrix on_w(w.view, books_);
  const GpuVector<float> on_x(x);
  const auto all = Product(on_w.matrix(), x, rows);
  for (const auto& [begin, end] : {std::pair<uint32_t, uint32_t>{0, 30}, {3, 20}, {11, 12}, {7, 7}, {30, 30}}) {
    const GpuVector<uint32_t> bounds(std::vector<uint32_t>{begin, end});
    GpuVector<float> out(before);
    cuda::ProductExact(nullptr, on_w.matrix(), {on_x.data(), rows, k, bounds.data()}, {out.data(), n});
    const auto got = out.host();
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], i / n >= begin && i / n < end ? all[i] : before[i]) << begin << " to " << end << ", " << i;
  }
}

TEST_F(CudaProducts, FloatWeightsAndRowsCostNoSectorTooMany) {
  if (!simt::kChecked) GTEST_SKIP() << "accesses are seen only where they are checked";
  const size_t n = 16, k = 512, rows = 3;
  const GpuVector<float> x(Random(rows * k, 2));
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto w = testing::MakeWeights(type, n, k, 1);
    const GpuMatrix on_w(w.view, books_);
    GpuVector<float> out(rows * n);
    const simt::Count count;
    cuda::ProductExact(nullptr, on_w.matrix(), {x.data(), rows, k}, {out.data(), n});
    EXPECT_EQ(count.counts().loads.units, count.counts().loads.least) << Info(type).name << "\n" << count.Worst(3);
    // F32 is not packed: a warp makes one output of each row, so lanes store to different rows. A tile has 16 outputs.
    EXPECT_EQ(count.counts().stores.units, type == DType::kF32 ? n * rows : n / 8 * rows);
  }
}

}  // namespace
}  // namespace gyre
