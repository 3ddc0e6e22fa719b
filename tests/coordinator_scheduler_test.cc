// The scheduler as a list of events: what runs, in which order, and what comes back.
#include "coordinator/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>

#include "coordinator/block_manager.h"

namespace gyre {
namespace {

SchedulerOptions Small() {
  SchedulerOptions o;
  o.num_blocks = 16;
  o.block_size = 4;
  o.max_in_flight = 2;
  o.decode_groups = 1;
  o.max_rows = 16;
  o.chunk = 4;
  return o;
}

std::vector<TokenId> Tokens(int n, int from = 0) {
  std::vector<TokenId> t;
  for (int i = 0; i < n; ++i) t.push_back(from + i);
  return t;
}

// (sequence, first position, rows, sampled) of each item.
using Shape = std::vector<std::tuple<uint64_t, uint32_t, uint32_t, bool>>;

class Rig {
 public:
  explicit Rig(SchedulerOptions o) : scheduler(o) {}
  void Add(uint64_t id, std::vector<TokenId> tokens, uint32_t max = 60, int priority = 0) {
    const Status added = scheduler.Add(SeqId{id}, {.tokens = std::move(tokens), .max_positions = max, .priority = priority});
    ASSERT_TRUE(added.ok()) << added;
    Check();
  }
  Shape Next() {
    auto plan = scheduler.Next();
    Check();
    Shape shape;
    if (!plan) return shape;
    flights.push_back(*plan);
    for (const StepItem& i : plan->items) {
      shape.emplace_back(static_cast<uint64_t>(i.seq), i.first_position, i.count, i.sample_last);
    }
    return shape;
  }
  LandedStep Land(bool ok = true) {
    const StepId step = flights.front().step;
    flights.pop_front();
    LandedStep landed = scheduler.Land(step, ok);
    Check();
    return landed;
  }
  void LandAndAppend(TokenId token = 7) {
    for (const StepItem& i : Land().valid) {
      if (i.sample_last) EXPECT_TRUE(scheduler.Append(i.seq, token).ok());
    }
  }
  void Check() {
    const Status status = scheduler.CheckIntegrity();
    ASSERT_TRUE(status.ok()) << status;
  }
  Scheduler scheduler;
  std::deque<StepPlan> flights;
};

TEST(SchedulerTest, ALongPromptIsCutAndOnlyItsLastRowIsSampled) {
  Rig r(Small());
  r.Add(1, Tokens(6));
  EXPECT_EQ(r.Next(), (Shape{{1, 0, 4, false}}));
  EXPECT_EQ(r.Next(), (Shape{{1, 4, 2, true}}));  // chunks of one prompt follow each other round the ring
  EXPECT_EQ(r.Next(), Shape{});                   // two in flight
  r.Land();
  EXPECT_EQ(r.Next(), Shape{});                   // nothing to run before the sample
  r.LandAndAppend();
  EXPECT_EQ(r.Next(), (Shape{{1, 6, 1, true}}));
}

TEST(SchedulerTest, DecodingSequencesAreDealtIntoGroups) {
  SchedulerOptions o = Small();
  o.decode_groups = 2;
  o.num_blocks = 64;
  Rig r(o);
  for (uint64_t id = 1; id <= 4; ++id) r.Add(id, Tokens(2, static_cast<int>(10 * id)));
  EXPECT_EQ(r.Next().size(), 4u);
  r.LandAndAppend();
  EXPECT_EQ(r.Next(), (Shape{{1, 2, 1, true}, {2, 2, 1, true}}));
  EXPECT_EQ(r.Next(), (Shape{{3, 2, 1, true}, {4, 2, 1, true}}));
  r.LandAndAppend();
  EXPECT_EQ(r.Next(), (Shape{{1, 3, 1, true}, {2, 3, 1, true}}));
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
  for (const bool one_class : {true, false}) {
    SchedulerOptions o = Small();
    o.one_class = one_class;
    Rig r(o);
    r.Add(1, Tokens(3));
    r.Next();
    r.LandAndAppend(3);
    for (int t = 4; t < 9; ++t) {
      r.Next();
      r.LandAndAppend(t);
    }
    r.scheduler.Remove(SeqId{1});
    r.Add(2, Tokens(9));
    r.Next();
    EXPECT_EQ(r.scheduler.CachedPositions(SeqId{2}), one_class ? 8u : 0u);
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
  o.num_blocks = 5;
  o.prefix_cache = false;
  Rig r(o);
  r.Add(1, Tokens(8), 20);
  r.Add(2, Tokens(4, 50), 20);
  for (int i = 0; i < 60 && r.scheduler.stats().preemptions == 0; ++i) {
    r.Next();
    if (!r.flights.empty()) r.LandAndAppend();
  }
  EXPECT_EQ(r.scheduler.State(SeqId{2}), SeqState::kWaiting);
  EXPECT_EQ(r.scheduler.Incarnation(SeqId{2}), 1u);
  EXPECT_EQ(r.scheduler.Incarnation(SeqId{1}), 0u);
}

TEST(SchedulerTest, CapacityIsRefusedWithTheNumbers) {
  Rig r(Small());
  const Status status = r.scheduler.Add(SeqId{1}, {.tokens = Tokens(65), .max_positions = 65});
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_NE(Message(status).find("65"), std::string::npos);
  r.Add(2, Tokens(3), 4);
  r.Next();
  r.LandAndAppend();
  r.Next();
  r.Land();
  EXPECT_TRUE(absl::IsResourceExhausted(r.scheduler.Append(SeqId{2}, 1)));
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

// Pages as a stage keeps them: what was written last at each place. A fingerprint stands for a row's keys and values: it
// covers every token up to the row, as attention does.
class Pages {
 public:
  Pages(uint32_t blocks, uint32_t block_size) : size_(block_size), cells_(blocks * block_size, 0) {}

  // Computes an item's rows. False: a row read something that is not its own sequence's beginning.
  bool Run(const StepItem& item, const std::vector<TokenId>& tokens, bool fails) {
    uint64_t expected = 1;
    for (uint32_t p = 0; p < item.first_position; ++p) {
      expected = Mix(expected, tokens[p]);
      if (!fails && cells_[At(item, p)] != expected) return false;
    }
    for (uint32_t p = item.first_position; p < item.first_position + item.count; ++p) {
      expected = Mix(expected, tokens[p]);
      cells_[At(item, p)] = fails ? 0xBAD : expected;
    }
    return true;
  }

 private:
  static uint64_t Mix(uint64_t h, TokenId t) { return (h ^ static_cast<uint64_t>(t)) * 0x9E3779B97F4A7C15u + 1; }
  size_t At(const StepItem& item, uint32_t p) const { return item.blocks[p / size_] * size_ + p % size_; }
  const uint32_t size_;
  std::vector<uint64_t> cells_;
};

struct Live {
  std::vector<TokenId> tokens;
  uint32_t wanted = 0;
};

// Returns the number of finished sequences, or -1 where a row read what is not its own.
int Soak(uint32_t seed, bool corrupt) {
  std::mt19937 random(seed);
  SchedulerOptions o;
  o.block_size = 1 + random() % 5;
  o.num_blocks = 40 / o.block_size + random() % 20;
  o.max_in_flight = 1 + random() % 4;
  o.decode_groups = 1 + random() % 3;
  o.max_rows = 1 + random() % 12;
  o.chunk = 1 + random() % 9;
  o.max_sequences = 1 + random() % 6;
  o.prefix_cache = random() % 4 != 0;
  o.chunked_prefill = random() % 4 != 0;
  o.continuous_batching = random() % 5 != 0;
  o.one_class = random() % 2 != 0;
  Scheduler scheduler(o);
  Pages pages(o.num_blocks, o.block_size);
  std::map<SeqId, Live> live;
  struct Flight {
    StepPlan plan;
    bool ok;
  };
  std::deque<Flight> flights;
  const uint32_t room = o.num_blocks * o.block_size;
  uint64_t next_id = 1;
  int finished = 0, added = 0;
  const int total = 40;
  for (int event = 0; event < 20000 && (added < total || !live.empty() || !flights.empty()); ++event) {
    const uint32_t dice = random() % 100;
    if (dice < 8 && added < total) {
      Live l;
      const uint32_t n = 1 + random() % std::min(30u, room - 1);
      for (uint32_t i = 0; i < n; ++i) l.tokens.push_back(static_cast<TokenId>(i < 12 ? i : random() % 3));  // shared beginnings
      l.wanted = std::min<uint32_t>(room, n + 1 + random() % 20);
      const SeqId id{next_id++};
      EXPECT_TRUE(scheduler.Add(id, {.tokens = l.tokens, .max_positions = l.wanted, .priority = static_cast<int>(random() % 2)}).ok());
      live[id] = l;
      ++added;
    } else if (dice < 10 && !live.empty()) {
      auto it = std::next(live.begin(), static_cast<int>(random() % live.size()));
      scheduler.Remove(it->first);
      live.erase(it);
    } else if (dice < 55) {
      if (auto plan = scheduler.Next()) flights.push_back({*plan, random() % 40 != 0});
    } else if (!flights.empty()) {
      Flight f = std::move(flights.front());
      flights.pop_front();
      // Stages compute a step when it reaches them; in this model, when it lands: order is what matters.
      std::map<SeqId, bool> read_its_own;
      for (StepItem& item : f.plan.items) {
        const auto it = live.find(item.seq);
        if (it == live.end() || scheduler.Incarnation(item.seq) != item.incarnation) {
          // Nobody reads it any more; it writes all the same.
          std::vector<TokenId> garbage(item.first_position + item.count, 99);
          pages.Run(item, garbage, true);
          continue;
        }
        if (corrupt && random() % 50 == 0 && item.blocks.size() > 1) std::swap(item.blocks[0], item.blocks[1]);
        read_its_own[item.seq] = pages.Run(item, it->second.tokens, !f.ok);
      }
      const LandedStep landed = scheduler.Land(f.plan.step, f.ok);
      for (SeqId id : landed.failed) {
        scheduler.Remove(id);
        live.erase(id);
      }
      for (const StepItem& item : landed.valid) {
        Live& l = live.at(item.seq);
        if (!read_its_own[item.seq]) return -1;
        if (!item.sample_last) continue;
        if (random() % 20 == 0) {
          scheduler.Repeat(item.seq);
          continue;
        }
        const auto token = static_cast<TokenId>(random() % 3);
        if (l.tokens.size() < l.wanted && scheduler.Append(item.seq, token).ok()) {
          l.tokens.push_back(token);
        } else {
          scheduler.Remove(item.seq);
          live.erase(item.seq);
          ++finished;
        }
      }
    }
    const Status status = scheduler.CheckIntegrity();
    if (!status.ok()) ADD_FAILURE() << "seed " << seed << " event " << event << ": " << status;
    if (!status.ok()) return 0;
  }
  EXPECT_TRUE(live.empty()) << "seed " << seed << ": " << live.size() << " sequences never ended";
  const SchedulerStats stats = scheduler.stats();
  EXPECT_EQ(stats.blocks_available, stats.num_blocks) << "seed " << seed;
  EXPECT_TRUE(scheduler.idle());
  return finished;
}

TEST(SchedulerSoakTest, EverySequenceEndsAndReadsOnlyItsOwnBeginning) {
  int finished = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    const int n = Soak(seed, false);
    ASSERT_GE(n, 0) << "seed " << seed << ": a row read what is not its own";
    finished += n;
  }
  EXPECT_GT(finished, 1500);
}

TEST(SchedulerSoakTest, ASwappedBlockIsNoticed) {
  int noticed = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) noticed += Soak(seed, true) < 0;
  EXPECT_GT(noticed, 5);
}

TEST(BlockManagerTest, EvictsTheLongestUnusedAndComparesTokens) {
  BlockManager m(3, 2, true);
  const std::vector<RowClass> c(2, RowClass::kPrompt);
  const auto root = m.TakePrefix(0, {}, {}, 0).chain;
  const BlockId a = *m.Allocate(), b = *m.Allocate();
  const ChainId first = m.Publish(root, a, std::vector<TokenId>{1, 2}, c);
  m.Publish(first, b, std::vector<TokenId>{3, 4}, c);
  m.Release(b);
  m.Release(a);
  EXPECT_EQ(m.cached(), 2u);
  const std::vector<RowClass> c4(4, RowClass::kPrompt);
  EXPECT_EQ(m.TakePrefix(0, std::vector<TokenId>{1, 2, 3, 4}, c4, 4).blocks, (std::vector<BlockId>{a, b}));
  EXPECT_TRUE(m.TakePrefix(0, std::vector<TokenId>{1, 9, 3, 4}, c4, 4).blocks.empty());
  EXPECT_TRUE(m.TakePrefix(1, std::vector<TokenId>{1, 2, 3, 4}, c4, 4).blocks.empty());
  m.Release(b);
  m.Release(a);
  m.Allocate();                       // the free one
  EXPECT_EQ(*m.Allocate(), b);        // then the tail of the chain
  EXPECT_EQ(m.TakePrefix(0, std::vector<TokenId>{1, 2, 3, 4}, c4, 4).blocks, (std::vector<BlockId>{a}));
  EXPECT_FALSE(m.Allocate().has_value());
  EXPECT_TRUE(m.CheckIntegrity(std::vector<uint32_t>{1, 1, 1}).ok());
  EXPECT_FALSE(m.CheckIntegrity(std::vector<uint32_t>{1, 2, 1}).ok());
}

}  // namespace
}  // namespace gyre
