// Random events against a scheduler with few blocks, checked after every one.
#include <array>
#include <functional>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/scheduler_world.h"
#include "tests/testing/worlds.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;
using testing::SchedulerWorld;
using testing::WorldOptions;

WorldOptions RandomOptions(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&random](uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random);
  };
  SchedulerOptions o;
  o.memory[kPageGroup] = pick(1, 24);
  o.block_size = pick(1, 5);
  o.max_in_flight = pick(1, 5);
  o.decode_groups = pick(1, 5);
  o.max_rows = pick(1, 12);
  o.chunk = pick(1, 7);
  o.max_sequences = pick(1, 7);
  o.prefix_cache = pick(0, 4) > 0;
  o.chunked_prefill = pick(0, 4) > 0;
  o.continuous_batching = pick(0, 4) > 0;
  o.prefill_matches_decode = pick(0, 1) > 0;
  o.policy = static_cast<SchedulerPolicy>(pick(0, 2));
  o.step_tokens = pick(0, 1) > 0 ? pick(1, 6) : 0;
  o.reserve_positions = pick(0, 5) == 0 ? pick(1, o.memory[kPageGroup] * o.block_size) : 0;
  o.takes_all_drafts = true;
  o.answer_bytes = 100 * pick(1, 16);  // answers of SchedulerWorld's prompts have 100 each
  o.sequence_answer_bytes = 100 * pick(1, 8);
  return {.scheduler = o,
          .seed = seed,
          .error_rate = pick(0, 2) > 0 ? 0.05 : 0,
          .repeat_rate = pick(0, 2) > 0 ? 0.05 : 0,
          .hold_percent = pick(0, 1) > 0 ? 6 : 0,
          .ring_percent = std::array{0, 2, 12}[pick(0, 2)],
          .draft_rate = pick(0, 2) > 0 ? 0.7 : 0,
          .shift_rate = pick(0, 1) > 0 ? 0.5 : 0};
}

// Steps that a decoding sequence waits at most (docs/scheduler.md): until it is overdue, then those that serve all
// overdue ones, each after all that is in flight.
uint64_t LongestWait(const SchedulerOptions& o) {
  const uint32_t groups = std::min(o.decode_groups, o.max_in_flight);
  uint32_t turns = 0;
  for (uint32_t decoding = 1; decoding <= o.max_sequences; ++decoding) {
    const uint32_t rows = std::min(o.max_rows, (decoding + groups - 1) / groups);
    turns = std::max(turns, (decoding + rows - 1) / rows);
  }
  return 8 + uint64_t{turns} * o.max_in_flight;
}

using Options = WorldOptions (*)(uint64_t seed);

std::function<std::unique_ptr<SchedulerWorld>(uint64_t seed)> WorldsWith(Options options) {
  return [options](uint64_t seed) { return std::make_unique<SchedulerWorld>(options(seed)); };
}

// A soak that reaches nothing tests nothing: the events of all seeds together must have caused plenty of each.
TEST(SchedulerSoak, EverySequenceFinishesOnItsOwnRows) {
  SchedulerStats sum;
  uint64_t longest_gap = 0;
  uint64_t events = 0, holds = 0, shifts = 0, lost = 0, failed = 0, members_lost = 0;
  uint64_t gone_on = 0, gone_on_void = 0, left_out = 0;
  const auto add = [&](uint64_t seed, const SchedulerWorld& world) {
    events += world.events();
    gone_on += world.gone_on();
    gone_on_void += world.gone_on_void();
    left_out += world.left_out();
    holds += world.holds();
    shifts += world.shifts();
    lost += world.lost();
    failed += world.failed();
    members_lost += world.members_lost();
    const SchedulerStats stats = world.stats();
    const SchedulerOptions o = RandomOptions(seed).scheduler;
    if (o.chunked_prefill) {
      EXPECT_LE(stats.longest_decode_gap, LongestWait(o)) << seed;
      longest_gap = std::max(longest_gap, stats.longest_decode_gap);
    }
    sum.aged += stats.aged;
    sum.cache_hits += stats.cache_hits;
    sum.cache_lookups += stats.cache_lookups;
    sum.preemptions += stats.preemptions;
    sum.draft_rows += stats.draft_rows;
    sum.accepted_drafts += stats.accepted_drafts;
    sum.cached_positions += stats.cached_positions;
    sum.replayed_rows += stats.replayed_rows;
    sum.computed_rows += stats.computed_rows;
    sum.steps += stats.steps;
  };
  if (!testing::Soak({400}, 600, WorldsWith(RandomOptions), add)) return;
  EXPECT_GE(events, 200000u);
  EXPECT_GE(sum.preemptions, 1000u);
  EXPECT_GE(sum.cached_positions, 10000u);
  EXPECT_GE(sum.replayed_rows, 10000u);
  EXPECT_GE(sum.accepted_drafts, 1000u);
  EXPECT_GE(sum.draft_rows, sum.accepted_drafts + 1000);
  EXPECT_GE(gone_on, 500u);
  EXPECT_GE(gone_on_void, 500u);
  EXPECT_GE(left_out, 100u);
  EXPECT_GE(holds, 2000u);
  EXPECT_GE(shifts, 1000u);
  EXPECT_GE(lost, 5u);
  EXPECT_GE(failed, 20u);
  EXPECT_GE(members_lost, 1000u);
  EXPECT_GE(longest_gap, 8u);
  EXPECT_GE(sum.aged, 10u);
  EXPECT_GE(sum.cache_hits, 1000u);
  EXPECT_GE(sum.cache_lookups, sum.cache_hits + 1000);
  RecordProperty("events", std::to_string(events));
  RecordProperty("preemptions", std::to_string(sum.preemptions));
  RecordProperty("cached_positions", std::to_string(sum.cached_positions));
  RecordProperty("computed_rows", std::to_string(sum.computed_rows));
  RecordProperty("longest_decode_gap", std::to_string(longest_gap));
  RecordProperty("aged", std::to_string(sum.aged));
}

