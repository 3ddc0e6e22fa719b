// Quantization of blocks of 32 by a warp, an element in each lane: the bits of Quantize (kernels/quant.h).
#pragma once

#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/warp.cuh"

namespace gyre::cuda {

// The block's scale as f16, in all lanes, and the lane's code.
struct Quantized {
  uint16_t scale;
  int code;
};

GPU_FN int Level(float v, int low, int high) {
  const int level = gpu::Nearest(v);
  return level < low ? low : level > high ? high : level;
}
GPU_FN Quantized QuantizeQ8(float v) {
  const uint16_t scale = gpu::ToHalf(gpu::Div(MaxWarp(v < 0 ? -v : v), 127.0f));
  const float d = gpu::OfHalf(scale), inverse = d > 0 ? gpu::Div(1.0f, d) : 0.0f;
  return {scale, Level(gpu::Mul(v, inverse), -127, 127)};
}
// Codes 0 .. 15 for -8 .. 7.
GPU_FN Quantized QuantizeQ4(float v) {
  const float size = v < 0 ? -v : v;
  // The first one of the largest size gets the code 0.
  const uint32_t largest_ones = gpu::Ballot(size == MaxWarp(size));
  unsigned first_one = 0;
  while (first_one < 31 && (largest_ones >> first_one & 1) == 0) ++first_one;
  const uint16_t scale = gpu::ToHalf(gpu::Div(gpu::Shfl(v, first_one), -8.0f));
  const float d = gpu::OfHalf(scale), inverse = d != 0 ? gpu::Div(1.0f, d) : 0.0f;
  return {scale, Level(gpu::Add(gpu::Mul(v, inverse), 8.0f), 0, 15)};
}

}  // namespace gyre::cuda
