// A few threads that do work for threads which must not be held up.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"

namespace gyre {

// Thread-safe.
class WorkPool {
 public:
  struct Limits {
    int threads = 2;
    size_t queued = SIZE_MAX;  // work that waits
    size_t bytes = SIZE_MAX;   // what it holds
  };
  // `name`: of the threads; `work`: a word for the sentence that refuses more. Where the system gives fewer threads,
  // fewer do the work. Throws std::system_error: it gives none.
  WorkPool(const std::string& name, std::string work, const Limits& limits);
  // Work that waits is still done, as somebody waits for its answer.
  ~WorkPool();

  // Runs `work` soon on one of the threads. `bytes`: memory that waits with it. kResourceExhausted: too much waits;
  // then it is not called. Exceptions of `work` are logged.
  Status Post(std::function<void()> work, size_t bytes = 0);

 private:
  void Loop();

  const std::string work_;
  const Limits limits_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::pair<std::function<void()>, size_t>> queue_ GYRE_GUARDED_BY(mutex_);  // with its bytes
  size_t bytes_ GYRE_GUARDED_BY(mutex_) = 0;
  bool stopping_ GYRE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace gyre
