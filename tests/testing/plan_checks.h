// What must be true of every step that a Scheduler plans.
#pragma once

#include <cstdint>
#include <deque>
#include <map>

#include "base/ids.h"
#include "base/status.h"
#include "coordinator/engine/scheduler_types.h"
#include "tests/testing/simulated_stage.h"
#include "tests/testing/tracked_sequence.h"

namespace gyre::testing {

class PlanChecks {
 public:
  using Sequences = std::map<SeqId, TrackedSequence>;
  using Flights = std::deque<StepInFlight>;
  explicit PlanChecks(const SchedulerOptions& options) : o_(options) {}

  // The step as a whole. `before`: the scheduler's, without it.
  Status CheckPlan(const StepPlan& plan, const SchedulerStats& before, const Sequences& live, const Flights& flights);
  // One of the step's items, before it counts as launched. `cached`: the rows that the sequence has from the prefix
  // cache.
  Status CheckItem(const StepPlan& plan, const StepItem& item, const TrackedSequence& sequence, uint32_t cached,
                   const Flights& flights);
  // The most windowed blocks that a step had for one sequence.
  uint64_t most_windowed() const { return most_windowed_; }

 private:
  Status CheckAnswers(const StepPlan& plan, const Sequences& live, const Flights& flights) const;
  Status CheckDrafts(const StepItem& item, const TrackedSequence& s) const;
  Status CheckRows(const StepItem& item, const TrackedSequence& s, uint32_t cached) const;
  Status CheckMemory(const StepItem& item);
  Status CheckExclusive(const StepItem& item, const Flights& flights) const;
  Status CheckAlone(const StepPlan& plan, const StepItem& item, const TrackedSequence& s, const Flights& flights) const;

  const SchedulerOptions o_;
  StepId last_step_{};
  uint64_t most_windowed_ = 0;
};

}  // namespace gyre::testing
