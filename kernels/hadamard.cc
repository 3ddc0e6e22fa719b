#include "kernels/hadamard.h"

#include <cstring>

namespace gyre {

void RotateKvBlocks(const float* x, size_t n, float* out) {
  for (size_t at = 0; at < n; at += kKvBlock) {
    float sums[kKvBlock];
    std::memcpy(sums, x + at, sizeof sums);
    for (size_t stride = 1; stride < kKvBlock; stride *= 2) {
      for (size_t first = 0; first < kKvBlock; first += 2 * stride) {
        for (size_t i = first; i < first + stride; ++i) {
          const float a = sums[i], b = sums[i + stride];
          sums[i] = a + b;
          sums[i + stride] = a - b;
        }
      }
    }
    for (size_t i = 0; i < kKvBlock; ++i) out[at + i] = sums[i] * kHadamardScale;
  }
}

}  // namespace gyre
