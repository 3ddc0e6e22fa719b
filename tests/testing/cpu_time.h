// The processor time of a test, as wall time depends too much on other work of the machine.
#pragma once

#include <time.h>

namespace gyre::testing {

// The seconds that the calling thread has computed.
inline double ThreadSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace gyre::testing
