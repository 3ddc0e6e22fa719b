// How the coordinator drives one worker's stage. In-process adapter: worker/local_control.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>

#include "base/ids.h"
#include "base/plan.h"
#include "base/status.h"

namespace gyre {

enum class KvType : uint8_t { kF32 = 0, kF16 = 1 };

// What a worker is to make ready: its stage of `plan`, and the page pool, the same on every stage.
struct PrepareRequest {
  Plan plan;
  int stage = 0;
  int block_size = 16;
  uint32_t num_blocks = 0;
  KvType kv_type = KvType::kF16;
};

struct StageProgress {  // loading and packing; bytes of weights
  uint64_t done = 0;
  uint64_t total = 0;
};
struct StageReady {};
struct StageCommitted {};
struct StageAborted {};
struct StageFault {
  Status status;
};

struct StageEvent {
  std::string worker;
  Epoch epoch;
  std::variant<StageProgress, StageReady, StageCommitted, StageAborted, StageFault> what;
};

// Calls return at once; what came of them arrives as events on a thread of the implementation. Thread-safe.
class StageControl {
 public:
  using EventSink = std::function<void(StageEvent)>;
  virtual ~StageControl() = default;
  virtual const std::string& name() const = 0;
  // Replaces the sink; called before any other call. The sink must not block and must not call back.
  virtual void SetEventSink(EventSink sink) = 0;
  // Loads weights and allocates pages beside the running stage; a new Prepare replaces a prepared stage.
  // Ends in StageReady or StageFault.
  virtual void Prepare(const PrepareRequest& request) = 0;
  // The prepared stage becomes the running one, between steps. Ends in StageCommitted or StageFault.
  virtual void Commit(Epoch epoch) = 0;
  // Drops a prepared stage. Idempotent. Ends in StageAborted.
  virtual void Abort(Epoch epoch) = 0;
};

}  // namespace gyre
