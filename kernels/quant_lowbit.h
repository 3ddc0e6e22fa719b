// Types with few bits per weight whose blocks index codebooks or pack ternary digits: IQ1 to IQ3 and TQ. Layouts:
// ggml's block formats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quant.h"

namespace gyre {

// 256 weights as small integers times a scale. An integer takes one byte with 128 added, eight per word, the first one
// in the lowest byte; each 16 have one scale. Integer times scale is exact in f32.
struct LowBitBlock {
  uint64_t q[32];
  float scale[16];
};

bool IsLowBit(DType type);
// REQUIRES: IsLowBit(type).
void ExpandLowBit(DType type, const std::byte* block, LowBitBlock* out);
// Writes the 256 elements of one block as f32. REQUIRES: IsLowBit(type).
void DequantizeLowBitBlock(DType type, const std::byte* block, float* out);

}  // namespace gyre
