// Quantization to Q2_K, Q3_K, Q4_K, Q5_K and Q6_K: blocks of 256 in sub-blocks with scales of few bits, each fitted by
// least squares.
#pragma once

#include <cstddef>

#include "kernels/quant.h"

namespace gyre {

// Quantizes 256 floats to one block. The squared error of value i counts importance[i] times, or once if it is null.
// Returns false for any other type.
bool QuantizeKBlock(DType type, const float* x, const float* importance, std::byte* block);

}  // namespace gyre
