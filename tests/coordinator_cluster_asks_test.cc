// Requests of operators to a cluster, and its reports: dry runs, drains that last, the history of plans, rates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/cluster_world.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ClusterWorld;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ClusterAsksTest : public ::testing::Test {
 protected:
  // Workers w1 ... wN that serve 8 layers; with `local`: beside the coordinator's own member.
  ClusterWorld& Serving(int workers, bool local = false, ClusterPolicy policy = ClusterWorld::Policy(8, 1)) {
    policy.min_workers = workers;
    world_ = std::make_unique<ClusterWorld>(policy);
    if (local) world_->JoinLocal();
    for (int i = 1; i <= workers; ++i) world_->Join(fmt::format("w{}", i));
    world_->Advance(seconds(1));
    EXPECT_EQ(world_->text(), "serving");
    world_->engine.calls.clear();
    world_->begun.clear();
    world_->records.clear();
    return *world_;
  }
  void TearDown() override {
    if (world_) EXPECT_EQ(world_->problem(), "");
  }
  const MemberStatus& Member(const std::string& name) {
    status_ = world_->status();
    for (const MemberStatus& m : status_.members) {
      if (m.info.name == name) return m;
    }
    ADD_FAILURE() << "no " << name;
    return status_.members[0];
  }
  std::unique_ptr<ClusterWorld> world_;
  ClusterStatus status_;
};

TEST_F(ClusterAsksTest, ADryRunSaysWhatMovesAndDoesNothing) {
  ClusterPolicy policy = ClusterWorld::Policy(8, 1);
  policy.sizes.first = 30;
  policy.sizes.last = 50;
  policy.sizes.both = 80;
  ClusterWorld& w = Serving(2, false, policy);
  const std::string before = w.ranges();
  ASSERT_EQ(before, "w1=0-3,w2=4-7");
  const auto dry = w.DryRun("w2=0-1,w1=2-7", 4);
  ASSERT_TRUE(dry.ok()) << dry.status();
  EXPECT_EQ(dry->ranges, "0-1,2-7");
  EXPECT_EQ(dry->named_ranges, "w2=0-1,w1=2-7");
  EXPECT_TRUE(dry->dry_run);
  EXPECT_EQ(dry->epoch, Epoch{});
  // Four of ten blocks are in use, a layer's pages have 10 bytes.
  EXPECT_THAT(dry->moves, ElementsAre(LayerMove{{0, 2}, "w1", "w2", 230, 8}, LayerMove{{4, 8}, "w2", "w1", 450, 16}));
  ASSERT_EQ(dry->members.size(), 2u);
  EXPECT_EQ(dry->members[0].name, "w2");
  EXPECT_EQ(dry->members[0].layers, (LayerRange{0, 2}));
  EXPECT_EQ(dry->members[0].weight_bytes, 230u);
  EXPECT_EQ(dry->members[0].kv_bytes, 20u);
  EXPECT_EQ(dry->members[0].peak_bytes, 680u + 60) << "both of its stages, and both ends of the model";
  EXPECT_TRUE(w.begun.empty());
  EXPECT_EQ(w.ranges(), before);
  // The change itself reports the same.
  const uint64_t ask = w.Resize("w2=0-1,w1=2-7");
  w.Advance(seconds(1));
  ASSERT_TRUE(w.answer(ask).ok());
  EXPECT_EQ(w.answer(ask)->moves[0].weight_bytes, 230u);
  EXPECT_EQ(w.answer(ask)->named_ranges, "w2=0-1,w1=2-7");
  EXPECT_FALSE(w.answer(ask)->dry_run);
  EXPECT_EQ(w.answer(ask)->epoch.number, 2u);
}

TEST_F(ClusterAsksTest, ADryRunIsRefusedAsTheChangeWouldBe) {
  ClusterWorld& w = Serving(2);
  w.Join("tiny", {.memory = 50});
  for (const char* bad : {"w1=0-3", "bob=0-7", "0-3,3-7", "", "tiny=0-7", "9"}) {
    const auto dry = w.DryRun(bad);
    EXPECT_FALSE(dry.ok()) << bad;
    EXPECT_EQ(dry.status(), w.answer(w.Resize(bad)).status()) << bad;
  }
  w.Resize("w2=0-3,w1=4-7");
  EXPECT_THAT(Message(w.DryRun("w1=0-7").status()), HasSubstr("plan 2 is being made"));
  w.Advance(seconds(1));
  EXPECT_EQ(w.records.size(), 1u);
}

