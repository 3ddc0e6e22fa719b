// Products without rounding, and rows of embeddings: of matrices packed in tiles, and of those that lie as in the file
// (F32, and I8 and E4M3 whose scales cut a tile's blocks).
#include "kernels/cuda/products/row_products.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/cuda/weights/readers.cuh"

namespace gyre::cuda {
namespace {

constexpr size_t kRows = 8;     // that share the weights that a warp has dequantized
constexpr size_t kOutputs = 4;  // of a block: a warp each
constexpr size_t kFewRows = 65535 * kRows;

// Elements at .. at + 3 of a row, with 0 beyond k. REQUIRES: at is a multiple of 4 and less than k.
template <DType kType>
GPU_FN void FourOfRow(const Matrix& m, size_t row, size_t at, float (&w)[4]) {
  const uint8_t* data = m.data + row * m.row_bytes;
  const size_t left = m.k - at;
  if constexpr (kType == DType::kF32) {
    const gpu::Float4 v = LoadFour(reinterpret_cast<const float*>(data) + at, left);
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
  } else {
    static_assert(kType == DType::kI8 || kType == DType::kF8E4M3);
    for (size_t i = 0; i < 4; ++i) {
      w[i] = 0;
      if (i >= left) continue;
      if constexpr (kType == DType::kI8) {
        w[i] = gpu::Mul(OfInt(static_cast<int8_t>(data[at + i])), m.scales[(row * m.k + at + i) / m.group]);
      } else {
        const size_t across = (m.k + m.group - 1) / m.group;
        w[i] = gpu::Mul(OfFp8(data[at + i]), m.scales[(m.first_row + row) / m.group * across + (at + i) / m.group]);
      }
    }
  }
}
template <typename Fn>
void WithPlain(DType type, const Fn& f) {
  switch (type) {
    case DType::kF32: return f.template operator()<DType::kF32>();
    case DType::kI8: return f.template operator()<DType::kI8>();
    case DType::kF8E4M3: return f.template operator()<DType::kF8E4M3>();
    default: return;
  }
}

GPU_FN void MultiplyAdd(const gpu::Float4& x, const float (&w)[4], float* sum) {
  *sum = gpu::Fma(x.x, w[0], *sum);
  *sum = gpu::Fma(x.y, w[1], *sum);
  *sum = gpu::Fma(x.z, w[2], *sum);
  *sum = gpu::Fma(x.w, w[3], *sum);
}

// Grid (outputs / 4, rows / 8): the rows from `from` on. Each of 32 lanes has four consecutive positions of each 128,
// one chain of FMAs in rising order; then the lanes are added by a fixed tree.
template <DType kType>
GPU_KERNEL(128, 4)
ProductExactKernel(Matrix w, RowsIn in, RowsOut out, size_t from) {
  const size_t n = gpu::BlockX() * kOutputs + gpu::Warp();
  const size_t begin = in.bounds == nullptr ? 0 : in.bounds[0], end = in.bounds == nullptr ? in.rows : in.bounds[1];
  const size_t first = begin + from + gpu::BlockY() * kRows;
  if (n >= w.n || first >= end) return;  // the whole warp
  float sums[kRows] = {};
  for (size_t at = 4 * gpu::Lane(); at < w.k; at += 128) {
    float v[4];
    FourOfRow<kType>(w, n, at, v);
#pragma unroll
    for (size_t r = 0; r < kRows; ++r) {
      if (first + r >= end) continue;
      MultiplyAdd(LoadFour(in.x + (first + r) * in.stride + at, w.k - at), v, &sums[r]);
    }
  }
#pragma unroll
  for (size_t r = 0; r < kRows; ++r) {
    if (first + r >= end) continue;  // for all lanes
    const float sum = SumWarp(sums[r]);
    if (gpu::Lane() != r) continue;
    float* to = out.out + (first + r) * out.stride + n;
    *to = out.add ? gpu::Add(sum, *to) : sum;
  }
}

// Grid (tiles, rows / 8): the rows from `from` on. A warp has an eighth of k, a lane its quads of two outputs: one
// chain of FMAs for each output and row. The four lanes of an output are added by a fixed tree, then the warps in their
// order.
template <typename Reader>
GPU_KERNEL(256, 2)
ProductExactTilesKernel(Matrix w, RowsIn in, RowsOut out, size_t from) {
  GPU_SHARED(PartSums<1>, shared);
  const size_t begin = in.bounds == nullptr ? 0 : in.bounds[0], end = in.bounds == nullptr ? in.rows : in.bounds[1];
  const size_t first = begin + from + gpu::BlockY() * kRows;
  if (first >= end) return;  // the whole block
  const size_t tile = gpu::BlockX(), steps = w.tiles.blocks / Reader::kBlocks;
  const size_t begin_step = steps * gpu::Warp() / kParts, end_step = steps * (gpu::Warp() + 1) / kParts;
  const unsigned lane = gpu::Lane(), g = lane / 4, t = lane % 4;
  float sums[kRows][2] = {};
  for (size_t step = begin_step; step < end_step; ++step) {
    Reader reader;
    reader.Load(w, tile, step, lane);
#pragma unroll
    for (int i = 0; i < 2 * Reader::kBlocks; ++i) {
      float v[4][4];
      reader.Values(w, i, v);
#pragma unroll
      for (size_t half = 0; half < 2; ++half) {
        const size_t at = step * (kBlockInputs * Reader::kBlocks) + static_cast<size_t>(i) * 32 + half * 16 + 4 * t;
#pragma unroll
        for (size_t r = 0; r < kRows; ++r) {
          if (first + r >= end || at >= w.k) continue;
          const gpu::Float4 x = LoadFour(in.x + (first + r) * in.stride + at, w.k - at);
          MultiplyAdd(x, v[2 * half], &sums[r][0]);
          MultiplyAdd(x, v[2 * half + 1], &sums[r][1]);
        }
      }
    }
  }
#pragma unroll
  for (unsigned r = 0; r < kRows; ++r) {
    if (first + r >= end) continue;  // for all lanes
#pragma unroll
    for (unsigned h = 0; h < 2; ++h) {
      float sum = sums[r][h];
      sum = gpu::Add(sum, gpu::ShflXor(sum, 1));
      sum = gpu::Add(sum, gpu::ShflXor(sum, 2));
      if (t == r / 2) shared.of[gpu::Warp()][r][g + 8 * h] = sum;
    }
  }
  gpu::SyncBlock();
  if (gpu::Thread() >= kRows * kTileOutputs) return;
  const size_t r = gpu::Thread() / 32 + gpu::Thread() / 16 % 2 * 4, output = gpu::Thread() % 16,
               n = tile * kTileOutputs + output;
  if (first + r >= end || n >= w.n) return;
  float sum = shared.of[0][r][output];
  for (int p = 1; p < kParts; ++p) sum = gpu::Add(sum, shared.of[p][r][output]);
  float* to = out.out + (first + r) * out.stride + n;
  *to = out.add ? gpu::Add(sum, *to) : sum;
}

template <DType kType>
GPU_KERNEL(128, 4)
EmbedKernel(const TokenId* ids, Matrix w, float* out) {
  const size_t at = (gpu::BlockY() * 128 + gpu::Thread()) * 4, row = gpu::BlockX();
  if (at >= w.k) return;
  float v[4];
  FourOfRow<kType>(w, static_cast<size_t>(ids[row]), at, v);
  StoreFour(out + row * w.k + at, w.k - at, {v[0], v[1], v[2], v[3]});
}

// Grid (ids, steps / 32): four threads a step have the quads of one output, those of the other are thrown away.
template <typename Reader>
GPU_KERNEL(128, 4)
EmbedTilesKernel(const TokenId* ids, Matrix w, float* out) {
  const size_t step = gpu::BlockY() * 32 + gpu::Thread() / 4, row = gpu::BlockX();
  if (step >= w.tiles.blocks / Reader::kBlocks) return;
  const auto id = static_cast<size_t>(ids[row]);
  const unsigned t = gpu::Thread() % 4;
  Reader reader;
  reader.Load(w, id / kTileOutputs, step, static_cast<unsigned>(id % 8) * 4 + t);
  const bool upper = id % kTileOutputs >= 8;
#pragma unroll
  for (int i = 0; i < 2 * Reader::kBlocks; ++i) {
    float v[4][4];
    reader.Values(w, i, v);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const size_t at = step * (kBlockInputs * Reader::kBlocks) + static_cast<size_t>(i * 32 + half * 16) + 4 * t;
      if (at >= w.k) continue;
      const float(&a)[4] = v[2 * half], (&b)[4] = v[2 * half + 1];
      StoreFour(out + row * w.k + at, w.k - at,
                {upper ? b[0] : a[0], upper ? b[1] : a[1], upper ? b[2] : a[2], upper ? b[3] : a[3]});
    }
  }
}

}  // namespace

