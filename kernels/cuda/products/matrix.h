// A weight matrix on the device: packed in tiles, or as it lies in the file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quant.h"

namespace gyre::cuda {

// The tables of kernels/codebooks.h, on the device.
struct Codebooks {
  const uint16_t *iq2_xxs = nullptr, *iq2_xs = nullptr, *iq2_s = nullptr, *iq3_xxs = nullptr, *iq3_s = nullptr,
                 *iq1 = nullptr;
};

// A matrix packed in tiles of 16 outputs, whose layout weights/forms.cuh describes: the parts of its codes and scales,
// each at a multiple of 16 bytes. Outputs and inputs beyond n and k are zeros.
struct Tiles {
  const uint8_t* low = nullptr;  // null: the matrix is not packed
  const uint8_t *high = nullptr, *sub = nullptr, *super = nullptr;
  size_t blocks = 0;       // of 64 inputs: k rounded up
  uint32_t table[4] = {};  // the values of 16 codes, where codes have a table
  int zero = 0;            // the code that means 0, where they have none
  float by = 1;            // factor of all scales
  bool bf16 = false;       // scales of 32 inputs are bf16 instead of f16
};

// WeightView's bytes and scales, each at a multiple of 16 on the device. `data` is null if the matrix is packed.
struct Matrix {
  DType type = DType::kF32;
  size_t n = 0, k = 0, row_bytes = 0;
  const uint8_t* data = nullptr;
  const float* scales = nullptr;  // kI8, kF8E4M3
  size_t group = 0, first_row = 0;
  Codebooks books;  // low-bit types
  Tiles tiles;
};

}  // namespace gyre::cuda
