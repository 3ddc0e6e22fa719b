// A cluster's behaviour, as lists of events: first plans, resizes, drains, losses, repairs.
#include "coordinator/cluster/cluster_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/serving_cluster.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ClusterWorld;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Calls = std::vector<std::string>;

class ClusterStateTest : public testing::ServingClusterTest {};

TEST_F(ClusterStateTest, TheFirstPlanWaitsForEnoughWorkers) {
  ClusterWorld& w = New(ClusterWorld::Policy(8, 2));
  EXPECT_EQ(Message(w.engine.losses.back()), "0 of 2 workers have joined");
  w.Join("w1");
  w.Advance(seconds(100));
  EXPECT_TRUE(w.begun.empty());
  EXPECT_EQ(Message(w.engine.losses.back()), "1 of 2 workers have joined");
  EXPECT_EQ(w.text(), "1 of 2 workers have joined");
  w.Join("w2");
  EXPECT_EQ(w.text(), "plan 1: preparing");
  EXPECT_EQ(Message(w.engine.losses.back()), "plan 1 is being prepared");
  w.Advance(seconds(1));
  EXPECT_EQ(w.text(), "serving");
  EXPECT_EQ(w.ranges(), "w1=0-3,w2=4-7");
  EXPECT_EQ(w.engine.calls.back(), "new 1");
  EXPECT_EQ(w.status().plans, 1u);
  // A worker that joins later gets layers by a resize only.
  w.Join("w3");
  w.Advance(seconds(100));
  EXPECT_EQ(w.begun.size(), 1u);
}

TEST_F(ClusterStateTest, AResizeIsAnsweredOnceWithItsReport) {
  ClusterWorld& w = Serving(2);
  const uint64_t ask = w.Resize("w2=0-1,w1=2-7");
  EXPECT_FALSE(w.answered(ask));
  const uint64_t second = w.Resize("w1=0-7");
  EXPECT_THAT(Message(w.answer(second).status()), HasSubstr("plan 2 is being made (preparing); try again"));
  w.Advance(seconds(1));
  ASSERT_TRUE(w.answer(ask).ok()) << w.answer(ask).status();
  EXPECT_EQ(w.answer(ask)->ranges, "0-1,2-7");
  EXPECT_EQ(w.answer(ask)->epoch, (Epoch{7, 2}));
  EXPECT_EQ(w.answer(ask)->pages_moved, 10u);
  EXPECT_GT(w.answer(ask)->took, milliseconds(20));
  EXPECT_EQ(w.engine.calls, (Calls{"drain", "new 2"}));
  EXPECT_EQ(w.member("w2").runs, (LayerRange{0, 2}));
  EXPECT_EQ(w.member("w2").retired, LayerRange{}) << "Release has come";
  for (const char* bad : {"w1=0-3", "bob=0-7", "0-3,3-7", ""}) {
    EXPECT_FALSE(w.answer(w.Resize(bad)).ok());
  }
  EXPECT_EQ(w.begun.size(), 1u);
}

TEST_F(ClusterStateTest, ADrainMovesLayersToTheOthers) {
  ClusterWorld& w = Serving(3);
  const uint64_t ask = w.Drain("w2");
  w.Advance(seconds(1));
  EXPECT_TRUE(w.answer(ask).ok()) << w.answer(ask).status();
  EXPECT_EQ(w.ranges(), "w1=0-3,w3=4-7");
  EXPECT_EQ(w.member("w2").runs, LayerRange{});
  EXPECT_TRUE(w.answer(w.Drain("w2")).ok()) << "it is drained already";
  EXPECT_THAT(Message(w.answer(w.Drain("zoe")).status()), HasSubstr("no worker 'zoe'; there are "));
  EXPECT_THAT(Message(w.answer(w.Undrain("zoe")).status()), HasSubstr("no worker 'zoe'; there are "));
}

TEST_F(ClusterStateTest, ADrainOfTheLastOwnerGoesToOneThatWaits) {
  ClusterWorld& w = New(ClusterWorld::Policy(8, 1));
  w.Join("w1");
  w.Advance(seconds(1));
  EXPECT_THAT(Message(w.answer(w.Drain("w1")).status()),
              HasSubstr("w1 is the only worker: nobody can take its layers"));
  w.JoinLocal();
  w.Join("w2");
  const uint64_t to_worker = w.Drain("w1");
  w.Advance(seconds(1));
  EXPECT_TRUE(w.answer(to_worker).ok());
  EXPECT_EQ(w.ranges(), "w2=0-7") << "a worker before the local member";
  w.Leave("w1");
  const uint64_t to_local = w.Drain("w2");
  w.Advance(seconds(1));
  EXPECT_TRUE(w.answer(to_local).ok());
  EXPECT_EQ(w.ranges(), "local=0-7");
  w.Advance(seconds(100));
  EXPECT_EQ(w.ranges(), "local=0-7") << "what was asked for stays";
}

