// The numbers of plans, and what became of these plans. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/ids.h"
#include "base/status.h"
#include "coordinator/cluster/cluster_types.h"

namespace gyre {

// Not thread-safe.
class PlanLog {
 public:
  explicit PlanLog(uint64_t term) : term_(term) {}

  // The epoch of the next plan. A number is used once, also if its plan is given up.
  Epoch next() const { return {.term = term_, .number = next_number_}; }
  Epoch TakeNext() { return {.term = term_, .number = next_number_++}; }

  void Done(const ChangeReport& report) {
    ++done_;
    last_change_ = report;
  }
  void Aborted(const Status& why) {
    ++aborted_;
    Refused(why);
  }
  void Lost() { ++lost_; }
  // No plan could be begun.
  void Refused(const Status& why) {
    ++failures_;
    failure_ = why;
  }
  // The same of one over the local member alone. True: the reason is another one than before.
  bool RefusedAlone(const Status& why) {
    Refused(why);
    return std::exchange(alone_, why) != why;
  }

  uint64_t done() const { return done_; }
  uint64_t aborted() const { return aborted_; }
  uint64_t lost() const { return lost_; }
  const std::optional<ChangeReport>& last_change() const { return last_change_; }
  // Plans that were aborted or could not be begun, and why the last one was not.
  uint64_t failures() const { return failures_; }
  const Status& failure() const { return failure_; }

 private:
  const uint64_t term_;
  uint64_t next_number_ = 1;
  uint64_t done_ = 0, aborted_ = 0, lost_ = 0, failures_ = 0;
  Status failure_, alone_;
  std::optional<ChangeReport> last_change_;
};

}  // namespace gyre
