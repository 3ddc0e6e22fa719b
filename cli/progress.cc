#include "cli/progress.h"

#include <unistd.h>

#include <cstdio>

#include "base/log.h"
#include "fmt/core.h"

namespace gyre {

using std::chrono::milliseconds;

namespace {

// One bar is on the terminal at a time. A log line takes its place; the bar comes back with its next change.
Mutex bar_mutex;
bool bar_shown GYRE_GUARDED_BY(bar_mutex) = false;

void ClearBar() {
  MutexLock lock(&bar_mutex);
  if (bar_shown) fmt::print(stderr, "\r\033[K");
  bar_shown = false;
}

void DrawBar(const std::string& what, double share, double gib) {
  constexpr int kWidth = 40;
  const int full = static_cast<int>(share * kWidth);
  MutexLock lock(&bar_mutex);
  fmt::print(stderr, "\r{} [{:#<{}}{:{}}] {:3.0f}% of {:.2f} GiB", what, "", full, "", kWidth - full, share * 100, gib);
  std::fflush(stderr);
  bar_shown = true;
}

}  // namespace

void Progress::Update(uint64_t done, uint64_t total) {
  const Deadline now = Clock::now();
  if (quiet_ || total == 0 || now - start_ < milliseconds(500)) return;
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const double gib = static_cast<double>(total) / (1 << 30);
  if (isatty(STDERR_FILENO) == 0) {
    const int quarter = static_cast<int>(share * 4);
    if (quarter == quarter_) return;
    quarter_ = quarter;
    fmt::print(stderr, "{}: {}% of {:.2f} GiB\n", what_, quarter * 25, gib);
    return;
  }
  if (now - drawn_ < milliseconds(50) && done < total) return;
  drawn_ = now;
  SetBeforeLogLine(&ClearBar);
  DrawBar(what_, share, gib);
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
