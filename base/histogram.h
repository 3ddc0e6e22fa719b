// A histogram of durations with fixed buckets. Standard library only.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace gyre {

// Plain data of fixed size: Add allocates nothing. Not thread-safe.
struct LatencyHistogram {
  // Upper bounds in seconds, each inclusive. A longer duration than the last counts in `count` and `sum` only.
  static constexpr std::array<double, 18> kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                     1,     2.5,    5,     10,   30,    60,   120, 300,  600};

  void Add(Duration value) {
    const double seconds = std::max(0.0, std::chrono::duration<double>(value).count());
    const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
    if (bound != kBounds.end()) ++buckets[static_cast<size_t>(bound - kBounds.begin())];
    ++count;
    sum += seconds;
  }

  std::array<uint64_t, kBounds.size()> buckets{};  // values above the bound before and up to this one
  uint64_t count = 0;
  double sum = 0;  // seconds
  bool operator==(const LatencyHistogram&) const = default;
};

}  // namespace gyre
