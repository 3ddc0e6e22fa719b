// The room for fetched weights on this machine's disk, looked up now and then on a thread of its own: a disk may hang,
// and who asks must not.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"

namespace gyre {

class RoomWatch {
 public:
  // `measure` is called at once, on the thread, and then so long after each call.
  RoomWatch(std::function<uint64_t()> measure, Duration every);
  // Waits for a call that is under way.
  ~RoomWatch();
  // What the last call returned; 0 = none has.
  uint64_t bytes() const { return bytes_; }

 private:
  void Run();

  const std::function<uint64_t()> measure_;
  const Duration every_;
  std::atomic<uint64_t> bytes_{0};
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ GYRE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gyre
