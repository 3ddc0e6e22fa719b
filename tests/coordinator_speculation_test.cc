// Drafts from a text itself, their chances, and how many of them a step takes.
#include "coordinator/engine/speculation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "coordinator/engine/draft_depth.h"
#include "coordinator/engine/ngram_drafter.h"

namespace gyre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

NgramDrafter::Guess Draft(const std::vector<TokenId>& text, size_t most) {
  NgramDrafter drafter;
  drafter.Add(text);
  return drafter.Draft(most);
}

TEST(NgramDrafter, WhatFollowedTheLastThreeTokensIsDrafted) {
  EXPECT_THAT(Draft({1, 2, 3, 4, 5, 9, 1, 2, 3}, 2).tokens, ElementsAre(4, 5));
  EXPECT_EQ(Draft({1, 2, 3, 4, 5, 9, 1, 2, 3}, 2).match, 3u);
  EXPECT_THAT(Draft({1, 2, 3, 4, 5, 9, 8, 2, 3}, 2).tokens, IsEmpty());
  EXPECT_THAT(Draft({1, 2}, 2).tokens, IsEmpty());
  EXPECT_THAT(Draft({}, 2).tokens, IsEmpty());
  EXPECT_THAT(Draft({1, 2, 3, 4, 1, 2, 3}, 0).tokens, IsEmpty());
}

TEST(NgramDrafter, TheLongestMatchWinsThenTheNewest) {
  EXPECT_THAT(Draft({7, 1, 2, 3, 50, 8, 1, 2, 3, 60, 7, 1, 2, 3}, 1).tokens, ElementsAre(50));
  EXPECT_THAT(Draft({1, 2, 3, 50, 1, 2, 3, 60, 9, 1, 2, 3}, 1).tokens, ElementsAre(60));
}

TEST(NgramDrafter, ATextThatRepeatsItselfGoesOn) {
  EXPECT_THAT(Draft({5, 5, 5, 5}, 4).tokens, ElementsAre(5, 5, 5, 5));
  EXPECT_THAT(Draft({1, 2, 1, 2, 1}, 5).tokens, ElementsAre(2, 1, 2, 1, 2));
}

TEST(NgramDrafter, MatchesDoNotCrossABreak) {
  NgramDrafter drafter;
  drafter.Add(std::vector<TokenId>{1, 2, 3, 4, 1, 2});
  drafter.Break();
  drafter.Add(3);
  EXPECT_THAT(drafter.Draft(1).tokens, IsEmpty());
  drafter.Add(std::vector<TokenId>{1, 2, 3});
  EXPECT_THAT(drafter.Draft(1).tokens, ElementsAre(4));
}

// Against the plainest search, over texts of few tokens.
TEST(NgramDrafter, FindsWhatAPlainSearchFinds) {
  std::mt19937 random(1);
  size_t found = 0;
  for (int run = 0; run < 200; ++run) {
    std::vector<TokenId> text;
    for (size_t n = 0; n < 150; ++n) text.push_back(static_cast<TokenId>(random() % (2 + run % 7)));
    const NgramDrafter::Guess guess = Draft(text, 3);
    size_t longest = 0;
    for (size_t end = 1; end < text.size(); ++end) {
      size_t n = 0;
      while (n < end && n < NgramDrafter::kLongest && text[end - 1 - n] == text[text.size() - 1 - n]) ++n;
      longest = std::max(longest, n);
    }
    if (longest < NgramDrafter::kLeast) longest = 0;
    // Only the newest places are looked at.
    EXPECT_LE(guess.match, longest);
    EXPECT_EQ(guess.match > 0, longest > 0);
    if (run % 7 >= 3) EXPECT_EQ(guess.match, longest) << run;
    found += guess.match > 0 ? 1 : 0;
  }
  EXPECT_GE(found, 100u);
}

TEST(RequestDrafts, ThePredictionIsDraftedFromItsBeginning) {
  DraftChances all;
  RequestDrafts drafts(std::vector<TokenId>{9, 8, 7}, std::vector<TokenId>{1, 2, 3, 4});
  drafts.Begin(&all);
  drafts.Drawn(1);
  EXPECT_THAT(drafts.Propose({}, 10).tokens, ElementsAre(2, 3, 4));
  EXPECT_THAT(drafts.Propose({.n_max = 2}, 10).tokens, ElementsAre(2, 3));
  EXPECT_THAT(drafts.Propose({}, 1).tokens, ElementsAre(2));
  EXPECT_THAT(drafts.Propose({.n_min = 4}, 10).tokens, IsEmpty());
  EXPECT_THAT(drafts.Propose({.p_min = 0.95f}, 10).tokens, IsEmpty());
  EXPECT_THAT(drafts.Propose({.n_max = 0}, 10).tokens, IsEmpty());
}

