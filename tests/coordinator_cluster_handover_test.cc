// Members that give their layers away, as lists of events: who takes them over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/cluster/cluster_state.h"
#include "tests/testing/serving_cluster.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ClusterWorld;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// 8 layers of 100 with 10 of pages each; two workers serve them.
class ClusterHandoverTest : public testing::ServingClusterTest {
 protected:
  static constexpr uint64_t kFour = 700;  // room for four layers, not for eight
  void ExpectLive(ClusterWorld& w) {
    EXPECT_EQ(w.text(), "serving");
    EXPECT_THAT(w.engine.calls, Not(Contains("await"))) << "no request waits for a ring";
    EXPECT_EQ(w.status().lost, 0u);
  }
};

TEST_F(ClusterHandoverTest, ADrainGivesTheLayersToAnIdleMemberWhereTheOthersAreFull) {
  ClusterWorld& w = Serving(2, {.memory = kFour});
  w.Join("spare", {.memory = kFour});
  const auto dry = w.DryDrain("w2");
  ASSERT_TRUE(dry.ok()) << dry.status();
  EXPECT_EQ(dry->named_ranges, "w1=0-3,spare=4-7");
  ASSERT_EQ(dry->moves.size(), 1u);
  EXPECT_EQ(dry->moves[0].to, "spare");
  const uint64_t drain = w.Drain("w2");
  w.Advance(seconds(1));
  EXPECT_TRUE(w.answer(drain).ok()) << w.answer(drain).status();
  EXPECT_EQ(w.ranges(), "w1=0-3,spare=4-7");
  ExpectLive(w);
}

TEST_F(ClusterHandoverTest, WithoutLimitsTheIdleMemberTakesThePlaceAndNothingElseMoves) {
  for (bool local : {false, true}) {
    ClusterWorld& w = Serving(2, {}, local);
    const std::string before = w.ranges();
    w.Join("spare");
    w.Drain("w2");
    w.Advance(seconds(1));
    std::string after = before;
    after.replace(after.find("w2"), 2, "spare");
    EXPECT_EQ(w.ranges(), after);
    ExpectLive(w);
  }
}

TEST_F(ClusterHandoverTest, AWorkerThatIsToldToEndGivesItsLayersToAnIdleMember) {
  for (bool removed : {false, true}) {
    ClusterWorld& w = Serving(2, {.memory = kFour});
    w.Join("spare", {.memory = kFour});
    const uint64_t ask = removed ? w.Remove("w2") : 0;
    if (!removed) w.WantsToLeave("w2");
    w.Advance(seconds(1));
    if (removed) EXPECT_TRUE(w.answer(ask).ok()) << w.answer(ask).status();
    EXPECT_TRUE(w.member("w2").dismissed);
    w.LetDismissedGo();
    w.Advance(seconds(1));
    EXPECT_EQ(w.ranges(), "w1=0-3,spare=4-7");
    ExpectLive(w);
  }
}

TEST_F(ClusterHandoverTest, SeveralThatLeaveTogetherAreReplacedByOneChange) {
  ClusterWorld& w = Serving(2, {.memory = kFour});
  w.Join("spare", {.memory = kFour});
  w.Join("other", {.memory = kFour});
  w.WantsToLeave("w1");
  w.WantsToLeave("w2");
  w.Advance(seconds(2));
  EXPECT_TRUE(w.member("w1").dismissed);
  EXPECT_TRUE(w.member("w2").dismissed);
  EXPECT_THAT(w.ranges(), Not(HasSubstr("w")));
  ExpectLive(w);
}

