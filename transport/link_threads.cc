#include "transport/link_threads.h"

#include <iterator>
#include <utility>

#include "base/thread.h"

namespace gyre {

Status LinkThreads::Add(std::unique_ptr<Link> link, std::function<void(Link&)> serve) {
  Status status;
  std::list<Server> finished;  // their threads are joined without the lock
  {
    MutexLock lock(&mutex_);
    for (auto it = servers_.begin(); it != servers_.end();) {
      const auto next = std::next(it);
      if (it->done) finished.splice(finished.end(), servers_, it);
      it = next;
    }
    if (closed_ || servers_.size() >= most_) {
      link->Close();
    } else {
      Server& server = servers_.emplace_back();
      server.link = std::move(link);
      StatusOr<std::thread> started = StartThread("link", [this, &server, serve = std::move(serve)] {
        serve(*server.link);
        server.link->Close();
        MutexLock done(&mutex_);
        server.done = true;
      });
      status = started.status();
      if (started.ok()) {
        server.thread = *std::move(started);
      } else {
        servers_.pop_back();
      }
    }
  }
  for (Server& server : finished) server.thread.join();
  return status;
}

void LinkThreads::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  for (Server& server : servers_) server.link->Close();
}

void LinkThreads::Join() {
  // The threads take the lock when they end.
  std::list<Server> servers;
  {
    MutexLock lock(&mutex_);
    servers.swap(servers_);
  }
  for (Server& server : servers) server.thread.join();
}

}  // namespace gyre
