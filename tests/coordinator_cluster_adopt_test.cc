// A coordinator that is started again: its cluster goes on with the plan of before, as a list of events.
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
using ::testing::Not;

class ClusterAdoptTest : public testing::ServingClusterTest {
 protected:
  // The coordinator of a cluster that served `ranges` is killed, and another one begins with its record.
  ClusterWorld& Restarted(int workers, const std::string& ranges = "", bool local = false, bool has_cache = false) {
    ClusterWorld& before = Serving(workers, {}, local);
    if (!ranges.empty()) {
      before.Resize(ranges);
      before.Advance(seconds(1));
      EXPECT_EQ(before.text(), "serving");
    }
    ranges_ = before.ranges();
    ClusterPolicy policy = ClusterWorld::Policy(8, workers);
    policy.term = 8;
    policy.record = before.record;
    policy.has_cache = has_cache;
    return New(policy);
  }
  // Its record comes with an index of the KV cache.
  ClusterWorld& RestartedWithCache(int workers) { return Restarted(workers, "", false, true); }
  // As a worker that kept its layers.
  static MemberInfo Holding(int begin, int end) { return {.holds = {begin, end}}; }
  std::string ranges_;
};

TEST_F(ClusterAdoptTest, ThePlanOfBeforeServesAgain) {
  ClusterWorld& w = Restarted(2, "w2=0-2,w1=3-7");
  // Nobody is refused meanwhile.
  EXPECT_THAT(w.engine.calls, ElementsAre("await"));
  EXPECT_THAT(w.text(), HasSubstr("the coordinator was started again, and waits for w2, w1"));
  w.Join("w1", Holding(3, 8));
  w.Advance(seconds(2));
  EXPECT_THAT(w.text(), HasSubstr("waits for w2"));
  w.Join("w2", Holding(0, 3));
  w.Advance(seconds(1));
  EXPECT_EQ(w.text(), "serving");
  EXPECT_EQ(w.ranges(), ranges_);
  EXPECT_EQ(w.engine.calls.back(), "new 1");
  EXPECT_EQ(w.status().plan->epoch.term, 8u);
}

TEST_F(ClusterAdoptTest, AWorkerWhoseProcessIsGoneIsNotWaitedFor) {
  ClusterWorld& w = Restarted(3);
  EXPECT_THAT(w.life_checks, ::testing::UnorderedElementsAre("w1", "w2", "w3"));
  w.FindGone("w2");
  w.Join("w1", Holding(0, 2));
  w.Advance(milliseconds(300));
  EXPECT_THAT(w.text(), HasSubstr("waits for w2, w3")) << "w3 may live";
  w.Join("w3", Holding(5, 8));
  w.Advance(milliseconds(500));
  EXPECT_EQ(w.text(), "serving") << "long before the wait of ten seconds is over";
  EXPECT_EQ(w.ranges(), "w1=0-3,w3=4-7");
}

// The members say what they still have of the index that the coordinator before kept.
TEST_F(ClusterAdoptTest, TheCacheIsUsedAgain) {
  ClusterWorld& w = RestartedWithCache(2);
  MemberInfo first = Holding(0, 4), second = Holding(4, 8);
  first.last_step = 700, second.last_step = 900;
  w.Join("w1", first).lacks = {3};
  w.Join("w2", second).lacks = {3, 5};
  w.Advance(seconds(1));
  EXPECT_EQ(w.text(), "serving");
  EXPECT_THAT(w.engine.calls,
              ElementsAre("await", "await", "await", fmt::format("restore {}", UINT64_MAX), "new 1 with the cache"));
  EXPECT_THAT(w.engine.missing, ElementsAre(3, 5));
  EXPECT_GT(w.engine.step_floor, 900u) << "later steps have higher numbers, whoever counts them";
  EXPECT_TRUE(w.member("w1").ran->sources.empty()) << "nothing is copied";
}

TEST_F(ClusterAdoptTest, TheCacheIsForgottenWhereTheOthersGoOn) {
  ClusterWorld& w = RestartedWithCache(3);
  w.Join("w1", Holding(0, 3));
  w.Join("w2", Holding(3, 6));
  w.Advance(seconds(12));
  EXPECT_EQ(w.ranges(), "w1=0-3,w2=4-7");
  EXPECT_THAT(w.engine.calls, Not(Contains(HasSubstr("restore"))));
}

// One dies while they look what they have.
TEST_F(ClusterAdoptTest, ALossMeanwhileEndsInAReplay) {
  ClusterWorld& w = RestartedWithCache(2);
  w.Join("w1", Holding(0, 4));
  w.Join("w2", Holding(4, 8)).moves = false;
  w.Advance(milliseconds(100));
  w.Leave("w2");
  w.Advance(seconds(3));
  EXPECT_EQ(w.ranges(), "w1=0-7");
  EXPECT_THAT(w.engine.calls, Not(Contains(HasSubstr("with the cache"))));
}

