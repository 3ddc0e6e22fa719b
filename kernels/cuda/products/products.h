// Launches of the products of rows and weights. All pointers are the device's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/ids.h"
#include "kernels/cuda/products/matrix.h"
#include "kernels/cuda/stream.h"

namespace gyre::cuda {

// Where rows lie: `stride` floats from one to the next. With `bounds`, two numbers on the device, only the rows
// bounds[0] .. bounds[1] - 1 take part, which the host need not know; they are at most `rows`.
struct RowsIn {
  const float* x = nullptr;
  size_t rows = 0, stride = 0;
  const uint32_t* bounds = nullptr;
};
struct RowsOut {
  float* out = nullptr;
  size_t stride = 0;
  bool add = false;  // to what is there
};

// exact.cu. Arithmetic::kExact: out[r][n] (+)= sum over k of x[r][k] * W[n][k], W dequantized to f32. Each of 32 lanes
// has four consecutive positions of each 128, one chain of FMAs in rising order; then the lanes are added by a fixed
// tree. REQUIRES: the type dequantizes, or is kI8 or kF8E4M3 with scales.
void ProductExact(Stream stream, const Matrix& w, const RowsIn& in, const RowsOut& out);
// out[r][k] = row ids[r] of W as f32.
void Embed(Stream stream, const TokenId* ids, size_t rows, const Matrix& w, float* out);

}  // namespace gyre::cuda
