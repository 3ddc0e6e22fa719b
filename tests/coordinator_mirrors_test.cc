// Mirrors: who holds whose, where a lost plan's pages are, and what the cluster does with them, as lists of events.
#include "coordinator/cluster/mirrors.h"

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

Plan Mirrored() {
  Plan plan{.epoch = {.term = 7, .number = 3}, .num_layers = 9};
  plan.stages = MakeStages({{"a", "a:1", {0, 3}}, {"b", "b:1", {3, 6}}, {"c", "c:1", {6, 9}}});
  plan.stages[0].mirrored_by = "b";
  plan.stages[1].mirrored_by = "c";
  plan.stages[2].mirrored_by = "a";
  return plan;
}

TEST(RestoreSourcesTest, OwnersThatLiveAndTheHoldersOfThoseThatDoNot) {
  const std::set<std::string> without_b{"a", "c"};
  const auto sources = RestoreSources(Mirrored(), {2, 8}, "x", without_b);
  ASSERT_TRUE(sources.has_value());
  EXPECT_THAT(*sources, ElementsAre(LayerSource{{2, 3}, "a", "a:1", 0}, LayerSource{{3, 6}, "c", "c:1", 3},
                                    LayerSource{{6, 8}, "c", "c:1", 0}));
  // A reader's own pages are no source; its own mirror is one.
  EXPECT_THAT(*RestoreSources(Mirrored(), {3, 9}, "c", without_b), ElementsAre(LayerSource{{3, 6}, "c", "c:1", 3}));
  EXPECT_THAT(*RestoreSources(Mirrored(), {0, 3}, "a", without_b), IsEmpty());
}

TEST(RestoreSourcesTest, NothingWhereAStageIsLostWithItsMirror) {
  EXPECT_FALSE(RestoreSources(Mirrored(), {0, 9}, "a", {"a"}).has_value()) << "b's mirror was c's";
  EXPECT_TRUE(RestoreSources(Mirrored(), {0, 3}, "a", {"a"}).has_value());
  Plan plan = Mirrored();
  plan.stages[1].mirrored_by = "";
  EXPECT_FALSE(RestoreSources(plan, {0, 9}, "a", {"a", "c"}).has_value());
}

class ClusterMirrorsTest : public testing::ServingClusterTest {
 protected:
  ClusterWorld& Mirroring(int workers, bool local = false) {
    ClusterPolicy policy = ClusterWorld::Policy(8, workers);
    policy.mirror_kv = true;
    policy.wire = wire_;
    New(policy);
    if (local) world_->JoinLocal();
    for (int i = 1; i <= workers; ++i) world_->Join(fmt::format("w{}", i), info_);
    world_->Advance(seconds(1));
    EXPECT_EQ(world_->text(), "serving");
    world_->engine.calls.clear();
    return *world_;
  }
  // The sources of the last Prepare, as "2-3 of w1" or "2-3 of the mirror at w1".
  std::string SourcesOf(const std::string& name) {
    std::string out;
    const auto& ran = world_->member(name).ran;
    if (!ran) return "none";
    for (const LayerSource& s : ran->sources) {
      out += fmt::format("{}{} of {}{}", out.empty() ? "" : ", ", FormatRange(s.layers),
                         s.mirror != 0 ? "the mirror at " : "", s.worker);
    }
    return out;
  }
  MemberInfo info_;
  WireType wire_ = WireType::kF32;
};

TEST_F(ClusterMirrorsTest, EachStageIsMirroredByTheNext) {
  ClusterWorld& w = Mirroring(3);
  const Plan plan = *w.status().plan;
  EXPECT_EQ(plan.stages[0].mirrored_by, "w2");
  EXPECT_EQ(plan.stages[1].mirrored_by, "w3");
  EXPECT_EQ(plan.stages[2].mirrored_by, "w1");
  Serving(2);
  EXPECT_EQ(world_->status().plan->stages[0].mirrored_by, "") << "not without --mirror-kv";
}

TEST_F(ClusterMirrorsTest, ALostMembersPagesAreRecalledFromItsMirror) {
  ClusterWorld& w = Mirroring(3);
  w.member("w3").mirrored = 77;  // of w2
  w.member("w2").mirrored = 55;  // of w1
  w.Leave("w2");
  EXPECT_TRUE(w.engine.mirrored);
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w1=0-3,w3=4-7");
  EXPECT_THAT(w.engine.calls, ElementsAre("await", "await", "recall 77", "new 2 with the cache"));
  EXPECT_EQ(SourcesOf("w1"), "2-3 of the mirror at w3");
  EXPECT_EQ(SourcesOf("w3"), "4 of the mirror at w3");
}

