// std::mutex with Clang's thread-safety annotations. Rule for all users: no lock is held over I/O.
#pragma once

#include <condition_variable>
#include <mutex>

#include "base/clock.h"

#if defined(__clang__)
#define GYRE_ANNOTATE(x) __attribute__((x))
#else
#define GYRE_ANNOTATE(x)
#endif
#define GYRE_CAPABILITY(x) GYRE_ANNOTATE(capability(x))
#define GYRE_SCOPED_CAPABILITY GYRE_ANNOTATE(scoped_lockable)
#define GYRE_GUARDED_BY(x) GYRE_ANNOTATE(guarded_by(x))
#define GYRE_REQUIRES(...) GYRE_ANNOTATE(requires_capability(__VA_ARGS__))
#define GYRE_EXCLUDES(...) GYRE_ANNOTATE(locks_excluded(__VA_ARGS__))
#define GYRE_ACQUIRE(...) GYRE_ANNOTATE(acquire_capability(__VA_ARGS__))
#define GYRE_RELEASE(...) GYRE_ANNOTATE(release_capability(__VA_ARGS__))
#define GYRE_NO_ANALYSIS GYRE_ANNOTATE(no_thread_safety_analysis)

namespace gyre {

class GYRE_CAPABILITY("mutex") Mutex {
 public:
  void Lock() GYRE_ACQUIRE() { mutex_.lock(); }
  void Unlock() GYRE_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class GYRE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) GYRE_ACQUIRE(mutex) : mutex_(mutex) { mutex_->Lock(); }
  ~MutexLock() GYRE_RELEASE() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

class CondVar {
 public:
  // A wait may end without a reason, so callers wait in a loop over the condition.
  void Wait(Mutex* mutex) GYRE_REQUIRES(mutex) GYRE_NO_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // Returns false once the deadline has passed. kNoDeadline waits without a limit.
  bool WaitUntil(Mutex* mutex, Deadline deadline) GYRE_REQUIRES(mutex) GYRE_NO_ANALYSIS {
    if (deadline == kNoDeadline) {
      Wait(mutex);
      return true;
    }
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    const bool in_time = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void Signal() { cv_.notify_one(); }
  void SignalAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace gyre
