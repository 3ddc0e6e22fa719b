// The product of generated rows with integer codes.
#pragma once

#include "kernels/cuda/products/row_products.cuh"

namespace gyre::cuda {

// Scales and sums of rows 2 t and 2 t + 1 of eight, for 32 inputs.
struct RowScales {
  float scale[2];
  int sums[2][2];  // of row and half

  GPU_FN void Load(const Operand& x, size_t eight, size_t part, unsigned t) {
    const auto v = gpu::LoadConstant16(x.scales + ((eight * x.blocks * 2 + part) * 8 + 2 * t) * 8);
    scale[0] = gpu::OfBits(v.x), scale[1] = gpu::OfBits(v.z);
    const auto half = [](uint32_t word, int s) { return static_cast<int>(static_cast<int16_t>(word >> 16 * s)); };
    sums[0][0] = half(v.y, 0), sums[0][1] = half(v.y, 1), sums[1][0] = half(v.w, 0), sums[1][1] = half(v.w, 1);
  }
};

// Grid (tiles, eights / kEights, matrices); a warp has an eighth of k.
template <typename F, int kEights>
GPU_KERNEL(256, F::kBlocks == 2 && kEights == 8 ? 1 : 2)
ProductInt8Kernel(ProductArguments a) {
  GPU_SHARED(PartSums<kEights>, shared);
  const BlockRows rows = RowsOfBlock<kEights>(a);
  if (!rows.Has(0)) return;  // the whole block
  TakeMatrix(&a);
  const Tiles& tiles = a.w.tiles;
  const size_t tile = gpu::BlockX(), steps = tiles.blocks / F::kBlocks;
  const size_t from = steps * gpu::Warp() / kParts, to = steps * (gpu::Warp() + 1) / kParts;
  const unsigned lane = gpu::Lane(), g = lane / 4, t = lane % 4;
  const size_t eight = rows.head * a.x.eights + rows.eight;
  float sums[kEights][4] = {};
  Codes<F> codes, next;
  if (from < to) next.Load(tiles, tile, steps, from, lane);
  for (size_t step = from; step < to; ++step) {
    codes = next;
    if (step + 1 < to) next.Load(tiles, tile, steps, step + 1, lane);
#pragma unroll
    for (int b = 0; b < F::kBlocks; ++b) {
      const size_t block = step * F::kBlocks + static_cast<size_t>(b);
      BlockScales<F::kScales> scales;
      scales.Load(tiles, tile, block, g);
      uint32_t quads[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) codes.Quads(tiles, 2 * b + i, quads[i]);
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        if (!rows.Has(static_cast<size_t>(e))) continue;
        const size_t mine = eight + static_cast<size_t>(e);
        const auto x = gpu::LoadConstant16(a.x.codes + ((mine * a.x.blocks + block) * 32 + lane) * 16);
        const uint32_t of_x[2][2] = {{x.x, x.y}, {x.z, x.w}};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          RowScales row;
          row.Load(a.x, mine, block * 2 + static_cast<size_t>(i), t);
#pragma unroll
          for (int s = 0; s < (F::kSixteen ? 2 : 1); ++s) {
            int of_row[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) of_row[j] = F::kSixteen ? row.sums[j][s] : row.sums[j][0] + row.sums[j][1];
            int c[4] = {};
            if constexpr (F::kBits != 8 && !F::kTable && !F::kMin) {
#pragma unroll
              for (int j = 0; j < 4; ++j) c[j] = -tiles.zero * of_row[j % 2];
            }
            if constexpr (F::kSixteen)
              gpu::MmaInt8Half(c, quads[i][2 * s], quads[i][2 * s + 1], of_x[i][s]);
            else
              gpu::MmaInt8(c, quads[i], of_x[i]);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              const float scale = scales.Scale(tiles, i, s, h);
#pragma unroll
              for (int j = 0; j < 2; ++j) {
                float& sum = sums[e][2 * h + j];
                sum = gpu::Fma(gpu::Mul(scale, OfInt(c[2 * h + j])), row.scale[j], sum);
                if constexpr (F::kMin)
                  sum = gpu::Fma(gpu::Mul(scales.Min(i, s, h), OfInt(of_row[j])), row.scale[j], sum);
              }
            }
          }
        }
      }
    }
  }
  shared.Put(sums);
  gpu::SyncBlock();
  shared.Write(a, rows, tile, nullptr);
}

}  // namespace gyre::cuda
