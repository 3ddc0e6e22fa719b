// The scheduler as a list of events: what runs, in which order, and what comes back.
#include "coordinator/engine/scheduler.h"

#include <gtest/gtest.h>

#include "tests/testing/scheduler_rig.h"

namespace gyre {
namespace {

using testing::Rig;
using testing::Shape;
using testing::Small;
using testing::Tokens;

TEST(SchedulerTest, ALongPromptIsCutAndOnlyItsLastRowIsSampled) {
  Rig r(Small());
  r.Add(1, Tokens(6));
  EXPECT_EQ(r.Next(), (Shape{{1, 0, 4, false}}));
  EXPECT_EQ(r.Next(), (Shape{{1, 4, 2, true}}));  // chunks of one prompt follow each other round the ring
  EXPECT_EQ(r.Next(), Shape{});                   // two in flight
  r.Land();
  EXPECT_EQ(r.Next(), Shape{});  // nothing to run before the sample
  r.LandAndAppend();
  EXPECT_EQ(r.Next(), (Shape{{1, 6, 1, true}}));
}

// Not even where all but the last row came from the prefix cache, as that of a text which goes on after a restart.
TEST(SchedulerTest, NoRowGoesBeforeItsMaskIsKnown) {
  Rig r(Small());
  r.Add(1, Tokens(9));
  for (int chunk = 0; chunk < 3; ++chunk) {
    r.Next();
    r.LandAndAppend();
  }
  r.scheduler.Remove(SeqId{1});
  r.Add(2, {.tokens = Tokens(9), .generated = 1, .max_positions = 60});
  r.Add(3, Tokens(3, 20));
  for (const uint64_t id : {2u, 3u}) r.scheduler.AwaitMask(SeqId{id});
  EXPECT_EQ(r.Next(), Shape{});
  EXPECT_EQ(r.Next(), Shape{}) << "they are running now";
  r.scheduler.MaskReady(SeqId{2});
  EXPECT_EQ(r.Next(), (Shape{{2, 8, 1, true}}));
  r.scheduler.MaskReady(SeqId{3});
  EXPECT_EQ(r.Next(), (Shape{{3, 0, 3, true}}));
}

TEST(SchedulerTest, DecodingSequencesAreDealtIntoGroups) {
  SchedulerOptions o = Small();
  o.decode_groups = 2;
  o.memory[kPageGroup] = 64;
  Rig r(o);
  for (uint64_t id = 1; id <= 4; ++id) r.Add(id, Tokens(2, static_cast<int>(10 * id)));
  EXPECT_EQ(r.Next().size(), 4u);
  r.LandAndAppend();
  EXPECT_EQ(r.Next(), (Shape{{1, 2, 1, true}, {2, 2, 1, true}}));
  EXPECT_EQ(r.Next(), (Shape{{3, 2, 1, true}, {4, 2, 1, true}}));
  r.LandAndAppend();
  EXPECT_EQ(r.Next(), (Shape{{1, 3, 1, true}, {2, 3, 1, true}}));
}

// One that came first has a step of its own; those that join later must not stay beside it in uneven groups.
TEST(SchedulerTest, UnevenGroupsEvenOut) {
  SchedulerOptions o = Small();
  o.max_in_flight = 3;
  o.decode_groups = 2;
  o.memory[kPageGroup] = 64;
  Rig r(o);
  r.Add(1, Tokens(2));
  r.Next();
  r.LandAndAppend();
  EXPECT_EQ(r.Next().size(), 1u);
  for (uint64_t id = 2; id <= 4; ++id) r.Add(id, Tokens(2, static_cast<int>(10 * id)));
  EXPECT_EQ(r.Next().size(), 3u);  // their prompts
  r.LandAndAppend();
  EXPECT_EQ(r.Next().size(), 1u);
  r.LandAndAppend();
  EXPECT_EQ(r.Next().size(), 2u);
  EXPECT_EQ(r.Next(), Shape{}) << "a third step with the one row that is left";
  r.LandAndAppend();
  EXPECT_EQ(r.Next().size(), 2u);
}

TEST(SchedulerTest, ALonePromptIsCutFinerWhereThereAreStages) {
  for (const auto& [groups, length, expected] :
       {std::tuple{1u, 512, 256u}, {2u, 512, 64u}, {2u, 2048, 128u}, {4u, 512, 64u}, {2u, 8192, 256u}}) {
    SchedulerOptions o = Small();
    o.block_size = 16;
    o.memory[kPageGroup] = 1024;
    o.max_rows = 512;
    o.chunk = 256;
    o.max_in_flight = 5;
    o.decode_groups = groups;
    Rig r(o);
    ASSERT_TRUE(r.scheduler.Add(SeqId{1}, {.tokens = Tokens(length), .max_positions = 9000}).ok());
    const Shape first = r.Next();
    ASSERT_EQ(first.size(), 1u);
    EXPECT_EQ(std::get<2>(first[0]), expected) << groups << " stages, " << length;
  }
}

TEST(SchedulerTest, DecodeRowsGoBeforePromptChunksInOneStep) {
  SchedulerOptions o = Small();
  o.max_rows = 4;
  Rig r(o);
  r.Add(1, Tokens(2));
  r.Next();
  r.LandAndAppend();
  r.Add(2, Tokens(9, 100));
  EXPECT_EQ(r.Next(), (Shape{{1, 2, 1, true}, {2, 0, 3, false}}));
}

TEST(SchedulerTest, AnEqualBeginningComesFromTheCacheButTheLastRowIsComputed) {
  Rig r(Small());
  r.Add(1, Tokens(8));
  r.Next(), r.Next();
  r.Land(), r.Land();
  r.scheduler.Remove(SeqId{1});
  r.Add(2, Tokens(8));
  EXPECT_EQ(r.Next(), (Shape{{2, 4, 4, true}}));
  EXPECT_EQ(r.scheduler.CachedPositions(SeqId{2}), 4u);
  auto salted = r.scheduler.Add(SeqId{3}, {.tokens = Tokens(8), .max_positions = 20, .salt = 5});
  EXPECT_EQ(r.Next(), (Shape{{3, 0, 4, false}})) << "another model's cache was used";
}

TEST(SchedulerTest, ClassesKeepGeneratedRowsOutOfPrompts) {
  for (const bool prefill_matches_decode : {true, false}) {
    SchedulerOptions o = Small();
    o.prefill_matches_decode = prefill_matches_decode;
    Rig r(o);
    r.Add(1, Tokens(3));
    r.Generate(3, 9);
    r.scheduler.Remove(SeqId{1});
    r.Add(2, Tokens(9));
    r.Next();
    EXPECT_EQ(r.scheduler.CachedPositions(SeqId{2}), prefill_matches_decode ? 8u : 0u);
  }
}

TEST(SchedulerTest, ARingThatGetsASecondClassKeepsReplayedRowsOutOfPrompts) {
  for (const bool second : {false, true}) {
    Rig r(Small());
    r.Add(1, Tokens(3));
    r.Generate(3, 8);
    r.scheduler.SetRing(1, 1, !second);  // positions 4 to 7 are there, the last not computed
    r.Generate(8, 9);
    // The positions that were published before the ring changed had one class: the first four.
    r.scheduler.Remove(SeqId{1});
    r.Add(2, Tokens(9));
    r.Next();
    EXPECT_EQ(r.scheduler.CachedPositions(SeqId{2}), second ? 4u : 8u);
    EXPECT_TRUE(r.scheduler.CheckIntegrity().ok()) << r.scheduler.CheckIntegrity();
  }
}

TEST(SchedulerTest, AFailedStepAndAllAfterItAreSentAgain) {
  Rig r(Small());
  r.Add(1, Tokens(10));
  r.Next(), r.Next();
  EXPECT_TRUE(r.Land(false).failed.empty());
  EXPECT_EQ(r.Next(), Shape{});  // waits for the worthless one
  EXPECT_TRUE(r.Land(true).valid.empty());
  EXPECT_EQ(r.Next(), (Shape{{1, 0, 4, false}}));
  EXPECT_EQ(r.Land(false).failed, std::vector<SeqId>{SeqId{1}});  // twice without progress
}

TEST(SchedulerTest, TheWorstRankedGivesItsBlocksUpAndComesBack) {
  SchedulerOptions o = Small();
  o.memory[kPageGroup] = 5;
  o.prefix_cache = false;
  Rig r(o);
  r.Add(1, Tokens(8), 20);
  r.Add(2, Tokens(4, 50), 20);
  for (int i = 0; i < 60 && r.scheduler.stats().preemptions == 0; ++i) {
    r.Next();
    if (!r.flights.empty()) r.LandAndAppend();
  }
  EXPECT_EQ(r.scheduler.State(SeqId{2}), SeqState::kWaiting);
  EXPECT_EQ(r.scheduler.Incarnation(SeqId{2}), 2u);
  EXPECT_EQ(r.scheduler.Incarnation(SeqId{1}), 1u);
}

TEST(SchedulerTest, CapacityIsRefusedWithTheNumbers) {
  Rig r(Small());
  const Status status = r.scheduler.Add(SeqId{1}, {.tokens = Tokens(65), .max_positions = 65});
  EXPECT_TRUE(absl::IsOutOfRange(status));
  EXPECT_NE(Message(status).find("65"), std::string::npos);
  r.Add(2, Tokens(3), 4);
  r.Next();
  r.LandAndAppend();
  r.Next();
  r.Land();
  EXPECT_TRUE(absl::IsResourceExhausted(r.scheduler.Append(SeqId{2}, 1)));
}

// As when its context is full: what goes on is a prompt from position 0, in blocks that are its own.
TEST(SchedulerTest, ARestartedSequenceIsANewPromptAndFindsItsKeptBeginning) {
  SchedulerOptions o = Small();
  o.prefill_matches_decode = false;
  Rig r(o);
  r.Add(1, Tokens(6), 8);
  EXPECT_FALSE(r.scheduler.Restart(SeqId{1}, Tokens(3)).ok());  // no sample is owed
  r.Next(), r.Next();
  r.Land();
  r.LandAndAppend(20);
  r.Generate(21, 22);
  r.Next();
  ASSERT_EQ(r.Land().valid.size(), 1u);
  ASSERT_TRUE(absl::IsResourceExhausted(r.scheduler.Append(SeqId{1}, 22)));
  EXPECT_FALSE(r.scheduler.Restart(SeqId{1}, {}).ok());
  EXPECT_FALSE(r.scheduler.Restart(SeqId{1}, Tokens(9)).ok());
  std::vector<TokenId> tokens = Tokens(4);
  tokens.insert(tokens.end(), {20, 21, 22});
  ASSERT_TRUE(r.scheduler.Restart(SeqId{1}, tokens).ok());
  r.Check();
  EXPECT_EQ(r.scheduler.Incarnation(SeqId{1}), 2u);
  EXPECT_EQ(r.scheduler.State(SeqId{1}), SeqState::kWaiting);
  EXPECT_EQ(r.scheduler.stats().memory[kPageGroup].available, o.memory[kPageGroup]);
  // A block of 4 positions is the same as before; the generated tokens are rows of a prompt now.
  EXPECT_EQ(r.Next(), (Shape{{1, 4, 3, true}}));
  EXPECT_EQ(r.flights.front().items[0].row_class, RowClass::kPrompt);
  EXPECT_EQ(r.scheduler.stats().replayed_rows, 0u);
  r.LandAndAppend(23);
  EXPECT_EQ(r.Next(), (Shape{{1, 7, 1, true}}));
  EXPECT_EQ(r.flights.front().items[0].row_class, RowClass::kGenerated);
}

TEST(SchedulerTest, StaticBatchesAndWholePrompts) {
  SchedulerOptions o = Small();
  o.continuous_batching = false;
  o.chunked_prefill = false;
  Rig r(o);
  r.Add(1, Tokens(11));
  EXPECT_EQ(r.Next(), (Shape{{1, 0, 11, true}}));
  r.Add(2, Tokens(3));
  EXPECT_EQ(r.Next(), Shape{});
  r.LandAndAppend();
  EXPECT_EQ(r.Next(), (Shape{{1, 11, 1, true}}));
  r.Land();
  r.scheduler.Remove(SeqId{1});
  EXPECT_EQ(r.Next(), (Shape{{2, 0, 3, true}}));
}

TEST(SchedulerTest, PriorityGoesFirst) {
  SchedulerOptions o = Small();
  o.max_rows = 4;
  Rig r(o);
  r.Add(1, Tokens(4, 100), 60, 0);
  r.Add(2, Tokens(4), 60, 5);
  EXPECT_EQ(r.Next(), (Shape{{2, 0, 4, true}}));
}

TEST(SchedulerTest, ALargerCacheKeepsWhatRunsAndAdmitsWhoWaits) {
  SchedulerOptions o = Small();
  o.memory[kPageGroup] = 16;
  Rig r(o);
  for (int i = 0; i < 6; ++i) r.Add(static_cast<uint64_t>(i + 1), Tokens(14, 100 * i));
  for (int i = 0; i < 8; ++i) {
    r.Next();
    r.LandAndAppend();
  }
  const SchedulerStats before = r.scheduler.stats();
  ASSERT_GT(before.waiting, 0u) << "each of them takes four blocks of four";
  const std::vector<BlockId> live = r.scheduler.LiveBlocks();
  ASSERT_FALSE(live.empty());
  r.scheduler.Grow(64);
  EXPECT_TRUE(r.scheduler.CheckIntegrity().ok()) << r.scheduler.CheckIntegrity();
  EXPECT_EQ(r.scheduler.stats().memory[kPageGroup].units, 64u);
  EXPECT_EQ(r.scheduler.stats().preemptions, before.preemptions);
  EXPECT_EQ(r.scheduler.LiveBlocks(), live) << "what is computed stays where it is";
  for (int i = 0; i < 8; ++i) {
    r.Next();
    r.LandAndAppend();
  }
  EXPECT_EQ(r.scheduler.stats().waiting, 0u);
  EXPECT_TRUE(r.scheduler.CheckIntegrity().ok()) << r.scheduler.CheckIntegrity();
}

TEST(SchedulerTest, ACacheMayBeginAnewLargerThanItEverWas) {
  SchedulerOptions o = Small();
  o.memory[kPageGroup] = 15;
  Rig r(o);
  r.Add(1, Tokens(6));
  r.Next();
  r.LandAndAppend();
  EXPECT_TRUE(r.scheduler.Shrink(40, true).empty());
  EXPECT_EQ(r.scheduler.stats().memory[kPageGroup].units, 40u);
  EXPECT_TRUE(r.scheduler.CheckIntegrity().ok()) << r.scheduler.CheckIntegrity();
  for (int i = 2; i < 5; ++i) r.Add(static_cast<uint64_t>(i), Tokens(30, static_cast<TokenId>(100 * i)));
  for (int i = 0; i < 20; ++i) {
    r.Next();
    r.LandAndAppend();
  }
  EXPECT_TRUE(r.scheduler.CheckIntegrity().ok()) << r.scheduler.CheckIntegrity();
  EXPECT_GT(r.scheduler.LiveBlocks().back(), 14u);
}

TEST(SchedulerTest, ASmallerCachePreemptsAllAndForgets) {
  SchedulerOptions o = Small();
  o.memory[kPageGroup] = 16;
  Rig r(o);
  r.Add(1, Tokens(6));
  r.Add(2, Tokens(14, 100));
  for (int i = 0; i < 4; ++i) {
    r.Next();
    r.LandAndAppend();
  }
  const auto too_large = r.scheduler.Shrink(3);
  EXPECT_EQ(too_large, std::vector<SeqId>{SeqId{2}}) << "three blocks of four hold no 14 tokens";
  r.scheduler.Remove(SeqId{2});
  EXPECT_TRUE(r.scheduler.CheckIntegrity().ok()) << r.scheduler.CheckIntegrity();
  EXPECT_EQ(r.scheduler.stats().memory[kPageGroup].units, 3u);
  EXPECT_TRUE(r.scheduler.LiveBlocks().empty());
  const Shape again = r.Next();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(std::get<0>(again[0]), 1u);
  EXPECT_EQ(std::get<1>(again[0]), 0u) << "it begins anew";
  EXPECT_TRUE(absl::IsOutOfRange(r.scheduler.Add(SeqId{3}, {.tokens = Tokens(4), .max_positions = 20})));
}

// A sequence of 4 tokens, the last one generated, whose drafts go on while others are in flight.
class SchedulerDrafts : public ::testing::Test {
 protected:
  static SchedulerOptions Options() {
    SchedulerOptions o = Small();
    o.max_in_flight = 3;
    o.takes_all_drafts = true;
    return o;
  }
  void SetUp() override {
    r_.Add(1, Tokens(3));
    r_.Next();
    r_.LandAndAppend(10);
  }
  void Propose(std::vector<TokenId> tokens) {
    const size_t n = tokens.size();
    r_.scheduler.Propose(kOne, {.tokens = std::move(tokens), .chances = std::vector<float>(n, 0.9f)});
  }
  // Whether another token is owed after this one.
  bool Append(TokenId token) {
    EXPECT_TRUE(r_.scheduler.Append(kOne, token).ok());
    r_.Check();
    return r_.scheduler.SampleOwed(kOne);
  }
  static constexpr SeqId kOne{1};
  Rig r_{Options()};
};

TEST_F(SchedulerDrafts, StepsGoOnBehindDraftsInFlight) {
  EXPECT_FALSE(r_.scheduler.MayGoOn(kOne)) << "its last token's row is not launched";
  Propose({11, 12});
  EXPECT_EQ(r_.Next(), (Shape{{1, 3, 3, true}}));
  EXPECT_TRUE(r_.scheduler.MayGoOn(kOne));
  EXPECT_EQ(r_.scheduler.Undecided(kOne), (std::vector<TokenId>{11, 12}));
  EXPECT_EQ(r_.Next(), Shape{});
  Propose({13, 14});
  EXPECT_EQ(r_.Next(), (Shape{{1, 6, 2, false}}));
  EXPECT_EQ(r_.Land().valid.size(), 1u);
  EXPECT_TRUE(Append(11));
  EXPECT_TRUE(Append(12));
  EXPECT_FALSE(Append(13)) << "its row is in flight";
  EXPECT_EQ(r_.Next(), Shape{});
  EXPECT_EQ(r_.Land().valid.size(), 1u);
  EXPECT_TRUE(r_.scheduler.SampleOwed(kOne));
  EXPECT_TRUE(Append(14));
  EXPECT_FALSE(Append(15));
  EXPECT_EQ(r_.Next(), (Shape{{1, 8, 1, true}}));
  EXPECT_EQ(r_.scheduler.stats().accepted_drafts, 4u);
}

TEST_F(SchedulerDrafts, WhatFollowsAWrongDraftIsVoidAndKeepsNothingOut) {
  Propose({11, 12});
  r_.Next();
  Propose({13});
  r_.Next();
  Propose({14});
  EXPECT_EQ(r_.Next(), (Shape{{1, 7, 1, false}}));
  Propose({15});
  EXPECT_EQ(r_.Next(), Shape{}) << "three steps are in flight";
  r_.Land();
  EXPECT_TRUE(Append(11));
  EXPECT_FALSE(Append(99));
  // Two void steps are in flight, and one more beside the new row would be a fourth.
  Propose({16});
  EXPECT_EQ(r_.Next(), (Shape{{1, 5, 2, true}}));
  EXPECT_EQ(r_.Land().valid.size(), 0u);
  EXPECT_EQ(r_.Land().valid.size(), 0u);
  EXPECT_EQ(r_.Land().valid.size(), 1u);
  EXPECT_TRUE(Append(16));
}

TEST_F(SchedulerDrafts, DraftsThatFailBehindOthersAreDroppedAndNoMoreCome) {
  Propose({11});
  r_.Next();
  Propose({12});
  r_.Next();
  r_.Land();
  r_.Land(false);
  EXPECT_TRUE(r_.scheduler.SampleOwed(kOne)) << "the row before them has landed";
  EXPECT_FALSE(Append(11)) << "the row of the draft before them is dropped, too";
  Propose({12});
  EXPECT_EQ(r_.Next(), (Shape{{1, 4, 1, true}}));
  EXPECT_FALSE(r_.scheduler.MayGoOn(kOne));
  EXPECT_EQ(r_.scheduler.stats().preemptions, 0u);
}

TEST_F(SchedulerDrafts, ARingThatIsLostDropsThem) {
  Propose({11});
  r_.Next();
  Propose({12});
  r_.Next();
  r_.Land();
  EXPECT_TRUE(Append(11));
  EXPECT_FALSE(Append(12));
  r_.flights.clear();
  EXPECT_TRUE(r_.scheduler.LoseFlights(false).empty());
  r_.Check();
  EXPECT_EQ(r_.Next(), (Shape{{1, 5, 1, true}})) << "the row in flight is sent again";
  EXPECT_TRUE(r_.scheduler.MayGoOn(kOne)) << "nobody says that the drafts were the cause";
}

TEST_F(SchedulerDrafts, NoDraftStandsAtTheLastPosition) {
  SchedulerOptions o = Options();
  o.memory[kPageGroup] = 2;
  Rig r(o);
  r.Add(2, Tokens(3), 7);
  r.Next();
  r.LandAndAppend(10);
  const auto propose = [&r](int n) {
    r.scheduler.Propose(SeqId{2}, {.tokens = Tokens(n, 11), .chances = std::vector<float>(static_cast<size_t>(n), 1)});
  };
  propose(1);
  EXPECT_EQ(r.Next(), (Shape{{2, 3, 2, true}}));
  propose(4);
  EXPECT_EQ(r.Next(), (Shape{{2, 5, 1, false}}));
  propose(4);
  EXPECT_EQ(r.Next(), Shape{});
}

TEST_F(SchedulerDrafts, BlocksOfDraftsThatWereNotDrawnGoToWhoNeedsThem) {
  SchedulerOptions o = Options();
  o.memory[kPageGroup] = 5;
  Rig r(o);
  r.Add(1, Tokens(3), 20);
  r.Next();
  r.LandAndAppend(10);
  r.scheduler.Propose(kOne, {.tokens = Tokens(8, 20), .chances = std::vector<float>(8, 1)});
  EXPECT_EQ(r.Next(), (Shape{{1, 3, 9, true}}));
  r.LandAndAppend(11);
  r.Check();
  EXPECT_EQ(r.scheduler.stats().memory[kPageGroup].available, 2u);
  r.Add(2, Tokens(5, 50), 8);
  EXPECT_EQ(r.Next(), (Shape{{1, 4, 1, true}, {2, 0, 4, false}}));
  EXPECT_EQ(r.scheduler.stats().memory[kPageGroup].available, 1u);
}

TEST_F(SchedulerDrafts, FewerThanTheLeastAreNotSent) {
  r_.scheduler.Propose(kOne, {.tokens = {11, 12}, .chances = {1, 1}, .least = 3});
  EXPECT_EQ(r_.Next(), (Shape{{1, 3, 1, true}}));
  EXPECT_EQ(r_.Next(), Shape{});
  r_.scheduler.Propose(kOne, {.tokens = {11, 12, 13}, .chances = {1, 1, 1}, .least = 3});
  EXPECT_EQ(r_.Next(), (Shape{{1, 4, 3, false}}));
}

}  // namespace
}  // namespace gyre
