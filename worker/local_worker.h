// A worker in this process: a stage on a thread of its own between two links, and the control that drives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "kernels/ops.h"
#include "model/weights.h"
#include "transport/link.h"

namespace gyre {

struct LocalWorkerOptions {
  std::string name;
  std::shared_ptr<const Model> model;
  Isa isa = Isa::kRef;
  int threads = 1;
  bool exact = false;   // quantized weights times f32 activations
  Link* in = nullptr;   // from the stage before, or the coordinator
  Link* out = nullptr;  // to the stage after, or the coordinator. Both outlive the worker, which closes them
};

struct WorkerStats {
  uint64_t steps = 0;           // computed well
  uint64_t step_errors = 0;     // of this stage's own
  uint64_t dropped_frames = 0;  // of an older epoch or another term, or of no use to a stage
  uint64_t held_frames = 0;     // of a newer epoch, that had to wait for its Commit
};

class LocalWorker {
 public:
  explicit LocalWorker(LocalWorkerOptions options);
  ~LocalWorker();

  // Thread-safe, all of these.

  // The in-process adapter. Loading runs on a thread of its own while the stage serves.
  StageControl& control();
  int threads() const;
  WorkerStats stats() const;
  Duration busy_time() const;   // spent in Stage::Run since the start
  double TakeBusyShare();       // of the time since the last call
  size_t weight_bytes() const;  // that a decode step streams: packed weights but the embedding's other rows
  // Called before each step on the stage's thread; an error takes the place of the step (tests). {} removes it.
  void SetFaultHook(std::function<Status()> hook);

  // Closes both links and joins the threads. Idempotent; one thread at a time.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gyre
