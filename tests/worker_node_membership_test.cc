// A worker's process decides which coordinator may have it, resumes its membership, and keeps its stage for a time.
#include "worker/node_membership.h"

#include <gtest/gtest.h>

namespace gyre {
namespace {

using std::chrono::seconds;
using Meeting = NodeMembership::Meeting;

constexpr uint64_t kCluster = 11;

ClusterFacts Coordinator(uint64_t term, uint64_t cluster) { return {.term = term, .cluster_id = cluster}; }

class NodeMembershipTest : public ::testing::Test {
 protected:
  void Join(uint64_t term, uint64_t cluster) {
    membership_.Meet(Coordinator(term, cluster));
    membership_.Begin(term);
  }
  NodeMembership membership_;
};

TEST_F(NodeMembershipTest, WithoutOneAnyCoordinatorMayHaveTheWorker) {
  EXPECT_EQ(membership_.Meet(Coordinator(5, 0)), Meeting::kMayJoin);
  EXPECT_EQ(membership_.Meet(Coordinator(4, kCluster)), Meeting::kMayJoin);
  EXPECT_EQ(membership_.resumes_term(), 0u);
  membership_.Received(3);
  EXPECT_EQ(membership_.received(), 0u);
}

TEST_F(NodeMembershipTest, TheNextCallReattachesToTheLastCommand) {
  Join(5, kCluster);
  membership_.Received(2);
  membership_.Received(1);  // it came again
  EXPECT_EQ(membership_.Meet(Coordinator(5, kCluster)), Meeting::kMayJoin);
  EXPECT_EQ(membership_.resumes_term(), 5u);
  EXPECT_EQ(membership_.received(), 2u);
  membership_.End();
  EXPECT_FALSE(membership_.active());
  EXPECT_EQ(membership_.resumes_term(), 0u);
}

TEST_F(NodeMembershipTest, AnotherClusterIsAUnauthenticatedPeer) {
  Join(5, kCluster);
  EXPECT_EQ(membership_.Meet(Coordinator(6, kCluster + 1)), Meeting::kOtherCluster);
  EXPECT_EQ(membership_.Meet(Coordinator(6, 0)), Meeting::kOtherCluster);
  Join(5, 0);  // its coordinator has no state, so none takes its place
  EXPECT_EQ(membership_.Meet(Coordinator(6, 0)), Meeting::kOtherCluster);
}

TEST_F(NodeMembershipTest, ASuccessorGetsTheStageAndNotTheMembership) {
  Join(5, kCluster);
  membership_.Received(9);
  EXPECT_EQ(membership_.Meet(Coordinator(6, kCluster)), Meeting::kSuccessor);
  EXPECT_FALSE(membership_.awaits_successor());
  EXPECT_TRUE(membership_.AwaitSuccessor());
  EXPECT_EQ(membership_.Meet(Coordinator(6, kCluster)), Meeting::kSuccessor);
  EXPECT_FALSE(membership_.AwaitSuccessor()) << "it is told once";
  EXPECT_TRUE(membership_.awaits_successor());
  EXPECT_EQ(membership_.resumes_term(), 0u);
  EXPECT_EQ(membership_.received(), 0u);
  membership_.Begin(6);
  EXPECT_FALSE(membership_.awaits_successor());
  EXPECT_EQ(membership_.resumes_term(), 6u);
  EXPECT_EQ(membership_.received(), 0u);
}

TEST_F(NodeMembershipTest, OneThatWasReplacedIsNotJoined) {
  Join(5, kCluster);
  EXPECT_EQ(membership_.Meet(Coordinator(4, kCluster)), Meeting::kReplaced);
  EXPECT_EQ(membership_.term(), 5u);
  EXPECT_EQ(membership_.resumes_term(), 5u);
  // If it is the only one, with an old state and an old clock, it is joined when the stage was kept for long enough.
  const Deadline lost{seconds(1000)};
  membership_.Detach(lost);
  ASSERT_TRUE(membership_.RunsOut(lost + seconds(61), seconds(60)));
  membership_.End();
  EXPECT_EQ(membership_.Meet(Coordinator(4, kCluster)), Meeting::kMayJoin);
}

TEST_F(NodeMembershipTest, AStageIsKeptLongerForACoordinatorThatMayBeStartedAgain) {
  const Deadline lost{seconds(1000)};
  EXPECT_FALSE(membership_.RunsOut(lost, seconds(60)));
  Join(5, 0);
  membership_.Detach(lost);
  EXPECT_FALSE(membership_.RunsOut(lost + seconds(5), seconds(60)));
  EXPECT_TRUE(membership_.RunsOut(lost + seconds(6), seconds(60)));
  Join(6, kCluster);
  membership_.Detach(lost);
  EXPECT_FALSE(membership_.RunsOut(lost + seconds(60), seconds(60)));
  EXPECT_TRUE(membership_.RunsOut(lost + seconds(61), seconds(60)));
}

}  // namespace
}  // namespace gyre
