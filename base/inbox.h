// A queue with many producers and one consumer.
#pragma once

#include <deque>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "base/wakeup.h"

namespace gyre {

template <typename T>
class Inbox {
 public:
  // Never waits for the consumer. After Close the item is dropped.
  void Push(T item) {
    {
      MutexLock lock(&mutex_);
      if (closed_) return;
      items_.push_back(std::move(item));
    }
    wake_.Set();
  }

  std::optional<T> TryPop() {
    MutexLock lock(&mutex_);
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  // Returns the oldest item; nullopt if the deadline passed, or if the queue is closed and empty.
  std::optional<T> Pop(Deadline deadline) {
    for (;;) {
      if (std::optional<T> item = TryPop()) return item;
      if (closed()) return TryPop();
      if (!wake_.Wait(deadline)) return TryPop();
    }
  }

  // Items that were pushed before can still be popped.
  void Close() {
    {
      MutexLock lock(&mutex_);
      closed_ = true;
    }
    wake_.Set();
  }

 private:
  bool closed() {
    MutexLock lock(&mutex_);
    return closed_;
  }

  WakeUp wake_;
  Mutex mutex_;
  std::deque<T> items_ GYRE_GUARDED_BY(mutex_);
  bool closed_ GYRE_GUARDED_BY(mutex_) = false;
};

}  // namespace gyre
