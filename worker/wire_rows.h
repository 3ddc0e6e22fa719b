// Activations as they travel from stage to stage: docs/wire.md. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/wire_type.h"

namespace gyre {

// Bytes of one row of `dim` values. REQUIRES: IsActivations(type).
size_t WireRowBytes(WireType type, size_t dim);

// x: [rows][dim]. `out` becomes rows * WireRowBytes(type, dim) bytes, each row's from that row alone. The result counts
// the values that were cut to what the type holds. REQUIRES: IsActivations(type), x.size() is a multiple of dim.
size_t EncodeRows(WireType type, std::span<const float> x, size_t dim, std::vector<std::byte>* out);

// The way back, into x [rows][dim]. Any bytes give values. REQUIRES: IsActivations(type), bytes.size() is a multiple of
// WireRowBytes(type, dim), x holds as many rows.
void DecodeRows(WireType type, std::span<const std::byte> bytes, size_t dim, float* x);

}  // namespace gyre