// A member that has no room beside what it holds of a lost plan is told to drop that by the change, not by the dry run.
TEST_F(ClusterAsksTest, ADryRunMakesNobodyDropWhatItHolds) {
  world_ = std::make_unique<ClusterWorld>(ClusterWorld::Policy(8, 3));
  ClusterWorld& w = *world_;
  for (const char* name : {"w1", "w2", "w3"}) w.Join(name, {.memory = 700});
  w.Advance(seconds(1));
  ASSERT_EQ(w.ranges(), "w1=0-1,w2=2-4,w3=5-7");
  w.wiring_fault = Internal("too many open files");  // so that no plan follows by itself
  w.Leave("w1");
  w.Advance(seconds(1));
  EXPECT_THAT(Message(w.DryRun("w3=0-4,w2=5-7").status()),
              HasSubstr("it must first drop what it holds of a lost plan"));
  w.Advance(seconds(1));
  EXPECT_EQ(w.member("w3").runs, (LayerRange{5, 8}));
  const uint64_t ask = w.Resize("w3=0-4,w2=5-7");
  EXPECT_THAT(Message(w.answer(ask).status()), HasSubstr("it was told to drop"));
  w.Advance(seconds(1));
  EXPECT_EQ(w.member("w3").runs, LayerRange{});
  EXPECT_TRUE(w.DryRun("w3=0-4,w2=5-7").ok());
}

TEST_F(ClusterAsksTest, ADryRunOfWhatIsThereMovesNothing) {
  ClusterWorld& w = Serving(2);
  const auto dry = w.DryRun("w1=0-3,w2=4-7");
  ASSERT_TRUE(dry.ok());
  EXPECT_TRUE(dry->moves.empty());
}

TEST_F(ClusterAsksTest, ADryRunOfADrainDrainsNothing) {
  ClusterWorld& w = Serving(2);
  const auto dry = w.DryDrain("w2");
  ASSERT_TRUE(dry.ok()) << dry.status();
  EXPECT_EQ(dry->named_ranges, "w1=0-7");
  ASSERT_EQ(dry->members.size(), 2u);
  EXPECT_EQ(dry->members[1].name, "w2");
  EXPECT_EQ(dry->members[1].layers, std::nullopt);
  w.Join("w3");
  EXPECT_TRUE(w.DryDrain("w3").ok());
  EXPECT_FALSE(Member("w3").drained);
  EXPECT_FALSE(Member("w2").drained);
}

TEST_F(ClusterAsksTest, ADrainedMemberGetsNoLayersUntilItIsUndrained) {
  ClusterWorld& w = Serving(2, true);
  w.Drain("w2");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-3,local=4-7");
  EXPECT_TRUE(Member("w2").drained);
  EXPECT_EQ(w.text(), "serving");
  // Not from a resize either, with its name or without.
  EXPECT_THAT(Message(w.answer(w.Resize("w2=0-7")).status()), HasSubstr("w2 is drained"));
  w.Resize("0-5,6-7");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-5,local=6-7");
  // Nor after a loss, nor when it joins again.
  w.Leave("w1");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "local=0-7");
  w.Leave("w2");
  w.Join("w2");
  w.Join("w1");
  w.Advance(seconds(100));
  EXPECT_EQ(w.ranges(), "local=0-7") << "one worker does not do";
  EXPECT_TRUE(Member("w2").drained);
  const uint64_t undrain = w.Undrain("w2");
  EXPECT_TRUE(w.answer(undrain).ok());
  w.Advance(seconds(1));
  EXPECT_THAT(w.ranges(), HasSubstr("w2="));
  EXPECT_FALSE(Member("w2").drained);
}

TEST_F(ClusterAsksTest, UndrainAnswersWithThePlanThatServes) {
  ClusterWorld& w = Serving(2);
  EXPECT_TRUE(absl::IsNotFound(w.answer(w.Undrain("zoe")).status()));
  const auto report = w.answer(w.Undrain("w1"));
  ASSERT_TRUE(report.ok()) << "it was not drained, and is not";
  EXPECT_EQ(report->named_ranges, "w1=0-3,w2=4-7");
  EXPECT_TRUE(report->moves.empty());
  EXPECT_TRUE(w.begun.empty());
}

