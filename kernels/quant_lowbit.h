// Blocks of few bits a weight that point into codebooks or pack ternary digits: IQ1 to IQ3 and TQ. Layouts: ggml's
// block formats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quant.h"

namespace gyre {

// 256 weights as small whole numbers times a factor: a byte each, 128 added, eight a word with the first in the lowest
// byte; a factor for each 16. The products are exact in f32.
struct LowBitBlock {
  uint64_t q[32];
  float scale[16];
};

bool IsLowBit(DType type);
// REQUIRES: IsLowBit(type).
void ExpandLowBit(DType type, const std::byte* block, LowBitBlock* out);
// One block as f32. REQUIRES: IsLowBit(type).
void DequantizeLowBitBlock(DType type, const std::byte* block, float* out);

}  // namespace gyre
