#include "kernels/cuda/products/products.h"
#include "kernels/cuda/products/row_products.cuh"

namespace gyre::cuda {

void ProductInt8(Stream stream, const Matrices& w, const Operand& x, size_t rows, const uint32_t* bounds,
                 const RowsOut& out);

namespace {

// The A operand of 16 inputs of 16 bits.
template <DType kType>
GPU_FN void Multiply(float (&c)[4], const gpu::Uint4& w, uint32_t x0, uint32_t x1) {
  const uint32_t a[4] = {w.x, w.z, w.y, w.w}, b[2] = {x0, x1};
  if constexpr (kType == DType::kF16)
    gpu::MmaF16(c, a, b);
  else
    gpu::MmaBf16(c, a, b);
}
// Four E4M3 as four bf16, which hold them.
GPU_FN gpu::Uint2 Bf16OfFp8(uint32_t quad) {
  return {gpu::ToBf16Pair(OfFp8(quad & 255), OfFp8(quad >> 8 & 255)),
          gpu::ToBf16Pair(OfFp8(quad >> 16 & 255), OfFp8(quad >> 24))};
}

// Grid (tiles, eights / kEights, matrices); a warp has an eighth of k, and takes 64 inputs at a time.
template <DType kType, int kEights>
GPU_KERNEL(256, 2)
ProductFloatKernel(ProductArguments a) {
  constexpr bool kBytes = kType == DType::kF8E4M3;
  constexpr size_t kCount = PieceCount(kType == DType::kF16 ? Pieces::kF16x2 : Pieces::kBf16x3);
  GPU_SHARED(PartSums<kEights>, shared);
  const BlockRows rows = RowsOfBlock<kEights>(a);
  if (!rows.Has(0)) return;  // the whole block
  TakeMatrix(&a);
  const size_t tile = gpu::BlockX(), blocks = a.w.tiles.blocks;
  const size_t from = blocks * gpu::Warp() / kParts, to = blocks * (gpu::Warp() + 1) / kParts;
  const unsigned lane = gpu::Lane();
  const size_t eight = rows.head * a.x.eights + rows.eight;
  float sums[kEights][4] = {};
  constexpr size_t kLoads = kBytes ? 2 : 4;  // of 16 bytes a lane
  for (size_t block = from; block < to; ++block) {
    gpu::Uint4 w[4];
    const uint8_t* low = a.w.tiles.low + ((tile * blocks + block) * kLoads * 32 + lane) * 16;
    float scale[2] = {1, 1};
    if constexpr (kBytes) {
#pragma unroll
      for (size_t i = 0; i < 2; ++i) {
        const auto v = gpu::LoadConstant16(low + i * 512);
        const gpu::Uint2 q0 = Bf16OfFp8(v.x), q1 = Bf16OfFp8(v.y), q2 = Bf16OfFp8(v.z), q3 = Bf16OfFp8(v.w);
        w[2 * i] = {q0.x, q0.y, q1.x, q1.y};
        w[2 * i + 1] = {q2.x, q2.y, q3.x, q3.y};
      }
      const Matrix& m = a.w;
      const size_t across = (m.k + m.group - 1) / m.group, output = tile * kTileOutputs + lane / 4;
#pragma unroll
      for (size_t h = 0; h < 2; ++h) {
        const size_t n = output + 8 * h < m.n ? output + 8 * h : m.n - 1;
        scale[h] = m.scales[(m.first_row + n) / m.group * across + block * kBlockInputs / m.group];
      }
    } else {
#pragma unroll
      for (size_t i = 0; i < 4; ++i) w[i] = gpu::LoadConstant16(low + i * 512);
    }
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      if (!rows.Has(static_cast<size_t>(e))) continue;
      float c[4] = {};
#pragma unroll
      for (size_t i = 0; i < 2; ++i) {
#pragma unroll
        for (size_t piece = 0; piece < kCount; ++piece) {
          const size_t at = ((eight + static_cast<size_t>(e)) * blocks * 2 + block * 2 + i) * kCount + piece;
          const auto x = gpu::LoadConstant16(a.x.codes + (at * 32 + lane) * 16);
          float(&sum)[4] = kBytes ? c : sums[e];
          Multiply<kType>(sum, w[2 * i], x.x, x.y);
          Multiply<kType>(sum, w[2 * i + 1], x.z, x.w);
        }
      }
      if constexpr (kBytes) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[e][j] = gpu::Fma(scale[j / 2], c[j], sums[e][j]);
      }
    }
  }
  shared.Put(sums);
  gpu::SyncBlock();
  shared.Write(a, rows, tile, kType == DType::kF16 ? a.x.factors : nullptr);
}

template <DType kType>
void ProductFloat(Stream stream, const Matrices& w, const Operand& x, size_t rows, const uint32_t* bounds,
                  const RowsOut& out) {
  const ProductArguments a = ArgumentsOf(w, x, rows, bounds, out);
  WithEights(w, rows, bounds != nullptr, [&]<int kEights>(const gpu::Grid& grid) {
    GPU_LAUNCH((ProductFloatKernel<kType, kEights>), grid, 256, stream, a);
  });
}

}  // namespace

Pieces PiecesFor(DType type) {
  return type == DType::kF16                              ? Pieces::kF16x2
         : type == DType::kBF16 || type == DType::kF8E4M3 ? Pieces::kBf16x3
                                                          : Pieces::kInt8;
}

void ProductOfRows(Stream stream, const Matrices& w, const Operand& x, size_t rows, const uint32_t* bounds,
                   const RowsOut& out) {
  switch (w.first->type) {
    case DType::kF16: return ProductFloat<DType::kF16>(stream, w, x, rows, bounds, out);
    case DType::kBF16: return ProductFloat<DType::kBF16>(stream, w, x, rows, bounds, out);
    case DType::kF8E4M3: return ProductFloat<DType::kF8E4M3>(stream, w, x, rows, bounds, out);
    default: return ProductInt8(stream, w, x, rows, bounds, out);
  }
}

}  // namespace gyre::cuda
