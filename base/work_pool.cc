#include "base/work_pool.h"

#include <exception>

#include "base/log.h"
#include "base/thread.h"

namespace gyre {

WorkPool::WorkPool(const std::string& name, std::string work, const Limits& limits)
    : work_(std::move(work)), limits_(limits) {
  threads_.reserve(static_cast<size_t>(limits.threads));
  threads_.push_back(MakeThread(name, [this] { Loop(); }));
  // One does the work of all, if there must be.
  while (threads_.size() < static_cast<size_t>(limits.threads)) {
    StatusOr<std::thread> another = StartThread(name, [this] { Loop(); });
    if (!another.ok()) break;
    threads_.push_back(*std::move(another));
  }
}

WorkPool::~WorkPool() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  for (std::thread& t : threads_) t.join();
}

Status WorkPool::Post(std::function<void()> work, size_t bytes) {
  MutexLock lock(&mutex_);
  if (queue_.size() >= limits_.queued || bytes > limits_.bytes - bytes_) {
    return ResourceExhausted("{} {}, at most {} of {} bytes together may; try again later", queue_.size(), work_,
                             limits_.queued, limits_.bytes);
  }
  queue_.push_back({std::move(work), bytes});
  bytes_ += bytes;
  changed_.Signal();
  return absl::OkStatus();
}

void WorkPool::Loop() {
  for (;;) {
    std::function<void()> work;
    {
      MutexLock lock(&mutex_);
      while (queue_.empty() && !stopping_) changed_.Wait(&mutex_);
      if (queue_.empty()) return;
      work = std::move(queue_.front().first);
      bytes_ -= queue_.front().second;
      queue_.pop_front();
    }
    try {
      work();
    } catch (const std::exception& e) {
      Log(LogLevel::kError, "work on a thread of its own failed: {}", e.what());
    }
  }
}

}  // namespace gyre
