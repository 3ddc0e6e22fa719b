// GPU products by matrix instructions, of generated rows and of prompts, against the reference on rounded factors:
// every type of weights, any number of rows, and what they cost of memory.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/products/products.h"
#include "tests/testing/gpu_kernel_test.h"
#include "tests/testing/gpu_matrix.h"
#include "tests/testing/products.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using testing::GpuMatrix;
using testing::GpuVector;
using testing::IsInteger;
using testing::Random;

class CudaRowProducts : public testing::GpuKernelTest {
 protected:
  struct OnDevice {
    GpuVector<uint8_t> memory;
    cuda::Operand operand;
  };
  static OnDevice Prepare(cuda::Pieces pieces, const cuda::OperandSource& from) {
    const cuda::OperandSizes sizes = cuda::SizesOfOperand(pieces, from.rows, from.k, from.heads);
    OnDevice d{GpuVector<uint8_t>(sizes.codes + sizes.scales), {}};
    d.operand = cuda::MakeOperand(nullptr, pieces, from, d.memory.data());
    return d;
  }
  static std::vector<float> Product(const cuda::Matrix& w, const std::vector<float>& x, size_t rows, bool prompt) {
    const GpuVector<float> on_x(x);
    const OnDevice d = Prepare(prompt ? cuda::Pieces::kBf16 : cuda::PiecesFor(w.type), {on_x.data(), rows, w.k, w.k});
    GpuVector<float> out(rows * w.n);
    if (prompt)
      cuda::ProductOfPrompt(nullptr, {&w}, d.operand, rows, {out.data(), w.n});
    else
      cuda::ProductOfRows(nullptr, {&w}, d.operand, rows, nullptr, {out.data(), w.n});
    return out.host();
  }
  // The exact product of what the factors are rounded to.
  std::vector<float> Expected(const WeightView& w, const std::vector<float>& x, size_t rows, bool prompt) {
    std::vector<float> wide(w.n * w.k), expected(rows * w.n), seen = x;
    for (size_t r = 0; r < w.n; ++r) DequantizeRow(w, r, &wide[r * w.k]);
    const auto round = [](std::vector<float>* values) {
      for (float& v : *values) v = Bf16ToFloat(FloatToBf16(v));
    };
    if (prompt) round(&seen);
    if (prompt && w.type != DType::kF16) round(&wide);
    if (!prompt && (IsInteger(w.type) || w.type == DType::kI8)) seen = testing::Rounded(x);
    const WeightView rounded{
        .type = DType::kF32, .n = w.n, .k = w.k, .data = reinterpret_cast<const std::byte*>(wide.data())};
    ref_->MatMul(seen.data(), rows, *ref_->Pack(rounded), expected.data(), Arithmetic::kExact);
    return expected;
  }
  static std::vector<float> FirstRows(const std::vector<float>& x, size_t from, size_t rows, size_t k) {
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(from * k);
    return {begin, begin + static_cast<std::ptrdiff_t>(rows * k)};
  }
  // Each row alone, and among others, has the bits that it has among all.
  static void ExpectRowsAlone(const cuda::Matrix& w, const std::vector<float>& x, const std::vector<float>& all,
                              const std::vector<std::pair<size_t, size_t>>& parts, bool prompt,
                              const std::string& what) {
    for (const auto& [from, rows] : parts) {
      simt::SetOrder(simt::Order::kRandom, rows);
      const auto got = Product(w, FirstRows(x, from, rows, w.k), rows, prompt);
      simt::SetOrder(simt::Order::kRising);
      EXPECT_EQ(std::memcmp(got.data(), &all[from * w.n], got.size() * sizeof(float)), 0)
          << what << ": " << rows << " rows from " << from;
    }
  }
  void ExpectProduct(const WeightView& view, size_t rows, const std::vector<std::pair<size_t, size_t>>& parts,
                     bool prompt) {
    const std::string what = std::string(Info(view.type).name) + ", k " + std::to_string(view.k);
    const auto x = Random(rows * view.k, 2);
    const GpuMatrix on_w(view, books_);
    const auto got = Product(on_w.matrix(), x, rows, prompt);
    // An element of x may be rounded to the other side of a tie, and a weight too.
    EXPECT_LT(testing::Distance(got, Expected(view, x, rows, prompt)), prompt ? 2e-5 : 2e-6) << what;
    ExpectRowsAlone(on_w.matrix(), x, got, parts, prompt, what);
  }
  const testing::GpuCodebooks books_{};
};

