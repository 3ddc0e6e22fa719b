// Types with few bits per weight whose blocks index codebooks: IQ1 to IQ3. Layouts: ggml's block formats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quant.h"

namespace gyre {

// 256 weights: points of a codebook, signs and scales.
struct BookBlock {
  uint16_t index[64];  // 32 points of eight coordinates, or (IQ3) 64 points of four
  uint8_t sign[32];    // of each eight weights. IQ2, IQ3: bit i negates weight i; IQ1: 1 shifts all down, 0 up
  uint8_t scale[16];   // of each 16 weights s; their scale is (2 s + 1) * d, times 1/8 (IQ1, IQ2) or 1/4 (IQ3_XXS)
  uint16_t d;          // f16
};

// The codebooks with one byte for each coordinate, the first one in the lowest byte.
struct BookPoints {
  uint64_t iq2_xxs[256], iq2_xs[512], iq2_s[1024];
  uint64_t iq1[2048];  // 8 c + 128, where the coordinate c is -1, 0 or 1
  uint32_t iq3_xxs[256], iq3_s[512];
  uint64_t negative[256];  // 0xFF in the bytes whose bit is set

  BookPoints();
};
const BookPoints& ThePoints();

bool IsLowBit(DType type);
// REQUIRES: IsLowBit(type).
void UnpackBook(DType type, const std::byte* block, BookBlock* out);
// Writes the 256 elements of one block as f32. REQUIRES: IsLowBit(type).
void DequantizeLowBitBlock(DType type, const std::byte* block, float* out);

}  // namespace gyre
