// Shared by the tests of GPU kernels, which run on the emulated GPU next to the reference.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "tests/testing/gpu_memory.h"
#include "tests/testing/kernel_test.h"

namespace gyre::testing {

class GpuKernelTest : public ::testing::Test {
 protected:
  void TearDown() override { simt::SetOrder(simt::Order::kRising); }

  const std::unique_ptr<Backend> ref_ = MakeBackend(Isa::kRef, 1);
};

// The root of the sum of squares of what differs, as a part of the expected numbers'.
inline double Distance(const std::vector<float>& got, const std::vector<float>& expected) {
  double off = 0, all = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto want = static_cast<double>(expected[i]), difference = static_cast<double>(got[i]) - want;
    off += difference * difference;
    all += want * want;
  }
  return std::sqrt(off / all);
}

}  // namespace gyre::testing
