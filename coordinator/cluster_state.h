// What a cluster keeps. For cluster*.cc only.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/inbox.h"
#include "base/mutex.h"
#include "coordinator/cluster.h"
#include "coordinator/plan_change.h"

namespace gyre {

class Cluster::Impl {
 public:
  explicit Impl(ClusterOptions options) : options_(std::move(options)) {}
  void Start(Engine* engine, RingPort* port);
  void Stop();

  // Any thread.
  StatusOr<std::string> Join(MemberInfo info, std::shared_ptr<StageControl> control);
  void Leave(const std::string& name, const Status& why);
  void Report(const std::string& name, const MemberLoad& load);
  void OnRingBroken(Epoch epoch, const Status& why);
  void Resize(const std::string& text, Done done);
  void Drain(const std::string& name, Done done);
  ClusterStatus status() const;
  Status WaitForPlan(Deadline deadline);

 private:
  struct Member {
    MemberInfo info;
    std::shared_ptr<StageControl> control;
    uint64_t order = 0;  // of joining
    MemberLoad load;
  };
  // The plan change that is under way.
  struct Change {
    Plan plan;
    PlanChange transaction;
    Deadline started = Clock::now();
    Done done;
    bool automatic = false;  // nobody asked for it
    uint32_t num_blocks = 0;
    std::shared_ptr<Link> to_first, from_last;
    std::vector<std::shared_ptr<StageControl>> controls;  // of participants; a member may leave meanwhile
    std::map<std::string, StageControl*> by_name;
  };

  // Any thread.
  void Post(std::function<void()> event) { inbox_.Push(std::move(event)); }
  void PostOr(const Done& done, std::function<void()> event);

  // The loop, members, what is asked and told (cluster.cc).
  void Loop();
  Deadline NextDeadline() const;
  void OnLeave(const std::string& name, const Status& why);
  void OnBroken(Epoch epoch, const Status& why);
  void OnResize(const std::string& text, const Done& done);
  void OnDrain(const std::string& name, const Done& done);
  Status Busy() const;
  std::vector<PlanMember> PlanMembers(bool workers_only) const;
  std::vector<const Member*> ByOrder() const;
  void Publish();
  std::string Describe() const;

  // A plan from its beginning to its end (cluster_change.cc).
  void MaybePlan();
  Status Begin(std::vector<Assignment> assignments, Done done, bool automatic);
  PrepareRequest RequestFor(const Change& change, const std::string& worker) const;
  void WireEnds(const Plan& plan);
  void OnWired(Epoch epoch, StatusOr<std::unique_ptr<Link>> to_first, StatusOr<std::unique_ptr<Link>> from_last);
  void Apply(const PlanChange::Actions& actions);
  void MaybeFinish();
  void LosePlan(const Status& why);

  const ClusterOptions options_;
  ModelSizes sizes_ = options_.sizes;          // its pages are of num_blocks_
  uint32_t num_blocks_ = options_.num_blocks;  // shrinks once, with the first plan over workers
  bool on_workers_ = false;                    // a plan over workers has served
  Engine* engine_ = nullptr;
  RingPort* port_ = nullptr;
  std::atomic<bool> stopping_{false};
  Inbox<std::function<void()>> inbox_;
  std::thread thread_, wiring_;

  // Owned by the loop's thread.
  std::map<std::string, Member> members_;
  std::optional<Plan> plan_;  // what runs
  std::unique_ptr<Change> change_;
  bool fallback_ = false;  // the plan is the local member's alone, until enough workers are there
  bool broken_ = false;    // the running plan's ring ended
  Deadline repair_at_ = kNoDeadline;
  Deadline retry_at_{};
  Status lost_;  // why there is no plan any more
  uint64_t next_number_ = 1;
  ClusterStatus counts_;

  std::atomic<uint64_t> next_order_{1};
  mutable Mutex mutex_;
  CondVar changed_;
  ClusterStatus status_ GYRE_GUARDED_BY(mutex_);
  bool serving_ GYRE_GUARDED_BY(mutex_) = false;
  uint64_t failures_ GYRE_GUARDED_BY(mutex_) = 0;  // of first plans
  Status failure_ GYRE_GUARDED_BY(mutex_);
  std::map<std::string, int> names_ GYRE_GUARDED_BY(mutex_);  // of living members
};

}  // namespace gyre
