// The scheduler under seeded load: how often sequences are thrown out for lack of blocks, what each tenant gets, and
// how long anybody waits.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

#include "coordinator/engine/scheduler.h"
#include "tests/testing/draw.h"
#include "tests/testing/scheduler_rig.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using testing::Between;
using testing::RandomBits;

// A ring of one stage: each step lands before the next is made. A step takes 10 ms, and 1 ms for each row.
class Load {
 public:
  explicit Load(const SchedulerOptions& o, uint64_t seed = 1) : scheduler_(o), random_(seed) {}

  struct Job {
    uint32_t prompt = 1, answer = 1, max_answer = 1;
    uint64_t tenant = 0;
    int priority = 0;
    uint32_t shared = 0;  // tokens of the prompt that all have
  };
  uint64_t Add(const Job& job) {
    const uint64_t id = next_id_++;
    std::vector<TokenId> tokens;
    for (uint32_t i = 0; i < job.prompt; ++i) {
      tokens.push_back(i < job.shared ? static_cast<TokenId>(i) : Between(random_, 0, 30000));
    }
    const Status status = scheduler_.Add(SeqId{id},
                                         {.tokens = std::move(tokens),
                                          .max_positions = job.prompt + std::max(job.answer, job.max_answer),
                                          .priority = job.priority,
                                          .tenant = job.tenant},
                                         now_);
    EXPECT_TRUE(status.ok()) << status;
    jobs_[SeqId{id}] = job;
    return id;
  }
  // False: nothing is left to run.
  bool Step() {
    const auto plan = scheduler_.Next(now_);
    if (!plan) return false;
    uint32_t rows = 0;
    for (const StepItem& item : plan->items) {
      rows += item.count;
      rows_[jobs_.at(item.seq).tenant] += item.count;
    }
    now_ += milliseconds(10 + rows);
    ++steps_;
    for (const StepItem& item : scheduler_.Land(plan->step, true, now_).valid) {
      if (!item.sample_last) continue;
      Job& job = jobs_.at(item.seq);
      if (--job.answer == 0) {
        finished_[job.tenant]++;
        ended_in_[item.seq] = steps_;
        scheduler_.Remove(item.seq);
        jobs_.erase(item.seq);
      } else {
        EXPECT_TRUE(scheduler_.Append(item.seq, 1).ok());
      }
    }
    return true;
  }
  uint64_t steps() const { return steps_; }
  size_t left() const { return jobs_.size(); }
  uint64_t rows(uint64_t tenant) { return rows_[tenant]; }
  uint64_t finished(uint64_t tenant) { return finished_[tenant]; }
  uint64_t ended_in(uint64_t id) { return ended_in_[SeqId{id}]; }  // the step; 0: it has not
  int Draw(int low, int high) { return Between(random_, low, high); }
  Scheduler& scheduler() { return scheduler_; }

 private:
  Scheduler scheduler_;
  RandomBits random_;
  Deadline now_{};
  std::map<SeqId, Job> jobs_;
  std::map<uint64_t, uint64_t> rows_, finished_;
  std::map<SeqId, uint64_t> ended_in_;
  uint64_t next_id_ = 1, steps_ = 0;
};

SchedulerOptions Serving(uint32_t num_blocks) {
  SchedulerOptions o;
  o.memory[kPageGroup] = num_blocks;
  o.max_in_flight = 1;
  o.prefix_cache = false;
  return o;
}

struct Case {
  uint32_t blocks;
  int longest;                   // answer
  double preemptions, replayed;  // of the sequences, and of the rows, at most
};

// The whole load wants ten to eighty times the blocks.
TEST(SchedulerLoad, FewSequencesAreThrownOutForLackOfBlocks) {
  for (const Case& c : {Case{150, 64, 0, 0},
                        {150, 256, 0.05, 0.03},
                        {150, 1000, 0.45, 0.25},
                        {400, 256, 0, 0},
                        {400, 1000, 0.15, 0.1},
                        {1000, 1000, 0.08, 0.05}}) {
    Load load(Serving(c.blocks), 7);
    for (int i = 0; i < 300; ++i) {
      load.Add({.prompt = static_cast<uint32_t>(load.Draw(10, 300)),
                .answer = static_cast<uint32_t>(load.Draw(8, c.longest)),
                .max_answer = 1024});
    }
    while (load.Step()) {
    }
    const SchedulerStats s = load.scheduler().stats();
    EXPECT_EQ(load.left(), 0u);
    EXPECT_LE(static_cast<double>(s.preemptions), c.preemptions * 300) << c.blocks << " " << c.longest;
    EXPECT_LE(static_cast<double>(s.replayed_rows), c.replayed * static_cast<double>(s.computed_rows))
        << c.blocks << " " << c.longest;
    EXPECT_EQ(s.memory[kPageGroup].available, c.blocks);
  }
}

