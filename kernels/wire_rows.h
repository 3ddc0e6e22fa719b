// Activations as they travel from stage to stage: docs/wire.md. The types are kF32, kF16 and kQ8_0, whose last block is
// filled up with zeros. Pure.
#pragma once

#include <cstddef>

#include "kernels/quant.h"

namespace gyre {

// Bytes of one row of `dim` values.
size_t WireRowBytes(DType type, size_t dim);

// x [rows][dim] to rows * WireRowBytes(type, dim) bytes, each row's from that row alone. The result counts the values
// that were cut to what the type holds.
size_t EncodeWireRows(DType type, const float* x, size_t rows, size_t dim, std::byte* out);

// The way back. Any bytes give values.
void DecodeWireRows(DType type, const std::byte* in, size_t rows, size_t dim, float* x);

}  // namespace gyre
