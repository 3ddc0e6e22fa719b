// Members with layers that are lost, at any moment: the others go on without anybody being refused.
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

class ClusterLossTest : public testing::ServingClusterTest {};

TEST_F(ClusterLossTest, TheSurvivorsGoOnAtOnceWhateverMinWorkersSays) {
  ClusterWorld& w = Serving(3);
  w.Leave("w2");
  EXPECT_EQ(w.engine.calls[0], "await");
  EXPECT_EQ(Message(w.engine.losses[0]), "worker w2 with layers 2-4 is gone: its connection ended");
  w.Advance(milliseconds(200));
  EXPECT_EQ(w.engine.calls.back(), "new 2");
  EXPECT_EQ(w.ranges(), "w1=0-3,w3=4-7");
  w.Leave("w1");
  w.Advance(milliseconds(200));
  EXPECT_EQ(w.ranges(), "w3=0-7");
  EXPECT_EQ(w.status().lost, 2u);
}

TEST_F(ClusterLossTest, SurvivorsKeepTheLayersThatTheyHave) {
  ClusterWorld& w = Serving(3);
  w.Resize("w3=0-2,w1=3-5,w2=6-7");
  w.Advance(seconds(1));
  w.Leave("w1");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w3=0-3,w2=4-7") << "not in the order in which they joined";
}

// A member is lost after each of the events of a life with a resize, a repair, a drain and losses; each of the members.
TEST_F(ClusterLossTest, AtEveryMomentOfALife) {
  int lives = 0;
  for (const char* victim : {"w1", "w2", "w3", "local"}) {
    for (int at = 0; at < 400; at += 7) {
      ClusterWorld& w = Serving(3, {}, std::string(victim) == "local");
      SCOPED_TRACE(fmt::format("{} after {} ms", victim, at));
      const std::string name = std::string(victim) == "local" ? "w2" : victim;
      w.After(milliseconds(at), [&w, name] {
        if (w.has(name)) w.Leave(name);
      });
      w.Resize("w3=0-3,w1=4-5,w2=6-7");
      w.Advance(milliseconds(60));
      w.BreakRing();
      w.Advance(milliseconds(700));
      if (w.has("w3")) w.Drain("w3");
      w.Advance(seconds(30));
      ASSERT_EQ(w.problem(), "");
      EXPECT_EQ(w.text(), "serving");
      EXPECT_THAT(w.engine.calls, Not(Contains("refuse")));
      EXPECT_THAT(w.ranges(), Not(HasSubstr(name)));
      ++lives;
    }
  }
  EXPECT_GE(lives, 200);
}

// The pause begins with the last result, long before anybody notices the loss.
TEST_F(ClusterLossTest, TheTimeUntilALossIsNoticedCounts) {
  ClusterWorld& w = Serving(3);
  w.events.clear();
  w.progress = {.plan = w.status().plan->epoch.number, .owes_since = w.now() + milliseconds(100)};
  w.Advance(milliseconds(100));
  w.Report("w1", {});
  w.Report("w2", {});
  w.Advance(milliseconds(1750));
  w.Silence("w2");
  w.Advance(seconds(1));
  EXPECT_EQ(w.text(), "serving");
  EXPECT_THAT(testing::KindsOf(w.events), ElementsAre("lost", "recovered"));
  EXPECT_EQ(w.events[0].member, "w2");
  EXPECT_EQ(w.events[0].text, "w2 with layers 2-4 is gone: nothing was heard of it");
  EXPECT_GE(w.events[1].took, milliseconds(1750));
  EXPECT_LE(w.events[1].took, milliseconds(2250));
  EXPECT_EQ(w.events[1].plan, w.status().plan->epoch.number);
  EXPECT_THAT(w.events[1].text, HasSubstr("; the ring had stood still for 1.7"));
  EXPECT_THAT(w.events[1].text, HasSubstr("worker w2 with layers 2-4 is gone: nothing was heard of it"));
  EXPECT_EQ(w.records.back().paused, w.events[1].took);
  EXPECT_LT(w.records.back().took, milliseconds(500)) << "of making the plan alone";
  EXPECT_EQ(w.engine.awaited_since, w.now() - milliseconds(2750)) << "the engine's statistics say the same";
}

TEST_F(ClusterLossTest, ALossWithoutARequestBeginsWithTheLastHeartbeat) {
  ClusterWorld& w = Serving(3);
  w.events.clear();
  w.Report("w2", {});
  const Deadline heard = w.now();
  w.Advance(milliseconds(1750));
  w.Silence("w2");
  w.Advance(seconds(1));
  EXPECT_THAT(testing::KindsOf(w.events), ElementsAre("lost", "recovered"));
  EXPECT_EQ(w.engine.awaited_since, heard);
  EXPECT_GE(w.events[1].took, milliseconds(1750));
}