TEST(RequestDrafts, ChancesFollowWhatComesTrue) {
  DraftChances all;
  std::vector<TokenId> prompt;
  for (int i = 0; i < 200; ++i) prompt.push_back(i % 4);
  RequestDrafts right(prompt, {}), wrong(prompt, {});
  right.Begin(&all);
  wrong.Begin(&all);
  for (int i = 200; i < 260; ++i) {
    right.Propose({}, 8);
    right.Drawn(i % 4);
  }
  EXPECT_GT(right.Propose({}, 8).chances.back(), 0.9f);
  for (int i = 200; i < 260; ++i) {
    wrong.Propose({}, 8);
    wrong.Drawn(1000 + i);
    wrong.Drawn(i % 4), wrong.Drawn((i + 1) % 4), wrong.Drawn((i + 2) % 4);
  }
  EXPECT_LT(wrong.Propose({}, 8).tokens.size(), 2u);
  // A new request begins with the mean of all.
  RequestDrafts next(prompt, {});
  next.Begin(&all);
  EXPECT_GT(next.Propose({}, 8).chances.front(), 0.5f);
}

constexpr double kMs = 1e-3;

StepTimes Took(double ms) {
  const auto d = std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(ms));
  return {.computed = d, .slowest = d, .queued = false};
}

// A step of n rows takes `first` + `row` * n ms.
void Teach(DraftDepth* depth, double first, double row) {
  for (int round = 0; round < 30; ++round) {
    for (const uint32_t n : {1u, 2u, 4u, 8u, 16u, 32u}) depth->Observe(n, Took(first + row * n));
  }
}

TEST(DraftDepth, NothingIsSentBeforeAStepWithoutDraftsWasSeen) {
  DraftDepth depth;
  EXPECT_EQ(depth.Choose({.rows = 1}, 1, std::vector<double>{1, 1, 1}), 0u);
  EXPECT_EQ(depth.ChooseBehind({}, std::vector<double>{1, 1, 1}, 1), 0u);
  depth.Observe(1, Took(10));
  // The first larger step is a try.
  EXPECT_EQ(depth.Choose({.rows = 1}, 1, std::vector<double>(30, 1.0)), 3u);
  EXPECT_EQ(depth.Choose({.rows = 1}, 1, std::vector<double>(30, 0.0)), 0u);
}

TEST(DraftDepth, CheapRowsAreTakenDearOnesOnlyWhereTheyComeTrue) {
  DraftDepth cheap, dear;
  Teach(&cheap, 10, 0.1);
  Teach(&dear, 1, 10);
  const std::vector<double> sure(16, 1.0), likely = {0.8, 0.64, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1}, wrong(16, 0.01);
  EXPECT_EQ(cheap.Choose({.rows = 1}, 1, sure), 16u);
  EXPECT_EQ(cheap.Choose({.rows = 1}, 1, likely), 8u);
  EXPECT_EQ(cheap.Choose({.rows = 1}, 1, wrong), 0u);
  EXPECT_EQ(dear.Choose({.rows = 1}, 1, likely), 0u);
  EXPECT_EQ(dear.Choose({.rows = 8}, 8, likely), 0u);
  // Over a long way a row's time matters less.
  EXPECT_GE(dear.Choose({.rows = 1, .transit = 200 * kMs}, 1, likely), 4u);
}

// Each row takes its time on a slow link, which the stages do not see.
TEST(DraftDepth, TheTimeOfRowsOnTheirWayCounts) {
  const std::vector<double> likely = {0.8, 0.64, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1};
  DraftDepth fast, slow;
  Teach(&fast, 10, 0.1);
  Teach(&slow, 10, 0.1);
  for (int round = 0; round < 40; ++round) {
    for (const uint32_t n : {1u, 2u, 4u, 8u}) {
      fast.ObserveWay(n, Took(50).computed);
      slow.ObserveWay(n, Took(50 + 40 * n).computed);
    }
    slow.ObserveWay(3, Took(round % 8 == 7 ? 5000 : 50 + 40 * 3).computed);  // one is late now and then
  }
  EXPECT_EQ(fast.Choose({.rows = 1, .transit = 50 * kMs}, 1, likely), 8u);
  const size_t n = slow.Choose({.rows = 1, .transit = 90 * kMs}, 1, likely);
  EXPECT_GE(n, 1u);
  EXPECT_LE(n, 4u);
}

TEST(DraftDepth, ADraftersTimeCounts) {
  DraftDepth depth;
  Teach(&depth, 10, 0.2);
  const auto ahead = [&](double chance, double each) { return depth.ChooseAhead({.rows = 1}, chance, 16, each, 0); };
  EXPECT_GE(ahead(0.8, 0).count, 8u);
  const size_t slow = ahead(0.8, 2 * kMs).count;
  EXPECT_GE(slow, 2u);
  EXPECT_LE(slow, 5u);
  EXPECT_EQ(ahead(0.8, 20 * kMs), DraftsWanted());
  EXPECT_EQ(ahead(0.01, 1 * kMs), DraftsWanted());
}

