// The time of day, for texts and other processes. Deadlines have base/clock.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace gyre {

// Since 1970.
int64_t UnixSeconds();
int64_t UnixMillis();

// As 2025-10-17T23:14:07.414Z, with so many digits of the second: 0 to 6, without a point if there are none.
std::string UtcText(std::chrono::system_clock::time_point time, int digits);

}  // namespace gyre
