// An event for one thread that waits on several things.
#pragma once

#include <atomic>

#include "base/clock.h"
#include "base/mutex.h"

namespace gyre {

// Set from any thread, Wait from one. What was written before Set is seen after the Wait that it ended.
class WakeUp {
 public:
  // A waiter spins for `spin`, giving its core away after the first moments, before it sleeps: waking a sleeping
  // thread costs tens of microseconds on a virtual machine, as much as a small model's step.
  explicit WakeUp(Duration spin = std::chrono::microseconds(20)) : spin_(spin) {}

  void Set();
  // True: Set was called since the last Wait returned true (it is cleared). False: the deadline passed.
  bool Wait(Deadline deadline);

 private:
  enum State : int { kClear = 0, kSet = 1, kSleeping = 2 };

  const Duration spin_;
  std::atomic<int> state_{kClear};
  Mutex mutex_;
  CondVar changed_;
};

}  // namespace gyre
