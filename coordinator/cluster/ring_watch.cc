#include "coordinator/cluster/ring_watch.h"

#include <utility>

namespace gyre {

std::optional<Status> RingWatch::Check(const Plan* plan, const Reports& reports, Deadline now) {
  constexpr Duration kSlept = std::chrono::seconds(1);  // workers report four times a second
  constexpr uint64_t kAnswersUs = 1'000'000;
  const Duration pause = now - std::exchange(checked_, now);
  if (plan == nullptr || progress_.plan != plan->epoch.number) {
    owing_.clear();
    return std::nullopt;
  }
  // Where this process slept, the others' reports from before say nothing of now.
  for (auto& [hop, link] : owing_) link.since += pause >= kSlept ? pause : Duration{};
  // An old report says nothing of now.
  const auto load_of = [&](size_t stage) -> const MemberLoad* {
    const MemberReport* const r = reports(plan->stages[stage].worker());
    return r != nullptr && r->load.plan == plan->epoch.number && now - r->at <= kSlept ? &r->load : nullptr;
  };
  const size_t stages = plan->stages.size();
  for (size_t hop = 0; hop <= stages; ++hop) {
    const MemberLoad* const from = hop > 0 ? load_of(hop - 1) : nullptr;
    const MemberLoad* const to = hop < stages ? load_of(hop) : nullptr;
    if ((hop > 0 && from == nullptr) || (hop < stages && to == nullptr)) {
      owing_.erase(hop);
      continue;
    }
    // One that computes, or can't hand on what it has, takes nothing in. One that doesn't answer is stuck itself.
    const bool sent = from == nullptr || !from->in_step || from->sending;
    const bool waits = to == nullptr || (!to->in_step && to->unanswered_us < kAnswersUs);
    const uint64_t has = from != nullptr ? from->step_taken : progress_.step_sent;
    const uint64_t taken = to != nullptr ? to->step_taken : progress_.step_came;
    const uint64_t bytes = to != nullptr ? to->bytes_received : progress_.bytes_received;
    if (has <= taken || !sent || !waits) {
      owing_.erase(hop);
      continue;
    }
    const auto [link, fresh] = owing_.try_emplace(hop, Owing{taken, bytes, now});
    if (link->second.step_taken != taken || link->second.bytes_received != bytes) link->second = {taken, bytes, now};
    const Duration silent = now - link->second.since;
    if (silent < limit_) continue;
    owing_.clear();
    return Unavailable("the link from {} to {} is silent: it owes a step, and for {:.1f} s nothing came",
                       hop > 0 ? plan->stages[hop - 1].worker() : "the coordinator",
                       hop < stages ? plan->stages[hop].worker() : "the coordinator",
                       std::chrono::duration<double>(silent).count());
  }
  return std::nullopt;
}

}  // namespace gyre
