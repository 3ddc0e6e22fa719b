#include "base/wakeup.h"

#include <sched.h>

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gyre {
namespace {

inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

void WakeUp::Set() {
  if (state_.exchange(kSet, std::memory_order_acq_rel) != kSleeping) return;
  // The sleeper holds the mutex from its exchange to its wait, so the signal can't fall between the two.
  MutexLock lock(&mutex_);
  changed_.Signal();
}

bool WakeUp::Wait(Deadline deadline) {
  auto taken = [this] {
    int expected = kSet;
    return state_.compare_exchange_strong(expected, kClear, std::memory_order_acq_rel);
  };
  if (taken()) return true;
  const Deadline now = Clock::now();
  if (deadline <= now) return false;
  const Deadline spin_end = std::min(deadline, now + spin_);
  for (int i = 0; Clock::now() < spin_end; ++i) {
    for (int pause = 0; pause < 8; ++pause) {
      if (state_.load(std::memory_order_relaxed) == kSet && taken()) return true;
      Pause();
    }
    if (i > 8) sched_yield();
  }
  MutexLock lock(&mutex_);
  int expected = kClear;
  if (!state_.compare_exchange_strong(expected, kSleeping, std::memory_order_acq_rel)) {
    state_.store(kClear, std::memory_order_release);
    return true;
  }
  while (state_.load(std::memory_order_acquire) == kSleeping) {
    if (!changed_.WaitUntil(&mutex_, deadline)) break;
  }
  return state_.exchange(kClear, std::memory_order_acq_rel) == kSet;
}

}  // namespace gyre
