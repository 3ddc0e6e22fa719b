#include "coordinator/cluster/rebalance_policy.h"

#include <algorithm>

namespace gyre {
namespace {

// A proposal gives way to another one that is so much better.
constexpr double kReplaces = 1.05;
constexpr size_t kMaxLeft = 16;

}  // namespace

StatusOr<Rebalance> ParseRebalance(const std::string& name) {
  for (Rebalance mode : {Rebalance::kOff, Rebalance::kAsk, Rebalance::kAuto}) {
    if (name == RebalanceName(mode)) return mode;
  }
  return InvalidArgument("--rebalance {}: expected auto, ask or off", name);
}

const char* RebalanceName(Rebalance mode) {
  switch (mode) {
    case Rebalance::kOff: return "off";
    case Rebalance::kAsk: return "ask";
    case Rebalance::kAuto: return "auto";
  }
  return "?";
}

double RebalancePolicy::NeededGain(const std::string& ranges, Deadline now) const {
  const bool came_from = std::any_of(left_.begin(), left_.end(),
                                     [&](const Left& l) { return l.ranges == ranges && now - l.at < rules_.memory; });
  return came_from ? rules_.gain * rules_.gain : rules_.gain;
}

void RebalancePolicy::Offer(const std::optional<Proposal>& best, const std::optional<Proposal>& proposed,
                            Deadline now) {
  // A proposal stays until little is left of its gain, so that numbers that waver don't make it come and go.
  const double least = 1 + (rules_.gain - 1) / 2;
  if (proposal_ && (!proposed || proposed->gain < least)) proposal_.reset();
  if (proposal_) proposal_ = proposed;
  if (!best || best->gain < NeededGain(best->ranges, now)) {
    better_since_.reset();
    return;
  }
  if (!better_since_) better_since_ = now;
  if (now - *better_since_ < rules_.steady) return;
  if (!proposal_ || best->gain >= proposal_->gain * kReplaces) proposal_ = best;
}

void RebalancePolicy::PlanChanged() {
  proposal_.reset();
  better_since_.reset();
}

void RebalancePolicy::Begun(const std::string& ranges_before, Deadline now) {
  next_ = now + pause_;
  left_.push_back({ranges_before, now});
  if (left_.size() > kMaxLeft) left_.pop_front();
}

void RebalancePolicy::Failed(Deadline now) {
  PlanChanged();
  pause_ = std::min(2 * pause_, rules_.longest_pause);
  next_ = now + pause_;
}

}  // namespace gyre
