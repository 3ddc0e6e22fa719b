// Sequences that are kept apart from the others: after a failed step, after broken rings, held back, and those whose
// rows another ring computed. Each test is a list of events.
#include <gtest/gtest.h>

#include "tests/testing/scheduler_rig.h"

namespace gyre {
namespace {

using testing::Rig;
using testing::Shape;
using testing::Small;
using testing::Tokens;

using Ids = std::vector<SeqId>;

// Three sequences that have their prompts behind them.
void Decode3(Rig& r) {
  for (uint64_t id = 1; id <= 3; ++id) r.Add(id, Tokens(2, static_cast<int>(10 * id)));
  ASSERT_EQ(r.Next().size(), 3u);
  r.LandAndAppend();
}

TEST(SchedulerIsolation, AFailedBatchIsRetriedOneByOneAndFailsNobody) {
  SchedulerOptions o = Small();
  o.max_in_flight = 1;
  Rig r(o);
  Decode3(r);
  ASSERT_EQ(r.Next().size(), 3u);
  EXPECT_EQ(r.Land(false).failed, Ids{});
  EXPECT_EQ(r.Next(), (Shape{{1, 2, 1, true}}));
  r.LandAndAppend();
  EXPECT_EQ(r.Next(), (Shape{{2, 2, 1, true}}));
  r.LandAndAppend();
  EXPECT_EQ(r.Next(), (Shape{{3, 2, 1, true}}));
  r.LandAndAppend();
  EXPECT_EQ(r.Next().size(), 3u) << "together again";
}

TEST(SchedulerIsolation, OnlyTheSequenceThatFailsAloneTwiceFails) {
  SchedulerOptions o = Small();
  o.max_in_flight = 1;
  Rig r(o);
  Decode3(r);
  r.Next();
  r.Land(false);
  r.Next();  // the first
  r.LandAndAppend();
  for (const Ids& failed : {Ids{}, Ids{SeqId{2}}}) {
    EXPECT_EQ(r.Next(), (Shape{{2, 2, 1, true}}));
    EXPECT_EQ(r.Land(false).failed, failed);
  }
  r.scheduler.Remove(SeqId{2});
  EXPECT_EQ(r.Next(), (Shape{{3, 2, 1, true}}));
  r.LandAndAppend();
  EXPECT_EQ(r.Next(), (Shape{{1, 3, 1, true}, {3, 3, 1, true}}));
}

TEST(SchedulerIsolation, ASuspectThatIsPreemptedComesBackInAStepOfItsOwn) {
  SchedulerOptions o = Small();
  o.max_in_flight = 1;
  Rig r(o);
  Decode3(r);
  r.Next();
  r.Land(false);
  EXPECT_TRUE(r.scheduler.Shrink(8).empty());
  EXPECT_EQ(r.Next(), (Shape{{1, 0, 2, false}}));
  r.Land();
  EXPECT_EQ(r.Next(), (Shape{{1, 2, 1, true}})) << "nobody comes in beside it";
  r.LandAndAppend();
  EXPECT_EQ(r.Next(), (Shape{{2, 0, 2, false}}));
}

TEST(SchedulerIsolation, AfterTwoBrokenRingsASequenceRunsAloneAndAThirdFailsItOnly) {
  SchedulerOptions o = Small();
  o.max_in_flight = 3;
  Rig r(o);
  Decode3(r);
  for (int ring = 0; ring < 2; ++ring) {
    ASSERT_EQ(r.Next().size(), 3u);
    r.flights.clear();
    EXPECT_EQ(r.scheduler.LoseFlights(true), Ids{});
  }
  EXPECT_EQ(r.Next(), (Shape{{1, 2, 1, true}}));
  EXPECT_EQ(r.Next(), Shape{}) << "nothing else may be in flight";
  r.LandAndAppend();
  EXPECT_EQ(r.Next(), (Shape{{2, 2, 1, true}}));
  r.flights.clear();
  EXPECT_EQ(r.scheduler.LoseFlights(true), Ids{SeqId{2}});
  r.scheduler.Remove(SeqId{2});
  EXPECT_EQ(r.Next(), (Shape{{3, 2, 1, true}}));
  r.LandAndAppend();
  EXPECT_EQ(r.Next().size(), 2u);
}

TEST(SchedulerIsolation, ALandedRowClearsASequenceAndAReplacedRingBlamesNobody) {
  Rig r(Small());
  r.Add(1, Tokens(2));
  for (int i = 0; i < 9; ++i) {
    ASSERT_EQ(r.Next().size(), 1u);
    r.flights.clear();
    EXPECT_EQ(r.scheduler.LoseFlights(false), Ids{});
  }
  for (int i = 0; i < 9; ++i) {
    ASSERT_EQ(r.Next().size(), 1u);
    r.flights.clear();
    EXPECT_EQ(r.scheduler.LoseFlights(true), Ids{});
    ASSERT_EQ(r.Next().size(), 1u);
    r.LandAndAppend();
  }
}

TEST(SchedulerIsolation, AHeldSequenceGetsNoRowsAndGoesOn) {
  Rig r(Small());
  Decode3(r);
  ASSERT_EQ(r.Next().size(), 3u);
  r.scheduler.Hold(SeqId{2});
  r.scheduler.Hold(SeqId{77});  // unknown: ignored
  r.LandAndAppend();            // what is in flight still counts
  EXPECT_EQ(r.Next(), (Shape{{1, 3, 1, true}, {3, 3, 1, true}}));
  EXPECT_EQ(r.scheduler.Incarnation(SeqId{2}), 1u) << "it keeps its blocks";
  EXPECT_EQ(r.scheduler.stats().held, 1u);
  r.LandAndAppend();
  r.scheduler.Unhold(SeqId{2});
  EXPECT_EQ(r.Next(), (Shape{{1, 4, 1, true}, {2, 3, 1, true}, {3, 4, 1, true}}));
}

TEST(SchedulerIsolation, AHeldSequenceThatWaitsIsNotAdmittedAndBlocksNobody) {
  Rig r(Small());
  r.Add(1, Tokens(4));
  r.Add(2, Tokens(4, 100));
  r.scheduler.Hold(SeqId{1});
  EXPECT_EQ(r.Next(), (Shape{{2, 0, 4, true}}));
  r.scheduler.Unhold(SeqId{1});
  EXPECT_EQ(r.Next(), (Shape{{1, 0, 4, true}}));
}

TEST(SchedulerIsolation, TheHeldSequenceGivesItsBlocksUpFirstWhateverItsRank) {
  SchedulerOptions o = Small();
  o.memory[kPageGroup] = 5;
  o.prefix_cache = false;
  Rig r(o);
  r.Add(1, Tokens(8), 20, 9);
  r.Add(2, Tokens(4, 50), 20);
  r.Next(), r.Next();
  r.LandAndAppend(), r.LandAndAppend();
  r.scheduler.Hold(SeqId{1});
  for (int i = 0; i < 15; ++i) {
    r.Next();
    if (!r.flights.empty()) r.LandAndAppend();
  }
  EXPECT_EQ(r.scheduler.State(SeqId{1}), SeqState::kWaiting);
  EXPECT_EQ(r.scheduler.Incarnation(SeqId{2}), 1u);
}

TEST(SchedulerIsolation, AHeldSequenceGivesItsPlaceToOneThatWaits) {
  SchedulerOptions o = Small();
  o.max_sequences = 1;
  Rig r(o);
  r.Add(1, Tokens(4), 60, 5);
  r.Add(2, Tokens(4, 100));
  ASSERT_EQ(r.Next(), (Shape{{1, 0, 4, true}}));
  r.LandAndAppend();
  r.scheduler.Hold(SeqId{1});
  EXPECT_EQ(r.Next(), (Shape{{2, 0, 4, true}}));
  EXPECT_EQ(r.scheduler.State(SeqId{1}), SeqState::kWaiting);
}

// Eight tokens of the same text, computed by a ring of each salt in turn.
TEST(SchedulerIsolation, WhatAnotherRingComputedIsNotFoundUntilThatRingIsBack) {
  Rig r(Small());
  uint64_t id = 1;
  const auto cached = [&](uint64_t salt) {
    r.scheduler.SetRing(2, 1, true, salt);
    r.Add(id, Tokens(9));
    while (!r.Next().empty()) r.Land();
    const uint32_t positions = r.scheduler.CachedPositions(SeqId{id});
    r.scheduler.Remove(SeqId{id++});
    return positions;
  };
  EXPECT_EQ(cached(0), 0u);
  EXPECT_EQ(cached(0), 8u);
  EXPECT_EQ(cached(5), 0u);
  EXPECT_EQ(cached(5), 8u);
  EXPECT_EQ(cached(0), 8u);
}

TEST(SchedulerIsolation, TenantsOfDifferentSaltsShareNoBlocks) {
  Rig r(Small());
  uint64_t id = 1;
  const auto cached = [&](uint64_t salt) {
    r.Add(id, {.tokens = Tokens(9), .max_positions = 60, .tenant_salt = salt});
    while (!r.Next().empty()) r.Land();
    const uint32_t positions = r.scheduler.CachedPositions(SeqId{id});
    r.scheduler.Remove(SeqId{id++});
    return positions;
  };
  EXPECT_EQ(cached(0), 0u);
  EXPECT_EQ(cached(1), 0u);
  EXPECT_EQ(cached(2), 0u);
  EXPECT_EQ(cached(1), 8u);
  EXPECT_EQ(cached(0), 8u);
}

TEST(SchedulerIsolation, ASequenceThatRunsThroughAChangeKeepsItsRowsAndSharesNoMore) {
  Rig r(Small());
  r.scheduler.SetRing(2, 1, true, 1);
  r.Add(1, Tokens(3));
  r.Generate(3, 6);  // the first block is full and shared
  r.scheduler.SetRing(2, 1, true, 2);
  r.Generate(6, 10);
  EXPECT_EQ(r.scheduler.Incarnation(SeqId{1}), 1u);
  EXPECT_EQ(r.scheduler.Positions(SeqId{1}), 9u);
  r.scheduler.SetRing(2, 1, true, 1);
  r.Generate(10, 11);
  r.scheduler.Remove(SeqId{1});
  r.Add(2, Tokens(10));
  r.Next();
  EXPECT_EQ(r.scheduler.CachedPositions(SeqId{2}), 4u) << "its second block has rows of the ring with salt 2";
}

}  // namespace
}  // namespace gyre