// Where the way is long and drafts take their time, the drafter goes on while a lap is under way.
TEST(DraftDepth, StepsGoOnOverLongWays) {
  DraftDepth depth;
  Teach(&depth, 10, 0.2);
  const auto ahead = [&](double chance, double each, double transit, uint32_t going_on) {
    return depth.ChooseAhead({.rows = 1, .transit = transit}, chance, 16, each, going_on);
  };
  const DraftsWanted far = ahead(0.8, 10 * kMs, 60 * kMs, 1);
  EXPECT_TRUE(far.goes_on);
  EXPECT_EQ(far.count, 1u);
  // Fast guesses go together, as each step costs the stages a pass over the weights.
  const DraftsWanted fast = ahead(0.9, 3 * kMs, 300 * kMs, 1);
  EXPECT_TRUE(fast.goes_on);
  EXPECT_GE(fast.count, 2u);
  EXPECT_FALSE(ahead(0.8, 10 * kMs, 60 * kMs, 0).goes_on);
  EXPECT_FALSE(ahead(0.8, 0.1 * kMs, 0, 1).goes_on) << "a short way, and guesses that cost nothing";
  EXPECT_EQ(ahead(0.01, 10 * kMs, 60 * kMs, 1), DraftsWanted());
  EXPECT_FALSE(ahead(0.8, 10 * kMs, 60 * kMs, 16).goes_on) << "the stages are busy with others";
}

TEST(DraftDepth, RowsGoBehindOthersWhereTheyAreLikelyOrTheWayIsLong) {
  DraftDepth depth;
  Teach(&depth, 10, 0.2);
  const std::vector<double> likely = {0.7, 0.6, 0.5}, hardly = {0.3, 0.2}, never = {0.05};
  const auto behind = [&](std::span<const double> chances, double transit, uint32_t decoding) {
    return depth.ChooseBehind({.transit = transit}, chances, decoding);
  };
  EXPECT_EQ(behind(likely, 0, 1), 3u);
  EXPECT_EQ(behind(hardly, 0, 1), 0u);
  EXPECT_GE(behind(hardly, 100 * kMs, 1), 1u);
  EXPECT_EQ(behind(never, 1000 * kMs, 1), 0u);
  EXPECT_EQ(behind(likely, 0, 8), 0u) << "others wait";
}

TEST(RequestDrafts, DraftsGoOnBehindThoseInFlight) {
  DraftChances all;
  std::vector<TokenId> prompt;
  for (int i = 0; i < 24; ++i) prompt.push_back(i % 8);
  RequestDrafts drafts(prompt, {});
  drafts.Begin(&all);
  const Drafts first = drafts.Propose({}, 2);
  EXPECT_THAT(first.tokens, ElementsAre(0, 1));
  const Drafts behind = drafts.Propose({}, 2, first.tokens);
  EXPECT_THAT(behind.tokens, ElementsAre(2, 3));
  EXPECT_LT(behind.chances.front(), first.chances.back());
  // A drafter goes on where the text's own guesses ended; these are still compared with what is drawn.
  EXPECT_THAT(drafts.Take(DraftChances::kDrafter, {9, 10}, {}, 8, std::vector<TokenId>{0, 1}).tokens,
              ElementsAre(9, 10));
  drafts.Drawn(0);
  EXPECT_THAT(drafts.Propose({}, 2, std::vector<TokenId>{7}).tokens, IsEmpty()) << "the text says otherwise";
  drafts.Drawn(5);
  EXPECT_THAT(drafts.Take(DraftChances::kDrafter, {3}, {}, 8, std::vector<TokenId>{1}).tokens, IsEmpty())
      << "what was in flight is void";
}

// What the last stage guessed counts only where all before it was drawn.
TEST(RequestDrafts, GuessesOfTheLastStageFollowWhatWasDrawn) {
  RequestDrafts drafts(std::vector<TokenId>{1, 2, 3}, {});
  drafts.Expect({5, 6, 7});
  drafts.Drawn(5);
  EXPECT_THAT(drafts.TakeGuesses(), ElementsAre(6, 7));
  EXPECT_THAT(drafts.TakeGuesses(), IsEmpty());
  drafts.Expect({5, 6, 7});
  drafts.Drawn(4);
  EXPECT_THAT(drafts.TakeGuesses(), IsEmpty());
  // Its chance is learned beside that of a draft model.
  const double before = drafts.mtp_chance(), other = drafts.drafter_chance();
  EXPECT_THAT(drafts.Take(DraftChances::kMtp, {8, 9}, {}, 8).tokens, ElementsAre(8, 9));
  drafts.Drawn(8);
  EXPECT_GT(drafts.mtp_chance(), before);
  drafts.Drawn(1);
  EXPECT_LT(drafts.mtp_chance(), before + 0.05);
  EXPECT_EQ(drafts.drafter_chance(), other);
}

}  // namespace
}  // namespace gyre