TEST_F(ClusterHandoverTest, AnIdleMemberThatIsRemovedOrLeavesTakesNothingWithIt) {
  ClusterWorld& w = Serving(2, {.memory = kFour});
  w.Join("spare", {.memory = kFour});
  w.Join("other", {.memory = kFour});
  const uint64_t ask = w.Remove("spare");
  EXPECT_TRUE(w.answered(ask));
  EXPECT_TRUE(w.answer(ask).ok()) << w.answer(ask).status();
  EXPECT_TRUE(w.member("spare").dismissed);
  w.WantsToLeave("other");
  w.Advance(milliseconds(10));
  EXPECT_TRUE(w.member("other").dismissed);
  EXPECT_TRUE(w.begun.empty());
  EXPECT_EQ(w.ranges(), "w1=0-3,w2=4-7");
}

// None of them has room for all that goes, all together have.
TEST_F(ClusterHandoverTest, SmallIdleMembersShareWhatALargeOneGivesAway) {
  ClusterWorld& w = Serving(2, {.memory = kFour});
  w.Join("s1", {.memory = 250});
  w.Join("s2", {.memory = 250});
  const uint64_t drain = w.Drain("w2");
  w.Advance(seconds(1));
  EXPECT_TRUE(w.answer(drain).ok()) << w.answer(drain).status();
  EXPECT_THAT(w.ranges(), Not(HasSubstr("w2")));
  EXPECT_THAT(w.ranges(), HasSubstr("s1="));
  ExpectLive(w);
}

TEST_F(ClusterHandoverTest, WhereNobodyHasRoomTheRefusalHasTheNumbersAndNothingChanges) {
  ClusterWorld& w = Serving(2, {.memory = kFour});
  w.Join("tiny", {.memory = 50});
  const uint64_t drain = w.Drain("w2");
  EXPECT_THAT(Message(w.answer(drain).status()), HasSubstr("w1 needs"));
  EXPECT_EQ(w.ranges(), "w1=0-3,w2=4-7");
  EXPECT_TRUE(w.begun.empty());
}

TEST_F(ClusterHandoverTest, OfSeveralIdleMembersTheFastestTakesThePlace) {
  ClusterPolicy policy = ClusterWorld::Policy(8, 2);
  policy.rebalance.mode = Rebalance::kAsk;
  ClusterWorld& w = New(policy);
  const auto speed = [](double factor) {
    return MachineSpeed{.memory_bytes_per_second = 1e3 * factor, .operations_per_second = 1e3 * factor};
  };
  w.Join("w1", {.speed = speed(1)});
  w.Join("w2", {.speed = speed(1)});
  w.Advance(seconds(1));
  ASSERT_EQ(w.ranges(), "w1=0-3,w2=4-7");
  w.Join("slow", {.speed = speed(0.7)});
  w.Join("fast", {.speed = speed(1.2)});
  w.Advance(seconds(1));
  w.Drain("w2");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-3,fast=4-7");
  // One that would make the ring slower than it is without it stays idle.
  w.Join("snail", {.speed = speed(0.01)});
  w.Remove("slow");
  w.Advance(seconds(1));
  w.LetDismissedGo();
  w.Drain("fast");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-7");
}

TEST_F(ClusterHandoverTest, WhoIsDrainedOrLeftOutOrLeavesTakesNothing) {
  ClusterWorld& w = Serving(2);
  w.Join("drained");
  w.Drain("drained");
  w.Join("leaving");
  w.WantsToLeave("leaving");
  w.Join("bad").reachable = false;
  const uint64_t first = w.Drain("w2");
  w.Advance(seconds(2));
  EXPECT_THAT(Message(w.answer(first).status()), HasSubstr("to bad failed: Connection refused"));
  const uint64_t again = w.Drain("w2");
  w.Advance(seconds(2));
  EXPECT_TRUE(w.answer(again).ok()) << w.answer(again).status();
  EXPECT_THAT(w.ranges(), Not(HasSubstr("drained")));
  EXPECT_THAT(w.ranges(), Not(HasSubstr("leaving")));
  EXPECT_THAT(w.ranges(), Not(HasSubstr("w2")));
}

}  // namespace
}  // namespace gyre
