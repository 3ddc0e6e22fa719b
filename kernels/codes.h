// Quantized types whose weights are small integer codes times a scale: w = d * scale * (q - zero) + min, or w = d *
// scale * table[q]. This is the only place that knows the bit layout of these blocks in a file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quant.h"

namespace gyre {

// The values of the 16 codes of IQ4_NL and IQ4_XS (from ggml, under the license in codebooks.cc), and twice those of
// MXFP4 (OCP Microscaling Formats 1.0).
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t kFp4Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// One unpacked block: 32 elements (Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 IQ4_NL MXFP4), 64 (Q2_0 NVFP4), 128 (Q1_0) or 256 (Q2_K
// Q3_K Q4_K Q5_K Q6_K IQ4_XS TQ1_0 TQ2_0).
struct CodeBlock {
  uint8_t q[256];
  uint16_t d = 0;    // f16
  uint16_t m = 0;    // f16: of 32, the minimum (Q4_1, Q5_1); of 256, what the minima are multiplied by and taken off
                     // (Q2_K, Q4_K, Q5_K)
  float wide_d = 0;  // kI8 only, instead of d
  // Blocks of 256: per 32 elements (Q4_K, Q5_K, IQ4_XS) or per 16 (Q2_K, Q3_K, Q6_K). Instead of d: MXFP4's exponent
  // (an unsigned byte), NVFP4's E4M3 of each 16 elements, without its sign and with 0 for NaN.
  int8_t scale[16];
  uint8_t min[16];  // per 32 elements (Q4_K, Q5_K) or per 16 (Q2_K)
};

// The scales of codes of kFp4Doubled: halved, because the table is doubled.
float Mxfp4Scale(uint8_t exponent);  // 2^(exponent - 128)
float Nvfp4Scale(uint8_t e4m3);      // REQUIRES: no sign, no NaN

// Whether the type is one of these.
bool HasCodes(DType type);
// The code that means 0; 0 for types with a table. REQUIRES: HasCodes(type).
int CodeZero(DType type);
// The values of the 16 codes, or nullptr if the type has no table.
const int8_t* CodeTable(DType type);
// REQUIRES: HasCodes(type).
void UnpackCodes(DType type, const std::byte* block, CodeBlock* out);
// Writes the elements of one block as f32. REQUIRES: HasCodes(type).
void DequantizeCodes(DType type, const std::byte* block, float* out);

}  // namespace gyre
