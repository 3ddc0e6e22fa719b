#include "weights/room_watch.h"

#include <exception>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/thread.h"

namespace gyre {

RoomWatch::RoomWatch(std::function<uint64_t()> measure, Duration every) : measure_(std::move(measure)), every_(every) {
  StatusOr<std::thread> started = StartThread("room", [this] { Run(); });
  if (started.ok()) {
    thread_ = *std::move(started);
  } else {
    Log(LogLevel::kWarn, "the disk's room is not known: {}", Message(started.status()));
  }
}

RoomWatch::~RoomWatch() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void RoomWatch::Run() {
  for (;;) {
    // No exception may leave the thread: without memory the room stays as it was known.
    try {
      bytes_ = measure_();
    } catch (const std::exception& e) {
      Log(LogLevel::kWarn, "the disk's room is not known: {}", e.what());
    }
    const Deadline next = After(every_);
    MutexLock lock(&mutex_);
    while (!stopping_ && Clock::now() < next) changed_.WaitUntil(&mutex_, next);
    if (stopping_) return;
  }
}

}  // namespace gyre
