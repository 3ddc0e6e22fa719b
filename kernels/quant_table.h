// Quantization to types whose codes are indices into a table of 16 values (IQ4_NL, IQ4_XS, MXFP4, NVFP4), or one of two
// to four levels (Q1_0, Q2_0, TQ2_0).
#pragma once

#include <cstddef>

#include "kernels/quant.h"

namespace gyre {

// Quantizes one block. The squared error of value i counts importance[i] times, or once if it is null. Returns false
// for any other type.
bool QuantizeTableBlock(DType type, const float* x, const float* importance, std::byte* block);

}  // namespace gyre
