// Replicas: who holds whose, where a lost plan's pages are, and what the cluster does with them, as lists of events.
#include "coordinator/cluster/replicas.h"

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
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Holders = std::vector<std::optional<size_t>>;

TEST(ReplicaHoldersTest, TheNextMemberRoundTheRing) {
  EXPECT_EQ(ReplicaHolders({false, false, false}), (Holders{1, 2, 0}));
  EXPECT_EQ(ReplicaHolders({false, false}), (Holders{1, 0}));
  EXPECT_EQ(ReplicaHolders({false}), (Holders{std::nullopt})) << "nobody else is there";
}

TEST(ReplicaHoldersTest, TheCoordinatorsOwnMemberOnlyWhereThereIsNoOther) {
  EXPECT_EQ(ReplicaHolders({false, false, true}), (Holders{1, 0, std::nullopt}));
  EXPECT_EQ(ReplicaHolders({true, false, false}), (Holders{std::nullopt, 2, 1}));
  EXPECT_EQ(ReplicaHolders({false, true}), (Holders{1, std::nullopt}));
  EXPECT_EQ(ReplicaHolders({true}), (Holders{std::nullopt}));
}

Plan Replicated() {
  Plan plan{.epoch = {.term = 7, .number = 3}, .num_layers = 9};
  plan.stages = MakeStages({{"a", "a:1", {0, 3}}, {"b", "b:1", {3, 6}}, {"c", "c:1", {6, 9}}});
  plan.stages[0].replicated_by = "b";
  plan.stages[1].replicated_by = "c";
  plan.stages[2].replicated_by = "a";
  return plan;
}

TEST(RestoreSourcesTest, OwnersThatLiveAndTheHoldersOfThoseThatDoNot) {
  const std::set<std::string> without_b{"a", "c"};
  const auto sources = RestoreSources(Replicated(), {2, 8}, "x", without_b);
  ASSERT_TRUE(sources.has_value());
  EXPECT_THAT(*sources, ElementsAre(LayerSource{{2, 3}, "a", "a:1", 0}, LayerSource{{3, 6}, "c", "c:1", 3},
                                    LayerSource{{6, 8}, "c", "c:1", 0}));
  // A reader's own pages are no source; its own replica is one.
  EXPECT_THAT(*RestoreSources(Replicated(), {3, 9}, "c", without_b), ElementsAre(LayerSource{{3, 6}, "c", "c:1", 3}));
  EXPECT_THAT(*RestoreSources(Replicated(), {0, 3}, "a", without_b), IsEmpty());
}

TEST(RestoreSourcesTest, NothingWhereAStageIsLostWithItsReplica) {
  EXPECT_FALSE(RestoreSources(Replicated(), {0, 9}, "a", {"a"}).has_value()) << "b's replica was c's";
  EXPECT_TRUE(RestoreSources(Replicated(), {0, 3}, "a", {"a"}).has_value());
  Plan plan = Replicated();
  plan.stages[1].replicated_by = "";
  EXPECT_FALSE(RestoreSources(plan, {0, 9}, "a", {"a", "c"}).has_value());
}

class ClusterReplicasTest : public testing::ServingClusterTest {
 protected:
  ClusterWorld& Replication(int workers, bool local = false) {
    ClusterPolicy policy = ClusterWorld::Policy(8, workers);
    policy.replicate_kv = true;
    policy.wire = wire_;
    New(policy);
    if (local) world_->JoinLocal();
    for (int i = 1; i <= workers; ++i) world_->Join(fmt::format("w{}", i), info_);
    world_->Advance(seconds(1));
    EXPECT_EQ(world_->text(), "serving");
    world_->engine.calls.clear();
    return *world_;
  }
  // The sources of the last Prepare, as "2-3 of w1" or "2-3 of the replica at w1".
  std::string SourcesOf(const std::string& name) {
    std::string out;
    const auto& ran = world_->member(name).ran;
    if (!ran) return "none";
    for (const LayerSource& s : ran->sources) {
      out += fmt::format("{}{} of {}{}", out.empty() ? "" : ", ", FormatRange(s.layers),
                         s.replica != 0 ? "the replica at " : "", s.worker);
    }
    return out;
  }
  MemberInfo info_;
  WireType wire_ = WireType::kF32;
};

TEST_F(ClusterReplicasTest, EachStageIsReplicatedByTheNext) {
  ClusterWorld& w = Replication(3);
  const Plan plan = *w.status().plan;
  EXPECT_EQ(plan.stages[0].replicated_by, "w2");
  EXPECT_EQ(plan.stages[1].replicated_by, "w3");
  EXPECT_EQ(plan.stages[2].replicated_by, "w1");
  Serving(2);
  EXPECT_EQ(world_->status().plan->stages[0].replicated_by, "") << "not without --replicate-kv";
}

