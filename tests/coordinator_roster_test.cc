// Members, one by one and together: what they hold, when plans do without them, who is waited for.
#include "coordinator/cluster/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/cluster/ring_bits.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Deadline kNow = Deadline{} + std::chrono::hours(1);
constexpr Epoch kEpoch{.term = 7, .number = 3};

StageDone Done(ChangeVerb verb) { return {.verb = verb}; }

StageEvent Event(decltype(StageEvent::what) what, Epoch epoch = kEpoch) {
  return {.worker = "a", .epoch = epoch, .what = what};
}

class HoldingsTest : public ::testing::Test {
 protected:
  Holdings holdings_{LayerRange{0, 4}};
};

TEST_F(HoldingsTest, ADropIsPreparedCommittedAndReleased) {
  EXPECT_EQ(holdings_.OnDropAnswer(Event(Done(ChangeVerb::kPrepare))), std::nullopt) << "it was not told to drop";
  holdings_.BeginDrop(kEpoch, kNow + seconds(10));
  EXPECT_TRUE(holdings_.dropping());
  EXPECT_EQ(holdings_.OnDropAnswer(Event(Done(ChangeVerb::kPrepare), {.term = 7, .number = 2})), std::nullopt);
  EXPECT_EQ(holdings_.OnDropAnswer(Event(Done(ChangeVerb::kPrepare))), ChangeVerb::kCommit);
  EXPECT_TRUE(holdings_.any()) << "until it has committed";
  EXPECT_EQ(holdings_.OnDropAnswer(Event(Done(ChangeVerb::kCommit))), ChangeVerb::kRelease);
  EXPECT_FALSE(holdings_.any());
  EXPECT_FALSE(holdings_.dropping());
}

TEST_F(HoldingsTest, ADropThatFailsOrTakesTooLongMayBeginAgain) {
  holdings_.BeginDrop(kEpoch, kNow + seconds(10));
  EXPECT_EQ(holdings_.OnDropAnswer(Event(StageFault{Internal("no")})), std::nullopt);
  EXPECT_TRUE(holdings_.drop_failed());
  EXPECT_FALSE(holdings_.dropping());
  holdings_.BeginDrop(kEpoch, kNow + seconds(10));
  holdings_.Tick(kNow + seconds(9));
  EXPECT_TRUE(holdings_.dropping());
  holdings_.Tick(kNow + seconds(10));
  EXPECT_TRUE(holdings_.drop_failed());
  EXPECT_EQ(holdings_.layers(), (LayerRange{0, 4}));
}

// Where a plan is lost while it is being committed, nobody knows which stage a silent member runs.
TEST_F(HoldingsTest, ALateAnswerSaysWhichStageRuns) {
  for (const bool committed : {true, false}) {
    Holdings h(LayerRange{2, 4});
    h.PlanLost(kEpoch, {3, 6}, false);
    EXPECT_EQ(h.Most(), (LayerRange{2, 6}));
    EXPECT_EQ(h.layers(), (LayerRange{2, 4}));
    h.OnLateAnswer(Event(Done(ChangeVerb::kCommit), {.term = 7, .number = 4}));
    EXPECT_EQ(h.Most(), (LayerRange{2, 6})) << "another plan's";
    h.OnLateAnswer(committed ? Event(Done(ChangeVerb::kCommit)) : Event(Done(ChangeVerb::kAbort)));
    EXPECT_EQ(h.Most(), (committed ? LayerRange{3, 6} : LayerRange{2, 4}));
  }
  Holdings h(LayerRange{2, 4});
  h.PlanLost(kEpoch, {3, 6}, true);
  EXPECT_EQ(h.Most(), (LayerRange{3, 6})) << "it has said so before";
}

TEST(LeftOutTest, EachFailureDoublesTheTimeUpToItsLimit) {
  const ClusterPolicy policy;  // 5 s, 60 s at most
  LeftOut l;
  std::vector<Duration> pauses;
  for (int i = 0; i < 5; ++i) pauses.push_back(l.PlanFailed(Internal("no"), kNow, policy));
  EXPECT_THAT(pauses, ElementsAre(seconds(5), seconds(10), seconds(20), seconds(40), seconds(60)));
  EXPECT_TRUE(l.for_now(kNow + seconds(59)));
  EXPECT_FALSE(l.for_now(kNow + seconds(60)));
  EXPECT_FALSE(l.why().ok()) << "until a plan is tried with it";
  EXPECT_EQ(l.Try(), Internal("no"));
  EXPECT_TRUE(l.why().ok());
  l.Served();
  EXPECT_EQ(l.PlanFailed(Internal("no"), kNow, policy), seconds(5));
}

