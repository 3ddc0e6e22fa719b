// A worker's events on their way to the coordinator. What had not come when a stream ended is sent again over the next.
#pragma once

#include <deque>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "base/stage_control.h"
#include "base/wakeup.h"

namespace gyre {

// Any thread pushes, one takes.
class EventOutbox {
 public:
  struct Item {
    StageEvent event;
    uint64_t number = 0;  // in this membership, from 1; 0: it is not sent again
  };
  void Push(StageEvent event) {
    {
      MutexLock lock(&mutex_);
      const bool passing =
          std::holds_alternative<StageProgress>(event.what) || std::holds_alternative<StageTrace>(event.what);
      items_.push_back({std::move(event), passing ? 0 : ++last_});
    }
    wake_.Set();
  }
  // The next one to send; nullopt: the deadline has passed, or Wake was called.
  std::optional<Item> Next(Deadline deadline) {
    if (std::optional<Item> item = TryNext()) return item;
    wake_.Wait(deadline);
    return TryNext();
  }
  void Wake() { wake_.Set(); }
  // A stream begins that goes on with this membership: the other side has those up to `received`.
  void SendAgain(uint64_t received) {
    MutexLock lock(&mutex_);
    std::erase_if(items_, [](const Item& item) { return item.number == 0; });
    next_ = 0;
    while (next_ < items_.size() && items_[next_].number <= received) ++next_;
  }
  // A new membership begins.
  void Clear() {
    MutexLock lock(&mutex_);
    items_.clear();
    next_ = 0;
    last_ = 0;
  }

 private:
  std::optional<Item> TryNext() {
    MutexLock lock(&mutex_);
    if (next_ == items_.size()) return std::nullopt;
    Item item = items_[next_];
    if (item.number == 0) {
      items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(next_));
    } else if (++next_ > kKept) {
      items_.pop_front();
      --next_;
    }
    return item;
  }
  // Sent ones that are kept: far more than a connection holds on the way.
  static constexpr size_t kKept = 256;

  WakeUp wake_;
  Mutex mutex_;
  std::deque<Item> items_ GYRE_GUARDED_BY(mutex_);
  size_t next_ GYRE_GUARDED_BY(mutex_) = 0;  // of items_, to be sent
  uint64_t last_ GYRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace gyre
