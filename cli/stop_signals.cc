#include "cli/stop_signals.h"

#include <csignal>

namespace gyre {
namespace {

volatile std::sig_atomic_t stopped_by = 0;

void Remember(int signal) {
  stopped_by = signal;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

StopSignals::StopSignals() {
  stopped_by = 0;
  std::signal(SIGINT, Remember);
  std::signal(SIGTERM, Remember);
}

StopSignals::~StopSignals() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

Status StopSignals::Check() const {
  if (stopped_by == 0) return absl::OkStatus();
  return absl::CancelledError(stopped_by == SIGINT ? "stopped by Ctrl-C" : "stopped by SIGTERM");
}

}  // namespace gyre
