// The next plan's stage, prepared on a thread of its own beside the running one: weights, pages, links, and the copying
// of pages from the members that have them. docs/resize.md, docs/weights.md.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/inbox.h"
#include "base/mutex.h"
#include "base/stage_control.h"
#include "weights/weight_stock.h"
#include "worker/migration.h"
#include "worker/prepared_stage.h"
#include "worker/replica.h"
#include "worker/worker.h"

namespace gyre {

class StageLoader {
 public:
  // options, replica: outlive the loader.
  StageLoader(const WorkerOptions& options, WorkerCalls worker, Replica* replica)
      : options_(options), worker_(std::move(worker)), replica_(replica) {}
  void Start();  // throws std::system_error
  void Close();
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

  // Any thread, all that follow. The first three do what StageControl says.
  void Prepare(const PrepareRequest& request);
  void Move(Epoch epoch, const UnitList& list);
  void Abort(Epoch epoch);
  // The plan serves: nobody waits for its ring links any more.
  void Release(Epoch epoch);
  // Drops what is prepared and stops preparing. AwaitTakeover keeps the running stage's layers for the next Prepare
  // with their pages, Reset without them; a token from before a Reset is void.
  void AwaitTakeover();
  void Reset();
  uint64_t ResetToken();
  // The prepared stage becomes the running one. Null: that plan is not prepared here, or the token is void.
  std::shared_ptr<PreparedStage> Take(Epoch epoch, uint64_t reset);
  // Destroys a stage on the loader's thread.
  void Dispose(std::shared_ptr<PreparedStage> stage);
  LayerRange running_layers();
  // Whether the plan that is being prepared gives the layer to this member, or lets it replicates this stage.
  Status CheckPull(const std::string& peer, Epoch epoch, const PullPages& request);
  // For tests: pages are not copied any more.
  void SkipCopying() { skip_copying_ = true; }

 private:
  // The copying of pages for the prepared stage.
  struct Copying {
    Epoch epoch;
    std::unique_ptr<Backend> queue;
    std::vector<std::unique_ptr<PagePuller>> pullers;
    std::optional<PrepareRequest> restore;  // nothing is copied before its Move
  };
  // The layers that are here already: those of the running stage, or else those that were kept.
  struct Present {
    std::shared_ptr<const StageParts> running, kept;
    // Null: the layer is not here. A kept layer comes without pages.
    std::shared_ptr<Layer> Find(int layer) const;
    const StageParts* ends() const { return running != nullptr ? running.get() : kept.get(); }
  };

  // The loader's thread, all of these (stage_loader.cc).
  void Loop();
  void OnPrepare(const PrepareRequest& request, const StageDone& ready);
  Status TryPrepare(const PrepareRequest& request, PreparedStage* prepared);
  Status CheckRequest(const PrepareRequest& request) const;
  Status LoadStage(const PrepareRequest& request, PreparedStage* prepared);
  StatusOr<size_t> BytesToLoad(const StagePlan& plan, bool mtp) const;
  Status BeginFetch(const PrepareRequest& request, const Present& present, bool ends_here);
  StatusOr<std::vector<std::shared_ptr<Layer>>> LoadLayers(const PrepareRequest& request, const Present& present,
                                                           Backend& queue);
  StatusOr<std::shared_ptr<const MtpHead>> LoadDrafter(const PrepareRequest& request, const Ends* before,
                                                       Backend& queue);
  Status Wire(const PrepareRequest& request, PreparedStage* prepared);
  void DropPrepared();
  std::shared_ptr<const StageParts> TrimKept(const StagePlan& plan);
  BytesDone Loaded(Epoch epoch);
  void SayProgress(Epoch epoch);
  // Asked while the loader waits for weights. Weights that come are no silence for the coordinator; a fetch that stands
  // still is.
  bool Cancelled(Epoch epoch);
  // Likewise (stage_loader_pages.cc).
  Status StartCopying(const PrepareRequest& request, const PreparedStage& prepared);
  StatusOr<uint64_t> CopyRound(const std::vector<BlockId>* blocks);
  void OnMove(Epoch epoch, const UnitList& list);
  StageDone Restore(PreparedStage* prepared, const UnitList& list);
  Status CheckStamps(const PreparedStage& prepared, const UnitList& list, Deadline give_up, std::set<BlockId>* missing);
  StatusOr<std::unique_ptr<PagePuller>> PullerFor(const PrepareRequest& request, const LayerSource& source,
                                                  const StageParts& parts, Deadline deadline);
  void PrepareReplica(const PrepareRequest& request);

  bool Aborted(Epoch epoch);
  // The plan was aborted, or another Prepare came in its place.
  bool AbortedLocked(Epoch epoch) const GYRE_REQUIRES(mutex_) {
    return stopping_ || aborted_ == epoch || asked_ != epoch;
  }
  // Returns what was kept before, as it goes without the lock.
  [[nodiscard]] std::shared_ptr<const StageParts> Keep(const StageParts& parts) GYRE_REQUIRES(mutex_);

  const WorkerOptions& options_;
  const WorkerCalls worker_;
  Replica* const replica_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> skip_copying_{false};
  Inbox<std::function<void()>> jobs_;

  Mutex mutex_;
  uint64_t resets_ GYRE_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<PreparedStage> prepared_ GYRE_GUARDED_BY(mutex_);
  std::optional<Epoch> asked_ GYRE_GUARDED_BY(mutex_);           // the plan of the last Prepare
  std::vector<StagePlan> asked_stages_ GYRE_GUARDED_BY(mutex_);  // its stages
  std::optional<Epoch> aborted_ GYRE_GUARDED_BY(mutex_);         // the last one: its loading may still be under way
  // The holders of this stage's replicas, in the last plans that were prepared, the newest last.
  std::deque<std::pair<Epoch, std::string>> replicated_by_ GYRE_GUARDED_BY(mutex_);
  // The running stage's parts, for a Prepare that shares layers with it.
  std::shared_ptr<const StageParts> running_parts_ GYRE_GUARDED_BY(mutex_);
  std::shared_ptr<const StageParts> kept_weights_ GYRE_GUARDED_BY(mutex_);  // after Reset

  // The loader's thread owns these.
  Copying copying_;
  std::unique_ptr<WeightLoading> loading_;  // for the stage that is being prepared
  uint64_t activity_ = 0;                   // its counter when progress was said last
  StageProgress progress_;
  Deadline next_word_ = Deadline::min();
  std::thread thread_;
};

}  // namespace gyre