// Recurrent state can't go back: what is sent again begins again, from a snapshot or from position 0.
TEST(SchedulerSoak, RecurrentStateTakesEachRowOnce) {
  SchedulerStats sum;
  uint64_t lost = 0, failed = 0, refused = 0, snapshots = 0;
  const auto play = [&](uint64_t seed) {
    WorldOptions options = RandomOptions(seed);
    std::mt19937_64 random(seed + 1000);
    SchedulerOptions& o = options.scheduler;
    o.memory[kSlotGroup] = std::uniform_int_distribution<uint32_t>(1, 2 * o.max_sequences + 2)(random);
    o.snapshot_every = std::uniform_int_distribution<uint32_t>(1, 12)(random);
    SchedulerWorld world(options);
    for (int i = 0; i < 600; ++i) {
      world.RandomEvent();
      snapshots = std::max<uint64_t>(snapshots, world.stats().memory[kSlotGroup].published);
    }
    world.LeaveAlone();
    ASSERT_EQ(world.problem(), "");
    lost += world.lost();
    failed += world.failed();
    refused += world.refused();
    const SchedulerStats stats = world.stats();
    sum.preemptions += stats.preemptions;
    sum.cached_positions += stats.cached_positions;
    sum.cache_hits += stats.cache_hits;
    sum.replayed_rows += stats.replayed_rows;
  };
  if (!testing::PlayWorlds({300}, play)) return;
  EXPECT_GE(sum.preemptions, 1000u);
  EXPECT_GE(sum.cached_positions, 5000u);
  EXPECT_GE(sum.cache_hits, 500u);
  EXPECT_GE(sum.replayed_rows, 10000u);
  EXPECT_GE(lost, 5u);
  EXPECT_GE(failed, 20u);
  EXPECT_GE(refused, 20u);
  EXPECT_GE(snapshots, 5u);
}

WorldOptions WindowedOptions(uint64_t seed) {
  WorldOptions options = RandomOptions(seed);
  std::mt19937_64 random(seed + 2000);
  const auto pick = [&random](uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random);
  };
  SchedulerOptions& o = options.scheduler;
  o.window = pick(1, 12);
  o.memory.least[kWindowGroup] = std::min(o.memory[kPageGroup], (o.window + o.block_size - 1) / o.block_size + 1);
  o.memory[kWindowGroup] =
      o.chunked_prefill ? pick(o.memory.least[kWindowGroup], o.memory[kPageGroup]) : o.memory[kPageGroup];
  if (seed % 2 == 0) o.memory[kSlotGroup] = pick(1, 2 * o.max_sequences + 2);
  return options;
}