TEST_F(ClusterStateTest, AFaultBeforeTheDecisionLeavesTheOldPlan) {
  ClusterWorld& w = Serving(2);
  w.member("w2").load_fault = ResourceExhausted("no memory for its layers");
  const uint64_t ask = w.Resize("w2=0-3,w1=4-7");
  w.Advance(seconds(1));
  EXPECT_EQ(Message(w.answer(ask).status()), "w2: no memory for its layers");
  EXPECT_EQ(w.ranges(), "w1=0-3,w2=4-7");
  EXPECT_TRUE(w.engine.calls.empty());
  EXPECT_THAT(w.cancelled, ElementsAre(Epoch{7, 2}));
  // The epoch is not used again.
  w.member("w2").load_fault = absl::OkStatus();
  const uint64_t again = w.Resize("w2=0-3,w1=4-7");
  w.Advance(seconds(1));
  EXPECT_EQ(w.answer(again)->epoch.number, 3u);
}

// The engine is not told to go on over a ring that has lost a step, and gets new links.
TEST_F(ClusterStateTest, ADrainThatDoesNotEndIsFollowedByARepair) {
  ClusterWorld& w = Serving(2);
  w.engine.drains = false;
  const uint64_t ask = w.Resize("w2=0-3,w1=4-7");
  w.Advance(seconds(59));
  EXPECT_EQ(w.text(), "plan 2: draining");
  EXPECT_FALSE(w.answered(ask));
  w.Advance(seconds(2));
  EXPECT_THAT(Message(w.answer(ask).status()), HasSubstr("given up while draining: no answer from the ring"));
  w.Advance(seconds(1));
  EXPECT_EQ(w.engine.calls, (Calls{"drain", "new 3"}));
  EXPECT_EQ(w.ranges(), "w1=0-3,w2=4-7");
  EXPECT_EQ(w.text(), "serving");
  EXPECT_TRUE(w.engine.losses.empty());
}

// A repair that is under way is not given up because the ring that it replaces breaks too.
TEST_F(ClusterStateTest, TheOldRingMayBreakWhileItIsRepaired) {
  ClusterWorld& w = Serving(2);
  w.engine.drains = false;
  w.member("w1").delay = w.member("w2").delay = seconds(1);
  w.Resize("w2=0-3,w1=4-7");
  for (int i = 0; i < 1000 && w.begun.size() < 2; ++i) w.Advance(milliseconds(100));
  ASSERT_EQ(w.begun.size(), 2u);
  w.BreakRing();
  w.Advance(seconds(20));
  EXPECT_EQ(w.engine.calls, (Calls{"drain", "new 3"}));
  EXPECT_EQ(w.status().lost, 0u);
}

TEST_F(ClusterStateTest, AMemberWithoutLayersIsNoLoss) {
  for (Duration when : {Duration(milliseconds(5)), Duration(milliseconds(30)), Duration(milliseconds(42))}) {
    ClusterWorld& w = Serving(2);
    w.Join("idle");
    const uint64_t ask = w.Resize("w2=0-3,w1=4-7");
    w.Advance(when);
    EXPECT_FALSE(w.answered(ask));
    w.Leave("idle");
    w.Advance(seconds(1));
    EXPECT_TRUE(w.answer(ask).ok()) << w.answer(ask).status();
    EXPECT_EQ(w.status().aborted + w.status().lost, 0u);
    EXPECT_EQ(w.problem(), "");
  }
}

TEST_F(ClusterStateTest, ALossBeforeTheDecisionNamesTheWorkerAndItsLayers) {
  ClusterWorld& w = Serving(2);
  w.member("w1").silent = true;
  const uint64_t ask = w.Resize("w2=0-3,w1=4-7");
  w.Advance(seconds(1));
  w.Leave("w1", "nothing was heard of it for 2.5 s");
  const std::string gone = "worker w1 with layers 0-3 is gone: nothing was heard of it for 2.5 s";
  EXPECT_EQ(Message(w.answer(ask).status()), gone);
  ASSERT_FALSE(w.engine.losses.empty());
  EXPECT_EQ(Message(w.engine.losses[0]), gone) << "running requests are told";
  EXPECT_EQ(Message(w.engine.losses.back()), gone + "; plan 3 is being prepared");
  EXPECT_THAT(w.engine.calls, Not(::testing::Contains("old")));
  EXPECT_EQ(w.status().lost, 1u);
  w.Advance(seconds(1));
  EXPECT_EQ(w.engine.calls, (Calls{"await", "await", "new 3"}));
  EXPECT_EQ(w.ranges(), "w2=0-7");
}

