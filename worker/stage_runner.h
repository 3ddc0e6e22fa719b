// The stage that a worker runs, on a thread of its own between two links: steps, questions about logits, and the swap
// to the next plan's stage. Steps and plans: docs/structure.md; the swap: docs/resize.md.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/coding.h"
#include "base/member_load.h"
#include "base/mutex.h"
#include "base/step_codec.h"
#include "transport/link_inbox.h"
#include "worker/layer_clock.h"
#include "worker/page_server.h"
#include "worker/prepared_stage.h"
#include "worker/step_record.h"
#include "worker/worker.h"

namespace gyre {

// The runner's calls to the loader, on the stage's thread.
struct StageRunnerCalls {
  // Takes the plan's prepared stage; null: there is none, or the worker was reset after the token was drawn.
  std::function<std::shared_ptr<PreparedStage>(Epoch epoch, uint64_t reset)> take_prepared;
  // Destroys a stage on another thread, because unmapping its pages takes long.
  std::function<void(std::shared_ptr<PreparedStage> stage)> dispose;
};

class StageRunner {
 public:
  // options: outlives the runner.
  StageRunner(const WorkerOptions& options, WorkerCalls worker, StageRunnerCalls loader)
      : options_(options), worker_(std::move(worker)), loader_(std::move(loader)) {}
  void Start();  // throws std::system_error
  // Asks the thread to end. Close the pages' links between Close and Join, as their threads wait for jobs.
  void Close();
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

  // Any thread, all that follow.
  // Runs `job` on the stage's thread, between steps.
  void Post(LinkInbox::Command job) { jobs_.Push(std::move(job)); }
  // As StageControl says. `reset`: the loader's token.
  void Commit(Epoch epoch, uint64_t reset);
  void Release(Epoch epoch);
  void Trace(Deadline asked) { worker_.say({}, record_.TakeTrace(asked)); }
  // Drops the running stage with its links. A Commit from before does nothing.
  void Reset();
  // Ends a Send that waits, and with it the ring.
  void CloseOut();
  // Likewise; then no frame of the ring is looked at any more, and `job`, if there is one, runs on the stage's thread.
  void EndRing(std::function<void()> job);
  std::shared_ptr<Link> RunningOut();  // to the next stage; null: there is none
  // The time for which the stage's thread has not answered a call, though it is at no frame. Calls it where no call is
  // open.
  Duration Unanswered();
  // Fills in the part of a load that is about the running plan.
  void FillPlanLoad(MemberLoad* load);

  // Reads pages of the running stage for another member; on the stage's thread.
  Status ReadPages(PageExport& e);

  WorkerStats stats() const {
    return {record_.steps(), step_errors_, dropped_, 0, rows_sent_, row_bytes_sent_, void_steps_};
  }
  StepRecord& record() { return record_; }
  const StepRecord& record() const { return record_; }
  uint64_t answers() const { return answers_sent_; }
  uint64_t answer_bytes() const { return answer_bytes_sent_; }
  size_t weight_bytes() const { return weight_bytes_; }
  uint64_t last_step() const { return step_count_; }
  const LayerClock& layer_clock() const { return layer_clock_; }

  // For tests, as Worker says.
  void SetFaultHook(std::function<Status()> hook);
  void SetFrameHook(std::function<void(const Frame&)> hook) { frame_hook_ = std::move(hook); }
  void BreakRunning();

 private:
  // The stage's thread, all of these.
  void Loop();
  bool RunJobs();
  StatusOr<Frame> NextFrame();
  void OnFrame(Frame& frame);
  bool IsVoid(const StepBatch& batch);
  void ReadAhead();
  void PassVoid(const FrameHeader& came);
  void RunStep(const Frame& frame);
  Status TryStep(const Frame& frame);
  Status CheckFrameSizes(const Stage& stage, const StepBatch& batch, size_t descriptor) const;
  ByteSpan RowsToSend(const Stage& stage);
  void OnQuestion(const Frame& frame);
  void OnMasks(const Frame& frame);
  void Send(FrameHeader header, std::span<const ByteSpan> parts);
  void BreakLinks(const Status& why);
  void OnCommit(Epoch epoch, uint64_t reset, uint64_t own_reset);
  void Retire();

  const WorkerOptions& options_;
  const WorkerCalls worker_;
  const StageRunnerCalls loader_;
  std::atomic<bool> stopping_{false};
  LinkInbox jobs_;

  Mutex mutex_;
  std::shared_ptr<Link> running_out_ GYRE_GUARDED_BY(mutex_);  // so that others can end a Send
  std::shared_ptr<Link> running_in_ GYRE_GUARDED_BY(mutex_);
  std::optional<Deadline> called_at_ GYRE_GUARDED_BY(mutex_);
  Deadline free_since_ GYRE_GUARDED_BY(mutex_){};  // the end of the last frame's work
  uint64_t running_plan_ GYRE_GUARDED_BY(mutex_) = 0;
  bool sending_ GYRE_GUARDED_BY(mutex_) = false;  // the stage's thread is in a Send over it
  uint64_t commits_ GYRE_GUARDED_BY(mutex_) = 0;  // that wait for the stage's thread
  uint64_t resets_ GYRE_GUARDED_BY(mutex_) = 0;
  std::function<Status()> hook_ GYRE_GUARDED_BY(mutex_);
  std::atomic<bool> hooked_{false};
  std::function<void(const Frame&)> frame_hook_;  // set before any frame comes

  // The stage's thread owns these.
  std::shared_ptr<PreparedStage> running_;
  std::shared_ptr<PreparedStage> retired_;  // the stage of the plan before, until every participant has committed
  bool broken_ = false;                     // the running stage's links ended
  bool queued_ = false;                     // the frame under way came before the stage was free
  // Frames of the running links that came behind the one under way, and the first positions of the sequences in them.
  struct AheadFrame {
    Frame frame;
    std::vector<SeqRows> seqs;  // without tables and requests
  };
  std::deque<AheadFrame> ahead_;
  Duration last_step_{};              // computing time of the last step; exports have a share of it
  Deadline slice_end_ = kNoDeadline;  // the end of the time for jobs between two steps
  Encoder encoder_;
  StepAnswer answer_;

  std::atomic<uint64_t> step_errors_{0}, dropped_{0}, rows_sent_{0}, row_bytes_sent_{0};
  std::atomic<uint64_t> void_steps_{0};
  std::atomic<uint64_t> answers_sent_{0}, answer_bytes_sent_{0};
  std::atomic<size_t> weight_bytes_{0};
  std::atomic<uint64_t> step_taken_{0};  // the last step of the running plan that came
  // The last step that came of any plan, and what pages are stamped with. It rises with each step, also if another
  // coordinator counts from 1: so a page is never stamped with less than the step that wrote it.
  std::atomic<uint64_t> step_count_{0};
  std::atomic<bool> in_step_{false};
  StepRecord record_;
  LayerClock layer_clock_;
  std::thread thread_;
};

}  // namespace gyre
