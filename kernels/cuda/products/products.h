// Launches of products with weight matrices: out[r][n] (+)= sum over k of x[r][k] * W[n][k]. All pointers are the
// device's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/ids.h"
#include "kernels/cuda/products/matrix.h"
#include "kernels/cuda/products/operand.h"
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

// Matrices of one form that are multiplied in one launch: one, or `count` of them whose tiles and scales lie on the
// device. Matrix z has the rows bounds[z] .. bounds[z + 1] - 1, or those of the operand's head z; it writes to out +
// z * out_step.
struct Matrices {
  const Matrix* first = nullptr;  // on the host: what all have in common, and the one if they are not many
  const Matrix* many = nullptr;   // on the device
  size_t count = 1;
  size_t out_step = 0;
};

// Generated rows, packed weights. Rows go through the matrix instruction by eights, one row too; k is cut into eight
// parts, each a chain of its own, which are added in their order. A row's bits depend on its own elements and on W.
//
// int8.cu. Integer codes, kInt8: in each 32 (or 16) inputs exact integers, then f32 Fma(scale * sum, scale of x, ...).
// float.cu. F16 with kF16x2, BF16 and E4M3 with kBf16x3: sums of exact products in f32.
Pieces PiecesFor(DType type);
// REQUIRES: W is packed, x has PiecesFor(type).
void ProductOfRows(Stream stream, const Matrices& w, const Operand& x, size_t rows, const uint32_t* bounds,
                   const RowsOut& out);
// tiles.cu. Rows of prompts, kBf16: weights are rounded to bf16, those of F16 become two bf16.
void ProductOfPrompt(Stream stream, const Matrices& w, const Operand& x, size_t rows, const RowsOut& out);

// exact.cu. W dequantized to f32, any matrix; one chain of FMAs for the inputs of each lane, and lanes and warps are
// added in a fixed order. REQUIRES: the type dequantizes, or is kI8 or kF8E4M3 with scales.
void ProductExact(Stream stream, const Matrix& w, const RowsIn& in, const RowsOut& out);
// out[r][k] = row ids[r] of W as f32.
void Embed(Stream stream, const TokenId* ids, size_t rows, const Matrix& w, float* out);

}  // namespace gyre::cuda