TEST_F(ClusterLossTest, ARepairTellsWhatItTookAndWhy) {
  ClusterWorld& w = Serving(2);
  w.events.clear();
  w.BreakRing();
  w.Advance(seconds(1));
  EXPECT_THAT(testing::KindsOf(w.events), ElementsAre("ring_broken", "recovered"));
  EXPECT_THAT(w.events[1].text, HasSubstr("the ring: a link ended"));
  EXPECT_GE(w.events[1].took, milliseconds(500));
  EXPECT_EQ(w.records.back().paused, w.events[1].took);
}

TEST_F(ClusterLossTest, MembersThatComeAndGoAreEvents) {
  ClusterWorld& w = Serving(2);
  w.events.clear();
  w.Join("w3");
  w.Drain("w3");
  w.Undrain("w3");
  w.Resize("w3=0-1,w1=2-4,w2=5-7");
  w.Advance(seconds(1));
  w.Remove("w3");
  w.Advance(seconds(1));
  w.LetDismissedGo();
  EXPECT_THAT(testing::KindsOf(w.events), ElementsAre("joined", "drained", "undrained", "plan", "plan", "left"));
  EXPECT_THAT(w.events[3].text, HasSubstr("serves: w3=0-1,w1=2-4,w2=5-7; the ring paused for 0.0"));
  EXPECT_GT(w.events[3].took, Duration{});
  EXPECT_EQ(w.events[5].text, "w3 has left, as it was asked to");
}

TEST_F(ClusterLossTest, ALossInTheMiddleOfARecoveryBeginsTheNext) {
  ClusterWorld& w = Serving(4);
  w.Leave("w1");
  w.Advance(milliseconds(5));
  w.Leave("w2");
  w.Advance(milliseconds(15));
  w.Leave("w3");
  EXPECT_EQ(w.text(), "plan 4: preparing");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w4=0-7");
  EXPECT_THAT(w.engine.calls, Not(Contains("new 2")));
  EXPECT_EQ(w.status().lost, 1u) << "the others were no plan yet";
}

TEST_F(ClusterLossTest, RequestsWaitWhereTheSurvivorsAreTooSmallAndGoOnWithTheNextWorker) {
  ClusterWorld& w = Serving(2, {.memory = 700});
  w.Leave("w2");
  w.Advance(seconds(100));
  EXPECT_THAT(w.text(), HasSubstr("worker w2 with layers 4-7 is gone"));
  EXPECT_THAT(w.text(), HasSubstr("requests wait for a worker"));
  EXPECT_THAT(w.text(), HasSubstr("w1 is left out: w1 needs"));
  EXPECT_EQ(Message(w.engine.losses.back()), w.text()) << "the waiting read the same";
  w.Join("w9", {.memory = 700});
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-3,w9=4-7");
  EXPECT_EQ(w.text(), "serving");
}

// Three hold the model with the whole cache; two of them hold the weights and a smaller one.
TEST_F(ClusterLossTest, TheCacheIsCutToWhatTheSurvivorsHold) {
  world_ = std::make_unique<ClusterWorld>(ClusterWorld::Policy(9, 3));
  ClusterWorld& w = *world_;
  for (const char* name : {"w1", "w2", "w3"}) w.Join(name, {.memory = 540});
  w.Advance(seconds(1));
  ASSERT_EQ(w.ranges(), "w1=0-2,w2=3-5,w3=6-8");
  EXPECT_EQ(w.num_blocks, 10u);
  w.Leave("w3");
  w.Advance(seconds(2));
  EXPECT_EQ(w.ranges(), "w1=0-3,w2=4-8");
  EXPECT_EQ(w.num_blocks, 8u) << "5 layers of 100 leave 40 for 5 layers' pages of 1 a block";
  EXPECT_THAT(w.engine.calls, Contains("shrink 8"));
  EXPECT_TRUE(w.logged("the KV cache is cut"));
}

// Whatever kills two workers may kill the third, which must not be the coordinator's own process.
TEST_F(ClusterLossTest, AfterTwoCrashesTheCoordinatorsMemberIsSparedIfTheWorkersHoldTheModel) {
  ClusterWorld& w = Serving(4, {}, true);
  w.Leave("w1");
  w.Advance(seconds(1));
  EXPECT_THAT(w.ranges(), HasSubstr("local"));
  EXPECT_TRUE(w.engine.own_member);
  w.Leave("w2");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w3=0-3,w4=4-7");
  EXPECT_FALSE(w.engine.own_member);
  w.Leave("w3");
  w.Leave("w4");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "local=0-7");
  EXPECT_TRUE(w.engine.own_member);
}

TEST_F(ClusterLossTest, SilenceIsNoCrash) {
  ClusterWorld& w = Serving(4, {}, true);
  for (const char* name : {"w1", "w2"}) {
    w.Silence(name);
    w.Advance(seconds(1));
    EXPECT_FALSE(w.engine.crashed);
  }
  EXPECT_THAT(w.ranges(), HasSubstr("local"));
  w.Leave("w3");
  EXPECT_TRUE(w.engine.crashed);
}

}  // namespace
}  // namespace gyre
