// Keys and values as the attention kernels read them. Every ISA's file includes this, so it has only constants and
// templates of constants.
#pragma once

#include <cstddef>

#include "base/kv_type.h"

namespace gyre::cpu {

// The keys or values of one head at consecutive positions of one page.
struct KvSpan {
  KvType type;
  const std::byte* values;
  const std::byte* scales;  // f16; null without scales
};

// Pages that IsaOps::scores and weighted_sum read at once for few rows: memory serves several streams faster than one.
inline constexpr size_t kPagesPerBatch = 4;

// Spans of several pages, n positions each.
struct KvSpans {
  const KvSpan* at;
  size_t pages, n;
  // The spans that are read afterwards, as many and of as many positions: prefetched meanwhile. May be null.
  const KvSpan* next = nullptr;
};

}  // namespace gyre::cpu
