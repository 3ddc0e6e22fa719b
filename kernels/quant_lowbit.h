// Blocks of few bits a weight that point into codebooks or pack ternary digits: IQ1 to IQ3 and TQ. Layouts: ggml's block formats.
#pragma once

#include <cstddef>

#include "kernels/quant.h"

namespace gyre {

// One block as f32; false: another type.
bool DequantizeLowBitBlock(DType type, const std::byte* block, float* out);

}  // namespace gyre
