// What a worker keeps, and which of its threads does what. For worker*.cc only.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/inbox.h"
#include "base/mutex.h"
#include "base/step_codec.h"
#include "transport/link_inbox.h"
#include "weights/weight_stock.h"
#include "worker/catch_exhausted.h"
#include "worker/migration.h"
#include "worker/page_server.h"
#include "worker/stage.h"
#include "worker/worker.h"

namespace gyre {

class Worker::Impl : public StageControl {
 public:
  explicit Impl(WorkerOptions options);
  void Stop();

  const std::string& name() const override { return options_.name; }
  void SetEventSink(EventSink sink) override;
  void Prepare(const PrepareRequest& request) override;
  void Move(Epoch epoch, const std::vector<BlockId>& blocks) override;
  void Commit(Epoch epoch) override;
  void Release(Epoch epoch) override;
  void Abort(Epoch epoch) override;
  void Trace(Deadline asked) override;
  void Reset();
  void AwaitTakeover();
  LayerRange running_layers();
  void ServeBulk(std::unique_ptr<Link> link) { page_server_.Serve(std::move(link)); }

  const WorkerOptions& options() const { return options_; }
  WorkerStats stats() const {
    return {steps_, step_errors_, dropped_, page_server_.pages_sent(), rows_sent_, row_bytes_sent_};
  }
  Duration busy() const { return std::chrono::nanoseconds(busy_ns_.load()); }
  size_t weight_bytes() const { return weight_bytes_; }
  double TakeBusyShare();
  std::shared_ptr<Link> RunningOut();  // to the next stage; null: there is none
  // For so long the stage's thread has not answered a call, though it is at no frame; calls it where none is open.
  Duration Unanswered();
  // The part of a load that is about the running plan.
  void FillPlanLoad(MemberLoad* load);
  uint64_t answer_bytes() const { return answer_bytes_sent_; }
  LatencyHistogram step_times();
  const LayerClock& layer_clock() const { return layer_clock_; }
  void SetFaultHook(std::function<Status()> hook);
  void SetFrameHook(std::function<void(const Frame&)> hook) { frame_hook_ = std::move(hook); }
  void SkipCopying() { skip_copying_ = true; }
  void BreakRunning();
  // Runs `job` on the stage's thread, between steps.
  void Post(LinkInbox::Command job) { jobs_.Push(std::move(job)); }

 private:
  // A stage of one plan, its queue on the device and its links.
  struct Prepared {
    Epoch epoch;
    int stage_index = -1;  // -1: no layers in this plan
    WireType wire = WireType::kF32;
    bool told_cut = false;           // it was logged that values are cut to what the type holds
    std::unique_ptr<Backend> queue;  // the stage's
    std::unique_ptr<Stage> stage;
    std::shared_ptr<Link> in, out;
  };
  // The copying of pages for the prepared stage; used by the loader's thread.
  struct Copying {
    Epoch epoch;
    std::unique_ptr<Backend> queue;
    std::vector<std::unique_ptr<PagePuller>> pullers;
  };

  // Any thread (worker.cc).
  void Guarded(const char* what, const std::function<void()>& fn);
  void Fatal(const Status& why);
  void Say(Epoch epoch, decltype(StageEvent::what) what);

  // The stage's thread: the main loop and steps (worker.cc), plans that take over (worker_plans.cc).
  void Loop();
  bool RunJobs();
  void OnFrame(Frame& frame);
  void RunStep(const Frame& frame);
  Status TryStep(const Frame& frame);
  void Record(const StageSpan& span);
  Status CheckFrameSizes(const Stage& stage, const StepBatch& batch, size_t descriptor) const;
  ByteSpan RowsToSend(const Stage& stage);
  void OnQuestion(const Frame& frame);
  void BreakLinks(const Status& why);
  void Send(FrameHeader header, std::span<const ByteSpan> parts);
  void OnCommit(Epoch epoch, uint64_t reset);
  void Retire();

