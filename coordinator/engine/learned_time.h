// Times that are learned from samples on a busy machine.
#pragma once

#include <algorithm>
#include <chrono>

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

}  // namespace gyre