// Many at once, one beginning of 1,024 tokens: it is computed once.
TEST(SchedulerLoad, ACommonBeginningIsComputedOnce) {
  for (const SchedulerPolicy policy :
       {SchedulerPolicy::kFcfs, SchedulerPolicy::kPrefillFirst, SchedulerPolicy::kDecodeRoundRobin}) {
    SchedulerOptions o = Serving(4000);
    o.policy = policy;
    o.prefix_cache = true;
    Load load(o, 9);
    for (int i = 0; i < 48; ++i) {
      load.Add(
          {.prompt = 1056, .answer = 64, .max_answer = 64, .tenant = static_cast<uint64_t>(i % 3), .shared = 1024});
    }
    while (load.Step()) {
    }
    const SchedulerStats s = load.scheduler().stats();
    EXPECT_EQ(load.left(), 0u);
    EXPECT_EQ(s.computed_rows, 1024u + 48 * (32 + 63));
    EXPECT_EQ(s.cache_hits, 47u);
  }
}

// Each tenant always has as many requests as it likes; what they get is the same.
TEST(SchedulerLoad, TenantsGetEqualSharesWhateverTheyAskFor) {
  for (const SchedulerPolicy policy :
       {SchedulerPolicy::kFcfs, SchedulerPolicy::kPrefillFirst, SchedulerPolicy::kDecodeRoundRobin}) {
    SchedulerOptions o = Serving(2000);
    o.policy = policy;
    o.max_sequences = 12;
    Load load(o, 3);
    std::map<uint64_t, uint64_t> added;
    const auto refill = [&] {
      for (uint64_t tenant = 1; tenant <= 3; ++tenant) {
        const uint64_t wanted = tenant == 1 ? 40 : 6;
        for (; added[tenant] - load.finished(tenant) < wanted; ++added[tenant]) {
          // Many short ones, a few long ones, and some of each.
          const int prompt = tenant == 1 ? 20 : tenant == 2 ? 600 : load.Draw(10, 300);
          load.Add({.prompt = static_cast<uint32_t>(prompt),
                    .answer = tenant == 2 ? 8u : 30u,
                    .max_answer = 64,
                    .tenant = tenant});
        }
      }
    };
    for (int i = 0; i < 3000; ++i) {
      refill();
      ASSERT_TRUE(load.Step());
    }
    const auto all = static_cast<double>(load.rows(1) + load.rows(2) + load.rows(3));
    for (uint64_t tenant = 1; tenant <= 3; ++tenant) {
      EXPECT_NEAR(static_cast<double>(load.rows(tenant)) / all, 1.0 / 3, 0.06)
          << tenant << " with policy " << static_cast<int>(policy);
    }
    EXPECT_LE(load.scheduler().stats().longest_decode_gap, 9u);
  }
}

TEST(SchedulerLoad, EverybodyFinishesUnderAnEndlessLoadOfHigherPriority) {
  for (const SchedulerPolicy policy :
       {SchedulerPolicy::kFcfs, SchedulerPolicy::kPrefillFirst, SchedulerPolicy::kDecodeRoundRobin}) {
    SchedulerOptions o = Serving(200);
    o.policy = policy;
    o.max_sequences = 8;
    Load load(o, 5);
    std::vector<uint64_t> low;
    for (int i = 0; i < 5; ++i) low.push_back(load.Add({.prompt = 300, .answer = 50, .max_answer = 60}));
    for (int i = 0; i < 20000 && load.ended_in(low.back()) == 0; ++i) {
      while (load.left() < 30) load.Add({.prompt = 200, .answer = 20, .max_answer = 30, .priority = 3});
      ASSERT_TRUE(load.Step());
    }
    for (const uint64_t id : low) EXPECT_GT(load.ended_in(id), 0u) << static_cast<int>(policy);
  }
}

}  // namespace
}  // namespace gyre
