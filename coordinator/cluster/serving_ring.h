// The plan that serves, and whether its ring is whole or to be repaired. Pure.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/plan.h"
#include "base/status.h"

namespace gyre {

// Not thread-safe.
class ServingRing {
 public:
  // Null: no plan serves.
  const Plan* plan() const { return plan_ ? &*plan_ : nullptr; }
  // The same where the ring is whole.
  const Plan* whole() const { return broken_ ? nullptr : plan(); }
  // The ring of the plan is not to be used any more. Without a plan nothing is broken.
  bool broken() const { return broken_; }
  // Whether the member has layers in it.
  bool Has(const std::string& worker) const { return plan_ && plan_->StageOf(worker) >= 0; }
  // The plan is the local member's alone, until enough workers are there.
  bool fallback() const { return fallback_; }
  // When the repair is due; kNoDeadline: nothing is to be repaired.
  Deadline repair_at() const { return repair_at_; }

  void Serve(Plan plan) {
    plan_ = std::move(plan);
    broken_ = false;
    untold_ = absl::OkStatus();
    repair_at_ = kNoDeadline;
  }
  void SetFallback(bool fallback) { fallback_ = fallback; }
  void Break(Deadline repair_at) {
    broken_ = true;
    repair_at_ = repair_at;
  }
  // Why it broke, to be told when the repair begins: if a member is found to be lost meanwhile, its loss is the one
  // event.
  void Untold(const Status& why) { untold_ = why; }
  // The repair begins. OK: nobody is to be told.
  Status BeginRepair() {
    repair_at_ = kNoDeadline;
    return std::exchange(untold_, absl::OkStatus());
  }
  // No plan serves any more. REQUIRES: one did. Returns it.
  Plan Lose() {
    Plan lost = *std::move(plan_);
    plan_.reset();
    fallback_ = broken_ = false;
    repair_at_ = kNoDeadline;
    untold_ = absl::OkStatus();
    return lost;
  }

 private:
  std::optional<Plan> plan_;
  bool fallback_ = false;
  bool broken_ = false;
  Deadline repair_at_ = kNoDeadline;
  Status untold_;
};

}  // namespace gyre