std::vector<DType> PackedTypes() {
  std::vector<DType> types;
  for (const DType type : testing::kTypes) {
    if (type != DType::kF32) types.push_back(type);
  }
  return types;
}

TEST_F(CudaRowProducts, EveryTypeMatchesTheReferenceForAnyRows) {
  for (const DType type : PackedTypes()) {
    const size_t unit = Info(type).block_elems;
    for (const size_t k : {unit == 1 ? size_t{90} : unit, size_t{512}}) {
      auto w = testing::MakeWeights(type, 21, k, 1);
      if (IsInteger(type)) testing::RandomCodes(type, 4, &w.bytes);  // every code
      w.view.data = w.bytes.data();
      if (k == 512)
        ExpectProduct(w.view, 9, {{8, 1}, {2, 7}}, false);
      else
        ExpectProduct(w.view, 3, {{1, 1}}, false);
    }
  }
}

TEST_F(CudaRowProducts, ARowsBitsDoNotDependOnItsCompanions) {
  for (const DType type : {DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kQ8_0, DType::kF16, DType::kBF16}) {
    const auto w = testing::MakeWeights(type, 16, 512, 1);
    ExpectProduct(w.view, 63, {{62, 1}, {0, 7}, {30, 21}, {63 - 33, 33}}, false);
  }
}

TEST_F(CudaRowProducts, TypesWithScalesOfTheirOwn) {
  for (const testing::ScaledWeights& m :
       {testing::MakeScaled(DType::kI8, 18, 96, 32, 0), testing::MakeScaled(DType::kF8E4M3, 21, 200, 64, 60)}) {
    ExpectProduct(m.view, 10, {{9, 1}}, false);
    ExpectProduct(m.view, 10, {{9, 1}}, true);
  }
}

TEST_F(CudaRowProducts, OnlyRowsBetweenTheBoundsTakePartEachWithItsMatrix) {
  const size_t n = 20, k = 64, rows = 30, count = 4;
  std::vector<GpuMatrix> on_w;
  std::vector<testing::Weights> files;
  std::vector<cuda::Matrix> matrices;
  for (uint32_t e = 0; e < count; ++e) {
    files.push_back(testing::MakeWeights(DType::kQ4_0, n, k, e));
    on_w.emplace_back(files.back().view, books_);
    matrices.push_back(on_w.back().matrix());
  }
  const auto x = Random(rows * k, 2), before = Random(rows * n, 3);
  const GpuVector<float> on_x(x);
  const GpuVector<cuda::Matrix> many(matrices);
  const OnDevice d = Prepare(cuda::Pieces::kInt8, {on_x.data(), rows, k, k});
  // The second one has no rows, and the last rows belong to none.
  const std::vector<uint32_t> bounds = {3, 12, 12, 13, 28};
  const GpuVector<uint32_t> on_bounds(bounds);
  for (const bool add : {false, true}) {
    GpuVector<float> out(before);
    cuda::ProductOfRows(nullptr, {matrices.data(), many.data(), count}, d.operand, rows, on_bounds.data(),
                        {out.data(), n, add});
    const auto got = out.host();
    for (size_t e = 0; e < count; ++e) {
      const auto all = Product(matrices[e], x, rows, false);
      for (size_t i = bounds[e] * n; i < bounds[e + 1] * n; ++i)
        ASSERT_EQ(got[i], add ? all[i] + before[i] : all[i]) << e << ", " << i;
    }
    for (size_t i = 0; i < got.size(); ++i) {
      if (i / n < 3 || i / n >= 28) ASSERT_EQ(got[i], before[i]) << i;
    }
  }
}

