// Launches that only take time: what a GPU reads and multiplies at most. All pointers are the device's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"

namespace gyre::cuda {

inline constexpr size_t kReadBlock = 256 * 16 * 8;  // bytes that a block reads
inline constexpr size_t kMmaWarps = 4;              // of a block

// Reads bytes / kReadBlock blocks of x, and writes a word for each: out [blocks].
void ReadAll(Stream stream, const void* x, size_t bytes, uint32_t* out);
// Each of blocks * kMmaWarps warps multiplies `rounds` * 8 tiles of 16 x 32 and 32 x 8, of int8 or bf16 (16 deep), and
// writes a word: out [blocks * kMmaWarps]. A tile of int8 has 4,096 multiplications, one of bf16 2,048.
void MultiplyTiles(Stream stream, bool int8, size_t blocks, size_t rounds, uint32_t* out);

}  // namespace gyre::cuda
