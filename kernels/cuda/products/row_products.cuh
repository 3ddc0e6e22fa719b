// The products of generated rows share this: the rows of a block, and the sum of its warps' parts.
#pragma once

#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/products/products.h"
#include "kernels/cuda/weights/forms.cuh"

namespace gyre::cuda {

inline constexpr int kParts = 8;  // of k: a warp each

// The arguments of a launch besides its matrix. `many`: as in Matrices.
struct ProductArguments {
  Matrix w;
  const Matrix* many;
  size_t out_step;
  Operand x;
  size_t rows;
  const uint32_t* bounds;
  RowsOut out;
};
inline ProductArguments ArgumentsOf(const Matrices& w, const Operand& x, size_t rows, const uint32_t* bounds,
                                    const RowsOut& out) {
  return {*w.first, w.many, w.out_step, x, rows, bounds, out};
}

// The eights of rows that a block multiplies with: kEights from `eight` on, in which rows first .. end - 1 take part.
struct BlockRows {
  size_t head, first, end, eight;
  GPU_FN bool Has(size_t i) const { return (eight + i) * 8 < end; }
};
template <int kEights>
GPU_FN BlockRows RowsOfBlock(const ProductArguments& a) {
  const size_t z = gpu::BlockZ();
  const size_t first = a.bounds == nullptr ? 0 : a.bounds[z], end = a.bounds == nullptr ? a.rows : a.bounds[z + 1];
  return {a.bounds == nullptr ? z : 0, first, end, first / 8 + size_t{gpu::BlockY()} * kEights};
}
GPU_FN void TakeMatrix(ProductArguments* a) {
  if (a->many == nullptr) return;
  const Matrix& m = a->many[gpu::BlockZ()];
  Tiles& tiles = a->w.tiles;
  tiles.low = m.tiles.low, tiles.high = m.tiles.high, tiles.sub = m.tiles.sub, tiles.super = m.tiles.super;
  a->w.scales = m.scales;
}

// The sums of 16 outputs and kEights times eight rows, of each part of k. Rows are padded, so that the lanes of a warp
// write to 32 banks.
template <int kEights>
struct PartSums {
  float of[kParts][kEights * 8][kTileOutputs + 4];

  // A lane's fragments: sums[i] has rows 8 i + 2 t and + 1 of output g, then of output g + 8.
  GPU_FN void Put(const float (&sums)[kEights][4]) {
    const unsigned g = gpu::Lane() / 4, t = gpu::Lane() % 4;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        of[gpu::Warp()][static_cast<unsigned>(i) * 8 + 2 * t + static_cast<unsigned>(e) % 2]
          [g + static_cast<unsigned>(e) / 2 * 8] = sums[i][e];
    }
  }
  // It is called after a barrier. factors: those of the rows of each group of eight, or null.
  GPU_FN void Write(const ProductArguments& a, const BlockRows& rows, size_t tile, const float* factors) const {
    const size_t output = gpu::Thread() % 16, n = tile * kTileOutputs + output;
    for (size_t j = gpu::Thread() / 16; j < kEights * 8; j += kParts * 2) {
      // Half a warp has a row, the other half the row four after it: their words lie in other banks.
      const size_t r = j / 8 * 8 + j % 2 * 4 + j % 8 / 2, row = rows.eight * 8 + r;
      if (row < rows.first || row >= rows.end || n >= a.w.n) continue;
      float sum = of[0][r][output];
#pragma unroll
      for (int p = 1; p < kParts; ++p) sum = gpu::Add(sum, of[p][r][output]);
      if (factors != nullptr) sum = gpu::Mul(sum, factors[rows.head * a.x.eights * 8 + row]);
      float* to = a.out.out + gpu::BlockZ() * a.out_step + row * a.out.stride + n;
      *to = a.out.add ? gpu::Add(sum, *to) : sum;
    }
  }
};

// Calls f.template operator()<kEights>(grid) with kEights = 1, 4 or 8: the more rows, the more share a read of the
// weights.
template <typename Fn>
void WithEights(const Matrices& w, size_t rows, bool bounds, const Fn& f) {
  if (w.first->n == 0 || rows == 0 || w.count == 0) return;
  // Rows between bounds may begin within eight, and have one more.
  const size_t eights = (rows + 7) / 8 + (bounds ? 1 : 0), usual = bounds ? rows / w.count / 8 + 2 : eights;
  const auto tiles = Blocks(w.first->n, kTileOutputs), z = static_cast<unsigned>(w.count);
  if (usual <= 1)
    f.template operator()<1>(gpu::Grid(tiles, Blocks(eights, 1), z));
  else if (usual <= 4)
    f.template operator()<4>(gpu::Grid(tiles, Blocks(eights, 4), z));
  else
    f.template operator()<8>(gpu::Grid(tiles, Blocks(eights, 8), z));
}

}  // namespace gyre::cuda
