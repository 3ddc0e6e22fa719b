// How the coordinator drives one worker's stage. In-process adapter: worker/worker.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>

#include "base/ids.h"
#include "base/kv_type.h"
#include "base/plan.h"
#include "base/status.h"

namespace gyre {

// Layers whose KV pages another member has in the running plan.
struct LayerSource {
  LayerRange layers;
  std::string worker;
  std::string address;  // of its ring port
  bool operator==(const LayerSource&) const = default;
};

// What a worker is to make ready: its stage of `plan`, and the page pool, the same on every stage.
struct PrepareRequest {
  Plan plan;
  int stage = 0;  // -1: it has layers in the running plan, none in this one
  int block_size = 16;
  uint32_t num_blocks = 0;
  KvType kv_type = KvType::kF16;
  std::vector<LayerSource> sources;  // of layers of this stage that the worker does not run itself
};

struct StageProgress {  // loading and packing; bytes of weights
  uint64_t done = 0;
  uint64_t total = 0;
};
struct StageReady {};
struct StageMoved {
  uint64_t pages = 0;  // of all layers, in all rounds
  uint64_t bytes = 0;
  uint64_t last_pages = 0;  // of those, in the round after the drain
};
struct StageCommitted {};
struct StageAborted {};
// A stage that could not make one of its links begins its message with one of these, so that the cluster can tell which
// neighbor is at fault.
inline constexpr char kLinkToNextStage[] = "the link to the next stage";
inline constexpr char kLinkFromStageBefore[] = "the link from the stage before";
struct StageFault {
  Status status;
};

struct StageEvent {
  std::string worker;
  Epoch epoch;
  std::variant<StageProgress, StageReady, StageMoved, StageCommitted, StageAborted, StageFault> what;
};

// Calls return at once; what came of them arrives as events on a thread of the implementation. Thread-safe.
class StageControl {
 public:
  using EventSink = std::function<void(StageEvent)>;
  virtual ~StageControl() = default;
  virtual const std::string& name() const = 0;
  // Replaces the sink; called before any other call. The sink must not block and must not call back.
  virtual void SetEventSink(EventSink sink) = 0;
  // Loads weights, allocates pages, wires the plan's links and starts to copy KV pages, all beside the running stage; a
  // new Prepare replaces a prepared stage. Ends in StageReady or StageFault.
  virtual void Prepare(const PrepareRequest& request) = 0;
  // After the drain: copies what was written since the last round. `blocks`: those in use or cached, rising; each must
  // have its last value here afterwards. Ends in StageMoved or StageFault.
  virtual void Move(Epoch epoch, const std::vector<BlockId>& blocks) = 0;
  // The prepared stage becomes the running one, between steps; the one before is kept until Release. Ends in
  // StageCommitted or StageFault.
  virtual void Commit(Epoch epoch) = 0;
  // Every participant has committed: the stage before, its pages and its links go.
  virtual void Release(Epoch epoch) = 0;
  // Drops a prepared stage. Idempotent. Ends in StageAborted.
  virtual void Abort(Epoch epoch) = 0;
};

}  // namespace gyre