TEST_F(ClusterStateTest, ALossAfterTheDecisionIsOneOnlyWithLayersInTheNewPlan) {
  for (const char* lost : {"w1", "w2"}) {
    ClusterWorld& w = Serving(2);
    for (const char* name : {"w1", "w2"}) w.member(name).deaf = {ChangeVerb::kCommit};
    const uint64_t ask = w.Resize("w2=0-7");
    w.Advance(seconds(1));
    EXPECT_EQ(w.text(), "plan 2: committing");
    w.Leave(lost, "its machine burns");
    if (std::string(lost) == "w2") {
      EXPECT_EQ(Message(w.answer(ask).status()), "worker w2 with layers 0-7 is gone: its machine burns");
      EXPECT_EQ(w.engine.losses.size(), 2u) << "the requests, then what is missing";
    } else {
      EXPECT_TRUE(w.engine.losses.empty());
      EXPECT_FALSE(w.answered(ask)) << "w2 has not committed";
    }
    EXPECT_EQ(w.problem(), "");
  }
}

TEST_F(ClusterStateTest, AfterAFaultEverybodyKeepsOneStage) {
  ClusterWorld& w = Serving(3);
  w.member("w3").deaf = {ChangeVerb::kCommit};
  const uint64_t ask = w.Resize("w1=0-1,w2=2-3,w3=4-7");
  w.Advance(seconds(9));
  EXPECT_EQ(w.text(), "plan 2: committing");
  w.Advance(seconds(2));
  EXPECT_THAT(Message(w.answer(ask).status()), HasSubstr("given up while committing: no answer from w3"));
  w.Advance(milliseconds(1));
  // w1 and w2 have committed, w3 has not.
  EXPECT_EQ(w.member("w1").retired, LayerRange{});
  EXPECT_THAT(w.text(), HasSubstr("w3 is left out"));
  // The others go on without it.
  w.Advance(seconds(1));
  EXPECT_EQ(w.ranges(), "w1=0-3,w2=4-7");
  w.member("w3").deaf = {};
  EXPECT_TRUE(w.answer(w.Undrain("w3")).ok());
  w.Advance(seconds(10));
  EXPECT_EQ(w.text(), "serving; w3 is left out: plan 2 was given up while committing: no answer from w3");
}

TEST_F(ClusterStateTest, ABrokenRingIsRepairedWithTheSameRanges) {
  ClusterWorld& w = Serving(2);
  w.BreakRing();
  EXPECT_EQ(w.text(), "the ring is being repaired");
  w.Advance(milliseconds(499));
  EXPECT_TRUE(w.begun.empty()) << "a lost worker would be noticed meanwhile";
  w.Advance(seconds(1));
  EXPECT_EQ(w.engine.calls, (Calls{"new 2"}));
  EXPECT_EQ(w.ranges(), "w1=0-3,w2=4-7");
  EXPECT_TRUE(w.engine.losses.empty());
}

TEST_F(ClusterStateTest, ARingThatBreaksInAChangeAbortsItAndIsRepaired) {
  ClusterWorld& w = Serving(2);
  w.member("w1").delay = seconds(1);
  const uint64_t ask = w.Resize("w2=0-3,w1=4-7");
  w.BreakRing();
  EXPECT_THAT(Message(w.answer(ask).status()), HasSubstr("the running ring broke"));
  w.Advance(seconds(10));
  EXPECT_EQ(w.engine.calls, (Calls{"new 3"}));
  EXPECT_EQ(w.text(), "serving");
}

