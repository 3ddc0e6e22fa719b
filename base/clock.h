// Time: one monotonic clock and deadlines on it. Standard library only.
#pragma once

#include <chrono>

namespace gyre {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
using Duration = Clock::duration;

inline constexpr Deadline kNoDeadline = Deadline::max();
inline Deadline After(Duration d) { return Clock::now() + d; }

}  // namespace gyre
