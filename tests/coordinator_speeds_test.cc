// What is measured of links and of steps: whose turn it is, what is believed, what is forgotten.
#include "coordinator/cluster/speeds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gyre {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

const Deadline kBegin = Deadline{} + std::chrono::hours(1);

class LinkTableTest : public ::testing::Test {
 protected:
  // "a: coordinator b" as an order says it.
  std::string Next(Deadline now = kBegin) {
    const auto order = book_.Next(there_, now);
    if (!order) return "";
    std::string out = order->by + ":";
    for (const WeightSource& peer : order->peers) out += " " + peer.name;
    return out;
  }
  LinkTable book_{"here:1", seconds(20), seconds(60)};
  std::vector<LinkTable::Peer> there_{{"a", "a:1"}, {"b", "b:1"}};
};

TEST_F(LinkTableTest, OneProcessAtATimeMeasuresEachLinkOnce) {
  EXPECT_EQ(Next(), "a: coordinator b");
  EXPECT_TRUE(book_.Measuring(kBegin));
  EXPECT_EQ(Next(), "") << "the answer is waited for";
  book_.Answered("a", {.links = {{.to = "coordinator"}, {.to = "b"}}}, kBegin);
  EXPECT_EQ(Next(), "b: coordinator a");
  EXPECT_EQ(Next(kBegin + seconds(21)), "") << "without an answer, too, it was asked once";
  book_.CanMeasureHere();
  EXPECT_EQ(Next(kBegin + seconds(21)), ": a b");
  there_.push_back({"c", "c:1", false});
  EXPECT_EQ(Next(kBegin + seconds(42)), "a: c") << "c itself is not asked";
}

TEST_F(LinkTableTest, NothingIsMeasuredWithoutARingPort) {
  LinkTable none{"", seconds(20), seconds(60)};
  EXPECT_FALSE(none.Next(there_, kBegin).has_value());
}

TEST_F(LinkTableTest, AFailedLinkIsTriedAgainLater) {
  Next();
  const auto failed =
      book_.Answered("a", {.links = {{.to = "b", .failure = "refused"}, {.to = "coordinator"}}}, kBegin);
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].to, "b");
  Next();
  book_.Answered("b", {.links = {}}, kBegin);
  EXPECT_EQ(Next(kBegin + seconds(59)), "");
  EXPECT_EQ(Next(kBegin + seconds(60)), "a: b");
}

TEST_F(LinkTableTest, WhatWasNotAskedForIsNotKept) {
  Next();
  book_.Answered("a", {.links = {{.to = "b", .round_trip_us = 7}, {.to = "nonsense", .failure = "x"}}}, kBegin);
  EXPECT_THAT(book_.From("a"), ElementsAre(Pair("b", LinkSpeed{.to = "b", .round_trip_us = 7})));
  EXPECT_THAT(book_.FailuresTo("nonsense"), IsEmpty());
}

TEST_F(LinkTableTest, UnderAForgottenNameAnotherMachineMayCome) {
  Next();
  book_.Answered("a", {.links = {{.to = "b", .failure = "refused"}}}, kBegin);
  EXPECT_THAT(book_.FailuresTo("b"), ElementsAre(Pair("a", "refused")));
  book_.Forget("b");
  EXPECT_THAT(book_.FailuresTo("b"), IsEmpty());
  EXPECT_EQ(Next(), "a: b") << "at once";
  book_.Forget("a");
  EXPECT_THAT(book_.From("a"), IsEmpty());
  EXPECT_FALSE(book_.Measuring(kBegin)) << "its answer won't come";
}

TEST_F(LinkTableTest, AHopHasTheBandwidthOfItsDirectionAndTheShorterRoundTrip) {
  Next();
  book_.Answered("a", {.links = {{.to = "b", .round_trip_us = 400, .bytes_per_second = 5e6}}}, kBegin);
  HopSpeed hop = book_.Hop("a", "b");
  EXPECT_DOUBLE_EQ(hop.bytes_per_second, 5e6) << "of the other direction, as nothing else is known";
  Next();
  book_.Answered("b", {.links = {{.to = "a", .round_trip_us = 200, .bytes_per_second = 8e6}}}, kBegin);
  hop = book_.Hop("a", "b");
  EXPECT_DOUBLE_EQ(hop.bytes_per_second, 8e6) << "b pulled from a";
  EXPECT_DOUBLE_EQ(hop.latency, 1e-4);
  EXPECT_TRUE(hop.reached);
  EXPECT_DOUBLE_EQ(book_.Hop("a", "a").latency, 0);
}

