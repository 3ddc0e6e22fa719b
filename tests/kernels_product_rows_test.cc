// Batch invariance of products: the bits of a row do not depend on the other rows, on chunks or on threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/ops.h"
#include "tests/testing/kernel_test.h"
#include "tests/testing/products.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using testing::kArithmetics;
using testing::kTypes;
using testing::MakeWeights;
using testing::Random;
using testing::Weights;

class ProductRows : public testing::KernelTest {};

TEST_P(ProductRows, BitsDoNotDependOnTheBatchOrOnThreads) {
  const size_t n = 70, rows = testing::kSanitized ? 8 : 24;
  int place = 0;
  for (DType type : testing::Grid(kTypes)) {
    ++place;
    const size_t k = Info(type).block_elems == 1 ? 1283 : 1280;  // three segments of k, for floats also a tail
    for (const Arithmetic arithmetic : testing::Grid(kArithmetics)) {
      if (arithmetic == Arithmetic::kPrefill && fast_->prefill_matches_decode()) continue;
      const Weights w = MakeWeights(type, n, k, 11);
      const std::vector<float> x = Random(rows * k, 12);
      std::vector<float> alone(rows * n);
      const auto one = MakeBackend(GetParam(), 1);
      for (size_t r = 0; r < rows; ++r) one->MatMul(&x[r * k], 1, *one->Pack(w.view), &alone[r * n], arithmetic);
      for (int threads = 1; threads <= 8; ++threads) {
        if (testing::kSanitized && threads != 1 && threads != 3 && threads != 8) continue;
        // Threads share columns out the same way for all types; each number of them meets some types.
        if (threads > 3 && place % 5 != threads % 5) continue;
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

// Expects rows to have the same bits in one product and in chunks.
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

// Sums wait in the output between segments of k; there are several blocks of rows.
TEST_P(ProductRows, TilesKeepBitsOverSegmentsAndBlocks) {
  if (fast_->prefill_matches_decode()) GTEST_SKIP() << "no tiles";
  const size_t k = 2304, n = 70, rows = testing::kSanitized ? 33 : 290;
  for (DType type : {DType::kF32, DType::kBF16, DType::kQ4_K, DType::kIQ2_XS})
    ExpectSameInChunks(*fast_, MakeWeights(type, n, k, static_cast<uint32_t>(n * 31 + k)), rows, Arithmetic::kPrefill,
                       {1, 33, 257});
}

// VNNI unpacks codes from 24 rows on, AMX uses int8 tiles from 64 rows on for 8-bit codes, and the last rows of a chunk
// have loops of their own.
TEST_P(ProductRows, BitsDoNotDependOnTheNumberOfDecodeRows) {
  const auto backend = MakeBackend(GetParam(), 2);
  for (DType type : testing::Grid(kTypes))
    ExpectSameInChunks(*backend, MakeWeights(type, 70, 1280, 31), 70, Arithmetic::kDecode, {4, 5, 23, 24, 62, 63});
}

// Few rows read one panel after the other, or four at once, as the processor prefers: that changes no bit.
TEST_P(ProductRows, BitsDoNotDependOnTheNumberOfStreams) {
  cpu::IsaOps one = *cpu::OpsOf(GetParam()), four = one;
  one.streams = 1;
  four.streams = 4;
  auto device = MakeCpuDevice(GetParam(), 1);
  for (DType type : testing::Grid(kTypes)) {
    const Weights w = MakeWeights(type, 118, 1280, 33);  // eight panels, the last one of six columns
    const std::vector<float> x = Random(4 * w.view.k, 34);
    const auto packed = fast_->Pack(w.view);
    for (size_t rows = 1; rows <= 4; ++rows) {
      std::vector<float> by_one(rows * w.view.n, NAN), by_four(by_one);
      cpu::MakeCpuBackend(device, one, 1, {})->MatMul(x.data(), rows, *packed, by_one.data());
      cpu::MakeCpuBackend(device, four, 1, {})->MatMul(x.data(), rows, *packed, by_four.data());
      ASSERT_EQ(std::memcmp(by_one.data(), by_four.data(), by_one.size() * 4), 0)
          << Info(type).name << " rows " << rows;
    }
  }
}

// Two full blocks of the rows that AVX2 processes together, and a part of a third.
TEST_P(ProductRows, SeveralBlocksOfRows) {
  for (DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ6_K})
    ExpectSameInChunks(*fast_, MakeWeights(type, 70, 768, 31), testing::kSanitized ? 523 : 1037, Arithmetic::kDecode,
                       {1, 61});
}

// FloatGemm and single rows agree over several chains of k, with all remainders of rows and columns.
TEST_P(ProductRows, FloatProductsDoNotDependOnTheNumberOfRows) {
  for (DType type : {DType::kF16, DType::kBF16, DType::kF32}) {
    for (size_t n : {21u, 53u, 93u}) {
      for (size_t k : {75u, 2100u, 4139u})
        ExpectSameInChunks(*fast_, MakeWeights(type, n, k, 31), 70, Arithmetic::kDecode, {1, 11, 12, 35, 37});
    }
  }
}

// The same with several threads, and with quantized weights that are expanded to f32.
TEST_P(ProductRows, FloatGemmDoesNotDependOnThreads) {
  for (int threads : {1, 2, 3, 8}) {
    const auto backend = MakeBackend(GetParam(), threads);
    for (const auto& [type, arithmetic] : {std::pair{DType::kBF16, Arithmetic::kDecode},
                                           {DType::kF32, Arithmetic::kExact},
                                           {DType::kQ4_K, Arithmetic::kExact}})
      ExpectSameInChunks(*backend, MakeWeights(type, 453, 512, 31), 70, arithmetic, {1, 35});
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, ProductRows, ::testing::ValuesIn(testing::IsasWithTiles()), testing::IsaTestName);

}  // namespace
}  // namespace gyre
