// Shared by the tests of the kernels: every instruction set of this build next to the reference, and random numbers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/ops.h"
#include "tests/testing/sanitized.h"

namespace gyre::testing {

// Under ThreadSanitizer the best one of this processor stands for all.
inline std::vector<Isa> FastIsas() {
  if (kThreadSanitized) return {DetectIsa()};
  return {BuiltIsas().begin() + 1, BuiltIsas().end()};
}

// A grid's values. Under ThreadSanitizer the first and the last stand for all, as threads share the work in the
// same way for each of them.
template <typename Values>
auto Grid(const Values& values) {
  std::vector<std::decay_t<decltype(*std::begin(values))>> grid(std::begin(values), std::end(values));
  if (kThreadSanitized && grid.size() > 2) grid = {grid.front(), grid.back()};
  return grid;
}
template <typename T>
std::vector<T> Grid(std::initializer_list<T> values) {
  return Grid(std::vector<T>(values));
}

// Includes the emulation, so that any processor with AVX-512 tests tiles. Its other ops are those of AVX-512.
inline std::vector<Isa> IsasWithTiles() {
  std::vector<Isa> isas = FastIsas();
#if defined(__x86_64__)
  isas.push_back(Isa::kAmxEmulated);
#endif
  return isas;
}

inline std::vector<float> Random(size_t n, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> v(n);
  for (float& x : v) x = normal(random);
  if (n > 1) EXPECT_NE(v[0], v[1]);
  return v;
}

inline std::string IsaTestName(const ::testing::TestParamInfo<Isa>& info) {
  std::string name = IsaName(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class KernelTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    const std::string missing = IsaMissing(GetParam());
    if (!missing.empty()) GTEST_SKIP() << missing;
    fast_ = MakeBackend(GetParam(), 2);
    ref_ = MakeBackend(Isa::kRef, 1);
  }

  std::unique_ptr<Backend> fast_, ref_;
};

}  // namespace gyre::testing