TEST_F(ClusterAsksTest, ADrainThatFailsDrainsNobody) {
  ClusterWorld& w = Serving(2);
  w.member("w1").load_fault = ResourceExhausted("no memory");
  const uint64_t ask = w.Drain("w2");
  w.Advance(seconds(1));
  EXPECT_FALSE(w.answer(ask).ok());
  EXPECT_FALSE(Member("w2").drained);
}

TEST_F(ClusterAsksTest, TheLocalMemberCanBeDrained) {
  ClusterWorld& w = Serving(1, true);
  w.Drain("local");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-7");
  w.Leave("w1");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "");
  EXPECT_THAT(w.text(), HasSubstr("no plan can be made over the 0 that are there; local is drained"));
  w.Undrain("local");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "local=0-7");
}

// A member without layers, before any plan.
TEST_F(ClusterAsksTest, AnIdleMemberIsDrainedAtOnce) {
  world_ = std::make_unique<ClusterWorld>(ClusterWorld::Policy(8, 2));
  ClusterWorld& w = *world_;
  w.Join("w1");
  const auto report = w.answer(w.Drain("w1"));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->epoch, Epoch{});
  w.Join("w2");
  w.Advance(seconds(10));
  EXPECT_EQ(w.text(), "1 of 2 workers have joined; w1 is drained");
  w.Join("w3");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w2=0-3,w3=4-7");
}

TEST_F(ClusterAsksTest, EveryPlanHasARecord) {
  ClusterWorld& w = Serving(2);
  w.Resize("w2=0-3,w1=4-7");
  w.Advance(seconds(1));
  w.member("w2").load_fault = ResourceExhausted("no memory");
  w.Resize("w1=0-3,w2=4-7");
  w.Advance(seconds(1));
  w.Leave("w1");
  ASSERT_EQ(w.records.size(), 3u);
  EXPECT_EQ(w.records[0].number, 2u);
  EXPECT_EQ(w.records[0].ranges, "w2=0-3,w1=4-7");
  EXPECT_EQ(w.records[0].result, "serving");
  EXPECT_EQ(w.records[0].pages_moved, 10u);
  EXPECT_GT(w.records[0].took, milliseconds(20));
  EXPECT_EQ(w.records[1].number, 3u);
  EXPECT_EQ(w.records[1].result, "aborted: w2: no memory");
  EXPECT_EQ(w.records[2].number, 2u) << "the one that served";
  EXPECT_THAT(w.records[2].result, HasSubstr("lost: worker w1 with layers 4-7 is gone"));
}

TEST_F(ClusterAsksTest, AFaultAfterTheDecisionIsALossOfTheNewPlan) {
  ClusterWorld& w = Serving(2);
  w.member("w2").deaf = {ChangeVerb::kCommit};
  w.Resize("w2=0-7");
  w.Advance(seconds(11));
  ASSERT_GE(w.records.size(), 1u);
  EXPECT_EQ(w.records[0].number, 2u);
  EXPECT_THAT(w.records[0].result, HasSubstr("lost: plan 2 was given up while committing"));
  EXPECT_GT(w.records[0].took, seconds(10));
}

TEST_F(ClusterAsksTest, LoadsBecomeRates) {
  ClusterWorld& w = Serving(1);
  w.Report("w1", {.steps = 100, .busy_us = 1000, .rows_sent = 1000, .row_bytes_sent = 50000});
  w.Advance(milliseconds(500));
  w.Report("w1", {.steps = 110, .busy_us = 26000, .rows_sent = 1100, .row_bytes_sent = 60000, .round_trip_us = 70});
  EXPECT_DOUBLE_EQ(Member("w1").rates.step_ms, 2.5);
  EXPECT_DOUBLE_EQ(Member("w1").rates.rows_per_second, 200);
  EXPECT_DOUBLE_EQ(Member("w1").rates.bytes_per_second, 20000);
  w.Advance(milliseconds(500));
  w.Report("w1", {.steps = 110, .busy_us = 26000, .rows_sent = 1100, .row_bytes_sent = 60000});
  EXPECT_DOUBLE_EQ(Member("w1").rates.step_ms, 0) << "no step since the last load";
  EXPECT_DOUBLE_EQ(Member("w1").rates.rows_per_second, 100);
  w.Advance(seconds(6));
  EXPECT_DOUBLE_EQ(Member("w1").rates.rows_per_second, 0);
}

