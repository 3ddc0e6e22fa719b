// Quantizing to Q4_K, Q5_K and Q6_K: blocks of 256 in sub-blocks with scales of few bits, each fitted by least squares.
#pragma once

#include <cstddef>

#include "kernels/quant.h"

namespace gyre {

// 256 floats to one block; false: another type.
bool QuantizeKBlock(DType type, const float* x, std::byte* block);

}  // namespace gyre
