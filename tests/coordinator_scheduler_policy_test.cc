// The order in which sequences get rows: policies, the budget of a step, tenants, aging, and admission by blocks. Each
// test is a list of events.
#include <gtest/gtest.h>

#include "coordinator/engine/step_budget.h"
#include "tests/testing/scheduler_rig.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using testing::Rig;
using testing::Shape;
using testing::Small;
using testing::Tokens;

SchedulerOptions OneStage(SchedulerPolicy policy = SchedulerPolicy::kFcfs) {
  SchedulerOptions o = Small();
  o.memory[kPageGroup] = 128;
  o.max_in_flight = 1;
  o.policy = policy;
  return o;
}

// Sequences 1 to n have two tokens of prompt behind them, and one that was drawn.
void DecodeSome(Rig& r, uint64_t n) {
  for (uint64_t id = 1; id <= n; ++id) r.Add(id, Tokens(2, static_cast<int>(10 * id)), 400);
  while (r.scheduler.stats().decode < n) {
    r.Next();
    r.LandAndAppend();
  }
}

uint64_t First(const Shape& shape) { return std::get<0>(shape.at(0)); }
uint32_t RowsOf(const Shape& shape, uint64_t id) {
  for (const auto& [seq, first, rows, sampled] : shape) {
    if (seq == id) return rows;
  }
  return 0;
}

TEST(SchedulerPolicy, NamesAreRead) {
  EXPECT_EQ(ParsePolicy("fcfs"), SchedulerPolicy::kFcfs);
  EXPECT_EQ(ParsePolicy("prefill_first"), SchedulerPolicy::kPrefillFirst);
  EXPECT_EQ(ParsePolicy("decode_round_robin"), SchedulerPolicy::kDecodeRoundRobin);
  EXPECT_EQ(ParsePolicy("lifo"), std::nullopt);
}

TEST(SchedulerPolicy, FcfsKeepsTheOrderOfAdmission) {
  SchedulerOptions o = OneStage();
  o.max_rows = 4;
  o.step_tokens = 4;
  Rig r(o);
  r.Add(1, Tokens(9, 100), 100);
  EXPECT_EQ(r.Next(), (Shape{{1, 0, 4, false}}));
  r.Add(2, Tokens(2), 100);
  r.LandAndAppend();
  EXPECT_EQ(r.Next(), (Shape{{1, 4, 4, false}})) << "the older prompt fills the step";
  r.LandAndAppend();
  EXPECT_EQ(r.Next(), (Shape{{1, 8, 1, true}, {2, 0, 2, true}}));
  r.LandAndAppend();
  r.Add(3, Tokens(9, 200), 100);
  EXPECT_EQ(r.Next(), (Shape{{1, 9, 1, true}, {2, 2, 1, true}, {3, 0, 2, false}}));
}

TEST(SchedulerPolicy, PrefillFirstPutsPromptsBeforeDecodeRowsButNotForEver) {
  SchedulerOptions o = OneStage(SchedulerPolicy::kPrefillFirst);
  o.max_rows = 4;
  Rig r(o);
  DecodeSome(r, 2);
  r.Add(3, Tokens(100, 200), 200);
  uint32_t steps_without = 0;
  for (int i = 0; i < 8; ++i) {
    const Shape step = r.Next();
    EXPECT_EQ(step, (Shape{{3, 4 * static_cast<uint32_t>(i), 4, false}}));
    ++steps_without;
    r.LandAndAppend();
  }
  EXPECT_EQ(r.Next(), (Shape{{1, 2, 1, true}, {2, 2, 1, true}, {3, 32, 2, false}})) << "overdue ones go first";
  EXPECT_EQ(r.scheduler.stats().longest_decode_gap, steps_without);
}

TEST(SchedulerPolicy, DecodeRoundRobinServesInTurnAndLeavesPromptsTheRest) {
  SchedulerOptions o = OneStage(SchedulerPolicy::kDecodeRoundRobin);
  o.max_rows = 3;
  Rig r(o);
  DecodeSome(r, 4);
  r.Add(9, Tokens(40, 200), 200);
  std::map<uint64_t, int> served;
  for (int i = 0; i < 12; ++i) {
    const Shape step = r.Next();
    for (const auto& [seq, first, rows, sampled] : step) served[seq] += static_cast<int>(rows);
    r.LandAndAppend();
  }
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_NEAR(served[id], 7, 2) << id;
  EXPECT_GE(served[9], 5);
  EXPECT_LE(r.scheduler.stats().longest_decode_gap, 2u);
}

