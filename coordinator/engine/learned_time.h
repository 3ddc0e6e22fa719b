// Times that are learned from samples on a busy machine.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace gyre {

inline double SecondsOf(Duration d) { return std::chrono::duration<double>(d).count(); }

// Takes in one more sample; 0 is unknown. One late step must not spoil what is known.
inline void Learn(double* known, double sample) {
  if (*known == 0) {
    *known = sample;
  } else {
    *known += (std::clamp(sample, *known / 4, *known * 2) - *known) / 8;
  }
}

// Takes in one more guess of a drafter, in nanoseconds; 0 is unknown. One thread at a time writes.
inline void LearnGuess(std::atomic<int64_t>* known, int64_t took) {
  const int64_t before = known->load(std::memory_order_relaxed);
  known->store(before == 0 ? took : before + (std::min(took, 4 * before) - before) / 8, std::memory_order_relaxed);
}

}  // namespace gyre
