// A scheduler that a test drives by a list of events.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <tuple>
#include <utility>
#include <vector>

#include "coordinator/engine/scheduler.h"

namespace gyre::testing {

inline SchedulerOptions Small() {
  SchedulerOptions o;
  o.memory[kPageGroup] = 16;
  o.block_size = 4;
  o.max_in_flight = 2;
  o.decode_groups = 1;
  o.max_rows = 16;
  o.chunk = 4;
  return o;
}

inline std::vector<TokenId> Tokens(int n, int from = 0) {
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
    Add(id, {.tokens = std::move(tokens), .max_positions = max, .priority = priority});
  }
  void Add(uint64_t id, SequenceParams params) {
    const Status added = scheduler.Add(SeqId{id}, std::move(params));
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
  // Generates one token per step: [first, end).
  void Generate(TokenId first, TokenId end) {
    for (TokenId t = first; t < end; ++t) {
      Next();
      LandAndAppend(t);
    }
  }
  void Check() {
    const Status status = scheduler.CheckIntegrity();
    ASSERT_TRUE(status.ok()) << status;
  }
  Scheduler scheduler;
  std::deque<StepPlan> flights;
};

}  // namespace gyre::testing
