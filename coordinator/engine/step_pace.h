// How many steps are in flight and how many rows each may have: the settings of the ring, and what is learned from the
// times of steps (docs/scheduler.md). Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "coordinator/engine/draft_depth.h"
#include "coordinator/engine/learned_time.h"
#include "coordinator/engine/scheduler_types.h"
#include "coordinator/engine/step_budget.h"
#include "coordinator/engine/steps_in_flight.h"

namespace gyre {

// The rows of a step.
struct StepRows {
  uint32_t decode = 0, prompt = 0;
  uint32_t all() const { return decode + prompt; }
};

// Not thread-safe: the scheduler owns it.
class StepPace {
 public:
  explicit StepPace(const SchedulerOptions& options) : options_(options) {}

  // Another ring.
  void Begin(const SchedulerOptions& options) {
    options_ = options;
    depth_.Begin(options.decode_groups);
    drafts_.Begin();
  }
  // Before a step is planned.
  void Choose(uint32_t decoding) {
    if (options_.adapts_in_flight) depth_.Choose(decoding);
  }
  // A step of these rows, launched at `launched`, has landed `now`. A step that failed says nothing of times.
  void Landed(const StepRows& rows, Deadline launched, bool ok, Deadline now, const StepTimes& times) {
    if (ok) {
      // The ring was free for it when the step before had landed.
      budget_.Observe(rows.decode, rows.prompt, now - std::max(launched, last_landed_));
      depth_.Observe(rows.decode, rows.prompt, now - launched, times);
      if (rows.prompt == 0) drafts_.Observe(rows.decode, times);
      if (!times.queued) drafts_.ObserveWay(rows.all(), now - launched - times.computed);
    }
    last_landed_ = now;
  }

  uint32_t groups() const { return options_.adapts_in_flight ? depth_.groups() : options_.decode_groups; }
  uint32_t most_in_flight() const { return options_.adapts_in_flight ? depth_.steps() : options_.max_in_flight; }

  // Decode rows that a step may have where the steps of so many groups are in flight.
  uint32_t DecodeRows(uint32_t decoding, uint32_t groups_in_flight) const {
    // A further step beside those of all groups would take the few rows that came back last, and stay small for ever:
    // each step costs a pass over the weights. Waiting for the next group to land evens the groups out.
    return groups_in_flight >= groups() ? 0 : Group(decoding);
  }
  // Prompt rows that a step may have beside so many decode rows, while `prompts` sequences have prompt rows to compute.
  // While sequences decode, every step is on their way, one without rows of theirs too.
  uint32_t PromptRows(uint32_t decode_rows, uint32_t prompts, uint32_t decoding) const {
    const bool none = options_.step_tokens == 0 && options_.policy == SchedulerPolicy::kPrefillFirst;
    if (decoding == 0 || none) return options_.max_rows;
    if (options_.step_tokens > 0) return options_.step_tokens;
    return budget_.Rows(decode_rows > 0 ? decode_rows : Group(decoding), prompts, decoding);
  }
  // A lone prompt fills the stages only in pieces: with eight for each stage, filling and emptying costs them a
  // sixteenth.
  uint32_t Chunk(uint32_t prompt) const {
    if (options_.decode_groups == 1) return options_.chunk;
    constexpr uint32_t kLeast = 64;  // fewer rows would not pay for the pass over the weights
    const uint32_t piece = (prompt / (8 * options_.decode_groups) + 15) / 16 * 16;
    return std::clamp(piece, std::min(kLeast, options_.chunk), options_.chunk);
  }

  // The number of drafts that a step of `rows` takes, of which `tokens` decide one each: the first ones of those with
  // these chances, falling.
  size_t Drafts(const StepRows& rows, uint32_t tokens, std::span<const double> chances) const {
    // Beside a prompt's rows the products take their time, and not the reading of weights, so that no row is cheap.
    if (rows.prompt > 0) return 0;
    return drafts_.Choose({.rows = rows.decode, .transit = depth_.latency().value_or(0), .steps = groups()}, tokens,
                          chances);
  }

  // The number of drafts that each decoding sequence looks for; each draft takes `each` to find. `may_go_on`: further
  // ones may follow while they are in flight.
  DraftsWanted DraftsAhead(uint32_t decoding, double chance, size_t most, Duration each, bool may_go_on) const {
    return drafts_.ChooseAhead({.rows = Group(decoding), .transit = depth_.latency().value_or(0), .steps = groups()},
                               chance, most, SecondsOf(each), may_go_on ? decoding : 0);
  }

  // The number of rows that a sequence gets behind its drafts in flight, in a step with these others: the first ones of
  // those with these chances, falling.
  size_t DraftsBehind(const StepRows& rows, uint32_t decoding, std::span<const double> chances) const {
    if (rows.prompt > 0) return 0;
    return drafts_.ChooseBehind({.rows = rows.decode, .transit = depth_.latency().value_or(0), .steps = groups()},
                                chances, decoding);
  }

 private:
  uint32_t Group(uint32_t decoding) const { return (decoding + groups() - 1) / groups(); }

  SchedulerOptions options_;
  StepBudget budget_;
  StepsInFlight depth_;
  DraftDepth drafts_;
  Deadline last_landed_{};
};

}  // namespace gyre