TEST(SchedulerPolicy, TheBudgetBoundsPromptRowsOnlyBesideDecodingSequences) {
  for (const SchedulerPolicy policy :
       {SchedulerPolicy::kFcfs, SchedulerPolicy::kPrefillFirst, SchedulerPolicy::kDecodeRoundRobin}) {
    SchedulerOptions o = OneStage(policy);
    o.step_tokens = 3;
    o.max_rows = 32;
    o.chunk = 16;
    Rig r(o);
    r.Add(1, Tokens(20), 100);
    EXPECT_EQ(RowsOf(r.Next(), 1), 16u) << "alone it gets its chunk";
    r.LandAndAppend();
    r.Next();
    r.LandAndAppend();
    r.Add(2, Tokens(20, 100), 100);
    r.Add(3, Tokens(20, 200), 100);
    const Shape step = r.Next();
    EXPECT_EQ(RowsOf(step, 1), 1u);
    EXPECT_EQ(RowsOf(step, 2) + RowsOf(step, 3), 3u);
    r.LandAndAppend();
    r.scheduler.Remove(SeqId{1});
    EXPECT_GE(RowsOf(r.Next(), 2), 16u) << "nothing decodes any more";
  }
}

TEST(SchedulerPolicy, WithoutANumberTheBudgetComesFromTheTimesOfSteps) {
  SchedulerOptions o = OneStage();
  o.max_rows = o.chunk = 128;
  Rig r(o);
  Deadline now = Deadline(std::chrono::hours(1));
  // 10 ms, and 1 ms for each row.
  const auto step = [&] {
    auto plan = r.scheduler.Next(now);
    uint32_t rows = 0, prompt = 0;
    for (const StepItem& i : plan->items) {
      rows += i.count;
      prompt += i.count > 1 ? i.count : 0;
    }
    now += milliseconds(10 + rows);
    for (const StepItem& i : r.scheduler.Land(plan->step, true, now).valid) {
      if (i.sample_last) EXPECT_TRUE(r.scheduler.Append(i.seq, 5).ok());
    }
    return prompt;
  };
  r.Add(1, Tokens(2), 300);
  r.Add(2, Tokens(2, 50), 300);
  for (int i = 0; i < 20; ++i) step();
  r.Add(3, Tokens(250, 1000), 300);
  EXPECT_LE(step(), StepBudget::kFirst);  // the first of its kind
  for (int i = 0; i < 10; ++i) EXPECT_LE(step(), 8u) << "12 ms of decode rows, half as much for the prompt";
  EXPECT_LE(r.scheduler.stats().step_tokens, 8u);
  EXPECT_GE(r.scheduler.stats().step_tokens, 5u);
}

// ---- Tenants

TEST(SchedulerTenants, PromptRowsAreSharedWhateverTheNumberOfRequests) {
  SchedulerOptions o = OneStage();
  o.prefix_cache = false;
  Rig r(o);
  for (uint64_t id = 1; id <= 6; ++id) {
    r.Add(id, {.tokens = Tokens(40, static_cast<int>(100 * id)), .max_positions = 41, .tenant = 1});
  }
  r.Add(7, {.tokens = Tokens(40, 900), .max_positions = 41, .tenant = 2});
  uint64_t mine = 0, theirs = 0;
  for (int i = 0; i < 4; ++i) {
    for (const auto& [seq, first, rows, sampled] : r.Next()) (seq == 7 ? mine : theirs) += rows;
    r.LandAndAppend();
  }
  EXPECT_GE(mine, 16u) << "a chunk in each step";
  EXPECT_GE(theirs, 40u);
}

