// Blocks of few bits a weight: Q2_K, Q3_K, the IQ types, TQ and MXFP4. Layouts: ggml's block formats; MXFP4: OCP
// Microscaling Formats 1.0.
#pragma once

#include <cstddef>

#include "kernels/quant.h"

namespace gyre {

// One block as f32; false: another type.
bool DequantizeLowBitBlock(DType type, const std::byte* block, float* out);

}  // namespace gyre