TEST_F(ClusterMirrorsTest, LayersOfSurvivorsThatMoveComeFromTheirOldOwners) {
  ClusterWorld& w = Mirroring(3);
  w.Leave("w1");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w2=0-3,w3=4-7");
  EXPECT_EQ(SourcesOf("w2"), "0-1 of the mirror at w2");
  EXPECT_EQ(SourcesOf("w3"), "4 of w2");
  EXPECT_EQ(w.engine.calls.back(), "new 2 with the cache");
}

TEST_F(ClusterMirrorsTest, AMirrorThatIsNotWholeBringsNothing) {
  ClusterWorld& w = Mirroring(3);
  w.member("w3").mirrored = std::nullopt;
  w.Leave("w2");
  w.Advance(milliseconds(300));
  EXPECT_THAT(w.engine.calls, ElementsAre("await", "await", "recall nothing", "new 2 with the cache"));
}

// The plan has had no step, and what was cached before is in the mirror.
TEST_F(ClusterMirrorsTest, AMirrorThatIsWholeWithoutAStepBringsWhatWasThereBefore) {
  ClusterWorld& w = Mirroring(3);
  w.member("w3").mirrored = 0;
  w.Leave("w2");
  w.Advance(milliseconds(300));
  EXPECT_THAT(w.engine.calls, ElementsAre("await", "await", "recall 0", "new 2 with the cache"));
}

TEST_F(ClusterMirrorsTest, WhatAMemberLacksIsForgottenAndThePlanServes) {
  ClusterWorld& w = Mirroring(3);
  w.member("w1").lacks = {7, 9};
  w.member("w3").lacks = {2, 7};
  w.Leave("w2");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w1=0-3,w3=4-7");
  EXPECT_EQ(w.engine.calls.back(), "new 2 with the cache");
  EXPECT_THAT(w.engine.missing, ElementsAre(2, 7, 9));
}

// w2 is about to leave and says nothing any more: what its layers had is computed again.
TEST_F(ClusterMirrorsTest, AFormerMemberThatSaysNothingIsWaitedForAShortTime) {
  ClusterWorld& w = Mirroring(4);
  w.WantsToLeave("w2");
  w.member("w2").silent = true;
  w.Leave("w3");
  w.Advance(seconds(3));
  EXPECT_EQ(w.text().substr(0, 7), "serving") << w.text();
}

// w2 is drained, gives its layers' pages, and doesn't answer the Commit.
TEST_F(ClusterMirrorsTest, ASourceIsNotWaitedForWhenItHasGivenItsPages) {
  ClusterWorld& w = Mirroring(4);
  w.member("w2").deaf = {TellMember::kCommit};
  w.WantsToLeave("w2");
  w.Leave("w3");
  w.Advance(seconds(1));
  EXPECT_EQ(w.text().substr(0, 7), "serving") << w.text();
}

TEST_F(ClusterMirrorsTest, AllIsForgottenWhereAStageAndItsMirrorAreLost) {
  ClusterWorld& w = Mirroring(4);
  w.Leave("w2");
  w.Leave("w3");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w1=0-3,w4=4-7");
  EXPECT_EQ(w.engine.calls.back(), fmt::format("new {}", w.status().plan->epoch.number));
  EXPECT_TRUE(w.logged("a stage is lost with its mirror"));
}

TEST_F(ClusterMirrorsTest, AnotherLossWhileAPlanRecallsIsRecalledToo) {
  ClusterWorld& w = Mirroring(4);
  w.member("w2").mirrored = 20;  // of w1
  w.member("w4").mirrored = 40;  // of w3
  w.Leave("w1");
  w.Advance(milliseconds(15));
  EXPECT_THAT(w.text(), HasSubstr("preparing"));
  w.Leave("w3");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w2=0-3,w4=4-7");
  EXPECT_THAT(w.engine.calls, Contains("recall 20"));
  EXPECT_EQ(w.engine.calls.back(), fmt::format("new {} with the cache", w.status().plan->epoch.number));
}

TEST_F(ClusterMirrorsTest, APlanThatRecallsAndFailsIsFollowedByOneThatDoesNot) {
  ClusterWorld& w = Mirroring(3);
  w.member("w1").recall_fault = Unavailable("copying pages from w3: the link was closed");
  w.Leave("w2");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w1=0-3,w3=4-7") << "the reader is not left out, and nobody waits";
  EXPECT_THAT(w.engine.calls, Not(Contains(HasSubstr("with the cache"))));
  EXPECT_EQ(SourcesOf("w1"), "");
}

// The only survivor can't have its mirror: it is needed all the same, and at once.
TEST_F(ClusterMirrorsTest, TheOnlySurvivorIsNotLeftOutForWhatItCantRecall) {
  ClusterWorld& w = Mirroring(2);
  w.member("w2").move_fault = Unavailable("copying pages from w2: the link was closed");
  w.Leave("w1");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w2=0-7");
  EXPECT_EQ(w.engine.calls.back(), fmt::format("new {}", w.status().plan->epoch.number));
}

