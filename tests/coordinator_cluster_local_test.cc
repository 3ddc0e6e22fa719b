// The coordinator's own member: alone, beside workers, too small for the model, with preferences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/cluster_world.h"

namespace gyre {
namespace {

using std::chrono::seconds;
using testing::ClusterWorld;
using ::testing::HasSubstr;
using Calls = std::vector<std::string>;

class ClusterLocalTest : public ::testing::Test {
 protected:
  ClusterWorld& New(const ClusterPolicy& policy) {
    world_ = std::make_unique<ClusterWorld>(policy);
    return *world_;
  }
  void TearDown() override {
    if (world_) EXPECT_EQ(world_->problem(), "");
  }
  std::unique_ptr<ClusterWorld> world_;
};

TEST_F(ClusterLocalTest, TheLocalMemberServesAloneAndThenBesideWorkers) {
  ClusterWorld& w = New(ClusterWorld::Policy(9, 2));
  w.JoinLocal();
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "local=0-8");
  w.Join("w1");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "local=0-8");
  w.engine.calls.clear();
  w.Join("w2");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-2,w2=3-5,local=6-8");
  EXPECT_EQ(w.engine.calls, (Calls{"drain", "new 2"}));
  EXPECT_EQ(w.member("local").runs, (LayerRange{6, 9})) << "it has given the others up";
  w.Silence("w2");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-3,local=4-8") << "two were asked for at first; now whoever is left goes on";
  w.Leave("w1");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "local=0-8");
  // Alone it serves until enough are there, as at the start.
  w.Join("w1");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "local=0-8");
  w.Join("w2");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-2,w2=3-5,local=6-8");
}

TEST_F(ClusterLocalTest, TheLocalMemberGetsTheLayersThatItWishes) {
  ClusterWorld& w = New(ClusterWorld::Policy(8, 2));
  w.Join("local", {.local = true, .preference = LayerRange{2, 4}});
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "local=0-7") << "alone it has all";
  w.Join("w1");
  w.Join("w2");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-1,local=2-3,w2=4-7");
}

// Otherwise each event would begin the same plan anew.
TEST_F(ClusterLocalTest, ALocalMemberThatWishesEverythingStaysAlone) {
  ClusterWorld& w = New(ClusterWorld::Policy(8, 1));
  w.Join("local", {.local = true, .preference = LayerRange{0, 8}});
  w.Advance(seconds(1));
  w.Join("w1");
  w.Advance(seconds(100));
  EXPECT_EQ(w.ranges(), "local=0-7");
  EXPECT_EQ(w.begun.size(), 1u);
  w.Resize("w1=0-7");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-7");
}

TEST_F(ClusterLocalTest, ALocalMemberThatCanNotHoldTheModelTakesAShare) {
  ClusterWorld& w = New(ClusterWorld::Policy(8, 2));
  w.Join("local", {.local = true, .memory = 500});
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "");
  EXPECT_THAT(w.text(), HasSubstr("0 of 2 workers have joined; local is left out: local needs"));
  w.Join("w1");
  w.Join("w2");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-1,w2=2-4,local=5-7");
  EXPECT_EQ(w.text(), "serving");
  EXPECT_EQ(
      std::count_if(w.log().begin(), w.log().end(),
                    [](const std::string& line) { return line.find("no plan: local needs") != std::string::npos; }),
      1);
}

// Three layers, and a fourth for a resize, fit into its memory only with fewer pages.
TEST_F(ClusterLocalTest, NoCacheIsCutForTheLocalMembersSake) {
  ClusterWorld& w = New(ClusterWorld::Policy(8, 2));
  w.Join("local", {.local = true, .memory = 420});
  w.Join("w1");
  w.Join("w2");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-3,w2=4-7");
  EXPECT_EQ(w.num_blocks, 10u);
}

}  // namespace
}  // namespace gyre
