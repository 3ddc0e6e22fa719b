// When a better plan is proposed and made: event lists, and numbers that waver.
#include "coordinator/cluster/rebalance_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace gyre {
namespace {

using std::chrono::seconds;

class RebalancePolicyTest : public ::testing::Test {
 protected:
  static std::optional<Proposal> Plan(const std::string& ranges, double gain) {
    return Proposal{.ranges = ranges, .gain = gain, .why = ""};
  }
  // The proposal is what it was, and so much better by now.
  void Offer(const std::string& ranges, double gain, double proposed_gain = 0) {
    std::optional<Proposal> proposed = policy_.proposal();
    if (proposed && proposed_gain == 0) proposed = Plan(proposed->ranges, proposed->ranges == ranges ? gain : 1);
    if (proposed && proposed_gain != 0) proposed->gain = proposed_gain;
    policy_.Offer(Plan(ranges, gain), proposed, now_);
  }
  std::string proposed() const { return policy_.proposal() ? policy_.proposal()->ranges : ""; }

  RebalancePolicy policy_{{.mode = Rebalance::kAuto}};
  Deadline now_ = Deadline{} + std::chrono::hours(1);
};

TEST_F(RebalancePolicyTest, ABetterPlanIsProposedWhenItStaysBetter) {
  Offer("a", 1.14);
  now_ += seconds(10);
  Offer("a", 1.14);
  EXPECT_EQ(proposed(), "") << "too little to gain";
  Offer("a", 1.2);
  EXPECT_EQ(proposed(), "");
  now_ += seconds(2);
  Offer("a", 1.1);
  now_ += seconds(2);
  Offer("a", 1.2);
  EXPECT_EQ(proposed(), "") << "it begins anew";
  now_ += seconds(3);
  Offer("b", 1.3);
  EXPECT_EQ(proposed(), "b");
  EXPECT_TRUE(policy_.MakeNow(now_));
  // A little better is no reason for another one; much is.
  Offer("c", 1.32, 1.3);
  EXPECT_EQ(proposed(), "b");
  Offer("c", 1.4, 1.3);
  EXPECT_EQ(proposed(), "c");
  // It stays while half of the gain is left.
  Offer("d", 1.09, 1.08);
  EXPECT_EQ(proposed(), "c");
  Offer("d", 1.08, 1.07);
  EXPECT_EQ(proposed(), "");
}

TEST_F(RebalancePolicyTest, WhatCantBeMadeAnyMoreIsNotProposed) {
  Offer("a", 2);
  now_ += seconds(3);
  Offer("a", 2);
  ASSERT_EQ(proposed(), "a");
  policy_.Offer(std::nullopt, std::nullopt, now_);
  EXPECT_EQ(proposed(), "");
  EXPECT_FALSE(policy_.MakeNow(now_));
}

TEST_F(RebalancePolicyTest, AskProposesAndMakesNothing) {
  RebalancePolicy asks({.mode = Rebalance::kAsk});
  asks.Offer(Plan("a", 2), std::nullopt, now_);
  asks.Offer(Plan("a", 2), std::nullopt, now_ + seconds(3));
  ASSERT_TRUE(asks.proposal());
  EXPECT_FALSE(asks.MakeNow(now_ + std::chrono::hours(1)));
}

TEST_F(RebalancePolicyTest, PlansAreNotMadeOneAfterTheOther) {
  const auto propose = [this](const std::string& ranges, double gain) {
    Offer(ranges, gain);
    now_ += seconds(3);
    Offer(ranges, gain);
  };
  propose("b", 1.2);
  ASSERT_TRUE(policy_.MakeNow(now_));
  policy_.Begun("a", now_);
  policy_.PlanChanged();
  policy_.Served();
  EXPECT_EQ(proposed(), "");
  propose("c", 1.2);
  EXPECT_EQ(proposed(), "c");
  EXPECT_FALSE(policy_.MakeNow(now_));
  now_ += seconds(57);
  EXPECT_TRUE(policy_.MakeNow(now_));
  // Back to where it came from: only for twice the gain.
  policy_.PlanChanged();
  propose("a", 1.2);
  EXPECT_EQ(proposed(), "");
  propose("a", 1.33);
  EXPECT_EQ(proposed(), "a");
  policy_.PlanChanged();
  now_ += std::chrono::minutes(10);
  propose("a", 1.2);
  EXPECT_EQ(proposed(), "a") << "that is long ago";
}

TEST_F(RebalancePolicyTest, AFailureDoublesThePause) {
  for (const int minutes : {2, 4, 8}) {
    Offer("b", 1.5);
    now_ += seconds(3);
    Offer("b", 1.5);
    ASSERT_TRUE(policy_.MakeNow(now_));
    policy_.Begun("a", now_);
    policy_.Failed(now_);
    EXPECT_EQ(proposed(), "");
    Offer("b", 1.5);
    Offer("b", 1.5);
    now_ += std::chrono::minutes(minutes) - seconds(1);
    Offer("b", 1.5);
    EXPECT_FALSE(policy_.MakeNow(now_)) << minutes;
    now_ += seconds(1);
    EXPECT_TRUE(policy_.MakeNow(now_)) << minutes;
  }
}

// Two machines whose speeds seem to waver by 10%: the plan is changed seldom, whatever the numbers do in an hour.
TEST_F(RebalancePolicyTest, WaveringNumbersDontMakeItFlap) {
  std::mt19937 random(3);
  std::normal_distribution noise(1.0, 0.1);
  std::string serves = "a";
  int made = 0;
  for (int second = 0; second < 3600; ++second, now_ += seconds(1)) {
    const std::string other = serves == "a" ? "b" : "a";
    Offer(other, noise(random), noise(random));
    if (!policy_.MakeNow(now_)) continue;
    ++made;
    policy_.Begun(serves, now_);
    policy_.PlanChanged();
    policy_.Served();
    serves = other;
  }
  EXPECT_LE(made, 3);
}

TEST(RebalanceTest, NamesOfModes) {
  for (const char* name : {"off", "ask", "auto"}) EXPECT_STREQ(RebalanceName(*ParseRebalance(name)), name);
  EXPECT_THAT(Message(ParseRebalance("always").status()), ::testing::HasSubstr("expected auto, ask or off"));
}

}  // namespace
}  // namespace gyre
