// A log line for the first unauthenticated peer that is refused, then at most one line a minute with their number.
#pragma once

#include <string>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"

namespace gyre {

// Thread-safe.
class RefusalLog {
 public:
  // `what`: "a worker", "a connection".
  explicit RefusalLog(std::string what) : what_(std::move(what)) {}

  void Log(const std::string& peer, const Status& why) {
    uint64_t count = 0;
    {
      MutexLock lock(&mutex_);
      ++count_;
      const Deadline now = Clock::now();
      if (count_ > 1 && now < last_ + std::chrono::minutes(1)) return;
      last_ = now;
      count = count_;
    }
    gyre::Log(LogLevel::kWarn, "refused {} from {}: {} ({} refused since the start)", what_, peer, Message(why), count);
  }

 private:
  const std::string what_;
  Mutex mutex_;
  uint64_t count_ GYRE_GUARDED_BY(mutex_) = 0;
  Deadline last_ GYRE_GUARDED_BY(mutex_){};
};

}  // namespace gyre
