// The coordinator's gRPC door: workers attach, operators ask, clients generate. proto/gyre/v1.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "coordinator/cluster.h"
#include "coordinator/engine.h"
#include "model/weights.h"

namespace gyre {

struct DoorOptions {
  std::string address;  // HOST:PORT, port 0 for any
  uint64_t term = 0;
  std::string version;
  uint32_t context = 0;
  std::string kv_type;
  bool exact = false;
  OpenOptions open;                                              // what workers need to open the same .bin model
  Duration heartbeat_timeout = std::chrono::milliseconds(2500);  // a worker that is silent for so long is gone
};

class Door {
 public:
  // Model, engine and cluster outlive it. kUnavailable: the address can't be bound.
  static StatusOr<std::unique_ptr<Door>> Open(const DoorOptions& options, const Model& model, Engine& engine,
                                              Cluster& cluster);
  virtual ~Door() = default;
  // HOST:PORT as bound.
  virtual const std::string& address() const = 0;
  // Ends every call. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace gyre
