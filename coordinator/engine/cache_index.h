// What the units of the KV cache hold: an index that outlives the process, so that the next one uses the pages that
// workers kept (docs/restart.md). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/memory_counts.h"
#include "base/step.h"

namespace gyre {

// Names the content of all full blocks from position 0 to the end of one block. Handed out once, so two different
// contents never have the same; kNoChain is the empty content.
using ChainId = uint64_t;
inline constexpr ChainId kNoChain = 0;

// A published unit. A unit of the paged group lists its block's tokens; the chain of a unit of another group says
// which tokens it covers.
struct CachedUnit {
  MemoryCounts::Place place;
  uint64_t step = 0;  // no later one has written it
  ChainId chain = kNoChain;
  ChainId parent = kNoChain;
  uint64_t salt = 0;
  std::vector<TokenId> tokens;
  std::vector<RowClass> classes;
  uint32_t snapshot = 0;  // its number
  bool evict_first = false;
  bool operator==(const CachedUnit&) const = default;
};

// nullopt: the unit has no content any more.
struct CacheChange {
  MemoryCounts::Place place;
  std::optional<CachedUnit> unit;
  bool operator==(const CacheChange&) const = default;
};

// Chains may be combined only within one generation: those of one scheduler, or of its successor that took over its
// index. Generations rise.
struct CacheIndex {
  uint64_t generation = 0;
  std::vector<CachedUnit> units;
};

// Units to be stored: of these changes since the last ones. Another generation than before: all older ones are void.
struct CacheNews {
  uint64_t generation = 0;
  std::vector<CacheChange> changes;
};

}  // namespace gyre
