// The logits of every row of a prompt.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "runtime/runtime.h"
#include "tests/testing/logits_distance.h"
#include "tests/testing/ring_runner.h"

namespace gyre::testing {

// [position][vocab] by a Runtime that is made of `options` for this prompt alone. Empty where a test has failed.
inline Logits PromptLogits(const RuntimeOptions& options, const std::vector<TokenId>& ids) {
  auto ring = Runtime::Open(options);
  EXPECT_TRUE(ring.ok()) << ring.status();
  if (!ring.ok()) return {};
  Request request;
  request.prompt = ids;
  request.prompt_logits = true;
  const Outcome got = RunOne((*ring)->engine(), request);
  EXPECT_TRUE(got.status.ok()) << got.status;
  return got.logits;
}

}  // namespace gyre::testing
