// The demo model in this process, opened once for all tests of a suite.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "runtime/runtime.h"

namespace gyre::testing {

class DemoRuntimeTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { OpenRuntime(GYRE_DEMO_MODEL); }
  static void TearDownTestSuite() {
    delete runtime_;
    runtime_ = nullptr;
  }
  // For a suite with another model file.
  static void OpenRuntime(const std::string& model, const OpenOptions& open = {}) {
    RuntimeOptions options;
    options.model = model;
    options.open = open;
    options.threads = 1;
    options.quiet = true;
    options.parallel = 4;
    auto runtime = Runtime::Open(options);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = runtime->release();
  }

  static inline Runtime* runtime_ = nullptr;
};

}  // namespace gyre::testing
