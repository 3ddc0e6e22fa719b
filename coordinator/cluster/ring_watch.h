// What the engine and the members report of the steps in the serving ring: since when it owes a result, and whether one
// of its links swallows everything while both its ends live. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/member_load.h"
#include "base/plan.h"
#include "base/status.h"

namespace gyre {

// A member's last report of its work.
struct MemberReport {
  MemberLoad load;
  Deadline at{};  // when it came; Deadline{}: none did
};

// Not thread-safe.
class RingWatch {
 public:
  // `limit`: the time for which a link may owe a step.
  explicit RingWatch(Duration limit) : limit_(limit) {}

  // The engine's progress, before the next event.
  void See(const RingProgress& progress) { progress_ = progress; }
  // When the last result of this plan's ring came, or when it began to owe one; nullopt: it owes none.
  std::optional<Deadline> OwesSince(const Plan& plan) const {
    return progress_.plan == plan.epoch.number ? progress_.owes_since : std::nullopt;
  }

  // By the name of a member; null: there is none.
  using Reports = std::function<const MemberReport*(const std::string& worker)>;
  // After a report. Looks for a link of which one end has a step, the other one doesn't get it, and no byte of it
  // comes. `plan`: the one that serves over a whole ring, or null. nullopt: no link is silent for too long; otherwise
  // why the ring is to be given up.
  std::optional<Status> Check(const Plan* plan, const Reports& reports, Deadline now);
  // Another plan serves, or none does.
  void PlanChanged() { owing_.clear(); }

 private:
  // What was seen of a link that owes a step.
  struct Owing {
    uint64_t step_taken = 0, bytes_received = 0;
    Deadline since{};
  };

  const Duration limit_;
  RingProgress progress_;
  std::map<size_t, Owing> owing_;  // by hop
  Deadline checked_{};
};

}  // namespace gyre