TEST_F(ClusterStateTest, ARingThatCanNotBeRepairedIsPlannedAnew) {
  ClusterWorld& w = New(ClusterWorld::Policy(8, 1));
  w.Join("w1");
  w.Advance(seconds(1));
  w.Join("w2");
  w.Resize("w1=0-3,w2=4-7");
  w.Advance(seconds(1));
  w.engine.losses.clear();
  w.member("w2").reachable = false;
  w.BreakRing();
  w.Advance(seconds(3));
  ASSERT_FALSE(w.engine.losses.empty());
  EXPECT_THAT(Message(w.engine.losses[0]),
              HasSubstr("the ring could not be repaired: the link from w1 to w2 failed: Conn"));
  EXPECT_EQ(w.ranges(), "w1=0-7");
}

TEST_F(ClusterStateTest, WhatFailsWithoutACauseIsTriedMoreAndMoreRarely) {
  ClusterWorld& w = New(ClusterWorld::Policy(8, 1));
  w.wiring_fault = Internal("too many open files");
  w.Join("w1");
  w.Advance(seconds(600));
  EXPECT_GE(w.begun.size(), 10u);
  EXPECT_LE(w.begun.size(), 16u);
  EXPECT_THAT(w.text(), HasSubstr("too many open files"));
  EXPECT_THAT(w.text(), Not(HasSubstr("left out"))) << "it is not w1's fault";
  w.wiring_fault = absl::OkStatus();
  w.Advance(seconds(61));
  EXPECT_EQ(w.text(), "serving");
}

// A visitor with another instruction set changes nothing for those that compute without it: what was cached before it
// came is found when it has gone.
TEST_F(ClusterStateTest, TheSaltIsThatOfTheStagesThatServe) {
  const auto salt = [this](const MemberInfo& info, KvType kv = KvType::kF16) {
    ClusterPolicy policy = ClusterWorld::Policy(8, 1);
    policy.kv_type = kv;
    ClusterWorld& w = New(policy);
    w.Join("w1", info);
    w.Advance(seconds(1));
    const uint64_t before = w.engine.cache_namespace;
    w.Join("w2", {.isa = "ref"});
    w.Advance(seconds(1));
    w.Resize("w1=0-2,w2=3-7");
    w.Advance(seconds(1));
    EXPECT_NE(w.engine.cache_namespace, before);
    EXPECT_THAT(w.status().replay_note, HasSubstr("several instruction sets (avx2, ref)"));
    w.Resize("w1=0-7");
    w.Advance(seconds(1));
    EXPECT_EQ(w.text(), "serving");
    EXPECT_EQ(w.engine.cache_namespace, before);
    return before;
  };
  const uint64_t plain = salt({.isa = "avx2", .version = "1"});
  EXPECT_EQ(salt({.isa = "avx2", .version = "1"}), plain);
  EXPECT_NE(salt({.isa = "avx2", .version = "2"}), plain);
  EXPECT_NE(salt({.isa = "avx2", .version = "1"}, KvType::kF32), plain);
}

TEST_F(ClusterStateTest, TheSaltTellsCutsAndInstructionSetsApart) {
  auto salt = [this](WireType wire, const std::string& isa, const std::string& text) {
    ClusterPolicy policy = ClusterWorld::Policy(8, 2);
    policy.wire = wire;
    ClusterWorld& w = New(policy);
    w.Join("w1", {.isa = "avx2"});
    w.Join("w2", {.isa = isa});
    w.Advance(seconds(1));
    w.Resize(text);
    w.Advance(seconds(1));
    EXPECT_EQ(w.text(), "serving");
    return w.engine.cache_namespace;
  };
  const char* cut = "w1=0-2,w2=3-7";
  const char* other = "w1=0-4,w2=5-7";
  const char* turned = "w2=0-2,w1=3-7";
  EXPECT_EQ(salt(WireType::kF32, "avx2", cut), salt(WireType::kF32, "avx2", other));
  EXPECT_NE(salt(WireType::kF32, "amx", cut), salt(WireType::kF32, "avx2", cut));
  EXPECT_NE(salt(WireType::kF32, "amx", cut), salt(WireType::kF32, "amx", other));
  EXPECT_NE(salt(WireType::kF32, "amx", cut), salt(WireType::kF32, "amx", turned));
  EXPECT_EQ(salt(WireType::kF32, "amx", cut), salt(WireType::kF32, "amx", cut)) << "what fits is taken again";
  EXPECT_NE(salt(WireType::kF16, "avx2", cut), salt(WireType::kF32, "avx2", cut));
  EXPECT_NE(salt(WireType::kF16, "avx2", cut), salt(WireType::kQ8, "avx2", cut));
  EXPECT_NE(salt(WireType::kF16, "avx2", cut), salt(WireType::kF16, "avx2", other));
}

}  // namespace
}  // namespace gyre
