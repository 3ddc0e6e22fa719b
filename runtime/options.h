// The settings of a process that runs a model, by subject.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/ids.h"
#include "base/measured.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/weights.h"

namespace gyre {

struct ChangeTimeouts;
class Drafter;
class IdentityFolder;
class RingPort;
class StateKeeper;
class Tracer;

// The settings under which a machine is measured.
struct MeasuredWith {
  Isa isa = Isa::kRef;
  int threads = 1;
  std::string file;
  Device* device = nullptr;
};

// The model, and the way in which its file is read.
struct ModelOptions {
  std::string model;  // path
  OpenOptions open;
  uint32_t ctx = 0;         // tokens of a sequence; 0 = the context that the file says
  bool adapts_all = false;  // requests that name no adapter have the first one

  // `open` with the context that the user asked for.
  OpenOptions ForOpening() const {
    OpenOptions o = open;
    o.context = static_cast<int>(ctx);
    return o;
  }
  // The same for a draft model beside it: what is said of the model's own file does not count.
  OpenOptions ForOpeningDrafter() const {
    OpenOptions o = ForOpening();
    o.adapters.clear();
    o.quantization.clear();
    return o;
  }
};

// The computation on this machine: threads, kernels, KV cache, batches.
struct ComputeOptions {
  int stages = 1;
  int threads = 0;             // over all stages; 0 = one for each physical core
  std::string cpus;            // processors that the threads stay on, as 0-3; "" = see ChooseCpus
  std::string device;          // as DeviceRequest::name
  uint64_t device_memory = 0;  // as DeviceRequest::memory
  bool no_graphs = false;      // as DeviceRequest::graphs
  std::string isa;             // "" = the best that this processor has
  bool exact = false;          // f32 activations with quantized weights too
  std::string wire = "f32";    // activation format between stages
  std::string kv_type = "f16";
  uint64_t kv_tokens = 0;        // tokens of KV cache; 0 = parallel * context
  uint32_t parallel = 1;         // sequences of the whole context that fit into the KV cache
  uint32_t block_size = 16;      // tokens per KV block
  uint32_t chunk = 256;          // prompt tokens of one sequence per step
  uint32_t max_rows = 512;       // tokens per step
  uint32_t max_sequences = 0;    // that run at once; 0 = 64, and as many as `parallel`
  bool kv_reserve = false;       // each sequence holds KV blocks for the whole context while it runs
  bool context_shift = false;    // a full context loses its older tokens and the text goes on
  int32_t context_keep = 4;      // with context_shift: first tokens that stay; -1 = the whole prompt
  std::string policy = "fcfs";   // who gets rows of a step first (SchedulerPolicy)
  uint32_t step_tokens = 0;      // prompt tokens per step beside requests that decode; 0 = found by measuring
  uint32_t steps_in_flight = 0;  // 0 = found by measuring
  bool no_prefix_cache = false;
  bool no_chunked_prefill = false;
  bool no_continuous_batching = false;
  bool no_candidates = false;
  std::string speculation = "auto";  // who guesses the next tokens (Speculation)
  std::string draft_model;           // path of a small model that guesses, too; "" = none
  uint32_t draft_tokens = 8;         // its guesses in a step at most
  bool takes_all_drafts = false;     // whatever they cost (tests, measurements)
  std::shared_ptr<Drafter> drafter;  // in place of a draft model (tests)
  // What becomes of the process's ring ports (tests, measurements); null: nothing.
  std::function<std::unique_ptr<RingPort>(std::unique_ptr<RingPort>)> wrap_port;
};

// The settings that make the process a coordinator for workers of other machines.
struct ServeOptions {
  std::string cluster;    // HOST:PORT of the gRPC server
  std::string ring;       // HOST:PORT of the ring port; "" = the cluster's host, any port
  std::string advertise;  // the host that workers dial; "" = the one that they joined at
  int min_workers = 1;    // beside this process
  uint64_t memory = 0;    // bytes for layers in this process; 0 = what is free
  bool no_local = false;  // no layers in this process
  std::optional<LayerRange>
      preference;                  // layers that this process gets beside workers; it has all where there are none
  bool bit_equal = false;          // members that would compute other bits are refused
  std::string version;             // of this program
  bool replicate_kv = false;       // full pages are copied to another worker, so that little is replayed after a loss
  std::string transport = "auto";  // the cluster's preference for links to workers
  std::string rebalance = "ask";   // what becomes of better plans: auto, ask, off
  // Measures this machine for its own layers, with the file that weights are read from. Empty: it is not measured.
  std::function<MachineSpeed(const MeasuredWith& with)> measure;
  std::shared_ptr<IdentityFolder> identity;  // for TLS on the ring port; null = without
  std::string cache;                         // the folder where the hashes of the model's pieces are kept; "" = none
};

struct RuntimeOptions : ModelOptions, ComputeOptions {
  const ServeOptions* serve = nullptr;       // null: a ring within the process. Outlives Runtime::Open
  bool tcp = false;                          // a ring within the process whose links are TCP all the same (tests)
  const ChangeTimeouts* timeouts = nullptr;  // of plan changes (tests); null: the cluster's own. Outlives Runtime::Open
  Tracer* tracer = nullptr;                  // of the engine; outlives the runtime
  StateKeeper* state = nullptr;              // what outlives the process; outlives the runtime. null: nothing does
  bool quiet = false;                        // no warnings
  bool keep_changing_lines = false;          // ServiceLimits
  std::shared_ptr<const Model> opened;       // the model, where it is open already; null: Runtime::Open opens `model`
  NowFn now;                                 // the engine's clock (tests, benchmarks); empty = Clock::now
  // Gets the bytes of weights that the first plan has loaded, and their total. Called on another thread; the last call
  // has done == total, unless the plan fails. May be empty.
  std::function<void(uint64_t done, uint64_t total)> on_load;
};

}  // namespace gyre