TEST_F(ClusterAsksTest, TheLastMembersAnswersAreItsRates) {
  ClusterWorld& w = Serving(1);
  w.Report("w1", {.answers_sent = 100, .answer_bytes_sent = 9000});
  w.Advance(milliseconds(500));
  w.Report("w1", {.answers_sent = 200, .answer_bytes_sent = 19000});
  EXPECT_DOUBLE_EQ(Member("w1").rates.rows_per_second, 200);
  EXPECT_DOUBLE_EQ(Member("w1").rates.bytes_per_second, 20000);
}

TEST(RateWindowTest, OldSamplesAndCountersThatFallDoNotCount) {
  RateWindow window;
  Deadline now{};
  EXPECT_EQ(window.PerSecond(now), 0);
  window.Add(now, 1000000);
  EXPECT_EQ(window.PerSecond(now), 0) << "one sample says nothing";
  for (int i = 1; i <= 20; ++i) window.Add(now += milliseconds(500), 1000000 + static_cast<uint64_t>(i) * 10);
  EXPECT_DOUBLE_EQ(window.PerSecond(now), 20);
  EXPECT_DOUBLE_EQ(window.PerSecond(now + milliseconds(4500)), 20) << "of the two that are left";
  EXPECT_EQ(window.PerSecond(now + seconds(5)), 0);
  window.Add(now += milliseconds(500), 5);
  EXPECT_EQ(window.PerSecond(now), 0);
  window.Add(now += seconds(1), 12);
  EXPECT_DOUBLE_EQ(window.PerSecond(now), 7);
}

TEST(SameClusterTest, LoadsAreNoChange) {
  ClusterStatus a;
  a.state = "serving";
  a.members.push_back({.info = {.name = "w1"}});
  ClusterStatus b = a;
  b.members[0].load.steps = 5;
  b.members[0].rates.step_ms = 2;
  EXPECT_TRUE(SameCluster(a, b));
  b.members[0].drained = true;
  EXPECT_FALSE(SameCluster(a, b));
  b = a;
  b.state = "plan 2: preparing";
  EXPECT_FALSE(SameCluster(a, b));
  b = a;
  b.members.push_back({.info = {.name = "w2"}});
  EXPECT_FALSE(SameCluster(a, b));
  b = a;
  b.plan = Plan{};
  EXPECT_FALSE(SameCluster(a, b));
}

// The cost of a move, without a cluster around it.
TEST(PlanMovesTest, WeightsThatAreThereAreNotLoadedAgain) {
  ModelSizes sizes;
  sizes.layers.assign(4, 100);
  sizes.first = sizes.last = sizes.both = 50;  // one matrix for both ends
  sizes.memory.assign(4, {kPageGroup, 1});
  const Plan runs{.num_layers = 4, .stages = MakeStages({{"a", "", {0, 2}}, {"b", "", {2, 4}}})};
  const Plan next{.num_layers = 4, .stages = MakeStages({{"a", "", {0, 4}}})};
  const std::vector<PlanMember> members{{.name = "a", .holds = {0, 2}}, {.name = "b", .holds = {2, 4}}};
  EXPECT_THAT(MovesBetween(sizes, &runs, members, next, {.units = {10}}),
              ElementsAre(LayerMove{{2, 4}, "b", "a", 200, 20}));
  // The one matrix comes with the first of two moves.
  const Plan middle{.num_layers = 4, .stages = MakeStages({{"b", "", {0, 1}}, {"a", "", {1, 3}}, {"c", "", {3, 4}}})};
  EXPECT_THAT(MovesBetween(sizes, &middle, {{.name = "a", .holds = {1, 3}}}, next, {}),
              ElementsAre(LayerMove{{0, 1}, "b", "a", 150, 0}, LayerMove{{3, 4}, "c", "a", 100, 0}));
  // Nothing serves: what a holds of a lost plan is not loaded, and no pages come.
  EXPECT_THAT(MovesBetween(sizes, nullptr, members, next, {.units = {10}}),
              ElementsAre(LayerMove{{0, 4}, "", "a", 200, 0}));
}

}  // namespace
}  // namespace gyre
