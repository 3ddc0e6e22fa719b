// The source's side of bulk links: members that take over layers of the running stage pull its pages. docs/resize.md.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "transport/link.h"
#include "transport/link_threads.h"
#include "transport/pages.h"
#include "worker/worker.h"

namespace gyre {

// One request's pages on their way from the stage's thread to the link.
struct PageExport {
  struct Answer {
    Pages pages;
    std::vector<std::byte> data;
  };
  Epoch epoch;
  PullPages request;
  std::vector<Answer> answers;
  std::promise<Status> done;
  std::future<Status> ready = done.get_future();
};

// The functions of a worker that its page server calls.
struct PageServerCalls {
  // Runs a job on the stage's thread, between steps. Pages are read where they are written.
  std::function<void(std::function<void()> job)> post;
  // Fills `answers`; on the stage's thread. An error is the answer to the request.
  std::function<Status(PageExport&)> read;
  // The same from the replica; on the link's thread.
  std::function<Status(PageExport&)> read_replica;
  // Whether the member may have these pages by the plan. Any thread.
  std::function<Status(const std::string& peer, Epoch epoch, const PullPages& request)> check;
  // The edge of a thread: runs it, and lets no exception out.
  std::function<void(const std::function<void()>&)> guard;
};

// Thread-safe. A thread for each link.
class PageServer {
 public:
  // options: outlives it.
  PageServer(const WorkerOptions& options, PageServerCalls calls) : options_(options), calls_(std::move(calls)) {}
  // Takes one end of a bulk link, whose dialer pulls pages. Closes it if there are too many.
  void Serve(std::unique_ptr<Link> link);
  uint64_t pages_sent() const { return pages_sent_; }
  // Closes the links; no more are taken.
  void Close();
  // After Close, and after the stage's thread has ended.
  void Join() { threads_.Join(); }

 private:
  Status ServePulls(Link& link);
  StatusOr<std::shared_ptr<PageExport>> Post(const Frame& frame, const std::string& peer);
  Status Send(Link& link, PageExport& e);

  const WorkerOptions& options_;
  const PageServerCalls calls_;
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> pages_sent_{0};
  LinkThreads threads_{32};
};

}  // namespace gyre
