// A stage of one plan with what it needs, and the calls that the parts of a worker make to the worker.
#pragma once

#include <functional>
#include <memory>

#include "base/ids.h"
#include "base/stage_control.h"
#include "base/wire_type.h"
#include "transport/link.h"
#include "worker/stage.h"

namespace gyre {

struct PreparedStage {
  Epoch epoch;
  int stage_index = -1;  // -1: the worker has no layers in this plan
  WireType wire = WireType::kF32;
  bool fresh = false;              // PrepareRequest::fresh
  bool told_saturated = false;     // a log line said that values are cut to the range of `wire`
  std::unique_ptr<Backend> queue;  // the stage's order of work on the device
  std::unique_ptr<Stage> stage;
  std::shared_ptr<Link> in, out;
  uint64_t last_step = 0;  // no page that was copied was written after it
};

// Any thread may call these.
struct WorkerCalls {
  // Sends an event to the coordinator.
  std::function<void(Epoch epoch, decltype(StageEvent::what) what)> say;
  // Runs `fn` as the whole of a thread with this name. No exception leaves it, and none goes unnoticed.
  std::function<void(const char* thread, const std::function<void()>& fn)> guard;
  // Ends the running stage's ring and then runs the job on the stage's thread: no step of it follows.
  std::function<void(std::function<void()> job)> after_ring = {};
};

}  // namespace gyre
