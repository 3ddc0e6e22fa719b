// The rotation of keys and values against its definition.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "kernels/hadamard.h"
#include "tests/testing/kernel_test.h"

namespace gyre {
namespace {

TEST(Hadamard, IsTheOrthonormalMatrixOfSigns) {
  const size_t n = 3 * kKvBlock;
  const std::vector<float> x = testing::Random(n, 1);
  std::vector<float> got(n);
  RotateKvBlocks(x.data(), n, got.data());
  for (size_t i = 0; i < n; ++i) {
    double sum = 0;
    for (size_t j = 0; j < kKvBlock; ++j) {
      const auto element = static_cast<double>(x[i / kKvBlock * kKvBlock + j]);
      sum += std::popcount(i % kKvBlock & j) % 2 == 0 ? element : -element;
    }
    EXPECT_NEAR(got[i], sum / std::sqrt(32.0), 2e-6) << i;
  }
  RotateKvBlocks(got.data(), n, got.data());  // in place
  for (size_t i = 0; i < n; ++i) EXPECT_NEAR(got[i], x[i], 2e-6) << i;
}

}  // namespace
}  // namespace gyre
