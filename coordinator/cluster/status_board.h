// The state that a cluster's thread publishes: its status, its plans and events so far, and notices of every change.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "coordinator/cluster/cluster_types.h"
#include "coordinator/cluster/load_window.h"

namespace gyre {

// Tells of changes as long as it lives.
class StatusSubscription {
 public:
  // `changed` must not block and must not end the subscription.
  explicit StatusSubscription(std::function<void()> changed) : changed_(std::move(changed)) {}
  void Tell() {
    MutexLock lock(&mutex_);
    if (changed_) changed_();
  }
  // Waits for a call that is under way; there is none afterwards.
  void End() {
    MutexLock lock(&mutex_);
    changed_ = nullptr;
  }

 private:
  Mutex mutex_;
  std::function<void()> changed_ GYRE_GUARDED_BY(mutex_);
};

// Thread-safe.
class StatusBoard {
 public:
  // As the state machine has it; the board adds the rest.
  struct News {
    ClusterStatus status;
    bool serving = false;
    uint64_t failures = 0;  // plan changes that failed
    Status failure;         // why the last one did
  };
  // Subscribers are told, on this thread, if people would see a change (SameCluster, or a new record).
  void Show(News news);
  // Stamps the record, or the event, with the wall-clock time.
  void Record(PlanRecord record);
  void Record(ClusterEvent event);
  // A sample of the engine's counter.
  void CountTokens(Deadline now, uint64_t generated);
  // Nothing changes any more; those who wait are told why.
  void End(const Status& why);

  ClusterStatus Read(Deadline now) const;
  // OK as soon as a plan serves; the error of a change that fails meanwhile, or why the cluster has ended.
  // kDeadlineExceeded, by this machine's clock.
  Status WaitForPlan(Deadline deadline) const;
  // The last words, or OK.
  Status ended() const;
  // Until the subscription is dropped; see StatusSubscription. `changed` is called on the thread that calls Show.
  std::shared_ptr<void> Subscribe(std::function<void()> changed);

 private:
  void Tell();

  mutable Mutex mutex_;
  mutable CondVar changed_;
  News news_ GYRE_GUARDED_BY(mutex_);
  Status ended_ GYRE_GUARDED_BY(mutex_);
  uint64_t revision_ GYRE_GUARDED_BY(mutex_) = 0;
  bool recorded_ GYRE_GUARDED_BY(mutex_) = false;  // since the last Show
  std::deque<PlanRecord> history_ GYRE_GUARDED_BY(mutex_);
  std::deque<ClusterEvent> events_ GYRE_GUARDED_BY(mutex_);
  uint64_t events_recorded_ GYRE_GUARDED_BY(mutex_) = 0;
  RateWindow tokens_ GYRE_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<StatusSubscription>> subscriptions_ GYRE_GUARDED_BY(mutex_);
};

}  // namespace gyre
