// The rotation of keys, values and queries before keys and values are rounded to few bits (QuaRot, 2024): it spreads an
// element that is far larger than the others, which would decide the scale of its block, over the whole block.
#pragma once

#include <cstddef>

#include "base/kv_type.h"

namespace gyre {

// What each element is multiplied by after the sums: 1 / sqrt(32).
inline constexpr float kHadamardScale = 0.17677669529663687f;

// out = H x / sqrt(32) for each block of kKvBlock elements, with H[i][j] = -1 to the power of the number of bits that i
// and j have in common. This matrix is orthonormal and its own inverse. n is a multiple of kKvBlock; out may be x. Sums
// are those of a fast Walsh-Hadamard transform from stride 1 to 16, the same bits everywhere. Thread-safe.
void RotateKvBlocks(const float* x, size_t n, float* out);

}  // namespace gyre
