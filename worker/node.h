// A worker's process: finds the coordinator, attaches, carries out its commands, and comes back when it was away.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/ids.h"
#include "base/measured.h"
#include "base/status.h"
#include "base/transport.h"
#include "base/wire_type.h"
#include "identity/identity.h"
#include "kernels/device.h"
#include "model/weights.h"

namespace gyre {

class Worker;

// Where a worker's weights come from.
enum class WeightsFrom {
  kAuto,   // the model's file if it is here, else the coordinator and other workers
  kFile,   // a file of this machine
  kFetch,  // the coordinator and other workers, whatever is here
};

struct NodeOptions {
  std::string join;   // HOST:PORT of the coordinator, or of all that may lead, with commas
  std::string model;  // "" = the path that the coordinator names
  OpenOptions open;
  std::string name;    // "" = its identity's, or the host's
  std::string listen;  // HOST:PORT of the ring port; "" = the address that reaches the coordinator, any port
  std::optional<LayerRange> preference;
  std::shared_ptr<Device> device = MakeCpuDevice(Isa::kRef, 1);
  int threads = 1;                           // WorkerOptions::threads
  uint64_t memory = 0;                       // 0 = what the machine has free without this process
  WireTypes wire_types = kAllActivations;    // that it takes part with
  Transport transport = Transport::kAuto;    // its preference for links
  bool insecure = false;                     // may listen at an address that is not loopback
  std::shared_ptr<IdentityFolder> identity;  // for TLS, and for its name; null = without
  std::string version;
  // Paths of models that this machine has elsewhere: looked through for the coordinator's, by its hash, where its path
  // is not here. May be empty.
  std::function<std::vector<std::string>()> other_models;
  WeightsFrom weights = WeightsFrom::kAuto;
  std::string cache;          // folder for weights that are fetched; "" = none are
  uint64_t cache_limit = 0;   // bytes of all of them, 0 = what the disk holds
  uint64_t weights_rate = 0;  // bytes a second to other workers, 0 = no limit
  // Measures this machine before it joins, with the file that it reads weights from ("": it fetches them). Empty: it is
  // not measured.
  std::function<MachineSpeed(const std::string& file)> measure;
  std::function<void(const std::string&)> say;  // lines for people: joined, lost, waiting
  // The worker shall give its layers to others and then end, within drain_timeout. Empty: never. Any thread.
  std::function<bool()> leaves;
  Duration drain_timeout = std::chrono::seconds(60);
  // The time for which it keeps its stage when the coordinator is gone, if that has a state and may be started again.
  Duration orphan_timeout = std::chrono::seconds(60);
  std::function<void(Worker&)> on_worker;      // tests: called with each worker that is made
  std::function<uint64_t()> available_memory;  // tests; empty = AvailableMemory
};

// Runs until `stopped` says so (looked at every 50 ms), or until it has left; OK then. Otherwise the sentence that
// makes it useless to try on: another model, a refusal, an address that can't be bound, a thread of the worker that
// ended. A coordinator that is not there is waited for.
Status RunNode(const NodeOptions& options, const std::function<bool()>& stopped);

}  // namespace gyre