TEST(SchedulerTenants, ThePlaceThatIsFreeGoesToWhoHadLess) {
  SchedulerOptions o = OneStage();
  o.max_sequences = 1;
  Rig r(o);
  for (uint64_t id = 1; id <= 5; ++id) {
    r.Add(id, {.tokens = Tokens(8, static_cast<int>(100 * id)), .max_positions = 20, .tenant = 1});
  }
  r.Add(6, {.tokens = Tokens(8, 600), .max_positions = 20, .tenant = 2});
  std::vector<uint64_t> order;
  for (int i = 0; i < 6; ++i) {
    order.push_back(First(r.Next()));
    r.Land();
    while (r.scheduler.State(SeqId{order.back()}) == SeqState::kPrefill && !r.Next().empty()) r.Land();
    r.scheduler.Remove(SeqId{order.back()});
  }
  EXPECT_EQ(order, (std::vector<uint64_t>{1, 6, 2, 3, 4, 5}));
}

TEST(SchedulerTenants, WhoJustArrivedCannotClaimThePast) {
  SchedulerOptions o = OneStage();
  o.prefix_cache = false;
  o.memory[kPageGroup] = 512;
  Rig r(o);
  r.Add(1, {.tokens = Tokens(400), .max_positions = 401, .tenant = 1});
  for (int i = 0; i < 50; ++i) {
    r.Next();
    r.LandAndAppend();
  }
  r.Add(2, {.tokens = Tokens(400, 1000), .max_positions = 401, .tenant = 2});
  uint32_t one = 0, two = 0;
  for (int i = 0; i < 10; ++i) {
    const Shape step = r.Next();
    one += RowsOf(step, 1);
    two += RowsOf(step, 2);
    r.LandAndAppend();
  }
  EXPECT_NEAR(one, two, 8);
}

TEST(SchedulerTenants, WhatWasTakenBeyondTheShareIsNotForgottenWithTheRequest) {
  SchedulerOptions o = OneStage();
  o.prefix_cache = false;
  o.max_sequences = 1;
  Rig r(o);
  r.Add(1, {.tokens = Tokens(100), .max_positions = 101, .tenant = 1});
  r.Next(), r.Land();
  r.Add(2, {.tokens = Tokens(8, 500), .max_positions = 20, .tenant = 2});
  r.Add(3, {.tokens = Tokens(8, 600), .max_positions = 20, .tenant = 2});
  while (r.scheduler.State(SeqId{1}) == SeqState::kPrefill && !r.Next().empty()) r.Land();
  r.scheduler.Remove(SeqId{1});
  r.Add(4, {.tokens = Tokens(8, 700), .max_positions = 20, .tenant = 1});
  EXPECT_EQ(First(r.Next()), 2u);
  r.Land();
  while (r.scheduler.State(SeqId{2}) == SeqState::kPrefill && !r.Next().empty()) r.Land();
  r.scheduler.Remove(SeqId{2});
  EXPECT_EQ(First(r.Next()), 3u) << "the first tenant had 100 rows before";
}

// ---- Aging

TEST(SchedulerAging, ARequestIsAdmittedAtLastUnderALoadOfHigherPriority) {
  for (const uint32_t places : {1u, 3u}) {
    SchedulerOptions o = OneStage();
    o.max_sequences = places;
    Rig r(o);
    uint64_t next = 2;
    r.Add(next++, Tokens(4, 10), 20, 5);
    r.Add(1, Tokens(4, 5000), 20, 0);
    int finished = 0;
    for (; finished < 200 && r.scheduler.State(SeqId{1}); ++finished) {
      while (r.scheduler.stats().waiting < 4) {
        const int from = static_cast<int>(100 * next);
        r.Add(next++, Tokens(4, from), 20, 5);
      }
      for (const auto& [seq, first, rows, sampled] : r.Next()) {
        if (sampled) r.scheduler.Remove(SeqId{seq});
      }
      r.Land();
    }
    EXPECT_LE(finished, 25) << places;
    EXPECT_GE(finished, 4) << "priority counts all the same";
    EXPECT_EQ(r.scheduler.stats().aged, 1u);
  }
}