TEST_F(CudaRowProducts, HeadsHaveTheirOwnRowsAndColumns) {
  const size_t n = 10, k = 64, rows = 11, heads = 3, x_stride = 72, out_stride = 12;
  for (const bool prompt : {false, true}) {
    for (const DType type : {DType::kF16, DType::kQ8_0}) {
      std::vector<GpuMatrix> on_w;
      std::vector<testing::Weights> files;
      std::vector<cuda::Matrix> matrices;
      for (uint32_t h = 0; h < heads; ++h) {
        files.push_back(testing::MakeWeights(type, n, k, h));
        on_w.emplace_back(files.back().view, books_);
        matrices.push_back(on_w.back().matrix());
      }
      const auto x = Random(rows * heads * x_stride, 2);
      const GpuVector<float> on_x(x);
      const GpuVector<cuda::Matrix> many(matrices);
      const OnDevice d = Prepare(prompt ? cuda::Pieces::kBf16 : cuda::PiecesFor(type),
                                 {on_x.data(), rows, k, heads * x_stride, heads, x_stride});
      GpuVector<float> out(std::vector<float>(rows * heads * out_stride, 7.0f));
      const cuda::Matrices all{matrices.data(), many.data(), heads, out_stride};
      const cuda::RowsOut to{out.data(), heads * out_stride};
      if (prompt)
        cuda::ProductOfPrompt(nullptr, all, d.operand, rows, to);
      else
        cuda::ProductOfRows(nullptr, all, d.operand, rows, nullptr, to);
      const auto got = out.host();
      for (size_t h = 0; h < heads; ++h) {
        std::vector<float> mine;
        for (size_t r = 0; r < rows; ++r) {
          const auto* from = &x[(r * heads + h) * x_stride];
          mine.insert(mine.end(), from, from + k);
        }
        const auto alone = Product(matrices[h], mine, rows, prompt);
        for (size_t r = 0; r < rows; ++r) {
          for (size_t c = 0; c < out_stride; ++c)
            ASSERT_EQ(got[(r * heads + h) * out_stride + c], c < n ? alone[r * n + c] : 7.0f) << h << r << c;
        }
      }
    }
  }
}

TEST_F(CudaRowProducts, NotANumberStaysInItsRow) {
  for (const DType type : {DType::kQ8_0, DType::kF16, DType::kBF16}) {
    for (const bool prompt : {false, true}) {
      const auto w = testing::MakeWeights(type, 16, 128, 1);
      const GpuMatrix on_w(w.view, books_);
      auto x = Random(3 * 128, 2);
      const auto clean = Product(on_w.matrix(), x, 3, prompt);
      x[128 + 77] = NAN;
      const auto got = Product(on_w.matrix(), x, 3, prompt);
      for (size_t i = 0; i < got.size(); ++i) {
        if (i / 16 == 1)
          EXPECT_TRUE(std::isnan(got[i])) << Info(type).name << prompt;
        else
          EXPECT_EQ(got[i], clean[i]) << Info(type).name << prompt;
      }
    }
  }
}

TEST_F(CudaRowProducts, PromptsMatchTheReference) {
  for (const DType type : PackedTypes()) {
    const size_t unit = Info(type).block_elems;
    const auto w = testing::MakeWeights(type, 21, unit == 1 ? 330 : unit == 32 ? 352 : 256, 1);
    ExpectProduct(w.view, 5, {{4, 1}}, true);
  }
  // More rows and outputs than one block has, and more inputs than there are stages.
  for (const DType type : {DType::kQ4_K, DType::kF16}) {
    const auto w = testing::MakeWeights(type, 139, 512, 1);
    ExpectProduct(w.view, 69, {{68, 1}, {0, 16}}, true);
  }
}

TEST_F(CudaRowProducts, MemoryIsReadSideBySide) {
  if (!simt::kChecked) GTEST_SKIP() << "accesses are seen only where they are checked";
  const size_t n = 32, k = 512;
  for (const DType type : PackedTypes()) {
    const auto w = testing::MakeWeights(type, n, k, 1);
    const GpuMatrix on_w(w.view, books_);
    for (const size_t rows : {1u, 21u}) {
      for (const bool prompt : {false, true}) {
        if (prompt && rows == 1) continue;
        const GpuVector<float> x(Random(rows * k, 2));
        GpuVector<float> out(rows * n);
        const simt::Count count;
        const OnDevice d = Prepare(prompt ? cuda::Pieces::kBf16 : cuda::PiecesFor(type), {x.data(), rows, k, k});
        if (prompt)
          cuda::ProductOfPrompt(nullptr, {&on_w.matrix()}, d.operand, rows, {out.data(), n});
        else
          cuda::ProductOfRows(nullptr, {&on_w.matrix()}, d.operand, rows, nullptr, {out.data(), n});
        const simt::Counts counts = count.counts();
        const std::string what =
            std::string(Info(type).name) + (prompt ? ", prompt of " : ", ") + std::to_string(rows) + " rows\n";
        EXPECT_LE(counts.loads.excess(), 1.1) << what << count.Worst(5);
        EXPECT_LE(counts.shared.excess(), 1.2) << what << count.Worst(5);
        EXPECT_LE(counts.stores.excess(), 1.1) << what << count.Worst(5);
      }
    }
  }
}

}  // namespace
}  // namespace gyre
