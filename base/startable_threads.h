// How many threads the system gives. Standard library and system headers only.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <new>
#include <vector>

namespace gyre {

// Starts up to `most` threads that live at the same time, ends them, and returns their number. For libraries that end
// the process where a thread can't be started. Thread-safe.
inline size_t StartableThreads(size_t most) {
  pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
  const auto wait = [](void* closed) -> void* {
    pthread_mutex_lock(static_cast<pthread_mutex_t*>(closed));
    pthread_mutex_unlock(static_cast<pthread_mutex_t*>(closed));
    return nullptr;
  };
  std::vector<pthread_t> threads;
  try {
    threads.reserve(most);
  } catch (const std::bad_alloc&) {
    return 0;
  }
  pthread_mutex_lock(&gate);
  for (pthread_t thread{}; threads.size() < most && pthread_create(&thread, nullptr, wait, &gate) == 0;)
    threads.push_back(thread);
  pthread_mutex_unlock(&gate);
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  return threads.size();
}

}  // namespace gyre
