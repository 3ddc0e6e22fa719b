// Blocks of those quantized types whose weights are whole numbers times a scale: w = d * scale * (q - zero) + min. The one place
// that knows where a file keeps their bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quant.h"

namespace gyre {

// One block: 32 elements (Q8_0 Q4_0 Q4_1 Q5_0 Q5_1) or 256 (Q4_K Q5_K Q6_K).
struct CodeBlock {
  uint8_t q[256];
  uint16_t d = 0;     // f16
  uint16_t m = 0;     // f16: of 32, the minimum (Q4_1, Q5_1); of 256, what the minima are multiplied by and taken off (Q4_K, Q5_K)
  int8_t scale[16];   // of 256 only: of each 32 elements (Q4_K, Q5_K) or 16 (Q6_K)
  uint8_t min[8];     // Q4_K, Q5_K: of each 32 elements
};

bool HasCodes(DType type);
// What a code stands for 0. REQUIRES: HasCodes(type).
int CodeZero(DType type);
void UnpackCodes(DType type, const std::byte* block, CodeBlock* out);
// The block's elements. REQUIRES: HasCodes(type).
void DequantizeCodes(DType type, const std::byte* block, float* out);

}  // namespace gyre
