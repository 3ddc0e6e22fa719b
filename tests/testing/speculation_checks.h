// What tests of drafters have in common: rings that take all drafts, requests of all kinds, and equal outcomes.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/runtime.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/tiny_ring.h"

namespace gyre::testing {

inline RuntimeOptions SpeculatingRing(const std::string& model, int stages, const std::string& speculation) {
  RuntimeOptions o = TinyRing(model, stages, 96);
  o.speculation = speculation;
  o.takes_all_drafts = true;
  return o;
}

// Greedy and drawn at this temperature, with log-probabilities, stop ids and questions for full logits, by `i`.
inline void VarySettings(Request* r, uint32_t i, float temperature) {
  r->sampling.temperature = i % 3 == 0 ? 0.0f : temperature;
  r->sampling.seed = i;
  r->ignore_end = i != 4;
  if (i % 3 != 1) r->logprobs = i;
  if (i == 2) r->sampling.top_k = 0, r->sampling.top_p = 0.999f, r->sampling.min_p = 0;  // asks for all logits
  if (i == 4) r->stop_ids = {7, 8}, r->min_new_tokens = 10;
  r->priority = static_cast<int>(i % 2);
}

inline void ExpectSameOutcomes(const std::vector<Outcome>& got, const std::vector<Outcome>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(got[i].finished) << got[i].status;
    EXPECT_EQ(got[i].tokens, expected[i].tokens);
    EXPECT_EQ(got[i].probabilities, expected[i].probabilities);
    EXPECT_EQ(got[i].logprobs, expected[i].logprobs);
    EXPECT_EQ(got[i].top, expected[i].top);
    EXPECT_EQ(got[i].stop_id, expected[i].stop_id);
    EXPECT_EQ(got[i].reason, expected[i].reason);
    EXPECT_EQ(got[i].usage.generated_tokens, expected[i].usage.generated_tokens);
  }
}

}  // namespace gyre::testing
