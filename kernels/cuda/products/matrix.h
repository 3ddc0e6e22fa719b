// A weight matrix on the device, as it lies in the file.
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

// WeightView's bytes and scales, each at a multiple of 16 on the device.
struct Matrix {
  DType type = DType::kF32;
  size_t n = 0, k = 0, row_bytes = 0;
  const uint8_t* data = nullptr;
  const float* scales = nullptr;  // kI8, kF8E4M3
  size_t group = 0, first_row = 0;
  Codebooks books;  // low-bit types
};

}  // namespace gyre::cuda