TEST_F(ClusterReplicasTest, ALostMembersPagesAreRestoredFromItsReplica) {
  ClusterWorld& w = Replication(3);
  w.member("w3").replicated = 77;  // of w2
  w.member("w2").replicated = 55;  // of w1
  w.Leave("w2");
  EXPECT_TRUE(w.engine.replicated);
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w1=0-3,w3=4-7");
  EXPECT_THAT(w.engine.calls, ElementsAre("await", "await", "restore 77", "new 2 with the cache"));
  EXPECT_EQ(SourcesOf("w1"), "2-3 of the replica at w3");
  EXPECT_EQ(SourcesOf("w3"), "4 of the replica at w3");
}

TEST_F(ClusterReplicasTest, LayersOfSurvivorsThatMoveComeFromTheirOldOwners) {
  ClusterWorld& w = Replication(3);
  w.Leave("w1");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w2=0-3,w3=4-7");
  EXPECT_EQ(SourcesOf("w2"), "0-1 of the replica at w2");
  EXPECT_EQ(SourcesOf("w3"), "4 of w2");
  EXPECT_EQ(w.engine.calls.back(), "new 2 with the cache");
}

TEST_F(ClusterReplicasTest, AReplicaThatIsNotWholeBringsNothing) {
  ClusterWorld& w = Replication(3);
  w.member("w3").replicated = std::nullopt;
  w.Leave("w2");
  w.Advance(milliseconds(300));
  EXPECT_THAT(w.engine.calls, ElementsAre("await", "await", "restore nothing", "new 2 with the cache"));
}

// The plan has had no step, and what was cached before is in the replica.
TEST_F(ClusterReplicasTest, AReplicaThatIsWholeWithoutAStepBringsWhatWasThereBefore) {
  ClusterWorld& w = Replication(3);
  w.member("w3").replicated = 0;
  w.Leave("w2");
  w.Advance(milliseconds(300));
  EXPECT_THAT(w.engine.calls, ElementsAre("await", "await", "restore 0", "new 2 with the cache"));
}

TEST_F(ClusterReplicasTest, WhatAMemberLacksIsForgottenAndThePlanServes) {
  ClusterWorld& w = Replication(3);
  w.member("w1").lacks = {7, 9};
  w.member("w3").lacks = {2, 7};
  w.Leave("w2");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w1=0-3,w3=4-7");
  EXPECT_EQ(w.engine.calls.back(), "new 2 with the cache");
  EXPECT_THAT(w.engine.missing, ElementsAre(2, 7, 9));
}

// w2 is about to leave and says nothing any more: what its layers had is computed again.
TEST_F(ClusterReplicasTest, AFormerMemberThatSaysNothingIsWaitedForAShortTime) {
  ClusterWorld& w = Replication(4);
  w.WantsToLeave("w2");
  w.member("w2").silent = true;
  w.Leave("w3");
  w.Advance(seconds(3));
  EXPECT_EQ(w.text().substr(0, 7), "serving") << w.text();
}

// w2 is drained, gives its layers' pages, and doesn't answer the Commit.
TEST_F(ClusterReplicasTest, ASourceIsNotWaitedForWhenItHasGivenItsPages) {
  ClusterWorld& w = Replication(4);
  w.member("w2").deaf = {ChangeVerb::kCommit};
  w.WantsToLeave("w2");
  w.Leave("w3");
  w.Advance(seconds(1));
  EXPECT_EQ(w.text().substr(0, 7), "serving") << w.text();
}

TEST_F(ClusterReplicasTest, AllIsForgottenWhereAStageAndItsReplicaAreLost) {
  ClusterWorld& w = Replication(4);
  w.Leave("w2");
  w.Leave("w3");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w1=0-3,w4=4-7");
  EXPECT_EQ(w.engine.calls.back(), fmt::format("new {}", w.status().plan->epoch.number));
  EXPECT_TRUE(w.logged("a stage is lost with its replica"));
}

TEST_F(ClusterReplicasTest, AnotherLossWhileAPlanRestoresIsRestoredToo) {
  ClusterWorld& w = Replication(4);
  w.member("w2").replicated = 20;  // of w1
  w.member("w4").replicated = 40;  // of w3
  w.Leave("w1");
  w.Advance(milliseconds(15));
  EXPECT_THAT(w.text(), HasSubstr("preparing"));
  w.Leave("w3");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w2=0-3,w4=4-7");
  EXPECT_THAT(w.engine.calls, Contains("restore 20"));
  EXPECT_EQ(w.engine.calls.back(), fmt::format("new {} with the cache", w.status().plan->epoch.number));
}

TEST_F(ClusterReplicasTest, APlanThatRestoresAndFailsIsFollowedByOneThatDoesNot) {
  ClusterWorld& w = Replication(3);
  w.member("w1").restore_fault = Unavailable("copying pages from w3: the link was closed");
  w.Leave("w2");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w1=0-3,w3=4-7") << "the reader is not left out, and nobody waits";
  EXPECT_THAT(w.engine.calls, Not(Contains(HasSubstr("with the cache"))));
  EXPECT_EQ(SourcesOf("w1"), "");
}

