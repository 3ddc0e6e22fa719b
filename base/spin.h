// Busy waiting for a short time before a thread sleeps. Standard library and POSIX only.
#pragma once

#include <sched.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/clock.h"

namespace gyre {

// Waits until `ready` returns true or `end` has passed, and returns whether it did. After the first moments the core is
// yielded: on a virtual machine waking a sleeping thread takes tens of microseconds, as long as a small model's step.
template <typename Fn>
bool SpinUntil(Deadline end, const Fn& ready) {
  for (int i = 0; Clock::now() < end; ++i) {
    for (int pause = 0; pause < 8; ++pause) {
      if (ready()) return true;
#if defined(__x86_64__)
      _mm_pause();
#endif
    }
    if (i > 8) sched_yield();
  }
  return false;
}

}  // namespace gyre
