// The number of prompt rows that a step may have beside decoding sequences, learned from the times of steps.
#include "coordinator/engine/step_budget.h"

#include <gtest/gtest.h>

#include <random>

namespace gyre {
namespace {

using std::chrono::microseconds;

// 40 ms for the weights, 3 ms for each row.
Duration StepTime(uint32_t decode, uint32_t prompt) { return microseconds(40000 + 3000 * (decode + prompt)); }

TEST(StepBudget, BeforeAnythingIsMeasuredItIsSmall) {
  const StepBudget budget;
  EXPECT_EQ(budget.Rows(8, 1, 8), StepBudget::kFirst);
  StepBudget times_unknown;
  times_unknown.Observe(8, 0, {});
  times_unknown.Observe(8, 32, {});
  EXPECT_EQ(times_unknown.Rows(8, 1, 8), StepBudget::kFirst);
}

TEST(StepBudget, AStepWithPromptRowsTakesLessThanTwiceTheTime) {
  for (const uint32_t decoding : {1u, 3u, 8u, 16u, 60u}) {
    StepBudget budget;
    budget.Observe(0, 256, StepTime(0, 256));
    for (int i = 0; i < 50; ++i) {
      budget.Observe(decoding, 0, StepTime(decoding, 0));
      const uint32_t rows = budget.Rows(decoding, 1, decoding);
      budget.Observe(decoding, rows, StepTime(decoding, rows));
    }
    const uint32_t rows = budget.Rows(decoding, 1, decoding);
    const double ratio = static_cast<double>(StepTime(decoding, rows).count()) / StepTime(decoding, 0).count();
    EXPECT_LT(ratio, 1.9) << decoding;
    EXPECT_GT(ratio, 1.4) << decoding;
  }
}

// Each prompt that waits gets what one alone gets, but a crowd of them cannot stop the decoding sequences.
TEST(StepBudget, SeveralPromptsGetAsMuchEachUpToACrowd) {
  StepBudget budget;
  budget.Observe(16, 0, StepTime(16, 0));
  budget.Observe(16, 16, StepTime(16, 16));
  const double rows = budget.Rows(16, 1, 16);
  EXPECT_NEAR(budget.Rows(16, 3, 16), 3 * rows, 3);
  EXPECT_NEAR(budget.Rows(16, 12, 16), StepBudget::kCrowd * rows, StepBudget::kCrowd);
}

TEST(StepBudget, MorePromptsThanTextsGetMoreInProportion) {
  StepBudget budget;
  budget.Observe(4, 0, StepTime(4, 0));
  budget.Observe(4, 16, StepTime(4, 16));
  const double rows = budget.Rows(4, 1, 4);
  EXPECT_NEAR(budget.Rows(4, 40, 4), 10 * rows, 10);
}

TEST(StepBudget, OneLateStepChangesLittle) {
  StepBudget budget;
  for (int i = 0; i < 20; ++i) {
    budget.Observe(8, 0, StepTime(8, 0));
    budget.Observe(8, 16, StepTime(8, 16));
  }
  const double rows = budget.Rows(8, 1, 8);
  budget.Observe(8, 0, std::chrono::seconds(5));
  EXPECT_LE(budget.Rows(8, 1, 8), 1.2 * rows);
  budget.Observe(8, 16, std::chrono::seconds(5));
  budget.Observe(8, 16, std::chrono::seconds(5));
  EXPECT_GE(budget.Rows(8, 1, 8), 0.7 * rows);
}

// Rows far into a long text cost more, and the budget follows.
TEST(StepBudget, ItFollowsRowsThatBecomeDearer) {
  StepBudget budget;
  budget.Observe(8, 0, StepTime(8, 0));
  for (int i = 0; i < 20; ++i) budget.Observe(8, 16, StepTime(8, 16));
  const uint32_t before = budget.Rows(8, 1, 8);
  for (int i = 0; i < 60; ++i) budget.Observe(8, 16, StepTime(8, 0) + microseconds(16 * 6000));
  EXPECT_NEAR(budget.Rows(8, 1, 8), before / 2.0, 2);
}

// Where prompts come all the time, no step of many decode rows is ever without them. The decode rows are not counted as
// the prompt's then.
TEST(StepBudget, AnUnknownNumberOfDecodeRowsCountsRowsBeyondTheKnownOnes) {
  StepBudget budget;
  budget.Observe(2, 0, StepTime(2, 0));
  for (int i = 0; i < 50; ++i) budget.Observe(32, 16, StepTime(32, 16));
  const uint32_t unknown = budget.Rows(32, 1, 32);
  budget.Observe(32, 0, StepTime(32, 0));
  EXPECT_NEAR(unknown, budget.Rows(32, 1, 32), 2);
}

TEST(StepBudget, ItNeverStopsPrompts) {
  StepBudget budget;
  budget.Observe(1, 0, microseconds(10));
  budget.Observe(1, 16, std::chrono::seconds(1));
  EXPECT_EQ(budget.Rows(1, 1, 1), StepBudget::kLeast);
}

}  // namespace
}  // namespace gyre