// Blocks behind a window come back, and no row reads one that did. Every other seed has recurrent state too.
TEST(SchedulerSoak, WindowsGiveTheirBlocksBack) {
  SchedulerStats sum;
  uint64_t lost = 0, failed = 0, smaller = 0, moved_on = 0;
  const auto add = [&](uint64_t seed, const SchedulerWorld& world) {
    const SchedulerOptions o = WindowedOptions(seed).scheduler;
    lost += world.lost();
    failed += world.failed();
    smaller += o.memory[kWindowGroup] < o.memory[kPageGroup] ? 1 : 0;
    const SchedulerStats stats = world.stats();
    if (o.chunked_prefill) EXPECT_LE(stats.longest_decode_gap, LongestWait(o)) << seed;
    if (o.memory[kWindowGroup] < o.memory[kPageGroup]) moved_on += stats.computed_rows > 0 ? 1 : 0;
    sum.preemptions += stats.preemptions;
    sum.cached_positions += stats.cached_positions;
    sum.cache_hits += stats.cache_hits;
    sum.replayed_rows += stats.replayed_rows;
  };
  if (!testing::Soak({400}, 500, WorldsWith(WindowedOptions), add)) return;
  EXPECT_GE(smaller, 100u);
  EXPECT_GE(moved_on, 100u);
  EXPECT_GE(sum.preemptions, 1000u);
  EXPECT_GE(sum.cached_positions, 5000u);
  EXPECT_GE(sum.cache_hits, 500u);
  EXPECT_GE(sum.replayed_rows, 10000u);
  EXPECT_GE(lost, 5u);
  EXPECT_GE(failed, 20u);
}

WorldOptions ReplicatedOptions(uint64_t seed) {
  WorldOptions options = RandomOptions(seed);
  std::mt19937_64 random(seed + 3000);
  const auto pick = [&random](uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random);
  };
  SchedulerOptions& o = options.scheduler;
  o.prefix_cache = true;
  o.memory[kPageGroup] = std::max(o.memory[kPageGroup], 6u);
  if (seed % 3 == 1) {
    o.window = pick(1, 12);
    o.memory.least[kWindowGroup] = std::min(o.memory[kPageGroup], (o.window + o.block_size - 1) / o.block_size + 1);
    o.memory[kWindowGroup] =
        o.chunked_prefill ? pick(o.memory.least[kWindowGroup], o.memory[kPageGroup]) : o.memory[kPageGroup];
  }
  if (seed % 3 == 2) {
    o.memory[kSlotGroup] = pick(2, 2 * o.max_sequences + 2);
    o.snapshot_every = pick(1, 12);
  }
  options.ring_percent = 6;
  options.replica_percent = static_cast<int>(pick(5, 60));
  return options;
}

// Members are lost, and what their replicas have is used again: never a page that is older than its text.
TEST(SchedulerSoak, WhatIsRestoredIsWhatWasLost) {
  uint64_t restores = 0, restored = 0, cached = 0, lost = 0;
  const auto add = [&](uint64_t, const SchedulerWorld& world) {
    restores += world.restores();
    restored += world.restored();
    lost += world.members_lost();
    cached += world.stats().cached_positions;
  };
  if (!testing::Soak({300}, 800, WorldsWith(ReplicatedOptions), add)) return;
  EXPECT_GE(restores, 1000u);
  EXPECT_GE(lost, restores + 200);
  EXPECT_GE(restored, 3000u);
  EXPECT_GE(cached, 20000u);
  RecordProperty("restored", std::to_string(restored));
}

// Without the comparison of steps stale pages are used, and seen.
TEST(SchedulerSoak, FindsThatTheReplicaIsTrustedTooFar) {
  const auto faulty = [](uint64_t seed) {
    WorldOptions options = ReplicatedOptions(seed);
    options.trusts_replica = true;
    return options;
  };
  EXPECT_GE(testing::WorldsWithProblems({30}, 800, WorldsWith(faulty)), 10u);
}

WorldOptions RestartedOptions(uint64_t seed) {
  WorldOptions options = ReplicatedOptions(seed);
  options.ring_percent = 1;
  options.replica_percent = 0;
  options.restart_percent = 12;
  return options;
}

// Schedulers end, and the next ones go on with an index that lags behind the pages: never with a page that was written
// since.
TEST(SchedulerSoak, WhatIsTakenOverIsWhatThePagesHave) {
  uint64_t take_overs = 0, taken = 0, stale = 0;
  const auto add = [&](uint64_t, const SchedulerWorld& world) {
    take_overs += world.take_overs();
    taken += world.taken_over();
    stale += world.stale();
  };
  if (!testing::Soak({300}, 800, WorldsWith(RestartedOptions), add)) return;
  EXPECT_GE(take_overs, 2000u);
  EXPECT_GE(taken, 5000u);
  EXPECT_GE(stale, 2000u);
  RecordProperty("taken_over", std::to_string(taken));
  RecordProperty("stale", std::to_string(stale));
}

// Without the stamps of the pages stale entries are used, and seen.
TEST(SchedulerSoak, FindsThatAStaleIndexIsTrusted) {
  const auto faulty = [](uint64_t seed) {
    WorldOptions options = RestartedOptions(seed);
    options.trusts_index = true;
    return options;
  };
  EXPECT_GE(testing::WorldsWithProblems({100}, 800, WorldsWith(faulty)), 20u);
}

