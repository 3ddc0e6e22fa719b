// How many times as long the steps of members take as their measured speeds predict, learned from what they report
// while a plan serves. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/member_load.h"

namespace gyre {

// Members are known by their names. Not thread-safe.
class Slowdowns {
 public:
  // Each observation lasts for `span`.
  explicit Slowdowns(Duration span) : span_(span) {}

  // A stage of the plan that serves, with the last report of its member.
  struct Stage {
    std::string member;
    MemberLoad load;
  };
  // The predicted seconds of each stage in a step of `rows` rows; empty: not known.
  using Predict = std::function<std::vector<double>(double rows)>;
  // To be called again and again with all stages in ring order.
  void Observe(const std::vector<Stage>& ring, const Predict& predict, Deadline now);
  // Another plan serves, or none does: what was learned stays, so that a member that loses its layers does not look as
  // fast as at the beginning.
  void PlanChanged() { since_ = kNoDeadline; }
  // A member is gone: under its name another machine may come.
  void Forget(const std::string& member);

  // 0: not known.
  double Of(const std::string& member) const;
  // For plans: in steps of 5%, so that what wavers by less is the same. The mean of the others' where it is not known,
  // and 1 where nothing is.
  double Rounded(const std::string& member) const;

 private:
  const Duration span_;
  Deadline since_ = kNoDeadline;  // when the observation began; kNoDeadline: there is none
  std::map<std::string, MemberLoad> begun_with_;
  std::map<std::string, double> known_;
};

}  // namespace gyre
