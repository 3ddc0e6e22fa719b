// The timeout argument of poll for a deadline.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace gyre {

// Milliseconds, rounded up; -1 = for ever.
inline int PollTimeout(Deadline deadline) {
  if (deadline == kNoDeadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

}  // namespace gyre
