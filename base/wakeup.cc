#include "base/wakeup.h"

#include <algorithm>

#include "base/spin.h"

namespace gyre {

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
  const auto set = [&] { return state_.load(std::memory_order_relaxed) == kSet && taken(); };
  if (SpinUntil(std::min(deadline, now + spin_), set)) return true;
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
