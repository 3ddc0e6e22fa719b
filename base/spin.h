// Looking again and again for a moment, before a thread goes to sleep. Standard library and POSIX only.
#pragma once

#include <sched.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/clock.h"

namespace gyre {

// Until `ready` says true, or `end` has passed; whether it did. The core is yielded after the first moments: on a
// virtual machine waking a sleeping thread takes tens of microseconds, as long as a step of a small model.
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
