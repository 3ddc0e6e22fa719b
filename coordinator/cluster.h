// Who is there, who has which layers, and how that changes: membership, plans, and the engine's ring. One thread does
// it all: Cluster::Loop. Knows workers only through StageControl, so that it is the same over gRPC and in one process.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/member_load.h"
#include "base/plan.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "coordinator/engine.h"
#include "coordinator/plan_change.h"
#include "coordinator/planner.h"
#include "transport/ring_port.h"

namespace gyre {

struct MemberInfo {
  std::string name;     // wanted; a number is put behind it where it is taken
  std::string address;  // of its ring port
  std::string host;     // for people
  bool local = false;   // the coordinator's own: serves where workers don't, and last
  uint64_t memory = 0;  // bytes for weights and pages; 0 = unknown
  int threads = 0;
  std::string isa;
  bool prefill_matches_decode = true;  // it computes prompt rows as generated ones; all do with --exact
  uint64_t model_hash = 0;
  WireTypes wire_types = kAllActivations;  // of activations that it takes part with
  std::optional<LayerRange> wish;
  uint64_t instance = 0;  // of the worker's process, kept when it connects again; 0 = unknown
};

struct ClusterOptions {
  uint64_t term = 0;
  RingKey key{};
  uint32_t model = 0;
  uint64_t model_hash = 0;
  ModelSizes sizes;
  int block_size = 16;
  uint32_t num_blocks = 0;
  KvType kv_type = KvType::kF16;
  int min_workers = 1;             // members that are not local, for the first plan
  std::string isa;                 // not empty: members of another instruction set are refused (--bit-equal)
  bool exact = false;              // every member multiplies in f32, so that all have one class
  WireType wire = WireType::kF32;  // of activations, in every plan; members that don't take part with it are refused
  ChangeTimeouts timeouts;
  Duration repair_grace = std::chrono::milliseconds(500);  // after a broken ring, to learn whether a member is gone
  Duration retry = std::chrono::seconds(2);                // after a first plan that failed
  std::function<void(uint64_t done, uint64_t total)> progress;  // weights of the first plan; on the cluster's thread
};

struct MemberStatus {
  MemberInfo info;
  MemberLoad load;
  std::optional<LayerRange> layers;
  uint64_t weight_bytes = 0, kv_bytes = 0;
};

struct ChangeReport {
  Epoch epoch;
  std::string ranges;
  uint64_t pages_moved = 0, last_pages = 0;
  Duration took{};
};

struct ClusterStatus {
  std::optional<Plan> plan;
  std::string state;                  // "serving", "preparing plan 3", or why nothing runs
  std::vector<MemberStatus> members;  // those with layers in ring order, then the others in join order
  uint64_t plans = 0, aborted = 0, lost = 0;
  std::optional<ChangeReport> last_change;
  WireType wire = WireType::kF32;
};

class Cluster {
 public:
  // Engine and port outlive the cluster's Stop. Start is called once, before anything else.
  explicit Cluster(ClusterOptions options);
  ~Cluster();
  void Start(Engine* engine, RingPort* port);
  // No plan change goes on; members are not told. Idempotent.
  void Stop();

  // All of these are thread-safe.
  // The name it has from now on. kFailedPrecondition: another model, instruction set or type of activations;
  // kInvalidArgument: nonsense.
  StatusOr<std::string> Join(MemberInfo info, std::shared_ptr<StageControl> control);
  // A member is gone: if it has layers, every running request ends with `why`.
  void Leave(const std::string& name, const Status& why);
  void Report(const std::string& name, const MemberLoad& load);
  // From the engine's on_broken.
  void OnRingBroken(Epoch epoch, const Status& why);

  using Done = std::function<void(StatusOr<ChangeReport>)>;
  // See ParseResize. `done` is called once, on the cluster's thread or the caller's.
  void Resize(const std::string& text, Done done);
  // Moves all layers of a member to the others that have some.
  void Drain(const std::string& name, Done done);
  StatusOr<ChangeReport> ResizeAndWait(const std::string& text);
  ClusterStatus status() const;
  // Blocks until a plan serves. kDeadlineExceeded, or the error of the change that failed.
  Status WaitForPlan(Deadline deadline);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gyre
