// Blocks of those quantized types whose weights are small whole numbers times a scale: w = d * scale * (q - zero) +
// min, or w = d * scale * table[q]. The one place that knows where a file keeps their bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quant.h"

namespace gyre {

// What the codes of IQ4_NL and IQ4_XS stand for, and twice what those of MXFP4 do (OCP Microscaling Formats 1.0).
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t kFp4Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// One block: 32 elements (Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 IQ4_NL MXFP4) or 256 (Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_XS).
struct CodeBlock {
  uint8_t q[256];
  uint16_t d = 0;    // f16
  uint16_t m = 0;    // f16: of 32, the minimum (Q4_1, Q5_1); of 256, what the minima are multiplied by and taken off
                     // (Q2_K, Q4_K, Q5_K)
  float wide_d = 0;  // MXFP4: in place of d, a power of two that f16 may not hold
  int8_t scale[16];  // of 256 only: of each 32 elements (Q4_K, Q5_K, IQ4_XS) or 16 (Q2_K, Q3_K, Q6_K)
  uint8_t min[16];   // of each 32 (Q4_K, Q5_K) or 16 (Q2_K)
};

bool HasCodes(DType type);
// The code that stands for 0; of types with a table 0. REQUIRES: HasCodes(type).
int CodeZero(DType type);
// What the 16 codes stand for, or null.
const int8_t* CodeTable(DType type);
void UnpackCodes(DType type, const std::byte* block, CodeBlock* out);
// The block's elements. REQUIRES: HasCodes(type).
void DequantizeCodes(DType type, const std::byte* block, float* out);

}  // namespace gyre
