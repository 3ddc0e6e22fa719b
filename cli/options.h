// What the commands' flags say.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/sampler.h"
#include "model/weights.h"

namespace gyre {

// What makes a coordinator of it: others may bring layers' memory and threads.
struct ServeOptions {
  std::string cluster;    // HOST:PORT of the gRPC port
  std::string ring;       // HOST:PORT of the ring port; "" = the cluster's host, any port
  std::string advertise;  // the host that workers dial; "" = the one they joined at
  int min_workers = 1;
  bool no_local = false;
  bool bit_equal = false;
  bool insecure = false;
};

// How a model is loaded and run on this machine.
struct RingOptions {
  std::string model;
  std::string cluster;  // HOST:PORT of a coordinator that runs it instead; "" = here
  OpenOptions open;
  int stages = 1;
  int threads = 0;         // over all stages; 0 = one a physical core
  std::string cpus;        // that they stay on, as 0-3; "" = see ChooseCpus
  uint32_t ctx = 0;        // positions of a sequence; 0 = what the file says
  uint64_t kv_tokens = 0;  // positions of KV cache; 0 = parallel * ctx
  uint32_t parallel = 1;   // sequences that are to fit
  std::string kv_type = "f16";
  uint32_t block_size = 16;
  uint32_t chunk = 256;
  uint32_t max_rows = 512;
  std::string isa;           // "" = the best
  std::string wire = "f32";  // what activations travel as
  bool exact = false;        // quantized weights with f32 activations
  bool no_prefix_cache = false;
  bool no_chunked_prefill = false;
  bool no_continuous_batching = false;
  bool no_candidates = false;
  bool quiet = false;                   // no progress, no warnings
  const ServeOptions* serve = nullptr;  // null: a ring within the process
  bool tcp = false;                     // a ring within the process whose links are TCP all the same (tests)

  // `open`, for the context that is asked for.
  OpenOptions ModelOptions() const {
    OpenOptions o = open;
    o.context = static_cast<int>(ctx);
    return o;
  }
};

struct GenerateOptions {
  SamplingParams sampling;
  int64_t n = -1;     // tokens; -1 = to the end of the context
  int64_t seed = -1;  // -1 = a random one, which is printed
  std::vector<std::string> stops;
  bool ignore_eos = false;
};

}  // namespace gyre
