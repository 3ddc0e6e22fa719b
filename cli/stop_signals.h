// Ctrl-C and SIGTERM for a command that must clean up before it ends.
#pragma once

#include "base/status.h"

namespace gyre {

// While one lives, the first SIGINT or SIGTERM is remembered instead of ending the process; a second one ends it at
// once. One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  // kCancelled: "stopped by Ctrl-C", or by SIGTERM.
  Status Check() const;
};

}  // namespace gyre