TEST(ControlConnectionTest, TheLateEndOfAnEarlierOneIsNotItsEnd) {
  ControlConnection c;
  EXPECT_TRUE(c.Replace(2).ok());
  EXPECT_FALSE(c.IsCurrent(1));
  EXPECT_TRUE(c.IsCurrent(2));
  c.Cut(Unavailable("cut"), kNow);
  EXPECT_EQ(c.until(), kNow);
  EXPECT_EQ(Message(c.Replace(3)), "cut");
  EXPECT_TRUE(c.cut().ok());
  EXPECT_EQ(c.until(), kNoDeadline);
}

TEST(MemberTest, AStageIsStuckInALayerOrAnswersNoMore) {
  const ClusterPolicy policy;  // 10 s, 8 times the estimate, 10 minutes where there is none
  Member m;
  const auto with = [&m, &policy](const MemberLoad& load) {
    m.report.load = load;
    return std::string(Message(m.CheckStuck(policy)));
  };
  EXPECT_EQ(with({}), "");
  EXPECT_EQ(with({.unanswered_us = 10'000'000}), "");
  EXPECT_THAT(with({.unanswered_us = 10'100'000}), HasSubstr("has not answered for 10.1 s"));
  EXPECT_EQ(with({.in_layer_us = 599'000'000}), "");
  EXPECT_THAT(with({.in_layer_us = 601'000'000}), HasSubstr("at most 600.0 s"));
  EXPECT_EQ(with({.in_layer_us = 15'000'000, .layer_estimate_us = 2'000'000}), "");
  EXPECT_THAT(with({.in_layer_us = 17'000'000, .layer_estimate_us = 2'000'000}), HasSubstr("at most 16.0 s"));
  EXPECT_THAT(with({.in_layer_us = 11'000'000, .layer_estimate_us = 1'000}), HasSubstr("at most 10.0 s"));
}

class RosterTest : public ::testing::Test {
 protected:
  RosterTest() {
    roster_.Add({.name = "b", .address = "b:1"}, 1, 1);
    roster_.Add({.name = "a", .address = "a:1", .holds = {0, 2}}, 2, 2);
    roster_.Add({.name = "local", .local = true}, 3, 3);
    plan_.num_layers = 4;
    plan_.stages = MakeStages({{"a", "a:1", {0, 2}}, {"b", "b:1", {2, 4}}});
  }
  Roster roster_{{"gone"}};
  Plan plan_;
};

TEST_F(RosterTest, MembersComeInTheOrderOfJoining) {
  std::vector<std::string> names;
  for (const Member* m : roster_.ByOrder()) names.push_back(m->info.name);
  EXPECT_THAT(names, ElementsAre("b", "a", "local"));
  EXPECT_EQ(roster_.Find(2)->info.name, "a");
  EXPECT_EQ(roster_.Find(4), nullptr);
  EXPECT_EQ(roster_.Remove("a").id, 2u);
  EXPECT_FALSE(roster_.Has("a"));
}

TEST_F(RosterTest, TheMarkOfADrainBelongsToTheName) {
  EXPECT_TRUE(roster_.IsDrained("gone"));
  EXPECT_TRUE(roster_.Drain("a"));
  EXPECT_FALSE(roster_.Drain("a"));
  roster_.Remove("a");
  roster_.Add({.name = "a"}, 9, 9);
  EXPECT_TRUE(roster_.PlanMembers(nullptr, {}, {}, true).back().drained);
  EXPECT_TRUE(roster_.Undrain("a"));
  roster_.At("a").leaving = true;
  EXPECT_TRUE(roster_.PlanMembers(nullptr, {}, {}, true).back().drained) << "who leaves gets no layers either";
}

TEST_F(RosterTest, WhatIsHeldOfALostPlanCountsOnlyWhereItIsAskedFor) {
  EXPECT_FALSE(Roster::IsStale(roster_.At("a"), &plan_));
  EXPECT_TRUE(Roster::IsStale(roster_.At("a"), nullptr));
  EXPECT_FALSE(Roster::IsStale(roster_.At("b"), nullptr)) << "it holds nothing";
  EXPECT_EQ(roster_.PlanMembers(nullptr, {}, {}, true)[1].holds, (LayerRange{0, 2}));
  EXPECT_EQ(roster_.PlanMembers(nullptr, {}, {}, false)[1].holds, LayerRange{});
  EXPECT_EQ(roster_.PlanMembers(&plan_, {}, {}, false)[1].holds, (LayerRange{0, 2}));
}

TEST_F(RosterTest, WhoDoesNotComeBackIsDroppedAtOnceWhereARingIsToBeRepaired) {
  EXPECT_THAT(roster_.NotBack(&plan_, kNow), IsEmpty());
  roster_.At("a").control.Cut(Unavailable("cut"), kNow + milliseconds(1500));
  roster_.At("local").control.Cut(Unavailable("cut"), kNow + milliseconds(1500));
  EXPECT_THAT(roster_.NotBack(nullptr, kNow), IsEmpty());
  ASSERT_EQ(roster_.NotBack(&plan_, kNow).size(), 1u) << "local is no member of the ring";
  EXPECT_EQ(roster_.NotBack(&plan_, kNow)[0].first, "a");
  EXPECT_EQ(roster_.NotBack(nullptr, kNow + milliseconds(1500)).size(), 2u);
}

TEST_F(RosterTest, WeightsComeFromWhoHasTheFileOrFetchedSome) {
  roster_.Add({.name = "c", .address = "c:1", .fetches = true}, 4, 4);
  roster_.Add({.name = "d", .address = "d:1", .fetches = true, .holds = {0, 1}}, 5, 5);
  EXPECT_THAT(roster_.WeightSourcesFor("a", "here:1"), IsEmpty()) << "it has the file";
  EXPECT_THAT(roster_.WeightSourcesFor("c", "here:1"),
              ElementsAre(WeightSource{"coordinator", "here:1"}, WeightSource{"a", "a:1"}, WeightSource{"b", "b:1"},
                          WeightSource{"d", "d:1"}));
}

TEST_F(RosterTest, NoLaterStepThanTheFloorWasEverSent) {
  EXPECT_EQ(roster_.step_floor(), 0u);
  roster_.Add({.name = "c", .last_step = 100}, 4, 4);
  roster_.Remove("c");
  EXPECT_GT(roster_.step_floor(), 100u) << "others may get its steps late";
}

TEST_F(RosterTest, TheSaltChangesWithWhateverChangesBits) {
  const ClusterPolicy policy;
  const uint64_t cache_namespace = RingCacheNamespace(plan_, roster_, policy);
  Plan other = plan_;
  other.stages = MakeStages({{"a", "a:1", {0, 3}}, {"b", "b:1", {3, 4}}});
  EXPECT_EQ(RingCacheNamespace(other, roster_, policy), cache_namespace) << "f32 between equal members rounds nothing";
  plan_.wire = other.wire = WireType::kF16;
  EXPECT_NE(RingCacheNamespace(plan_, roster_, policy), cache_namespace);
  EXPECT_NE(RingCacheNamespace(plan_, roster_, policy), RingCacheNamespace(other, roster_, policy));
  plan_.wire = other.wire = WireType::kF32;
  roster_.At("b").info.isa = "avx2";
  EXPECT_NE(RingCacheNamespace(plan_, roster_, policy), cache_namespace);
  EXPECT_NE(RingCacheNamespace(plan_, roster_, policy), RingCacheNamespace(other, roster_, policy))
      << "another one computes layer 2";
  EXPECT_THAT(ReplayNote(roster_, policy), HasSubstr("several instruction sets"));
  roster_.At("b").info.prefill_matches_decode = false;
  EXPECT_FALSE(PrefillMatchesDecode(plan_, roster_, policy));
  roster_.Remove("b");
  EXPECT_TRUE(PrefillMatchesDecode(plan_, roster_, policy));
}

}  // namespace
}  // namespace gyre