// The checker itself: a bug planted between scheduler and stages must be found.
std::string ProblemWith(std::function<void(StepPlan*)> corrupt, uint32_t num_slots = 0, uint32_t window_blocks = 0) {
  WorldOptions options = RandomOptions(3);
  options.scheduler = {.memory = {.units = {16, num_slots, window_blocks}},
                       .block_size = 2,
                       .window = 5,
                       .max_in_flight = 3,
                       .decode_groups = 3,
                       .max_rows = 8,
                       .chunk = 4,
                       .max_sequences = 5,
                       .takes_all_drafts = true};
  options.draft_rate = 0.7;
  options.corrupt = std::move(corrupt);
  SchedulerWorld world(options);
  testing::PlayEvents(world, 2000);
  return world.problem();
}

TEST(SchedulerSoak, FindsNothingWherePlansAreLeftAlone) {
  EXPECT_EQ(ProblemWith([](StepPlan*) {}), "");
  EXPECT_EQ(ProblemWith([](StepPlan*) {}, 8), "");
  EXPECT_EQ(ProblemWith([](StepPlan*) {}, 8, 10), "");
}

TEST(SchedulerSoak, FindsATableThatNamesAnothersBlock) {
  // From the third block on, as a stale table would: the second block is replaced by what another sequence wrote.
  BlockId others = 0;
  const std::string problem = ProblemWith([&others](StepPlan* plan) {
    for (StepItem& item : plan->items) {
      if (item.first_position >= 4 && item.blocks[1] != others) std::swap(item.blocks[0], others);
      others = item.blocks.back();
    }
  });
  EXPECT_NE(problem, "");
}

TEST(SchedulerSoak, FindsSwappedBlocks) {
  EXPECT_NE(ProblemWith([](StepPlan* plan) {
              for (StepItem& item : plan->items) {
                if (item.first_position >= 4) std::swap(item.blocks[0], item.blocks[1]);
              }
            }),
            "");
}

TEST(SchedulerSoak, FindsSwappedWindowedBlocks) {
  EXPECT_NE(ProblemWith(
                [](StepPlan* plan) {
                  for (StepItem& item : plan->items) {
                    if (item.window.blocks.size() > 2) std::swap(item.window.blocks[0], item.window.blocks[1]);
                  }
                },
                0, 12),
            "");
}

TEST(SchedulerSoak, FindsASnapshotThatIsNotTaken) {
  EXPECT_NE(ProblemWith(
                [](StepPlan* plan) {
                  for (StepItem& item : plan->items) item.slots.copy = kNoBlock;
                },
                8),
            "");
}

TEST(SchedulerSoak, FindsASlotOfAnother) {
  BlockId others = 0;
  EXPECT_NE(ProblemWith(
                [&others](StepPlan* plan) {
                  for (StepItem& item : plan->items) std::swap(item.slots.slot, others);
                },
                8),
            "");
}

TEST(SchedulerSoak, FindsASkippedRow) {
  EXPECT_THAT(ProblemWith([](StepPlan* plan) {
                StepItem& item = plan->items.front();
                if (item.count > 1) ++item.first_position, --item.count;
              }),
              HasSubstr("sequence"));
}

TEST(SchedulerSoak, FindsADraftThatIsNotTheOneThatWasSent) {
  EXPECT_NE(ProblemWith([](StepPlan* plan) {
              for (StepItem& item : plan->items) {
                if (!item.drafts.empty()) item.drafts.front() = 1 - item.drafts.front();
              }
            }),
            "");
}

TEST(SchedulerSoak, FindsAMarkAfterAnotherRow) {
  const auto faulty = [](uint64_t seed) {
    WorldOptions options = RandomOptions(seed);
    options.scheduler.memory[kSlotGroup] = 2 * options.scheduler.max_sequences + 8;
    options.draft_rate = 1;
    options.corrupt = [](StepPlan* plan) {
      for (StepItem& item : plan->items) {
        if (!item.slots.marks.empty()) ++item.slots.marks.front().row;
      }
    };
    return options;
  };
  EXPECT_GE(testing::WorldsWithProblems({40}, 800, WorldsWith(faulty)), 1u);
}

TEST(SchedulerSoak, FindsASampleThatWasForgotten) {
  EXPECT_THAT(ProblemWith([](StepPlan* plan) { plan->items.back().sample_last = false; }), HasSubstr("sample_last"));
}

}  // namespace
}  // namespace gyre
