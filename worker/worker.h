// A worker: a stage on a thread of its own between two links, and the control that drives it. Lives in the
// coordinator's process or in one of its own (worker/node.h).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/member_load.h"
#include "base/stage_control.h"
#include "base/status.h"
#include "kernels/device.h"
#include "model/weights.h"
#include "transport/ring_port.h"

namespace gyre {

class WeightStock;

struct WorkerOptions {
  std::string name;
  std::shared_ptr<const Model> model;
  std::shared_ptr<Device> device = MakeCpuDevice(Isa::kRef, 1);  // all its stages share it
  int threads = 1;                                               // of a CPU; the loader has as many
  bool exact = false;
  RingPort* port = nullptr;        // of this process; outlives the worker
  WeightStock* weights = nullptr;  // outlives it; null: the model's files are whole and nothing is compared
  // One of its threads has ended by an exception, so the worker is of no more use: called on that thread, with the last
  // words. Must neither block nor destroy the worker. Empty: the process says them and ends.
  std::function<void(const Status&)> on_fatal;
  // Only tests change what follows.
  uint64_t max_payload = kMaxPayload;  // bytes of a frame that the worker sends
  // The bytes that may wait to be sent to the next stage before the stage's thread waits, too. A large prompt has
  // several steps of this size.
  size_t queued_bytes = size_t{32} << 20;
  Duration export_slice = std::chrono::milliseconds(5);  // the least time for exporting pages between two steps
  // Copying pages fails when none come for this long. The source reads them between two steps, and a step may take
  // long.
  Duration bulk_silence = std::chrono::minutes(10);
  // A restore ends when nothing comes for `restore_silence`, after `restore_limit` in any case, and after
  // `restore_rest` if no sequence waits for what is missing. What is missing then is computed again.
  Duration restore_silence = std::chrono::seconds(2);
  Duration restore_limit = std::chrono::seconds(5);
  Duration restore_rest = std::chrono::milliseconds(500);
};

struct WorkerStats {
  uint64_t steps = 0;
  uint64_t step_errors = 0;
  uint64_t dropped_frames = 0;  // of another epoch than the link's
  uint64_t pages_sent = 0;
  uint64_t rows_sent = 0;       // of activations, to the next stage
  uint64_t row_bytes_sent = 0;  // of the frames that carried them, headers and descriptors too
  uint64_t void_steps = 0;      // whose rows count for nothing, so that they were not computed
};

class Worker {
 public:
  explicit Worker(WorkerOptions options);
  ~Worker();

  // The in-process adapter. Thread-safe; loading and copying run on a thread of their own while the stage serves.
  StageControl& control();
  // Hands one end of a bulk link over, whose dialer pulls pages. Thread-safe.
  void ServeBulk(std::unique_ptr<Link> link);
  // The coordinator is gone: running and prepared stages, their pages and links go; weights stay for the next Prepare.
  // Thread-safe; returns at once.
  void Reset();
  // The coordinator is gone, and another one of the same cluster takes its place: the running stage stays, with weights
  // and pages, and what is being prepared goes. Thread-safe; returns at once.
  void AwaitTakeover();
  // Layers that the running stage has; empty: there is none. Thread-safe.
  LayerRange running_layers() const;
  // The highest number of a step that it has had, from any coordinator. Thread-safe.
  uint64_t last_step() const;
  int threads() const;
  // Thread-safe, all of these.
  WorkerStats stats() const;
  Duration busy_time() const;  // spent in Stage::Run since the start
  // `busy` is of the time since the last call; resident_bytes are the process's.
  MemberLoad TakeLoad();
  size_t weight_bytes() const;  // that a decode step streams: packed weights but the embedding's rows
  // Called before each step on the stage's thread; an error takes the place of the step (tests). {} removes it.
  void SetFaultHook(std::function<Status()> hook);
  // Tests: called with each frame of the ring before it is looked at, on the stage's thread. Before the first Prepare.
  void SetFrameHookForTest(std::function<void(const Frame&)> hook);
  // Tests: from now on pages are not copied; the running stage's links end.
  void SkipCopyingForTest();
  void BreakLinksForTest();
  // Runs `fn` on the stage's thread, between steps.
  void OnStageThread(std::function<void()> fn);
  // Closes the links and joins the threads. Idempotent.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gyre
