// A plan change as a transaction: every stage prepares, then every stage commits; before the decision any failure
// aborts and the old plan goes on.
#pragma once

#include <functional>
#include <span>

#include "base/clock.h"
#include "base/plan.h"
#include "base/stage_control.h"
#include "base/status.h"

namespace gyre {

struct PlanChangeOptions {
  int block_size = 16;
  uint32_t num_blocks = 0;
  KvType kv_type = KvType::kF16;
  Deadline deadline = kNoDeadline;
  // Bytes of weights over all stages, on the calling thread.
  std::function<void(uint64_t done, uint64_t total)> progress;
};

// Blocks until every stage of `plan` runs it. stages[i] drives stage i; their event sinks are taken over for the call
// and left detached. The fault's own status, with the worker's name, when a stage could not; kDeadlineExceeded names
// those that did not answer. REQUIRES: nothing is in flight in the old plan.
Status ChangePlan(const Plan& plan, std::span<StageControl* const> stages, const PlanChangeOptions& options);

}  // namespace gyre