// The only survivor can't have its replica: it is needed all the same, and at once.
TEST_F(ClusterReplicasTest, TheOnlySurvivorIsNotLeftOutForWhatItCantRestore) {
  ClusterWorld& w = Replication(2);
  w.member("w2").move_fault = Unavailable("copying pages from w2: the link was closed");
  w.Leave("w1");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w2=0-7");
  EXPECT_EQ(w.engine.calls.back(), fmt::format("new {}", w.status().plan->epoch.number));
}

TEST_F(ClusterReplicasTest, ACopyingThatDoesNotEndIsGivenUpWithoutBlame) {
  ClusterWorld& w = Replication(3);
  w.member("w1").moves = false;
  w.Leave("w2");
  w.Advance(seconds(16));
  EXPECT_EQ(w.ranges(), "w1=0-3,w3=4-7");
  EXPECT_EQ(w.engine.calls.back(), fmt::format("new {}", w.status().plan->epoch.number));
}

// A stage that fails by itself does so without a restore too, and then is left out as ever.
TEST_F(ClusterReplicasTest, AMemberThatCantLoadIsLeftOutByTheSecondPlan) {
  ClusterWorld& w = Replication(3);
  w.member("w1").load_fault = absl::ResourceExhaustedError("the layers of plan 2");
  w.Leave("w2");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w3=0-7");
}

// The link from w1 to w2 swallows everything: whoever takes w2's layers would dial it in vain.
TEST_F(ClusterReplicasTest, AMemberThatIsLeftOutIsNoSource) {
  ClusterWorld& w = Replication(3);
  w.member("w3").replicated = 77;  // of w2
  w.member("w2").reachable = false;
  w.BreakRing();
  w.Advance(seconds(3));
  EXPECT_EQ(w.ranges(), "w1=0-3,w3=4-7");
  EXPECT_EQ(SourcesOf("w1"), "2-3 of the replica at w3");
  EXPECT_EQ(SourcesOf("w3"), "4 of the replica at w3");
  EXPECT_THAT(w.engine.calls, Contains("restore 77"));
}

// Rounded activations differ with the boundaries between stages, so that no prefix would be found.
TEST_F(ClusterReplicasTest, NothingIsRestoredWhereTheCacheNamespaceChanges) {
  wire_ = WireType::kF16;
  ClusterWorld& w = Replication(3);
  w.Leave("w2");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w1=0-3,w3=4-7");
  EXPECT_THAT(w.engine.calls, Not(Contains(HasSubstr("restore"))));
  EXPECT_TRUE(w.logged("would have been rounded otherwise"));
  EXPECT_EQ(SourcesOf("w1"), "");
}

TEST_F(ClusterReplicasTest, TheNextLossIsRestoredFromTheNextPlansReplicas) {
  ClusterWorld& w = Replication(3);
  w.Leave("w2");
  w.Advance(milliseconds(300));
  w.engine.calls.clear();
  w.member("w3").replicated = 200;
  w.Leave("w1");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w3=0-7");
  EXPECT_THAT(w.engine.calls, ElementsAre("await", "await", "restore 200", "new 3 with the cache"));
  EXPECT_EQ(SourcesOf("w3"), "0-3 of the replica at w3");
}

TEST_F(ClusterReplicasTest, ARepairAndAResizeRestoreNothing) {
  ClusterWorld& w = Replication(3);
  w.BreakRing();
  w.Advance(seconds(2));
  w.Resize("w1=0-1,w2=2-3,w3=4-7");
  w.Advance(seconds(2));
  EXPECT_EQ(w.ranges(), "w1=0-1,w2=2-3,w3=4-7");
  EXPECT_THAT(w.engine.calls, Not(Contains(HasSubstr("restore"))));
  EXPECT_THAT(w.engine.calls, Not(Contains(HasSubstr("with the cache"))));
}

TEST_F(ClusterReplicasTest, TheCoordinatorsMemberTakesOverFromItsReplica) {
  ClusterWorld& w = Replication(1, true);
  ASSERT_EQ(w.ranges(), "w1=0-3,local=4-7");
  EXPECT_EQ(w.status().plan->stages[0].replicated_by, "local");
  w.Leave("w1");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "local=0-7");
  EXPECT_EQ(SourcesOf("local"), "0-3 of the replica at local");
  EXPECT_THAT(w.engine.calls.back(), HasSubstr("with the cache"));
}

// 100 bytes a layer, and a block of one on each: a replica counts like the pages that it copies.
TEST_F(ClusterReplicasTest, MemoryChecksCountTheReplica) {
  // Four layers with a replica of four, and room for a layer more: 500 bytes, and 9 for each block.
  info_.memory = 500 + 9 * 10;
  EXPECT_EQ(Replication(2).status().num_blocks, 10u);
  info_.memory = 500 + 9 * 7;
  EXPECT_EQ(Replication(2).status().num_blocks, 7u) << "the cache is cut for it";
}

}  // namespace
}  // namespace gyre