TEST(SchedulerAging, AFloodOfOneTenantDoesNotAgePastTheOthers) {
  SchedulerOptions o = OneStage();
  o.max_sequences = 1;
  o.memory[kPageGroup] = 64;
  Rig r(o);
  for (uint64_t id = 1; id <= 100; ++id) {
    r.Add(id, {.tokens = Tokens(4, static_cast<int>(100 * id)), .max_positions = 20, .tenant = 1});
  }
  // The second tenant asks again as soon as it has its answer.
  int others = 0;
  uint64_t next = 1000;
  r.Add(next, {.tokens = Tokens(4, 1), .max_positions = 20, .tenant = 2});
  for (int i = 0; i < 60; ++i) {
    const uint64_t seq = First(r.Next());
    r.Land();
    r.scheduler.Remove(SeqId{seq});
    if (seq < 1000) continue;
    ++others;
    ++next;
    r.Add(next, {.tokens = Tokens(4, static_cast<int>(next)), .max_positions = 20, .tenant = 2});
  }
  EXPECT_GE(others, 27) << "half of the turns, less one in sixteen";
}

// ---- Blocks

TEST(SchedulerBlocks, ASequenceComesInWhenItsWholePromptFits) {
  SchedulerOptions o = OneStage();
  o.memory[kPageGroup] = 10;
  o.prefix_cache = false;
  Rig r(o);
  r.Add(1, Tokens(24), 28);       // 6 blocks
  r.Add(2, Tokens(17, 100), 20);  // 5
  EXPECT_EQ(r.Next(), (Shape{{1, 0, 4, false}}));
  r.Land();
  EXPECT_EQ(r.Next(), (Shape{{1, 4, 4, false}})) << "the second would be thrown out in the middle";
  r.Land();
  r.scheduler.Remove(SeqId{1});
  EXPECT_EQ(First(r.Next()), 2u);
}

TEST(SchedulerBlocks, ReservedSequencesHoldAWholeContextAndAreNeverThrownOut) {
  SchedulerOptions o = OneStage();
  o.memory[kPageGroup] = 16;  // 64 positions
  o.reserve_positions = 24;
  o.prefix_cache = false;
  Rig r(o);
  for (uint64_t id = 1; id <= 4; ++id) r.Add(id, Tokens(2, static_cast<int>(10 * id)), 24);
  EXPECT_EQ(r.Next().size(), 2u) << "two contexts fit";
  EXPECT_EQ(r.scheduler.stats().memory[kPageGroup].available, 4u);
  r.LandAndAppend();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(r.Next().size(), 2u);
    r.LandAndAppend();
  }
  EXPECT_EQ(r.scheduler.stats().preemptions, 0u);
  EXPECT_EQ(r.scheduler.stats().memory[kPageGroup].available, 4u);
  r.scheduler.Remove(SeqId{1});
  EXPECT_EQ(r.Next().size(), 2u);
}

TEST(SchedulerBlocks, AReservationIsNeverMoreThanThereIs) {
  SchedulerOptions o = OneStage();
  o.reserve_positions = 100000;
  Rig r(o);
  r.Add(1, Tokens(4), 20);
  EXPECT_EQ(r.Next().size(), 1u);
  EXPECT_EQ(r.scheduler.stats().memory[kPageGroup].available, 0u);
}

TEST(SchedulerBlocks, ALeakedBlockIsFoundCountedAndGivenBack) {
  SchedulerOptions o = OneStage();
  o.leaks_for_test = 2;
  Rig r(o);
  ASSERT_TRUE(r.scheduler.Add(SeqId{1}, {.tokens = Tokens(6), .max_positions = 20}).ok());
  EXPECT_FALSE(r.scheduler.CheckIntegrity().ok());
  EXPECT_EQ(r.scheduler.stats().memory[kPageGroup].available, o.memory[kPageGroup] - 2);
  EXPECT_EQ(r.scheduler.Reclaim(), 2u);
  EXPECT_TRUE(r.scheduler.CheckIntegrity().ok()) << r.scheduler.CheckIntegrity();
  EXPECT_EQ(r.scheduler.stats().memory[kPageGroup].available, o.memory[kPageGroup]);
  EXPECT_EQ(r.scheduler.stats().leaked_blocks, 2u);
  EXPECT_EQ(r.scheduler.Reclaim(), 0u);
  r.Next(), r.LandAndAppend();
  r.Generate(6, 9);
}

