// A cluster's members, as lists of events: those that are left out of plans, have no part in them, join again, or are
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/cluster/cluster_names.h"
#include "coordinator/cluster/cluster_state.h"
#include "tests/testing/serving_cluster.h"

namespace gyre {
namespace {

using std::chrono::seconds;
using testing::ClusterWorld;
using ::testing::HasSubstr;
using ::testing::Not;

class ClusterMembersTest : public testing::ServingClusterTest {};

TEST_F(ClusterMembersTest, AWorkerThatCanNotBeReachedIsLeftOut) {
  for (int position : {0, 1, 2}) {
    ClusterWorld& w = New(ClusterWorld::Policy(8, 2));
    w.JoinLocal();
    w.Advance(seconds(1));
    for (int i = 0; i < 3; ++i) {
      // Before the next event, so that the first plan over workers takes all three.
      if (i == position) {
        w.Join("bad").reachable = false;
      } else {
        w.Join(fmt::format("w{}", i));
      }
    }
    w.Advance(seconds(15));
    const bool from_the_start = position < 2;
    if (from_the_start) {
      EXPECT_THAT(w.text(), HasSubstr("serving; bad is left out: the link from "));
      EXPECT_THAT(w.text(), HasSubstr(" to bad failed: Connection refused"));
      EXPECT_TRUE(w.logged("bad is left out of plans for 5 s"));
      EXPECT_LE(w.begun.size(), 4u);
    }
    EXPECT_THAT(w.ranges(), Not(HasSubstr("bad")));
    EXPECT_THAT(w.ranges(), HasSubstr("local"));
    // A request that names it gets the reason of the failure, and the plan stays.
    const std::string before = w.ranges();
    const uint64_t ask = w.Resize("bad=0-7");
    w.Advance(seconds(5));
    EXPECT_EQ(Message(w.answer(ask).status()), "the link from the coordinator to bad failed: Connection refused");
    EXPECT_EQ(w.ranges(), before);
    // Named while it is well it is as good as any.
    w.member("bad").reachable = true;
    const uint64_t well = w.Resize("bad=0-7");
    w.Advance(seconds(5));
    EXPECT_TRUE(w.answer(well).ok());
    EXPECT_EQ(w.text(), "serving");
    EXPECT_EQ(w.problem(), "");
  }
}

TEST_F(ClusterMembersTest, WithoutItThereAreTooFewAndItIsTriedAgainMoreAndMoreRarely) {
  ClusterWorld& w = New(ClusterWorld::Policy(8, 2));
  w.JoinLocal();
  w.Advance(seconds(1));
  w.Join("w1");
  w.Join("bad").reachable = false;
  w.begun.clear();
  w.Advance(seconds(75));
  // After 0, 5, 15 and 35 s, and the next after 75 s and what the tries take.
  EXPECT_GE(w.begun.size(), 3u);
  EXPECT_LE(w.begun.size(), 5u);
  EXPECT_EQ(w.ranges(), "local=0-7") << "which serves all the time";
  EXPECT_TRUE(w.logged("bad is left out of plans for 40 s"));
  w.Advance(seconds(600));
  w.begun.clear();
  w.Advance(seconds(600));
  EXPECT_GE(w.begun.size(), 9u) << "once a minute";
  EXPECT_LE(w.begun.size(), 11u);
  w.member("bad").reachable = true;
  w.Advance(seconds(61));
  EXPECT_EQ(w.ranges(), "w1=0-1,bad=2-4,local=5-7");
  EXPECT_EQ(w.text(), "serving");
}

TEST_F(ClusterMembersTest, AWorkerThatIsTooSmallIsLeftOut) {
  ClusterPolicy policy = ClusterWorld::Policy(8, 3);
  ClusterWorld& w = New(policy);
  w.Join("w1", {.memory = 2000});
  w.Join("tiny", {.memory = 50});
  w.Join("w2", {.memory = 2000});
  w.Advance(seconds(1));
  EXPECT_TRUE(w.begun.empty()) << "three are asked for";
  EXPECT_THAT(w.text(), HasSubstr("3 of 3 workers have joined; tiny is left out: tiny needs"));
  w.Join("w3");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges().find("tiny"), std::string::npos);
  EXPECT_EQ(w.status().plan->stages.size(), 3u);
  EXPECT_THAT(w.text(), HasSubstr("serving; tiny is left out: tiny needs"));
  EXPECT_THAT(Message(w.answer(w.Resize("tiny=0-7")).status()), HasSubstr("tiny needs"));
}

TEST_F(ClusterMembersTest, NobodyReadsThatAWorkerIsGoneWhenItIsBack) {
  ClusterWorld& w = New(ClusterWorld::Policy(8, 3));
  for (const char* name : {"w1", "w2", "w3"}) w.Join(name, {.memory = 700});
  w.Advance(seconds(1));
  w.Leave("w2");
  EXPECT_THAT(Message(w.engine.losses.back()), HasSubstr("w2 with layers"));
  w.Leave("w3");
  w.Advance(seconds(1));
  EXPECT_THAT(Message(w.engine.losses.back()),
              HasSubstr("requests wait for a worker: no plan can be made over the 1 that is"));
  EXPECT_THAT(w.text(), HasSubstr("w1 is left out: w1 needs"));
  w.Join("w3");
  EXPECT_THAT(Message(w.engine.losses.back()), Not(HasSubstr("w3 with layers")));
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-3,w3=4-7");
  EXPECT_EQ(w.text(), "serving");
}

// It heartbeats, and its loader hangs: its neighbor waits for its links, and is not to blame.
TEST_F(ClusterMembersTest, TheOthersServeWithoutAMemberThatAnswersNothing) {
  ClusterWorld& w = New(ClusterWorld::Policy(9, 2));
  w.Join("w1").silent = true;
  w.Join("w2");
  w.Join("w3");
  w.Advance(seconds(130));
  EXPECT_EQ(w.ranges(), "w2=0-3,w3=4-8");
  EXPECT_THAT(w.text(), HasSubstr("w1 is left out: plan 1 was given up while preparing: no answer from w1, w2"));
}

TEST_F(ClusterMembersTest, AMemberWithNoPartInTheNextPlanDropsWhatItHolds) {
  ClusterWorld& w = New(ClusterWorld::Policy(2, 2));
  w.Join("w1");
  w.Join("w2");
  w.Advance(seconds(1));
  w.Join("w3");
  w.Leave("w1");
  EXPECT_EQ(w.member("w2").runs, (LayerRange{1, 2})) << "it keeps them: the next plan may want them";
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w3=0,w2=1");
  w.Join("w4");
  w.wiring_fault = Internal("too many open files");
  w.Leave("w3");
  w.Advance(seconds(1));
  w.wiring_fault = absl::OkStatus();
  w.Resize("w4=0-1");
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w4=0-1");
  EXPECT_EQ(w.member("w2").runs, LayerRange{});
}

TEST_F(ClusterMembersTest, TheLastMembersLayersAreDroppedAfterALoss) {
  ClusterWorld& w = New(ClusterWorld::Policy(8, 3));
  for (const char* name : {"w1", "w2", "w3"}) w.Join(name);
  w.Advance(seconds(1));
  w.Leave("w1");
  w.Advance(seconds(1));
  EXPECT_GT(w.member("w3").runs.size(), 0);
  const uint64_t ask = w.Resize("w2=0-7");
  w.Advance(seconds(1));
  EXPECT_TRUE(w.answer(ask).ok());
  EXPECT_EQ(w.member("w3").runs, LayerRange{}) << "it has no part in the plan over workers";
  EXPECT_EQ(w.status().members[1].weight_bytes, 0u);
}

TEST_F(ClusterMembersTest, AMembershipThatIsReplacedCountsNoMore) {
  ClusterWorld& w = Serving(2);
  const uint64_t old = w.member("w1").id;
  w.Join("w1");  // the same process again, before its old stream has ended
  EXPECT_THAT(Message(w.engine.losses[0]), HasSubstr("worker w1 with layers 0-3 is gone: it joined again"));
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-3,w2=4-7") << "it has its place in the order";
  w.engine.losses.clear();
  w.state().Left({"w1", old}, Unavailable("its connection ended"), w.now());
  w.state().Said(old, {.worker = "w1", .epoch = {7, 2}, .what = StageFault{Internal("late")}}, w.now());
  w.Advance(seconds(1));
  EXPECT_EQ(w.text(), "serving");
  // In a change, too: an answer of the old one does not count for the new one.
  w.member("w2").silent = true;
  w.Resize("w2=0-3,w1=4-7");
  const uint64_t second = w.member("w1").id;
  w.Join("w1");
  w.state().Said(second, {.worker = "w1", .epoch = {7, 3}, .what = StageDone{.verb = ChangeVerb::kPrepare}}, w.now());
  EXPECT_EQ(w.status().plan, std::nullopt);
}

TEST(MemberNamesTest, NamesAreUniqueAndStayWithTheInstance) {
  MemberNames names;
  const Membership first = names.Take("w", 11);
  EXPECT_EQ(first.name, "w");
  EXPECT_EQ(names.Take("w", 12).name, "w-2");
  EXPECT_EQ(names.Take("w", 0).name, "w-3");
  EXPECT_EQ(names.Take("w", 0).name, "w-4") << "nobody knows whether it is the same";
  EXPECT_EQ(names.Take("", 0).name, "worker");
  EXPECT_EQ(names.Take("", 0).name, "worker-2");
  // A number makes no name longer than names may be.
  const std::string longest(64, 'x');
  EXPECT_EQ(names.Take(longest, 0).name, longest);
  EXPECT_EQ(names.Take(longest, 0).name, std::string(62, 'x') + "-2");
  const Membership again = names.Take("w", 11);
  EXPECT_EQ(again.name, "w");
  EXPECT_GT(again.id, first.id);
  EXPECT_EQ(names.Take("w", 12).name, "w-2");
  names.Free(first);
  EXPECT_EQ(names.Take("w", 13).name, "w-5") << "the late end of a membership frees no name";
  names.Free(again);
  EXPECT_EQ(names.Take("w", 14).name, "w");
}

TEST(ClusterMemberTest, WhoDoesNotFitIsRefused) {
  ClusterPolicy policy = ClusterWorld::Policy(8, 1);
  policy.model_hash = 5;
  policy.isa = "avx2";
  const MemberInfo good{.name = "w", .isa = "avx2", .model_hash = 5};
  EXPECT_TRUE(ClusterState::CheckMember(policy, good).ok());
  MemberInfo info = good;
  info.model_hash = 6;
  EXPECT_THAT(Message(ClusterState::CheckMember(policy, info)), HasSubstr("another model file"));
  info = good;
  info.isa = "amx";
  EXPECT_THAT(Message(ClusterState::CheckMember(policy, info)), HasSubstr("--bit-equal"));
  info = good;
  policy.version = "1.2";
  EXPECT_EQ(Message(ClusterState::CheckMember(policy, info)), "w runs Gyre , the cluster asks for 1.2 (--bit-equal)");
  info.version = "1.2";
  EXPECT_TRUE(ClusterState::CheckMember(policy, info).ok());
  policy.version = "";
  for (LayerRange preference : {LayerRange{-1, 2}, LayerRange{3, 3}, LayerRange{5, 9}}) {
    info = good;
    info.preference = preference;
    EXPECT_TRUE(absl::IsInvalidArgument(ClusterState::CheckMember(policy, info)));
  }
  info = good;
  info.wire_types = Only(WireType::kF32);
  policy.wire = WireType::kF16;
  EXPECT_TRUE(absl::IsFailedPrecondition(ClusterState::CheckMember(policy, info)));
  info = good;
  policy.wire = WireType::kF32;
  for (Transport cluster : {Transport::kAuto, Transport::kTcp, Transport::kShm}) {
    for (Transport own : {Transport::kAuto, Transport::kTcp, Transport::kShm}) {
      policy.transport = cluster;
      info.transport = own;
      const bool fits = cluster == own || cluster == Transport::kAuto || own == Transport::kAuto;
      const Status status = ClusterState::CheckMember(policy, info);
      EXPECT_EQ(status.ok(), fits) << status;
      if (!fits) EXPECT_THAT(Message(status), HasSubstr("(--transport)"));
    }
  }
}

}  // namespace
}  // namespace gyre
