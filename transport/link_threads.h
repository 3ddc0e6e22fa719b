// A thread for each link that other processes opened to this one.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "base/status.h"
#include "transport/link.h"

namespace gyre {

// Thread-safe. Call Close and Join before it is destroyed.
class LinkThreads {
 public:
  explicit LinkThreads(size_t most) : most_(most) {}
  // Runs serve(link), which must not throw, on a thread of its own, and then closes the link. A link beyond the limit
  // is closed at once, and so is one that comes after Close. kResourceExhausted: the system gives no thread.
  Status Add(std::unique_ptr<Link> link, std::function<void(Link&)> serve);
  // Closes the links; later ones are refused.
  void Close();
  // Waits for the threads. Call it after Close.
  void Join();

 private:
  struct Server {
    std::shared_ptr<Link> link;
    std::thread thread;
    bool done = false;
  };

  const size_t most_;
  Mutex mutex_;
  bool closed_ GYRE_GUARDED_BY(mutex_) = false;
  std::list<Server> servers_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace gyre
