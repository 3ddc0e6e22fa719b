// Products of prompts' rows, on bf16. Weights go from memory straight to the registers of operand A, where they become
// bf16; rows come through shared memory, which asynchronous copies fill three blocks of inputs ahead. They lie there as
// lanes read them, 16 bytes each, so that no bank is asked twice.
#include <type_traits>

#include "kernels/cuda/products/row_products.cuh"
#include "kernels/cuda/weights/readers.cuh"

namespace gyre::cuda {
namespace {

constexpr int kEights = 8;                      // rows of a block, by eights
constexpr size_t kWarps = 4, kTilesOfWarp = 2;  // of a block: 128 outputs
constexpr size_t kTilesOfBlock = kWarps * kTilesOfWarp;
constexpr size_t kStages = 4;

struct StageRows {
  uint8_t of[kStages][kEights][2][32][16];  // eight, half of 64 inputs, lane
};
// Asks for 64 inputs of the block's rows; zeros where there are none.
GPU_FN void Ask(StageRows* to, const ProductArguments& a, const BlockRows& rows, size_t eight, size_t block) {
  uint8_t* stage = &to->of[block % kStages][0][0][0][0];
#pragma unroll
  for (size_t i = 0; i < kEights * 2 / kWarps; ++i) {
    const size_t piece = i * kWarps + gpu::Warp(), e = piece / 2;  // a warp has the 512 bytes of one eight and half
    const bool none = !rows.Has(e);
    const uint8_t* from =
        a.x.codes + (((none ? eight : eight + e) * a.x.blocks * 2 + block * 2 + piece % 2) * 32 + gpu::Lane()) * 16;
    gpu::CopyAsync16(stage + (piece * 32 + gpu::Lane()) * 16, from, none);
  }
}

// Operand A of 16 inputs, from the quads of two outputs.
GPU_FN void Fragment(const float (&upper)[4], const float (&lower)[4], uint32_t (&a)[4]) {
  a[0] = gpu::ToBf16Pair(upper[0], upper[1]);
  a[1] = gpu::ToBf16Pair(lower[0], lower[1]);
  a[2] = gpu::ToBf16Pair(upper[2], upper[3]);
  a[3] = gpu::ToBf16Pair(lower[2], lower[3]);
}
// What the fragment's numbers leave.
GPU_FN void Rest(float (&upper)[4], float (&lower)[4], const uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    upper[i] = gpu::Add(upper[i], -gpu::OfBf16(static_cast<uint16_t>(a[i / 2 * 2] >> 16 * (i % 2) & 0xFFFF)));
    lower[i] = gpu::Add(lower[i], -gpu::OfBf16(static_cast<uint16_t>(a[i / 2 * 2 + 1] >> 16 * (i % 2) & 0xFFFF)));
  }
}

// Grid (tiles / 8, eights / 8, matrices). kPieces: bf16 that a weight becomes.
template <typename Reader, size_t kPieces>
GPU_KERNEL(128, 2)
ProductTilesKernel(ProductArguments a) {
  GPU_SHARED(StageRows, shared);
  const BlockRows rows = RowsOfBlock<kEights>(a);
  if (!rows.Has(0)) return;  // the whole block
  TakeMatrix(&a);
  const Matrix& m = a.w;
  const size_t tiles = (m.n + kTileOutputs - 1) / kTileOutputs, blocks = m.tiles.blocks;
  const size_t first = gpu::BlockX() * kTilesOfBlock + gpu::Warp() * kTilesOfWarp;
  const size_t eight = rows.head * a.x.eights + rows.eight;
  const unsigned lane = gpu::Lane(), g = lane / 4, t = lane % 4;
  const auto tile = [&](size_t i) { return first + i < tiles ? first + i : tiles - 1; };
  float sums[kTilesOfWarp][kEights][4] = {};
  for (size_t block = 0; block + 1 < kStages; ++block) {
    if (block < blocks) Ask(&shared, a, rows, eight, block);
    gpu::CommitAsync();
  }
  Reader next[kTilesOfWarp];
#pragma unroll
  for (size_t i = 0; i < kTilesOfWarp; ++i) next[i].Load(m, tile(i), 0, lane);
  constexpr size_t kBlocks = Reader::kBlocks;
  for (size_t step = 0; step < blocks / kBlocks; ++step) {
    Reader reader[kTilesOfWarp];
#pragma unroll
    for (size_t i = 0; i < kTilesOfWarp; ++i) reader[i] = next[i];
    if (step + 1 < blocks / kBlocks) {
#pragma unroll
      for (size_t i = 0; i < kTilesOfWarp; ++i) next[i].Load(m, tile(i), step + 1, lane);
    }
#pragma unroll
    for (size_t b = 0; b < kBlocks; ++b) {
      const size_t block = step * kBlocks + b;
      gpu::WaitAsync<kStages - 2>();
      gpu::SyncBlock();  // all have waited for this block of inputs, and have used the one before
      if (block + kStages - 1 < blocks) Ask(&shared, a, rows, eight, block + kStages - 1);
      gpu::CommitAsync();
#pragma unroll
      for (size_t half = 0; half < 2; ++half) {
        uint32_t of_w[kTilesOfWarp][2][kPieces][4];
#pragma unroll
        for (size_t i = 0; i < kTilesOfWarp; ++i) {
          float w[4][4];
          reader[i].Values(m, static_cast<int>(2 * b + half), w);
#pragma unroll
          for (size_t j = 0; j < 2; ++j) {
#pragma unroll
            for (size_t p = 0; p < kPieces; ++p) {
              Fragment(w[2 * j], w[2 * j + 1], of_w[i][j][p]);
              if (p + 1 < kPieces) Rest(w[2 * j], w[2 * j + 1], of_w[i][j][p]);
            }
          }
        }
#pragma unroll
        for (int e = 0; e < kEights; ++e) {
          if (!rows.Has(static_cast<size_t>(e)) || first >= tiles) continue;  // for all lanes
          const auto x = gpu::Load<gpu::Uint4>(shared.of[block % kStages][e][half][lane]);
          const uint32_t of_x[2][2] = {{x.x, x.y}, {x.z, x.w}};
#pragma unroll
          for (size_t i = 0; i < kTilesOfWarp; ++i) {
#pragma unroll
            for (size_t j = 0; j < 2; ++j) {
#pragma unroll
              for (size_t p = 0; p < kPieces; ++p) gpu::MmaBf16(sums[i][e], of_w[i][j][p], of_x[j]);
            }
          }
        }
      }
    }
  }
#pragma unroll
  for (size_t i = 0; i < kTilesOfWarp; ++i) {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        const size_t n = (first + i) * kTileOutputs + g + j / 2 * 8,
                     row = (rows.eight + static_cast<size_t>(e)) * 8 + 2 * t + j % 2;
        if (n >= m.n || row < rows.first || row >= rows.end) continue;
        float* to = a.out.out + gpu::BlockZ() * a.out_step + row * a.out.stride + n;
        *to = a.out.add ? gpu::Add(sums[i][e][j], *to) : sums[i][e][j];
      }
    }
  }
}

}  // namespace

void ProductOfPrompt(Stream stream, const Matrices& w, const Operand& x, size_t rows, const RowsOut& out) {
  if (w.first->n == 0 || rows == 0 || w.count == 0) return;
  const ProductArguments a = ArgumentsOf(w, x, rows, nullptr, out);
  // A grid has at most 65,535 blocks along y: 4 million rows.
  const gpu::Grid grid(Blocks(w.first->n, kTileOutputs * kTilesOfBlock), Blocks(rows, 8 * kEights),
                       static_cast<unsigned>(w.count));
  WithReader(w.first->type, [&]<typename Reader>() {
    constexpr size_t kPieces = std::is_same_v<Reader, WordReader<DType::kF16>> ? 2 : 1;
    GPU_LAUNCH((ProductTilesKernel<Reader, kPieces>), grid, 128, stream, a);
  });
}

}  // namespace gyre::cuda
