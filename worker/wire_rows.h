// The types of activations in frames, as kernels name them.
#pragma once

#include "base/wire_type.h"
#include "kernels/wire_rows.h"

namespace gyre {

// REQUIRES: IsActivations(type).
inline DType RowType(WireType type) {
  return type == WireType::kF16 ? DType::kF16 : type == WireType::kQ8 ? DType::kQ8_0 : DType::kF32;
}
// Bytes of one row of `dim` values. REQUIRES: IsActivations(type).
inline size_t WireRowBytes(WireType type, size_t dim) { return WireRowBytes(RowType(type), dim); }

}  // namespace gyre
