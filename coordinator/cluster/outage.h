// Since when the ring has given no results and why, why there is no plan, and what of that the engine was told. Pure.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace gyre {

// Not thread-safe.
class Outage {
 public:
  struct Stop {
    Deadline since{};  // the last result, or the last sign of the member that is lost
    Status why;        // OK: the ring pauses for a planned change
  };

  // The ring gives no results any more. `why`: OK for a planned change; what is no plan counts from then on.
  void Begin(Deadline since, const Status& why) {
    if (!stop_) stop_ = Stop{.since = since, .why = why};
    if (!why.ok()) stop_->why = why;
  }
  bool begun() const { return stop_.has_value(); }
  // REQUIRES: it has begun.
  Deadline since() const { return stop_->since; }
  // The ring gives results again. nullopt: it has not stopped.
  std::optional<Stop> End() { return std::exchange(stop_, std::nullopt); }

  // Why there is no plan: what went wrong, and with which member; "" = with none.
  void Blame(const Status& why, std::string member) {
    trouble_ = why;
    member_ = std::move(member);
  }
  // The member is another one now.
  void Excuse(const std::string& member) {
    if (member == member_) trouble_ = absl::OkStatus();
  }
  const Status& trouble() const { return trouble_; }

  // The engine is told why requests are refused or wait.
  void Told(const Status& refusal) { told_ = Message(refusal); }
  bool IsNews(const Status& refusal) const { return Message(refusal) != told_; }

  // A plan serves.
  void Served() {
    trouble_ = absl::OkStatus();
    told_.clear();
  }

 private:
  std::optional<Stop> stop_;
  Status trouble_;
  std::string member_;
  std::string told_;
};

}  // namespace gyre