TEST_F(LinkTableTest, WhomNoWorkerReachesTheCoordinatorDoesNotReachEither) {
  EXPECT_TRUE(book_.Hop(LinkTable::kThisProcess, "b").reached) << "nobody has tried";
  Next();
  book_.Answered("a", {.links = {{.to = "b", .failure = "refused"}}}, kBegin);
  EXPECT_FALSE(book_.Hop("a", "b").reached);
  EXPECT_FALSE(book_.Hop(LinkTable::kThisProcess, "b").reached);
  book_.CanMeasureHere();
  there_ = {{"b", "b:1", false}};
  EXPECT_EQ(Next(), ": b");
  book_.Answered(LinkTable::kThisProcess, {.links = {{.to = "b"}}}, kBegin);
  EXPECT_TRUE(book_.Hop(LinkTable::kThisProcess, "b").reached);
}

class SlowdownsTest : public ::testing::Test {
 protected:
  // All steps of 10 s take `ms` milliseconds.
  void Observe(double ms, uint64_t steps = 1000) {
    slowdowns_.Observe({{"a", load_}}, predict_, now_);
    load_.steps += steps;
    load_.rows_sent += 4 * steps;
    load_.busy_us += static_cast<uint64_t>(ms * 1e3) * steps;
    now_ += seconds(10);
    slowdowns_.Observe({{"a", load_}}, predict_, now_);
  }
  Slowdowns slowdowns_{seconds(10)};
  MemberLoad load_{.steps = 50, .busy_us = 1'000'000};
  Deadline now_ = kBegin;
  double rows_ = 0;
  Slowdowns::Predict predict_ = [this](double rows) {
    rows_ = rows;
    return std::vector<double>{0.002};
  };
};

TEST_F(SlowdownsTest, TheTimeOfStepsIsComparedWithThePrediction) {
  EXPECT_EQ(slowdowns_.Of("a"), 0) << "not known";
  EXPECT_EQ(slowdowns_.Rounded("a"), 1);
  Observe(6);
  EXPECT_DOUBLE_EQ(slowdowns_.Of("a"), 3);
  EXPECT_DOUBLE_EQ(rows_, 4) << "it was predicted for steps of this size";
  Observe(2);
  EXPECT_DOUBLE_EQ(slowdowns_.Of("a"), std::sqrt(3)) << "one observation does not undo the ones before";
}

TEST_F(SlowdownsTest, FewStepsSayNothing) {
  Observe(6, 99);
  EXPECT_EQ(slowdowns_.Of("a"), 0);
  Observe(6, 100);
  EXPECT_DOUBLE_EQ(slowdowns_.Of("a"), 3);
}

TEST_F(SlowdownsTest, AProcessThatBeganAgainSaysNothing) {
  slowdowns_.Observe({{"a", load_}}, predict_, now_);
  slowdowns_.Observe({{"a", {.steps = 10, .busy_us = 2'000'000}}}, predict_, now_ + seconds(10));
  EXPECT_EQ(slowdowns_.Of("a"), 0);
}

TEST_F(SlowdownsTest, AnotherPlanIsObservedFromItsBeginning) {
  slowdowns_.Observe({{"a", load_}}, predict_, now_);
  slowdowns_.PlanChanged();
  load_.steps += 1000;
  load_.busy_us += 60'000'000;
  Observe(6);
  EXPECT_DOUBLE_EQ(slowdowns_.Of("a"), 3);
  slowdowns_.PlanChanged();
  EXPECT_DOUBLE_EQ(slowdowns_.Of("a"), 3) << "what was learned stays";
}

TEST_F(SlowdownsTest, WhatIsNotKnownIsTheMeanInStepsOf5Percent) {
  Observe(6);
  EXPECT_NEAR(slowdowns_.Rounded("a"), 3, 0.08);
  EXPECT_EQ(slowdowns_.Rounded("a"), slowdowns_.Rounded("b"));
  slowdowns_.Forget("a");
  EXPECT_EQ(slowdowns_.Rounded("b"), 1);
}

}  // namespace
}  // namespace gyre
