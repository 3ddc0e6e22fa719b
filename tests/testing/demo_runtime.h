// The demo model in this process, opened once for all tests of a suite.
#pragma once

#include <gtest/gtest.h>

#include "runtime/runtime.h"

namespace gyre::testing {

class DemoRuntimeTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    RuntimeOptions options;
    options.model = GYRE_DEMO_MODEL;
    options.threads = 1;
    options.quiet = true;
    options.parallel = 4;
    auto runtime = Runtime::Open(options);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = runtime->release();
  }
  static void TearDownTestSuite() {
    delete runtime_;
    runtime_ = nullptr;
  }

  static inline Runtime* runtime_ = nullptr;
};

}  // namespace gyre::testing
