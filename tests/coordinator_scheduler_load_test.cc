// The scheduler under seeded load: how often sequences are thrown out for lack of blocks, what each tenant gets, and how
// long anybody waits.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

#include "coordinator/scheduler.h"
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
  };
  uint64_t Add(const Job& job) {
    const uint64_t id = next_id_++;
    std::vector<TokenId> tokens;
    for (uint32_t i = 0; i < job.prompt; ++i) tokens.push_back(Between(random_, 0, 30000));
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
  o.num_blocks = num_blocks;
  o.max_in_flight = 1;
  o.prefix_cache = false;
  return o;
}

TEST(SchedulerLoad, Sim) {
  for (uint32_t blocks : {150u, 400u, 1000u}) {
    for (int longest : {64, 256, 1000}) {
    Load load(Serving(blocks), 7);
    for (int i = 0; i < 300; ++i) {
      load.Add({.prompt = static_cast<uint32_t>(load.Draw(10, 300)),
                .answer = static_cast<uint32_t>(load.Draw(8, longest)),
                .max_answer = 1024});
    }
    while (load.Step()) {
    }
    const SchedulerStats s = load.scheduler().stats();
    printf("blocks %u longest %d: steps %lu preemptions %lu replayed %lu computed %lu\n", blocks, longest, load.steps(), s.preemptions, s.replayed_rows, s.computed_rows);
    }
  }
}

}  // namespace
}  // namespace gyre