TEST_F(ClusterAdoptTest, WithoutOneTheOthersGoOn) {
  ClusterWorld& w = Restarted(3);
  w.Join("w1", Holding(0, 3));
  w.Join("w2", Holding(3, 6));
  w.Advance(milliseconds(9900));
  EXPECT_THAT(w.text(), HasSubstr("waits for w3"));
  w.Advance(seconds(1));
  // --min-workers 3 gates the first plan only, and that was before.
  EXPECT_EQ(w.text(), "serving");
  EXPECT_EQ(w.ranges(), "w1=0-3,w2=4-7");
}

TEST_F(ClusterAdoptTest, TheLocalMemberDoesNotBeginAlone) {
  ClusterWorld& w = Restarted(1, "", true);
  w.JoinLocal();
  w.Advance(seconds(2));
  EXPECT_THAT(w.text(), HasSubstr("waits for w1"));
  w.Join("w1", Holding(0, 4));
  w.Advance(seconds(1));
  EXPECT_EQ(w.text(), "serving");
  EXPECT_EQ(w.ranges(), ranges_);
}

TEST_F(ClusterAdoptTest, IfNobodyComesTheLocalMemberServes) {
  ClusterWorld& w = Restarted(1, "", true);
  w.JoinLocal();
  w.Advance(seconds(12));
  EXPECT_EQ(w.ranges(), "local=0-7");
}

TEST_F(ClusterAdoptTest, DrainedNamesStayDrained) {
  ClusterWorld& before = Serving(2);
  before.Drain("w1");
  before.Advance(seconds(1));
  ASSERT_TRUE(before.record);
  EXPECT_THAT(before.record->drained, ElementsAre("w1"));
  ClusterPolicy policy = ClusterWorld::Policy(8, 1);
  policy.record = before.record;
  ClusterWorld& w = New(policy);
  w.Join("w1");
  w.Join("w2", Holding(0, 8));
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w2=0-7");
  EXPECT_TRUE(w.status().members.back().drained);
  w.Undrain("w1");
  w.Advance(seconds(1));
  EXPECT_TRUE(w.record->drained.empty());
}

// Layers that a worker kept count as its memory, also when it gets other layers.
TEST_F(ClusterAdoptTest, AWorkerThatHoldsOthersLayersDropsThemFirst) {
  ClusterPolicy policy = ClusterWorld::Policy(8, 1);
  ClusterWorld& w = New(policy);
  // 4 layers of 110 bytes are held; 8 need 880.
  MemberInfo info = Holding(0, 4);
  info.memory = 900;
  info.holds = {0, 4};
  w.Join("w1", info);
  w.Advance(seconds(1));
  EXPECT_EQ(w.text(), "serving");
}

// The workers never held the whole cache.
TEST_F(ClusterAdoptTest, ThePlanOfBeforeServesAgainWithTheCacheThatItHad) {
  ClusterPolicy policy = ClusterWorld::Policy(8, 2);
  for (auto& memory : policy.sizes.memory) memory.unit = 10;
  const uint64_t memory = 5 * (100 + 5 * 10);  // a layer more than four, each with half of its pages
  ClusterWorld& before = New(policy);
  for (const char* name : {"w1", "w2"}) before.Join(name, {.memory = memory});
  before.Advance(seconds(1));
  ASSERT_EQ(before.num_blocks, 5u);
  ASSERT_EQ(before.ranges(), "w1=0-3,w2=4-7");
  policy.term = 8;
  policy.record = before.record;
  ClusterWorld& w = New(policy);
  MemberInfo first = Holding(0, 4), second = Holding(4, 8);
  first.memory = second.memory = memory;
  w.Join("w1", first);
  w.Join("w2", second);
  w.Advance(milliseconds(100));
  EXPECT_EQ(w.text(), "serving");
  EXPECT_EQ(w.ranges(), "w1=0-3,w2=4-7");
  EXPECT_EQ(w.num_blocks, 5u);
  EXPECT_FALSE(w.logged("can't be made again"));
  EXPECT_THAT(w.engine.calls, Contains("shrink 5"));
  EXPECT_EQ(w.problem(), "");
}

TEST_F(ClusterAdoptTest, LayersThatTheModelLacksAreRefused) {
  const ClusterPolicy policy = ClusterWorld::Policy(8, 1);
  EXPECT_FALSE(ClusterState::CheckMember(policy, {.name = "w", .holds = {0, 9}}).ok());
  EXPECT_FALSE(ClusterState::CheckMember(policy, {.name = "w", .holds = {-1, 2}}).ok());
  EXPECT_TRUE(ClusterState::CheckMember(policy, {.name = "w", .holds = {0, 8}}).ok());
}

}  // namespace
}  // namespace gyre
