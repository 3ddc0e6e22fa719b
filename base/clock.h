// Time: one monotonic clock and deadlines on it. Standard library only.
#pragma once

#include <chrono>
#include <functional>

namespace gyre {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
using Duration = Clock::duration;

inline constexpr Deadline kNoDeadline = Deadline::max();
using NowFn = std::function<Deadline()>;  // the clock, as tests replace it
inline Deadline After(Duration d) { return Clock::now() + d; }

}  // namespace gyre
