// The choice of the KV cache's size and of the number of sequences. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "base/memory_counts.h"
#include "base/status.h"

namespace gyre {

struct KvPreference {
  uint32_t ctx = 0;            // tokens of a sequence that are asked for; 0 = the model's
  uint32_t model_context = 0;  // what the model was made for
  uint64_t tokens = 0;         // of the KV cache that are asked for; 0 = parallel * context
  uint32_t parallel = 1;       // sequences of the whole context
  uint32_t max_sequences = 0;  // at once; 0 = 64, and as many as `parallel`
  uint32_t block_size = 16;
  bool reserve = false;         // each sequence holds a whole context
  KvBytesByGroup unit_bytes{};  // of a unit of each kind (docs/memory.md), in all layers
  // For layers with a window: the positions that a row reads, 0 = there are none; the most prompt rows of a sequence in
  // a step, 0 = whole prompts.
  uint32_t window = 0;
  uint32_t chunk = 256;
  uint64_t memory = 0;  // free bytes; 0 = unknown. Half of them are for the cache where `tokens` is 0
};

struct KvChoice {
  uint32_t context = 0, max_sequences = 0;
  MemoryCounts memory;   // of slots, as many for sequences as for snapshots
  bool cut = false;      // the memory holds less than what was asked for, or than the model was made for
  std::string sentence;  // what was chosen, and why
};

// kInvalidArgument: a number of tokens that can't be counted in blocks.
StatusOr<KvChoice> ChooseKv(const KvPreference& preference);

// The warning for a context that is larger than the one that the model was made for; "" if it is not.
std::string ContextWarning(uint64_t context, uint64_t made_for);

}  // namespace gyre
