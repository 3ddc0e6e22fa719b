// Drives the stage of a worker in this process: loads on a thread of its own, hands over between steps.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/inbox.h"
#include "base/mutex.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "worker/stage.h"

namespace gyre {

// A stage and its place in a plan.
struct EpochStage {
  Epoch epoch;
  uint32_t index = 0;  // in ring order
  std::unique_ptr<Stage> stage;
};

struct LocalControlOptions {
  std::string name;
  std::shared_ptr<const Model> model;
  Isa isa = Isa::kRef;
  int threads = 1;
  bool exact = false;
  Backend* backend = nullptr;  // what the stage's thread computes with; loading makes another
  std::function<void()> wake;  // tells the stage's thread that NextCommit has something
};

class LocalControl : public StageControl {
 public:
  explicit LocalControl(LocalControlOptions options);
  ~LocalControl() override;

  const std::string& name() const override { return options_.name; }
  void SetEventSink(EventSink sink) override;
  void Prepare(const PrepareRequest& request) override;
  void Commit(Epoch epoch) override;
  void Abort(Epoch epoch) override;

  // The rest is for the stage's thread.

  // The oldest Commit that was not looked at yet.
  std::optional<Epoch> NextCommit();
  // Makes the stage prepared for `epoch` the running one; again for the epoch that runs gives the same.
  // kFailedPrecondition: it is neither.
  StatusOr<std::shared_ptr<EpochStage>> Take(Epoch epoch);
  // Gives a stage back that ran before: to free it takes time.
  void Retire(std::shared_ptr<EpochStage> stage);
  // Is a stage of this term prepared, or about to be?
  bool Awaits(uint64_t term);
  void Report(Epoch epoch, decltype(StageEvent::what) what);
  // Nobody serves any more: every call from now on, and every Commit that waits, ends in StageFault with this status.
  void Close(const Status& why);
  // Closes, cancels what loads, joins. Idempotent.
  void Stop();

 private:
  using Job = std::function<void()>;

  void OnPrepare(const PrepareRequest& request);
  void OnAbort(Epoch epoch);
  StatusOr<std::shared_ptr<EpochStage>> Load(const PrepareRequest& request);
  Status Check(const PrepareRequest& request, const EpochStage* running) const;
  bool Wanted(Epoch epoch);

  const LocalControlOptions options_;
  Inbox<Job> jobs_;  // of the loader

  Mutex mutex_;
  std::shared_ptr<const EventSink> sink_ GYRE_GUARDED_BY(mutex_);
  Status closed_ GYRE_GUARDED_BY(mutex_);
  std::deque<Epoch> commits_ GYRE_GUARDED_BY(mutex_);
  // The epoch of the newest Prepare, until its Abort or a failure: what loads for another is cancelled.
  std::optional<Epoch> wanted_ GYRE_GUARDED_BY(mutex_);
  std::optional<Epoch> aborted_ GYRE_GUARDED_BY(mutex_);  // the last one
  std::shared_ptr<EpochStage> prepared_ GYRE_GUARDED_BY(mutex_);
  std::shared_ptr<EpochStage> running_ GYRE_GUARDED_BY(mutex_);

  std::thread loader_;
};

}  // namespace gyre
