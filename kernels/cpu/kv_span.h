// Keys and values as attention's kernels read them. Included by every ISA's file, so inline templates of constants
// only.
#pragma once

#include <cstddef>

#include "base/kv_type.h"

namespace gyre::cpu {

// Of positions that follow each other in a page, of one head.
struct KvSpan {
  KvType type;
  const std::byte* values;
  const std::byte* scales;  // f16; of q8_0 only
};

// Pages that IsaOps::scores and weighted_sum best take at once for few rows.
inline constexpr size_t kPagesPerBatch = 4;

// Several pages' runs, of n positions each.
struct KvSpans {
  const KvSpan* at;
  size_t pages, n;
  const KvSpan* next =
      nullptr;  // as many of as many positions, of what is wanted afterwards: memory is asked for them meanwhile
};

// f.template operator()<type>() for a type that is known at run time only.
template <typename Fn>
void WithKvType(KvType type, const Fn& f) {
  switch (type) {
    case KvType::kF32: return f.template operator()<KvType::kF32>();
    case KvType::kF16: return f.template operator()<KvType::kF16>();
    case KvType::kBf16: return f.template operator()<KvType::kBf16>();
    case KvType::kQ8_0: return f.template operator()<KvType::kQ8_0>();
  }
}

}  // namespace gyre::cpu
