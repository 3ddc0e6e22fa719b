// The members of a cluster, their layers, and all changes: membership, plans, and the engine's ring. One thread does
// all of it: Cluster::Impl::Loop, around the pure ClusterState. It knows workers only through StageControl, so that it
// works the same over gRPC and in one process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "base/trace.h"
#include "coordinator/cluster/cluster_types.h"
#include "coordinator/engine/engine.h"
#include "transport/ring_port.h"

namespace gyre {

struct ClusterOptions : ClusterPolicy {
  // Gets what the stages computed, on any thread; outlives the cluster. null: they are not asked.
  Tracer* tracer = nullptr;
  std::function<void(uint64_t done, uint64_t total)> progress;  // weights of the first plan; on the cluster's thread
  NowFn now;                                                    // empty: Clock::now
  // Keeps what a coordinator that is started again must know; on the cluster's thread, must not block. May be empty.
  std::function<void(const ClusterRecord&)> on_record;
  // The cluster's thread ended, with these last words: no plan is made any more. On that thread.
  std::function<void(const Status&)> on_fatal;
};

class Cluster {
 public:
  // Engine and port outlive the cluster's Stop. Start is called once, before anything else; kResourceExhausted: the
  // system gives no thread.
  explicit Cluster(ClusterOptions options);
  ~Cluster();
  Status Start(Engine* engine, RingPort* port);
  // Sets the function that measures the links from this process when asked, and reports Probed; it must not block. Call
  // it at most once, after Start; the function is used until Stop.
  void SetProber(std::function<void(std::vector<WeightSource> peers)> prober);
  void Probed(StageProbed probed);
  // No plan change goes on; members are not told, those who asked for something are. Idempotent.
  void Stop();

  // All of these are thread-safe.
  // The name that it has from now on. A known MemberInfo::instance that is a member already keeps its name, and that
  // membership ends. kFailedPrecondition: another model, instruction set or type of activations; kInvalidArgument:
  // nonsense; kUnavailable: the cluster has stopped.
  StatusOr<Membership> Join(MemberInfo info, std::shared_ptr<StageControl> control);
  // A member is gone: if it has layers, requests wait for a plan over the others. Nothing happens if the membership
  // ended before. `crashed`: its process died, perhaps of what it computed.
  void Leave(const Membership& member, const Status& why, bool crashed = true);
  // Its control stream ended without a word, which is no death yet: within ClusterPolicy::detach_grace the process may
  // reattach to the membership. `stream`: rises with every stream of it, so that a stream's late end does not end the
  // next one.
  void Detach(const Membership& member, uint64_t stream, const Status& why);
  void Reattach(const Membership& member, uint64_t stream);
  // Its process is to end: its layers go to others, then it is dismissed.
  void WantsToLeave(const Membership& member);
  void Report(const std::string& name, const MemberLoad& load);
  // Asks every member what it computed, for ClusterOptions::tracer. To be called often while that is on.
  void AskForTraces();
  // From the engine's on_broken.
  void OnRingBroken(Epoch epoch, const Status& why);

  using Done = std::function<void(StatusOr<ChangeReport>)>;
  // See ParseResize. `done` is called exactly once, on the cluster's thread or the caller's, also when the cluster
  // stops. dry_run: only what it would do, or why it is refused.
  void Resize(const std::string& text, Done done, bool dry_run = false);
  void DryRun(const std::string& text, Done done) { Resize(text, std::move(done), true); }
  // Another size of the KV cache, over the same ranges; running requests are computed again. It holds until the
  // coordinator's end.
  void ResizeCache(uint64_t tokens, Done done, bool dry_run = false);
  // A resize to the plan that is proposed (ClusterStatus::proposal). kFailedPrecondition: there is none.
  void TakeProposed(Done done, bool dry_run = false);
  // Moves all layers of a member to the others that have some. From then on the member gets none, until Undrain.
  void Drain(const std::string& name, Done done, bool dry_run = false);
  // Moves nothing. kNotFound: there is no such member, and none with that name was drained.
  void Undrain(const std::string& name, Done done);
  // Drains it and has its process end; what a drain before has left on the name is forgotten.
  void Remove(const std::string& name, Done done);
  StatusOr<ChangeReport> ResizeAndWait(const std::string& text);
  ClusterStatus status() const;
  // `changed` is called on the cluster's thread whenever ClusterStatus::revision has risen, until what is returned is
  // dropped, which waits for a call that is under way. It must neither block nor drop it.
  [[nodiscard]] std::shared_ptr<void> Subscribe(std::function<void()> changed);
  // Blocks until a plan serves. kDeadlineExceeded, or the error of the change that failed.
  Status WaitForPlan(Deadline deadline);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gyre
