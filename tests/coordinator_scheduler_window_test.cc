// Layers with a window: when their blocks come back, who may have them, and what a prefix needs of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/scheduler_rig.h"

namespace gyre {
namespace {

using testing::Rig;
using testing::Shape;
using testing::Small;
using testing::Tokens;

// Rows of 6 positions' sight, in blocks of 4: a row reads at most three of them.
SchedulerOptions Windowed(uint32_t window_blocks) {
  SchedulerOptions o = Small();
  o.memory[kPageGroup] = 64;
  o.window = 6;
  o.memory[kWindowGroup] = window_blocks;
  o.memory.least[kWindowGroup] = 4;
  o.max_in_flight = 1;
  return o;
}

// The windowed table of the only item of the step that is next, which lands, and a token follows.
WindowTable Step(Rig& r, TokenId token = 7) {
  EXPECT_EQ(r.Next().size(), 1u);
  WindowTable table = r.flights.front().items[0].window;
  r.LandAndAppend(token);
  return table;
}

TEST(SchedulerWindowTest, BlocksBehindTheWindowComeBack) {
  Rig r(Windowed(4));
  r.Add(1, Tokens(40), 64);
  for (uint32_t i = 0; i < 10; ++i) {
    const WindowTable table = Step(r);
    // The chunk's first row, at 4 * i, reads from 4 * i - 5 on.
    EXPECT_EQ(table.first, i < 2 ? 0 : i - 2) << i;
    EXPECT_EQ(table.first + table.blocks.size(), i + 1);
  }
  for (uint32_t p = 40; p < 59; ++p) {
    const WindowTable table = Step(r);
    EXPECT_EQ(table.first, (p - 5) / 4) << p;
    EXPECT_LE(r.scheduler.stats().memory[kWindowGroup].units - r.scheduler.stats().memory[kWindowGroup].available, 3u);
  }
  EXPECT_EQ(r.scheduler.stats().preemptions, 0u);
}

// With its last row landed a sequence is at 24, but the row at 23 may be sent again: it reads from 18 on, in block 4.
TEST(SchedulerWindowTest, WhatTheLastRowReadsStaysUntilItsTokenIsDrawn) {
  Rig r(Windowed(8));
  r.Add(1, Tokens(24), 60);
  for (int i = 0; i < 5; ++i) Step(r);
  r.Next();
  r.Land();
  r.scheduler.Repeat(SeqId{1});
  r.Check();
  EXPECT_EQ(r.Next(), (Shape{{1, 23, 1, true}}));
  EXPECT_EQ(r.flights.front().items[0].window.first, 4u);
  r.LandAndAppend();
  // The row at 24 reads from 19 on; the one at 25 from 20 on.
  EXPECT_EQ(Step(r).first, 4u);
  EXPECT_EQ(Step(r).first, 5u);
}

TEST(SchedulerWindowTest, AFailedStepFindsWhatItsRowsRead) {
  SchedulerOptions o = Windowed(8);
  o.max_in_flight = 3;
  Rig r(o);
  r.Add(1, Tokens(40), 60);
  for (int i = 0; i < 3; ++i) r.Next();
  r.Land();
  r.Land();  // rows up to 8: the row at 8 reads from 3 on
  EXPECT_EQ(r.Next(), (Shape{{1, 12, 4, false}}));
  r.Land(false);
  r.Land(false);
  EXPECT_EQ(r.Next(), (Shape{{1, 8, 4, false}}));
  EXPECT_EQ(r.flights.front().items[0].window.first, 0u);
}

// A prompt whose rows in flight use up its quota waits for them, and preempts nobody.
TEST(SchedulerWindowTest, ThePromptAheadOfItsQuotaWaits) {
  SchedulerOptions o = Windowed(4);
  o.max_in_flight = 8;
  Rig r(o);
  r.Add(1, Tokens(40), 60);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(r.Next().size(), 1u);
  EXPECT_EQ(r.Next(), Shape{});
  for (int i = 0; i < 3; ++i) r.Land();
  EXPECT_EQ(r.Next(), (Shape{{1, 16, 4, false}})) << "block 0 came back, as the row at 12 reads from 7 on";
  EXPECT_EQ(r.Next(), Shape{});
  EXPECT_EQ(r.scheduler.stats().preemptions, 0u);
}

// The blocks that a prompt will need are reserved, so that a later one can't take them.
TEST(SchedulerWindowTest, APromptIsNotThrownOutForAnothersWindow) {
  Rig r(Windowed(7));
  r.Add(1, Tokens(40), 120);
  r.Add(2, Tokens(40, 100), 120);
  for (int i = 0; i < 10; ++i) {
    for (const auto& [seq, first, count, last] : r.Next()) EXPECT_EQ(seq, 1u);
    r.LandAndAppend();
  }
  for (int i = 0; i < 30; ++i) {
    r.Next();
    r.LandAndAppend();
  }
  EXPECT_EQ(r.scheduler.State(SeqId{2}), SeqState::kDecode) << "it came in when the first needed less";
  EXPECT_EQ(r.scheduler.stats().preemptions, 0u);
}

uint32_t CachedOf(Rig& r, uint64_t id, std::vector<TokenId> tokens) {
  const size_t rows = tokens.size();
  r.Add(id, std::move(tokens), 80);
  r.Next();
  const uint32_t cached = r.scheduler.CachedPositions(SeqId{id});
  for (r.LandAndAppend(); r.scheduler.Positions(SeqId{id}) < rows;) Step(r);
  r.scheduler.Remove(SeqId{id});
  r.Check();
  return cached;
}

// The paged group has the whole prompt; of the windowed one only what a row at 36 reads.
TEST(SchedulerWindowTest, AChatsNextTurnFindsItsWindow) {
  Rig r(Windowed(6));
  EXPECT_EQ(CachedOf(r, 1, Tokens(40)), 0u);
  EXPECT_EQ(CachedOf(r, 2, Tokens(40)), 36u);
  EXPECT_EQ(CachedOf(r, 3, Tokens(50)), 40u) << "the first row of the answer is in the block that ends there";
}

// If texts differ from their middle on, the window before that place is kept from the second text on.
TEST(SchedulerWindowTest, ACommonBeginningIsFoundFromTheThirdTextOn) {
  auto text = [](TokenId end) {
    std::vector<TokenId> tokens = Tokens(20);
    for (const TokenId t : Tokens(40, end)) tokens.push_back(t);
    return tokens;
  };
  Rig few(Windowed(9));
  EXPECT_EQ(CachedOf(few, 1, text(100)), 0u);
  EXPECT_EQ(CachedOf(few, 2, text(200)), 0u) << "the pages have 20 positions, the window before them is gone";
  EXPECT_EQ(CachedOf(few, 3, text(300)), 20u);
  EXPECT_EQ(CachedOf(few, 4, text(400)), 20u);
  Rig many(Windowed(32));
  EXPECT_EQ(CachedOf(many, 1, text(100)), 0u);
  EXPECT_EQ(CachedOf(many, 2, text(200)), 20u) << "nobody needed the blocks behind the window yet";
}

// A next turn without the answer's thoughts parts from the text at the prompt's end, long after which it was generated.
TEST(SchedulerWindowTest, ALongAnswerLeavesTheWindowBeforeIt) {
  Rig r(Windowed(6));
  r.Add(1, Tokens(40), 200);
  while (r.scheduler.Positions(SeqId{1}) < 120) Step(r);
  r.scheduler.Remove(SeqId{1});
  std::vector<TokenId> turn = Tokens(38);
  for (const TokenId t : Tokens(20, 500)) turn.push_back(t);
  EXPECT_EQ(CachedOf(r, 2, turn), 36u);
}

// One that waits for another's beginning, and for its place until the end, finds the window before it.
TEST(SchedulerWindowTest, WhatOneWaitsForIsKept) {
  SchedulerOptions o = Windowed(26);
  o.memory[kPageGroup] = 256;
  o.window = 40;
  o.memory.least[kWindowGroup] = 11;
  o.chunk = 8;
  o.max_sequences = 1;
  std::vector<TokenId> first = Tokens(100), second = Tokens(100);
  for (const TokenId t : Tokens(160, 1000)) first.push_back(t);
  for (const TokenId t : Tokens(20, 2000)) second.push_back(t);
  Rig r(o);
  r.Add(1, first, 400);
  r.Next();
  r.LandAndAppend();
  r.Add(2, second, 400);
  while (r.scheduler.Positions(SeqId{1}) < 262) Step(r);
  EXPECT_EQ(r.scheduler.State(SeqId{2}), SeqState::kWaiting);
  r.scheduler.Remove(SeqId{1});
  r.Next();
  EXPECT_EQ(r.scheduler.CachedPositions(SeqId{2}), 100u);
}

// One that waits for another to compute what both begin with finds it.
TEST(SchedulerWindowTest, WhoWaitsForACommonBeginningFindsIt) {
  SchedulerOptions o = Windowed(40);
  o.memory[kPageGroup] = 256;
  o.chunk = 8;
  o.memory[kWindowGroup] = 20;
  std::vector<TokenId> first = Tokens(100), second = Tokens(100);
  for (const TokenId t : Tokens(60, 1000)) first.push_back(t);
  for (const TokenId t : Tokens(60, 2000)) second.push_back(t);
  Rig r(o);
  r.Add(1, first, 200);
  r.Next();
  r.LandAndAppend();
  r.Add(2, second, 200);
  for (int i = 0; i < 40 && r.scheduler.CachedPositions(SeqId{2}) == 0; ++i) {
    r.Next();
    r.LandAndAppend();
  }
  EXPECT_GE(r.scheduler.CachedPositions(SeqId{2}), 32u);
}

TEST(SchedulerWindowTest, ASmallerCacheHasFewerWindowedBlocks) {
  Rig r(Windowed(16));
  r.Add(1, Tokens(40), 60);
  Step(r);
  EXPECT_TRUE(r.scheduler.Shrink(32).empty());
  r.Check();
  EXPECT_EQ(r.scheduler.stats().memory[kWindowGroup].units, 8u);
  EXPECT_TRUE(r.scheduler.Shrink(15).empty());
  EXPECT_EQ(r.scheduler.stats().memory[kWindowGroup].units, 4u) << "one sequence can still go on";
  for (int i = 0; i < 10; ++i) Step(r);
  EXPECT_EQ(r.scheduler.State(SeqId{1}), SeqState::kDecode);
  EXPECT_EQ((MemoryCounts{.units = {15, 0, 4}, .least = {0, 0, 4}}).Shrunk(2)[kWindowGroup], 2u);
}

// A cache that was cut grows: both groups do, what is computed stays, and units keep their numbers in lists of moves.
TEST(SchedulerWindowTest, ALargerCacheHasMoreWindowedBlocks) {
  SchedulerOptions o = Windowed(16);
  o.max_in_flight = 4;
  o.memory[kSlotGroup] = 6;
  Rig r(o);
  EXPECT_TRUE(r.scheduler.Shrink(15).empty());
  ASSERT_EQ(r.scheduler.stats().memory[kWindowGroup].units, 4u);
  r.Add(1, Tokens(40), 60);
  r.Add(2, Tokens(40, 100), 60);
  for (int i = 0; i < 3; ++i) r.Next();
  r.Check();
  ASSERT_EQ(r.scheduler.stats().waiting, 1u) << "one sequence's window is all that there is";
  const std::vector<BlockId> live = r.scheduler.LiveBlocks();
  r.scheduler.Grow(64);
  r.Check();
  EXPECT_EQ(r.scheduler.stats().memory[kWindowGroup].units, 16u);
  EXPECT_EQ(r.scheduler.LiveBlocks(), live);
  for (int i = 0; i < 30; ++i) {
    r.Next();
    if (!r.flights.empty()) r.LandAndAppend();
  }
  EXPECT_EQ(r.scheduler.stats().waiting, 0u);
  EXPECT_EQ(r.scheduler.stats().preemptions, 0u);
}

// A prompt that was admitted with a small cache has as many rows in flight as any other once the cache has grown, also
// where others take what is free.
TEST(SchedulerWindowTest, AGrownCacheIsForThoseThatRunAlready) {
  SchedulerOptions o = Windowed(16);
  o.max_in_flight = 4;
  Rig r(o);
  EXPECT_TRUE(r.scheduler.Shrink(15).empty());
  r.Add(1, Tokens(56), 60);
  for (int i = 0; i < 4; ++i) {
    while (!r.Next().empty()) {
    }
    if (i > 0) EXPECT_LT(r.flights.size(), 4u) << "four windowed blocks are too few beside those that are read";
    r.LandAndAppend();
  }
  // Four blocks more, of which it may have three. The others need one each, and come in with the next step.
  r.scheduler.Grow(32);
  ASSERT_EQ(r.scheduler.stats().memory[kWindowGroup].units, 8u);
  for (uint64_t id = 2; id < 5; ++id) r.Add(id, Tokens(2, static_cast<int>(100 * id)), 4);
  while (!r.Next().empty()) {
  }
  r.Check();
  size_t of_first = 0;
  for (const StepPlan& f : r.flights) {
    for (const StepItem& item : f.items) of_first += static_cast<uint64_t>(item.seq) == 1;
  }
  EXPECT_EQ(of_first, 4u);
  EXPECT_EQ(r.scheduler.stats().preemptions, 0u);
}

// Slots, then windowed blocks stand behind the pages in what a move copies.
TEST(SchedulerWindowTest, LiveBlocksOfAllGroups) {
  SchedulerOptions o = Windowed(8);
  o.memory[kSlotGroup] = 3;
  Rig r(o);
  r.Add(1, Tokens(6), 60);
  r.Next();
  EXPECT_EQ(r.scheduler.LiveBlocks(), (std::vector<BlockId>{0, 1, 64, 65, 67}))
      << "two pages, a slot and its copy, a windowed block: the chunk ends where the copy is made";
}

}  // namespace
}  // namespace gyre
