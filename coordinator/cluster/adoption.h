// The plan of the coordinator's predecessor, which is made again when its members are back (docs/restart.md): who is
// waited for, and for how long. Pure.
#pragma once

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "coordinator/cluster/cluster_types.h"
#include "coordinator/cluster/roster.h"

namespace gyre {

// Not thread-safe.
class Adoption {
 public:
  // `record`: of the predecessor; without stages nothing is waited for.
  Adoption(const std::optional<ClusterRecord>& record, Duration wait) : wait_(wait) {
    if (record && !record->stages.empty()) record_ = record;
  }

  // A plan is waited for. It ends with Take or GiveUp.
  bool pending() const { return record_.has_value(); }
  // The time at which waiting ends.
  Deadline until() const { return until_; }

  // Begins to wait. Returns the stages whose members are not there, so that their processes are looked for; none if it
  // waits already.
  std::vector<ClusterRecord::Stage> Begin(const Roster& roster, Deadline now) {
    std::vector<ClusterRecord::Stage> missing;
    if (until_ != kNoDeadline) return missing;
    until_ = now + wait_;
    for (const ClusterRecord::Stage& s : record_->stages) {
      if (!roster.Has(s.worker)) missing.push_back(s);
    }
    return missing;
  }
  // The process of this member is gone: it is not waited for. The others are, as a plan is made over them.
  void FoundGone(const std::string& worker) { gone_.insert(worker); }
  bool Waits(const Roster& roster, Deadline now) const {
    return now < until_ && std::any_of(record_->stages.begin(), record_->stages.end(), [&](const auto& s) {
             return !roster.Has(s.worker) && gone_.count(s.worker) == 0;
           });
  }
  // The names of those that are not there.
  std::string Missing(const Roster& roster) const {
    std::string out;
    for (const ClusterRecord::Stage& s : record_->stages) {
      if (!roster.Has(s.worker)) out += (out.empty() ? "" : ", ") + s.worker;
    }
    return out;
  }
  // Waiting is over, whatever becomes of the plan.
  ClusterRecord Take() {
    ClusterRecord record = *std::move(record_);
    record_.reset();
    return record;
  }
  // Another plan is made.
  void GiveUp() { record_.reset(); }

 private:
  const Duration wait_;
  std::optional<ClusterRecord> record_;
  Deadline until_ = kNoDeadline;
  std::set<std::string> gone_;
};

}  // namespace gyre
