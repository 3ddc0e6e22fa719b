// Activations in their wire form, for tests: the host's code for Backend::EncodeRows and DecodeRows.
#pragma once

#include <span>
#include <vector>

#include "worker/wire_rows.h"

namespace gyre::testing {

// x: [rows][dim]. `out` gets rows * WireRowBytes(type, dim) bytes. Returns the number of values that were cut.
inline size_t EncodeRows(WireType type, std::span<const float> x, size_t dim, std::vector<std::byte>* out) {
  out->resize(x.size() / dim * WireRowBytes(type, dim));
  return EncodeWireRows(RowType(type), x.data(), x.size() / dim, dim, out->data());
}
inline void DecodeRows(WireType type, std::span<const std::byte> bytes, size_t dim, float* x) {
  DecodeWireRows(RowType(type), bytes.data(), bytes.size() / WireRowBytes(type, dim), dim, x);
}

}  // namespace gyre::testing
