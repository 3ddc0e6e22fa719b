#include "coordinator/cluster/load_window.h"

namespace gyre {

void RateWindow::Add(Deadline at, uint64_t value) {
  if (!samples_.empty() && value < samples_.back().value) samples_.clear();
  samples_.push_back({at, value});
  while (at - samples_.front().at > kSpan) samples_.pop_front();
}

double RateWindow::PerSecond(Deadline now) const {
  auto oldest = samples_.begin();
  while (oldest != samples_.end() && now - oldest->at > kSpan) ++oldest;
  if (oldest == samples_.end()) return 0;
  const double seconds = std::chrono::duration<double>(samples_.back().at - oldest->at).count();
  return seconds > 0 ? static_cast<double>(samples_.back().value - oldest->value) / seconds : 0;
}

void LoadWindow::Add(Deadline at, const MemberLoad& load) {
  const bool rose = load.steps > last_.steps && load.busy_us >= last_.busy_us;
  step_ms_ =
      rose ? static_cast<double>(load.busy_us - last_.busy_us) / 1e3 / static_cast<double>(load.steps - last_.steps)
           : 0;
  rows_.Add(at, load.rows_sent + load.answers_sent);
  bytes_.Add(at, load.row_bytes_sent + load.answer_bytes_sent);
  last_ = load;
}

MemberRates LoadWindow::Rates(Deadline now) const {
  return {.step_ms = step_ms_, .rows_per_second = rows_.PerSecond(now), .bytes_per_second = bytes_.PerSecond(now)};
}

}  // namespace gyre