  // The loader's thread: the next plan's stage (worker_plans.cc) and its pages (worker_pages.cc).
  void LoadLoop();
  void OnPrepare(const PrepareRequest& request);
  Status LoadStage(const PrepareRequest& request, Prepared* prepared);
  Status Wire(const PrepareRequest& request, Prepared* prepared);
  void DropPrepared();
  bool Aborted(Epoch epoch);
  // It was aborted, or another Prepare came in its place.
  bool AbortedLocked(Epoch epoch) const GYRE_REQUIRES(mutex_) {
    return stopping_ || aborted_ == epoch || asked_ != epoch;
  }
  void Keep(const StageParts& parts) GYRE_REQUIRES(mutex_);
  std::shared_ptr<const StageParts> TrimKept(const StagePlan& plan);
  Status StartCopying(const PrepareRequest& request, const Prepared& prepared);
  StatusOr<uint64_t> CopyRound(const std::vector<BlockId>* blocks);
  void OnMove(Epoch epoch, const std::vector<BlockId>& blocks);

  // For the page server: on the stage's thread, and on any (worker_pages.cc).
  Status ReadPages(PageExport& e);
  Status CheckPull(const std::string& peer, Epoch epoch, int layer);

  const WorkerOptions options_;
  std::atomic<bool> stopping_{false};
  LinkInbox jobs_;                      // for the stage's thread
  Inbox<std::function<void()>> loads_;  // for the loader's thread

  Mutex mutex_;
  EventSink sink_ GYRE_GUARDED_BY(mutex_);
  std::shared_ptr<Link> running_out_ GYRE_GUARDED_BY(mutex_);  // so that others can end a Send
  std::shared_ptr<Link> running_in_ GYRE_GUARDED_BY(mutex_);
  std::optional<Deadline> called_at_ GYRE_GUARDED_BY(mutex_);
  uint64_t running_plan_ GYRE_GUARDED_BY(mutex_) = 0;
  bool sending_ GYRE_GUARDED_BY(mutex_) = false;  // the stage's thread is in a Send over it
  uint64_t resets_ GYRE_GUARDED_BY(mutex_) = 0;   // what was asked before a Reset is void
  std::shared_ptr<Prepared> prepared_ GYRE_GUARDED_BY(mutex_);
  std::optional<Epoch> asked_ GYRE_GUARDED_BY(mutex_);           // of the last Prepare
  std::vector<StagePlan> asked_stages_ GYRE_GUARDED_BY(mutex_);  // likewise
  std::optional<Epoch> aborted_ GYRE_GUARDED_BY(mutex_);         // the last one: its loading may still be under way
  // What the running stage is made of, for a Prepare that shares layers with it.
  std::shared_ptr<const StageParts> running_parts_ GYRE_GUARDED_BY(mutex_);
  std::shared_ptr<const StageParts> kept_weights_ GYRE_GUARDED_BY(mutex_);  // after Reset
  std::function<Status()> hook_ GYRE_GUARDED_BY(mutex_);
  LatencyHistogram step_times_ GYRE_GUARDED_BY(mutex_);
  std::vector<StageSpan> spans_ GYRE_GUARDED_BY(mutex_);  // since the last Trace
  Deadline trace_until_ GYRE_GUARDED_BY(mutex_) = Deadline::min();
  std::atomic<bool> hooked_{false};
  std::function<void(const Frame&)> frame_hook_;  // set before any frame comes
  std::atomic<bool> skip_copying_{false};
  Duration shown_busy_ GYRE_GUARDED_BY(mutex_){};
  Deadline shown_at_ GYRE_GUARDED_BY(mutex_) = Clock::now();

  // Owned by the stage's thread.
  std::shared_ptr<Prepared> running_;
  std::shared_ptr<Prepared> retired_;  // of the plan before, until every participant has committed
  bool broken_ = false;                // the running stage's links ended
  uint64_t step_count_ = 0;
  bool queued_ = false;               // the frame under way came before the stage was free
  Duration last_step_{};              // computing time of the last step; exports have a share of it
  Deadline slice_end_ = kNoDeadline;  // of the jobs between two steps
  Encoder encoder_;
  StepAnswer answer_;

  Copying copying_;                         // the loader's
  std::unique_ptr<WeightLoading> loading_;  // the loader's: of the stage that it prepares
  StageProgress progress_;                  // the loader's: what it said last
  Deadline next_word_ = Deadline::min();

  std::atomic<uint64_t> steps_{0}, step_errors_{0}, dropped_{0}, busy_ns_{0}, rows_sent_{0}, row_bytes_sent_{0},
      answer_bytes_sent_{0};
  std::atomic<size_t> weight_bytes_{0};
  std::atomic<uint64_t> step_taken_{0};  // of the running plan
  std::atomic<bool> in_step_{false};
  LayerClock layer_clock_;
  PageServer page_server_;
  std::thread stage_thread_, loader_thread_;
};

}  // namespace gyre
