// Rows as the operand B of matrix instructions: rounded once, for all products that take them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"

namespace gyre::cuda {

// The numbers that a row is made of.
enum class Pieces : uint8_t {
  kInt8,    // a code, with a scale for 32 inputs
  kBf16,    // x rounded to bf16
  kBf16x3,  // the sum of three bf16, which has all bits of x
  kF16x2,   // the sum of two f16 times a power of two of the row: 22 bits of its largest element
};

inline constexpr size_t kPiecesKinds = 4;

// Rows by eights, in the order in which lanes read them. For each eight rows, and each 32 inputs of them, lane l has
// what row l / 4 has at its quads, the inputs 4 (l % 4) .. + 3 and these + 16:
//   kInt8   codes [eight][64 inputs][lane][16 bytes]: the two quads of the first 32 inputs, then of the others;
//           scales [eight][32 inputs][row]: f32 scale, and the sums of the first and the last 16 codes as int16
//   others  codes [eight][32 inputs][piece][lane][16 bytes]
// Rows beyond the last one and inputs beyond k are zeros. A product of several heads has the eights of all of them, one
// head after the other.
struct Operand {
  Pieces pieces = Pieces::kInt8;
  size_t eights = 0;  // of a head
  size_t blocks = 0;  // of 64 inputs
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;  // kInt8
  const float* factors = nullptr;   // kF16x2: [head][row of the eights], what results are multiplied by
};

constexpr size_t PieceCount(Pieces p) { return p == Pieces::kBf16x3 ? 3 : p == Pieces::kF16x2 ? 2 : 1; }

// Bytes of an operand, each part a multiple of 16.
struct OperandSizes {
  size_t codes = 0, scales = 0;
};
OperandSizes SizesOfOperand(Pieces pieces, size_t rows, size_t k, size_t heads);

// x: the k elements of head h of row r begin at x[r * stride + h * head_stride].
struct OperandSource {
  const float* x = nullptr;
  size_t rows = 0, k = 0, stride = 0;
  size_t heads = 1, head_stride = 0;
};
// Fills `memory`, which has the bytes of SizesOfOperand, codes first.
Operand MakeOperand(Stream stream, Pieces pieces, const OperandSource& from, uint8_t* memory);

}  // namespace gyre::cuda
