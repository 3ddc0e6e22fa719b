#include "coordinator/cluster/slowdowns.h"

#include <algorithm>
#include <cmath>

namespace gyre {
namespace {

constexpr uint64_t kLeastSteps = 100;  // of an observation that says something

double Steps5(double factor) { return std::pow(1.05, std::round(std::log(factor) / std::log(1.05))); }

}  // namespace

void Slowdowns::Forget(const std::string& member) {
  begun_with_.erase(member);
  known_.erase(member);
}

double Slowdowns::Of(const std::string& member) const {
  const auto it = known_.find(member);
  return it == known_.end() ? 0 : it->second;
}

double Slowdowns::Rounded(const std::string& member) const {
  if (const double own = Of(member); own > 0) return Steps5(own);
  if (known_.empty()) return 1;
  double sum = 0;
  for (const auto& [name, factor] : known_) sum += factor;
  return Steps5(sum / static_cast<double>(known_.size()));
}

void Slowdowns::Observe(const std::vector<Stage>& ring, const Predict& predict, Deadline now) {
  const auto begin = [&] {
    since_ = now;
    for (const Stage& s : ring) begun_with_[s.member] = s.load;
  };
  if (since_ == kNoDeadline) return begin();
  if (now - since_ < span_) return;
  double rows = 1;
  bool enough = true;
  for (const Stage& s : ring) {
    const MemberLoad& from = begun_with_[s.member];
    const uint64_t steps = s.load.steps - from.steps;
    enough = s.load.steps >= from.steps && steps >= kLeastSteps && s.load.busy_us > from.busy_us;
    if (!enough) break;
    const uint64_t sent = s.load.rows_sent - std::min(from.rows_sent, s.load.rows_sent);
    rows = std::max(rows, static_cast<double>(sent) / static_cast<double>(steps));
  }
  const std::vector<double> expected = enough ? predict(rows) : std::vector<double>();
  for (size_t i = 0; i < ring.size() && expected.size() == ring.size(); ++i) {
    const MemberLoad& from = begun_with_[ring[i].member];
    const auto steps = static_cast<double>(ring[i].load.steps - from.steps);
    const double took = static_cast<double>(ring[i].load.busy_us - from.busy_us) / 1e6 / steps;
    const double factor = std::clamp(took / expected[i], 1e-6, 1e6);
    const auto [known, first] = known_.try_emplace(ring[i].member, factor);
    if (!first) known->second = std::sqrt(known->second * factor);
  }
  begin();
}

}  // namespace gyre