// Prompts with one beginning that come together: it is computed once.
TEST(SchedulerBlocks, FollowersWaitForTheBeginningThatAnotherComputes) {
  SchedulerOptions o = OneStage();
  o.block_size = 16;
  o.max_rows = 128;
  o.chunk = 64;
  Rig r(o);
  const auto prompt = [](int own) {
    std::vector<TokenId> tokens = Tokens(200);
    for (int i = 0; i < 10; ++i) tokens.push_back(1000 * own + i);
    return tokens;
  };
  for (uint64_t id = 1; id <= 3; ++id) r.Add(id, prompt(static_cast<int>(id)), 300);
  r.Add(4, Tokens(30, 5000), 300);                                          // another text
  r.Add(5, {.tokens = prompt(5), .max_positions = 300, .priority = 1});     // comes first
  r.Add(6, {.tokens = prompt(6), .max_positions = 300, .tenant_salt = 9});  // shares nothing
  EXPECT_EQ(r.Next(), (Shape{{5, 0, 64, false}, {4, 0, 30, true}, {6, 0, 34, false}}));
  uint32_t rows = 128;
  for (int i = 0; i < 30 && r.scheduler.stats().decode < 6; ++i) {
    r.LandAndAppend();
    for (const auto& [seq, first, count, sampled] : r.Next()) {
      EXPECT_TRUE(seq > 3 || first >= 128) << seq;
      rows += first < 210 ? count : 0;
    }
  }
  // Waiting for fewer than 64 tokens is not worth it.
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_GE(r.scheduler.CachedPositions(SeqId{id}), 128u) << id;
  EXPECT_LE(rows, 210u + 30u + 210u + 3 * (210 - 128) + 12);
}

// In a long ring a whole prompt may be on its way for as long as it takes to compute it.
TEST(SchedulerBlocks, FollowersWaitForTheBeginningThatIsOnItsWay) {
  SchedulerOptions o = OneStage();
  o.block_size = 16;
  o.max_rows = o.chunk = 256;
  o.max_in_flight = 3;
  Rig r(o);
  r.Add(1, Tokens(200), 300);
  EXPECT_EQ(r.Next(), (Shape{{1, 0, 200, true}}));
  r.Add(2, Tokens(200), 300);
  r.Add(3, Tokens(30, 5000), 300);  // another text
  EXPECT_EQ(r.Next(), (Shape{{3, 0, 30, true}}));
  EXPECT_EQ(r.Next(), Shape{});
  r.LandAndAppend();
  const Shape next = r.Next();
  const auto second = std::find_if(next.begin(), next.end(), [](const auto& item) { return std::get<0>(item) == 2; });
  ASSERT_NE(second, next.end());
  EXPECT_EQ(std::get<1>(*second), 192u);
}

TEST(SchedulerBlocks, AFollowerDoesNotWaitForOneThatIsHeld) {
  SchedulerOptions o = OneStage();
  o.block_size = 16;
  o.max_rows = o.chunk = 16;
  Rig r(o);
  r.Add(1, Tokens(200), 300);
  r.Add(2, Tokens(200), 300);
  EXPECT_EQ(First(r.Next()), 1u);
  r.LandAndAppend();
  r.scheduler.Hold(SeqId{1});
  EXPECT_EQ(r.Next(), (Shape{{2, 16, 16, false}}));
}

TEST(SchedulerStats, LookupsHitsAndWaitsAreCounted) {
  Rig r(OneStage());
  const Deadline start = Deadline(std::chrono::hours(1));
  for (uint64_t id = 1; id <= 2; ++id) {
    ASSERT_TRUE(r.scheduler.Add(SeqId{id}, {.tokens = Tokens(9), .max_positions = 20}, start).ok());
    const auto plan = r.scheduler.Next(start + milliseconds(30 * id));
    ASSERT_TRUE(plan);
    r.scheduler.Land(plan->step, true);
    while (const auto more = r.scheduler.Next()) r.scheduler.Land(more->step, true);
    r.scheduler.Remove(SeqId{id});
  }
  const SchedulerStats s = r.scheduler.stats();
  EXPECT_EQ(s.admitted, 2u);
  EXPECT_EQ(s.queue_wait.count, s.admitted);
  EXPECT_DOUBLE_EQ(s.queue_wait.sum, 0.09);
  EXPECT_EQ(s.cache_lookups, 2u);
  EXPECT_EQ(s.cache_lookup_tokens, 18u);
  EXPECT_EQ(s.cache_hits, 1u);
  EXPECT_EQ(s.cached_positions, 8u);
}

}  // namespace
}  // namespace gyre