void ProductExact(Stream stream, const Matrix& w, const RowsIn& in, const RowsOut& out) {
  if (w.n == 0) return;
  // A grid has at most 65,535 blocks along y.
  for (size_t from = 0; from < in.rows; from += kFewRows) {
    const size_t rows = in.rows - from < kFewRows ? in.rows - from : kFewRows;
    if (w.tiles.low != nullptr) {
      const gpu::Grid grid(Blocks(w.n, kTileOutputs), Blocks(rows, kRows));
      WithReader(w.type, [&]<typename Reader>() {
        GPU_LAUNCH(ProductExactTilesKernel<Reader>, grid, 256, stream, w, in, out, from);
      });
    } else {
      const gpu::Grid grid(Blocks(w.n, kOutputs), Blocks(rows, kRows));
      WithPlain(w.type,
                [&]<DType kType>() { GPU_LAUNCH(ProductExactKernel<kType>, grid, 128, stream, w, in, out, from); });
    }
  }
}

void Embed(Stream stream, const TokenId* ids, size_t rows, const Matrix& w, float* out) {
  if (rows == 0 || w.k == 0) return;
  if (w.tiles.low != nullptr) {
    WithReader(w.type, [&]<typename Reader>() {
      const gpu::Grid grid(static_cast<unsigned>(rows), Blocks(w.tiles.blocks / Reader::kBlocks, 32));
      GPU_LAUNCH(EmbedTilesKernel<Reader>, grid, 128, stream, ids, w, out);
    });
  } else {
    const gpu::Grid grid(static_cast<unsigned>(rows), Blocks(w.k, 512));
    WithPlain(w.type, [&]<DType kType>() { GPU_LAUNCH(EmbedKernel<kType>, grid, 128, stream, ids, w, out); });
  }
}

}  // namespace gyre::cuda
