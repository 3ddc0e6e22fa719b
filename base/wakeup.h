// An event that wakes one thread, which waits for several things.
#pragma once

#include <atomic>

#include "base/clock.h"
#include "base/mutex.h"

namespace gyre {

// Any thread calls Set, one thread calls Wait. Writes before Set are visible after the Wait that it ended.
class WakeUp {
 public:
  // A waiter spins for `spin` before it sleeps (base/spin.h).
  explicit WakeUp(Duration spin = std::chrono::microseconds(20)) : spin_(spin) {}

  void Set();
  // Returns true if Set was called since the last Wait that returned true, and clears it; false if the deadline passed.
  bool Wait(Deadline deadline);

 private:
  enum State : int { kClear = 0, kSet = 1, kSleeping = 2 };

  const Duration spin_;
  std::atomic<int> state_{kClear};
  Mutex mutex_;
  CondVar changed_;
};

}  // namespace gyre
