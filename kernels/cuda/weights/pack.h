// Packing of weight matrices on the device, into the tiles that products read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/products/matrix.h"
#include "kernels/cuda/stream.h"

namespace gyre::cuda {

// The bytes of the parts of a packed matrix, each a multiple of 16; all 0 if its type stays as in the file: F32, I8
// whose scales cut blocks of 32, E4M3 whose scales cut blocks of 64.
struct TileSizes {
  size_t low = 0, high = 0, sub = 0, super = 0;
  size_t bytes() const { return low + high + sub + super; }
};
TileSizes SizesOfTiles(DType type, size_t n, size_t k, size_t group);

// `w` describes the whole matrix, and its tiles have the places of their parts. Packs the outputs [first, first + n)
// whose rows `data` has: first is a multiple of 16, and n too unless they are the last ones.
void PackRows(Stream stream, const Matrix& w, size_t first, size_t n, const uint8_t* data);
// Describes the tiles of a matrix whose parts lie one after the other at `data`, on the device.
void DescribeTiles(DType type, size_t k, const TileSizes& sizes, const uint8_t* data, Tiles* tiles);

}  // namespace gyre::cuda
