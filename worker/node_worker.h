// The worker of a worker's process: made under the name that a coordinator gives it, and stopped before its model
// changes.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/status.h"
#include "worker/node.h"
#include "worker/node_model.h"
#include "worker/node_port.h"
#include "worker/worker.h"

namespace gyre {

// One thread, except for Fatal.
class NodeWorker {
 public:
  // options: outlives it.
  explicit NodeWorker(const NodeOptions& options) : options_(options) {}

  // The worker of this name, which is made if there is none or one of another name. The port outlives it.
  Worker& Become(const std::string& name, const NodeModel& model, NodePort& port);
  // Null: there is none.
  Worker* get() const { return worker_.get(); }
  // Ends the worker, if there is one.
  void Drop();
  // Until the stage's step is over, or `ends` says so: a stage that computes can't be dropped. Ends the process if the
  // step takes longer than any does.
  void WaitForStage(const std::function<bool()>& ends) const;
  // The last words of a worker whose thread ended; OK while it lives. Any thread.
  Status Fatal() const;

 private:
  const NodeOptions& options_;
  mutable Mutex mutex_;
  Status fatal_ GYRE_GUARDED_BY(mutex_);
  std::shared_ptr<Worker> worker_;
};

}  // namespace gyre
