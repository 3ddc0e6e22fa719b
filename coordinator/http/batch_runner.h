// Runs the requests of batches through the server's own routes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "batch/batch_store.h"
#include "coordinator/http/router.h"

namespace gyre::http {

struct BatchRunnerOptions {
  uint32_t at_once = 8;
  int priority = -100;             // of requests that name none: behind all that somebody waits for
  std::function<bool()> draining;  // nothing new begins; thread-safe. Empty: never
};

// Its own thread runs them. What runs when it ends is given back to the store.
class BatchRunner {
 public:
  // `routes`: those that batches may ask, with what they refer to. The store outlives the runner.
  static StatusOr<std::unique_ptr<BatchRunner>> Start(BatchStore& store, Router routes, BatchRunnerOptions options);
  virtual ~BatchRunner() = default;
};

}  // namespace gyre::http
