#include "base/thread.h"

#include <pthread.h>
#include <sys/mman.h>

#include <exception>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "base/describe_bytes.h"
#include "base/mutex.h"
#include "base/startable_threads.h"

namespace gyre {

std::thread MakeThread(const std::string& name, std::function<void()> run) {
  const std::string shown = name.substr(0, 15);
  try {
    return std::thread([shown, run = std::move(run)] {
      if (!shown.empty()) pthread_setname_np(pthread_self(), shown.c_str());
      run();
    });
  } catch (const std::system_error& e) {
    throw std::system_error(e.code(), "the system gives no thread (" + name + ")");
  } catch (const std::bad_alloc&) {
    throw std::system_error(std::make_error_code(std::errc::not_enough_memory), "a thread (" + name + ")");
  }
}

StatusOr<std::thread> StartThread(const std::string& name, std::function<void()> run) {
  try {
    return MakeThread(name, std::move(run));
  } catch (const std::exception& e) {
    return ResourceExhausted("{}", e.what());
  }
}

void OnThreads(size_t threads, const std::function<void(bool caller)>& work) {
  Mutex mutex;
  std::exception_ptr first;
  const auto guarded = [&](bool caller) {
    try {
      work(caller);
    } catch (...) {
      MutexLock lock(&mutex);
      if (first == nullptr) first = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  if (threads > 1) others.reserve(threads - 1);
  while (others.size() + 1 < threads) {
    StatusOr<std::thread> other = StartThread("", [&guarded] { guarded(false); });
    if (!other.ok()) break;
    others.push_back(*std::move(other));
  }
  guarded(true);
  for (std::thread& t : others) t.join();
  if (first != nullptr) std::rethrow_exception(first);
}

Status CheckRoom(const std::string& what, size_t threads, size_t bytes) {
  void* const room = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    return ResourceExhausted("{} needs {} of memory, and this process gets no more (see `ulimit -v`)", what,
                             DescribeBytes(bytes));
  }
  const size_t started = StartableThreads(threads);
  munmap(room, bytes);
  if (started == threads) return absl::OkStatus();
  return ResourceExhausted("{} needs {}, and this process gets {} (see `ulimit -v` and `ulimit -u`)", what,
                           Counted(threads, "thread"), started);
}

}  // namespace gyre
