// What a test took of a core: wall time says more about what else the machine does.
#pragma once

#include <time.h>

namespace gyre::testing {

// Seconds that the calling thread has computed.
inline double ThreadSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace gyre::testing