TEST_F(ClusterMirrorsTest, ACopyingThatDoesNotEndIsGivenUpWithoutBlame) {
  ClusterWorld& w = Mirroring(3);
  w.member("w1").moves = false;
  w.Leave("w2");
  w.Advance(seconds(16));
  EXPECT_EQ(w.ranges(), "w1=0-3,w3=4-7");
  EXPECT_EQ(w.engine.calls.back(), fmt::format("new {}", w.status().plan->epoch.number));
}

// A stage that fails by itself does so without a recall too, and then is left out as ever.
TEST_F(ClusterMirrorsTest, AMemberThatCantLoadIsLeftOutByTheSecondPlan) {
  ClusterWorld& w = Mirroring(3);
  w.member("w1").load_fault = absl::ResourceExhaustedError("the layers of plan 2");
  w.Leave("w2");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w3=0-7");
}

// The link from w1 to w2 swallows everything: whoever takes w2's layers would dial it in vain.
TEST_F(ClusterMirrorsTest, AMemberThatIsLeftOutIsNoSource) {
  ClusterWorld& w = Mirroring(3);
  w.member("w3").mirrored = 77;  // of w2
  w.member("w2").reachable = false;
  w.BreakRing();
  w.Advance(seconds(3));
  EXPECT_EQ(w.ranges(), "w1=0-3,w3=4-7");
  EXPECT_EQ(SourcesOf("w1"), "2-3 of the mirror at w3");
  EXPECT_EQ(SourcesOf("w3"), "4 of the mirror at w3");
  EXPECT_THAT(w.engine.calls, Contains("recall 77"));
}

// Rounded activations differ with the boundaries between stages, so that no prefix would be found.
TEST_F(ClusterMirrorsTest, NothingIsRecalledWhereTheSaltChanges) {
  wire_ = WireType::kF16;
  ClusterWorld& w = Mirroring(3);
  w.Leave("w2");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w1=0-3,w3=4-7");
  EXPECT_THAT(w.engine.calls, Not(Contains(HasSubstr("recall"))));
  EXPECT_TRUE(w.logged("would have been rounded otherwise"));
  EXPECT_EQ(SourcesOf("w1"), "");
}

TEST_F(ClusterMirrorsTest, TheNextLossIsRecalledFromTheNextPlansMirrors) {
  ClusterWorld& w = Mirroring(3);
  w.Leave("w2");
  w.Advance(milliseconds(300));
  w.engine.calls.clear();
  w.member("w3").mirrored = 200;
  w.Leave("w1");
  w.Advance(milliseconds(300));
  EXPECT_EQ(w.ranges(), "w3=0-7");
  EXPECT_THAT(w.engine.calls, ElementsAre("await", "await", "recall 200", "new 3 with the cache"));
  EXPECT_EQ(SourcesOf("w3"), "0-3 of the mirror at w3");
}

TEST_F(ClusterMirrorsTest, ARepairAndAResizeRecallNothing) {
  ClusterWorld& w = Mirroring(3);
  w.BreakRing();
  w.Advance(seconds(2));
  w.Resize("w1=0-1,w2=2-3,w3=4-7");
  w.Advance(seconds(2));
  EXPECT_EQ(w.ranges(), "w1=0-1,w2=2-3,w3=4-7");
  EXPECT_THAT(w.engine.calls, Not(Contains(HasSubstr("recall"))));
  EXPECT_THAT(w.engine.calls, Not(Contains(HasSubstr("with the cache"))));
}

TEST_F(ClusterMirrorsTest, TheCoordinatorsMemberTakesOverFromItsMirror) {
  ClusterWorld& w = Mirroring(1, true);
  ASSERT_EQ(w.ranges(), "w1=0-3,local=4-7");
  EXPECT_EQ(w.status().plan->stages[0].mirrored_by, "local");
  w.Leave("w1");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "local=0-7");
  EXPECT_EQ(SourcesOf("local"), "0-3 of the mirror at local");
  EXPECT_THAT(w.engine.calls.back(), HasSubstr("with the cache"));
}

// 100 bytes a layer, and a block of one on each: a mirror counts like the pages that it copies.
TEST_F(ClusterMirrorsTest, MemoryChecksCountTheMirror) {
  // Four layers with a mirror of four, and room for a layer more: 500 bytes, and 9 for each block.
  info_.memory = 500 + 9 * 10;
  EXPECT_EQ(Mirroring(2).status().num_blocks, 10u);
  info_.memory = 500 + 9 * 7;
  EXPECT_EQ(Mirroring(2).status().num_blocks, 7u) << "the cache is cut for it";
}

}  // namespace
}  // namespace gyre
