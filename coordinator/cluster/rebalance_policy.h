// Whether a plan that seems better is worth a change: proposed, or made, and not again and again. Pure: what is known
// and a clock value in, a proposal out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace gyre {

// The treatment of a plan that is better than the one that serves.
enum class Rebalance : uint8_t {
  kOff,   // nothing, and nothing is measured for it
  kAsk,   // it is proposed
  kAuto,  // it is made
};
// "off", "ask", "auto". kInvalidArgument
StatusOr<Rebalance> ParseRebalance(const std::string& name);
const char* RebalanceName(Rebalance mode);

struct RebalanceRules {
  Rebalance mode = Rebalance::kOff;
  double gain = 1.15;                              // times as many steps, at least
  double share_gain = 1.05;                        // where layers are shared anyway: less, and shares are even
  Duration steady = std::chrono::seconds(3);       // the time for which it must be better
  Duration pause = std::chrono::seconds(60);       // between two plans that are made, and after one that failed
  Duration longest_pause = std::chrono::hours(1);  // one that fails again doubles the pause, up to this
  // To go back to ranges that it left within this time, a plan needs twice the gain.
  Duration memory = std::chrono::minutes(10);
};

// A plan that is better than the one that serves.
struct Proposal {
  std::string ranges;  // "a=0-7,b=8-15", as a resize takes them
  double gain = 0;     // how many times as many steps it makes
  double step_seconds = 0, step_seconds_now = 0;
  std::string why;  // a sentence with the numbers
  bool operator==(const Proposal&) const = default;
};

// Not thread-safe.
class RebalancePolicy {
 public:
  explicit RebalancePolicy(const RebalanceRules& rules) : rules_(rules), pause_(rules.pause) {}

  // The present knowledge: the best plan, and the gain of the proposed one by the same numbers. nullopt: there is
  // none, or it can't be made any more.
  void Offer(const std::optional<Proposal>& best, const std::optional<Proposal>& proposed, Deadline now);
  // Another plan serves, or none does.
  void PlanChanged();
  // A plan of MakeNow begins to be made, in place of these ranges.
  void Begun(const std::string& ranges_before, Deadline now);
  void Served() { pause_ = rules_.pause; }
  void Failed(Deadline now);

  const std::optional<Proposal>& proposal() const { return proposal_; }
  // Whether the plan is made without a request.
  bool MakeNow(Deadline now) const { return rules_.mode == Rebalance::kAuto && proposal_ && now >= next_; }
  const RebalanceRules& rules() const { return rules_; }

 private:
  double NeededGain(const std::string& ranges, Deadline now) const;

  const RebalanceRules rules_;
  std::optional<Proposal> proposal_;
  std::optional<Deadline> better_since_;
  Deadline next_ = Deadline::min();
  Duration pause_;
  struct Left {
    std::string ranges;
    Deadline at;
  };
  std::deque<Left> left_;
};

}  // namespace gyre
