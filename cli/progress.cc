#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/describe_bytes.h"
#include "base/log.h"
#include "fmt/core.h"
#include "hub/cached_model.h"

namespace gyre {

using std::chrono::milliseconds;

namespace {

// One bar is on the terminal at a time. A log line replaces it; the bar comes back with its next change.
Mutex bar_mutex;
bool bar_shown GYRE_GUARDED_BY(bar_mutex) = false;

void ClearBar() {
  MutexLock lock(&bar_mutex);
  if (bar_shown) fmt::print(stderr, "\r\033[K");
  bar_shown = false;
}

void DrawBar(const std::string& what, double share, const std::string& size, const std::string& speed) {
  constexpr int kWidth = 40;
  const int full = static_cast<int>(share * kWidth);
  MutexLock lock(&bar_mutex);
  fmt::print(stderr, "\r{} [{:#<{}}{:{}}] {:3.0f}% of {}{}\033[K", what, "", full, "", kWidth - full, share * 100, size,
             speed);
  std::fflush(stderr);
  bar_shown = true;
}

}  // namespace

void Progress::Update(uint64_t done, uint64_t total, double bytes_per_second) {
  const Deadline now = Clock::now();
  if (quiet_ || total == 0 || now - start_ < milliseconds(500)) return;
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const std::string size = unit_.empty() ? DescribeBytes(total) : fmt::format("{} {}", total, unit_);
  if (isatty(STDERR_FILENO) == 0) {
    const int quarter = static_cast<int>(share * 4);
    if (quarter == quarter_) return;
    quarter_ = quarter;
    fmt::print(stderr, "{}: {}% of {}\n", what_, quarter * 25, size);
    return;
  }
  if (now - drawn_ < milliseconds(50) && done < total) return;
  drawn_ = now;
  SetBeforeLogLine(&ClearBar);
  std::string speed;
  if (bytes_per_second > 0) {
    speed = fmt::format(", {:.1f} MiB/s, {} left", bytes_per_second / (1 << 20),
                        DescribeSeconds(static_cast<double>(total - std::min(done, total)) / bytes_per_second));
  }
  if (!unit_.empty() && done > 0) {
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    speed = fmt::format(", {} left", DescribeSeconds(elapsed / share * (1 - std::min(share, 1.0))));
  }
  DrawBar(what_, share, size, speed);
}

std::string DescribeSeconds(double seconds) {
  const auto n = static_cast<int64_t>(std::ceil(std::min(seconds, 1e9)));
  if (n < 60) return fmt::format("{} s", n);
  if (n < 3600) return fmt::format("{} min {} s", n / 60, n % 60);
  return fmt::format("{} h {:02} min", n / 3600, n / 60 % 60);
}

void Progress::Finish() { ClearBar(); }

std::function<void(uint64_t, uint64_t)> LoadingBar::callback() const {
  return [state = state_](uint64_t done, uint64_t total) {
    MutexLock lock(&state->mutex);
    if (!state->finished) state->progress.Update(done, total);
  };
}

void LoadingBar::Finish() {
  MutexLock lock(&state_->mutex);
  if (!state_->finished) state_->progress.Finish();
  state_->finished = true;
}

}  // namespace gyre
