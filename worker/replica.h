// A replica: copies of the full pages and snapshots of another member's stage, in host memory, for the case that it is
// lost. docs/faults.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/ids.h"
#include "base/mutex.h"
#include "base/status.h"
#include "transport/link.h"
#include "transport/pages.h"
#include "worker/page_server.h"
#include "worker/prepared_stage.h"
#include "worker/worker.h"

namespace gyre {

// The pages that a member replicates while a plan serves.
struct ReplicaOrder {
  struct Limit {  // of a layer's pages
    uint32_t pages = 0;
    uint32_t page_bytes = 0;
  };
  Epoch epoch;
  std::string source;                // the member's name
  std::map<uint32_t, Limit> layers;  // those that keep something
};

struct ReplicaState {
  uint64_t plan = 0;  // that it is of; 0 = there is none
  std::optional<uint64_t>
      step;  // up to which it is whole, 0: the plan has had none; nullopt = it has not been whole yet
  uint64_t pages = 0, bytes = 0;
};

// The pages themselves. Thread-safe.
class ReplicaStore {
 public:
  // From now on it is a replica of this plan. What it has of a layer stays where the layer is in the order and comes
  // from the same member.
  void Begin(const ReplicaOrder& order);
  // Nothing is taken in any more. Returns the step up to which it is whole; nullopt: it is not, or of another plan.
  std::optional<uint64_t> Freeze(uint64_t plan);
  void Drop();

  // The request for the next round's first answer, or what follows it.
  PullPages RequestFor(uint32_t layer, BlockId from) const;
  // Takes a frame in; `first`: the first one of a round's answer for the layer. kDataLoss: it does not fit the order;
  // kCancelled: it is of another plan, or frozen.
  Status Take(Epoch epoch, const Pages& pages, bool first);
  // A round is over: it is whole up to this step.
  void Whole(Epoch epoch, uint64_t step);

  // The answer to a request of kind kReplicated, one frame. If it is of another plan, or lacks the layer, it has no
  // pages, as one that was never whole: Freeze says so to the coordinator. kFailedPrecondition: it is not frozen.
  Status Export(PageExport& e) const;
  ReplicaState state() const;

 private:
  struct Page {
    uint64_t stamp = 0;  // rises with every page that is taken in
    std::vector<std::byte> data;
  };
  struct Replicated {
    ReplicaOrder::Limit limit;
    uint64_t pool = 0;   // at the source
    uint64_t since = 0;  // for the next request
    uint64_t next_since = 0;
    uint64_t seen = 0;  // the source's last count of steps: no page was written after it
    std::map<BlockId, Page> pages;
  };

  mutable Mutex mutex_;
  Epoch epoch_ GYRE_GUARDED_BY(mutex_);
  std::string source_ GYRE_GUARDED_BY(mutex_);
  bool frozen_ GYRE_GUARDED_BY(mutex_) = true;
  std::optional<uint64_t> step_ GYRE_GUARDED_BY(mutex_);
  uint64_t stamps_ GYRE_GUARDED_BY(mutex_) = 0;
  uint64_t pages_ GYRE_GUARDED_BY(mutex_) = 0, bytes_ GYRE_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, Replicated> layers_ GYRE_GUARDED_BY(mutex_);
};

// Keeps the store up to date, on a thread of its own.
class Replica {
 public:
  // options: outlives it.
  Replica(const WorkerOptions& options, WorkerCalls worker) : options_(options), worker_(std::move(worker)) {}
  void Start();  // throws std::system_error
  void Close();
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

  // Any thread, all that follow. A plan is prepared by which there is something to replicate. `dial`: makes the link to
  // the source, on the replica's thread; it is called when the plan serves, and again when a link has failed.
  using Dial = std::function<StatusOr<std::unique_ptr<Link>>()>;
  void Await(ReplicaOrder order, Dial dial);
  // The plan serves: what was ordered for it begins, and what was replicated before ends.
  void Serve(Epoch epoch);
  // The prepared plan was given up, or another takes its place.
  void Forget();
  std::optional<uint64_t> Freeze(uint64_t plan);
  // The coordinator is gone.
  void Drop();
  Status Export(PageExport& e) const { return store_.Export(e); }
  ReplicaState state() const { return store_.state(); }

 private:
  struct Work {
    ReplicaOrder order;
    Dial dial;
    std::shared_ptr<Link> link;       // null: it is to be dialed. Only the thread sets it, with the lock
    std::optional<uint64_t> counted;  // the source's count of steps when the last whole round began
    Deadline due{};                   // when the thread goes on with it
    Duration retry{};                 // after the last failure; 0: none since the last round
  };

  void Loop();
  // One round. Whether the source has computed a step since the round before.
  StatusOr<bool> Round(const std::shared_ptr<Work>& work);
  Status Connect(const std::shared_ptr<Work>& work);
  bool Current(const std::shared_ptr<Work>& work);
  // Takes the place of what was there, whose link is closed. That is returned, as it goes without the lock.
  [[nodiscard]] std::shared_ptr<Work> Replace(std::shared_ptr<Work>* place, std::shared_ptr<Work> work)
      GYRE_REQUIRES(mutex_);

  const WorkerOptions& options_;
  const WorkerCalls worker_;
  ReplicaStore store_;
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<Work> awaited_ GYRE_GUARDED_BY(mutex_), current_ GYRE_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace gyre
