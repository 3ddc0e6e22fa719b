// One machine: a model cut into in-process stages, joined by in-process links, and the engine that drives them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/plan.h"
#include "base/status.h"
#include "cli/options.h"
#include "coordinator/engine.h"
#include "model/weights.h"
#include "worker/local_worker.h"

namespace gyre {

class LocalRing {
 public:
  // Opens the model, loads and packs the weights of every stage (progress on stderr), and starts the engine.
  static StatusOr<std::unique_ptr<LocalRing>> Open(const RingOptions& options);
  ~LocalRing();

  Engine& engine() { return *engine_; }
  const Model& model() const { return *model_; }
  const Plan& plan() const { return plan_; }
  uint32_t context() const { return context_; }
  // The workers, in ring order.
  const std::vector<std::unique_ptr<LocalWorker>>& workers() const { return workers_; }
  // A table for people: stage, layers, busy share since the last call.
  std::string DescribeLayers();

 private:
  LocalRing() = default;
  Status Wire(const RingOptions& options);
  Status StartEngine(const RingOptions& options, uint32_t num_blocks);

  std::shared_ptr<const Model> model_;
  Plan plan_;
  uint32_t context_ = 0;
  std::vector<std::unique_ptr<Link>> links_;  // both ends of every hop; outlive engine and workers
  std::vector<std::unique_ptr<LocalWorker>> workers_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace gyre
