#include "kernels/cuda/weights/pack.h"

#include "kernels/cuda/weights/forms.cuh"

namespace gyre::cuda {
namespace {

// The rows of the file that one launch packs.
struct Source {
  const uint8_t* data;  // of output `first`
  size_t first, end, k, row_bytes;
  Codebooks books;
};

// The codes of a quad as one word; zeros beyond the matrix.
template <DType kType>
GPU_FN uint32_t QuadOf(const Source& from, size_t output, size_t at) {
  if (output >= from.end || at >= from.k) return 0;
  const uint8_t* row = from.data + (output - from.first) * from.row_bytes;
  if constexpr (kType == DType::kI8 || kType == DType::kF8E4M3) {
    uint32_t quad = 0;
    for (size_t i = 0; i < 4 && at + i < from.k; ++i) quad |= static_cast<uint32_t>(row[at + i]) << 8 * i;
    return quad;
  } else {
    constexpr BlockSize kBlock = BlockSizeOf(kType);
    return CodesOfBlock<kType>(row + at / kBlock.elems * kBlock.bytes, static_cast<int>(at % kBlock.elems), from.books);
  }
}
// Output and first input of quad j of the 32 inputs number `from` of a tile.
GPU_FN size_t OutputOf(size_t tile, unsigned lane, int j) {
  return tile * kTileOutputs + lane / 4 + static_cast<size_t>(j % 2) * 8;
}
GPU_FN size_t InputOf(size_t from, unsigned lane, int j) {
  return from * 32 + static_cast<size_t>(j / 2) * 16 + lane % 4 * 4;
}

// Grid (steps / 4, tiles): a warp packs the codes of a step.
template <DType kType>
GPU_KERNEL(128, 4)
PackCodesKernel(Source from, Tiles tiles, size_t steps) {
  using F = FormOf<kType>;
  const size_t step = gpu::BlockX() * 4 + gpu::Warp(), tile = from.first / kTileOutputs + gpu::BlockY();
  if (step >= steps) return;
  const unsigned lane = gpu::Lane();
  uint32_t low[F::kLowWords] = {}, high[F::kHighWords == 0 ? 1 : F::kHighWords] = {};
#pragma unroll
  for (int i = 0; i < 2 * F::kBlocks; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t quad = QuadOf<kType>(from, OutputOf(tile, lane, j),
                                          InputOf(step * 2 * F::kBlocks + static_cast<size_t>(i), lane, j));
      if constexpr (F::kLow == 8) {
        low[4 * i + j] = quad;
      } else {
        constexpr uint32_t kMask = ((1u << F::kLow) - 1) * 0x01010101u;
        low[j] |= (quad & kMask) << F::kLow * i;
        const uint32_t above = quad >> F::kLow & kMask;
        if constexpr (F::kHigh == 1) high[i / 2] |= above << (4 * (i % 2) + j);
        if constexpr (F::kHigh == 2) high[i] |= above << 2 * j;
      }
    }
  }
  const size_t at = tile * steps + step;
  auto* to = const_cast<uint8_t*>(tiles.low);
#pragma unroll
  for (int i = 0; i < F::kLowWords / 4; ++i) {
    gpu::Store(to + ((at * (F::kLowWords / 4) + static_cast<size_t>(i)) * 32 + lane) * 16,
               gpu::Uint4{low[4 * i], low[4 * i + 1], low[4 * i + 2], low[4 * i + 3]});
  }
  auto* to_high = const_cast<uint8_t*>(tiles.high);
  if constexpr (F::kHighWords == 1) gpu::Store(to_high + (at * 32 + lane) * 4, high[0]);
  if constexpr (F::kHighWords == 2) gpu::Store(to_high + (at * 32 + lane) * 8, gpu::Uint2{high[0], high[1]});
}

// A thread packs the scales of a block of 64 inputs for two outputs. Grid (blocks / 16, tiles); 128 threads.
template <DType kType>
GPU_KERNEL(128, 4)
PackScalesKernel(Source from, Tiles tiles, const float* scales, size_t group) {
  constexpr Scales kScales = ScalesOf(kType);
  const size_t block = gpu::BlockX() * 16 + gpu::Thread() / 8, tile = from.first / kTileOutputs + gpu::BlockY();
  const size_t g = gpu::Thread() % 8;
  if (block >= tiles.blocks) return;
  uint32_t sub[4] = {}, super[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const size_t output = tile * kTileOutputs + g + static_cast<size_t>(h) * 8;
        const size_t at = block * kBlockInputs + static_cast<size_t>(i) * 32 + static_cast<size_t>(s) * 16;
        if (output >= from.end || at >= from.k) continue;
        if constexpr (kType == DType::kI8) {
          sub[2 * i + h] = gpu::Bits(scales[(output * from.k + at) / group]);
        } else {
          constexpr BlockSize kBlock = BlockSizeOf(kType);
          const uint8_t* row = from.data + (output - from.first) * from.row_bytes;
          const BlockScale of =
              ScaleOfBlock<kType>(row + at / kBlock.elems * kBlock.bytes, static_cast<int>(at % kBlock.elems));
          const uint32_t both = of.d | static_cast<uint32_t>(of.m) << 16, scale = static_cast<uint32_t>(of.scale) & 255,
                         min = static_cast<uint32_t>(of.min);
          if constexpr (SuperWords(kScales) == 1) super[0] |= (s == 0 && i == 0 ? uint32_t{of.d} : 0u) << 16 * h;
          if constexpr (SuperWords(kScales) == 2) super[h] = both;
          if constexpr (kScales == Scales::kHalf) sub[i] |= (s == 0 ? uint32_t{of.d} : 0u) << 16 * h;
          if constexpr (kScales == Scales::kHalf16) sub[2 * i + s] |= uint32_t{of.d} << 16 * h;
          if constexpr (kScales == Scales::kHalfMin) sub[2 * i + h] = both;
          if constexpr (kScales == Scales::kSub32) sub[0] |= s == 0 ? scale << 8 * (2 * i + h) : 0u;
          if constexpr (kScales == Scales::kSub16) sub[i] |= scale << 8 * (2 * s + h);
          if constexpr (kScales == Scales::kSub32Min) sub[i] |= s == 0 ? (scale | min << 8) << 16 * h : 0u;
          if constexpr (kScales == Scales::kSub16Min) sub[i] |= (scale | min << 4) << 8 * (2 * s + h);
        }
      }
    }
  }
  constexpr int kSub = SubWords(kScales), kSuper = SuperWords(kScales);
  auto* to = const_cast<uint8_t*>(tiles.sub) + ((tile * tiles.blocks + block) * 8 + g) * 4 * kSub;
  if constexpr (kSub == 1) gpu::Store(to, sub[0]);
  if constexpr (kSub == 2) gpu::Store(to, gpu::Uint2{sub[0], sub[1]});
  if constexpr (kSub == 4) gpu::Store(to, gpu::Uint4{sub[0], sub[1], sub[2], sub[3]});
  if (kSuper == 0 || block % 4 != 0) return;
  auto* to_super =
      const_cast<uint8_t*>(tiles.super) + ((tile * ((tiles.blocks + 3) / 4) + block / 4) * 8 + g) * 4 * kSuper;
  if constexpr (kSuper == 1) gpu::Store(to_super, super[0]);
  if constexpr (kSuper == 2) gpu::Store(to_super, gpu::Uint2{super[0], super[1]});
}

// Grid (blocks / 4, tiles): a warp packs 64 inputs of E4M3, which have 8 bits like integer codes.
GPU_KERNEL(128, 4) PackBytesKernel(Source from, Tiles tiles) {
  const size_t block = gpu::BlockX() * 4 + gpu::Warp(), tile = from.first / kTileOutputs + gpu::BlockY();
  if (block >= tiles.blocks) return;
  const unsigned lane = gpu::Lane();
  for (int i = 0; i < 2; ++i) {
    uint32_t quads[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      quads[j] =
          QuadOf<DType::kF8E4M3>(from, OutputOf(tile, lane, j), InputOf(block * 2 + static_cast<size_t>(i), lane, j));
    gpu::Store(const_cast<uint8_t*>(tiles.low) +
                   (((tile * tiles.blocks + block) * 2 + static_cast<size_t>(i)) * 32 + lane) * 16,
               gpu::Uint4{quads[0], quads[1], quads[2], quads[3]});
  }
}

// Grid (blocks / 4, tiles): a warp packs 64 inputs of 16 bits.
GPU_KERNEL(128, 4) PackWordsKernel(Source from, Tiles tiles) {
  const size_t block = gpu::BlockX() * 4 + gpu::Warp(), tile = from.first / kTileOutputs + gpu::BlockY();
  if (block >= tiles.blocks) return;
  const unsigned lane = gpu::Lane();
  for (size_t i = 0; i < 4; ++i) {
    uint32_t words[4] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const size_t output = OutputOf(tile, lane, h), at = block * kBlockInputs + i * 16 + lane % 4 * 4;
      if (output >= from.end) continue;
      const auto* row = reinterpret_cast<const uint16_t*>(from.data + (output - from.first) * from.row_bytes);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (at + static_cast<size_t>(e) < from.k)
          words[2 * h + e / 2] |= static_cast<uint32_t>(row[at + static_cast<size_t>(e)]) << 16 * (e % 2);
      }
    }
    gpu::Store(const_cast<uint8_t*>(tiles.low) + (((tile * tiles.blocks + block) * 4 + i) * 32 + lane) * 16,
               gpu::Uint4{words[0], words[1], words[2], words[3]});
  }
}

bool HasWords(DType type) { return type == DType::kF16 || type == DType::kBF16; }

}  // namespace

TileSizes SizesOfTiles(DType type, size_t n, size_t k, size_t group) {
  const size_t tiles = (n + kTileOutputs - 1) / kTileOutputs, blocks = (k + kBlockInputs - 1) / kBlockInputs;
  if (tiles * blocks == 0) return {};
  if (HasWords(type)) return {tiles * blocks * 2048};
  if (type == DType::kF8E4M3) return group % kBlockInputs == 0 ? TileSizes{tiles * blocks * 1024} : TileSizes{};
  if (type == DType::kI8 && (group % 32 != 0 || k % 32 != 0)) return {};
  TileSizes sizes;
  WithCodes(type, [&]<DType kType>() {
    using F = FormOf<kType>;
    const size_t steps = blocks / F::kBlocks;
    sizes.low = tiles * steps * 128 * F::kLowWords;
    sizes.high = tiles * steps * 128 * F::kHighWords;
    sizes.sub = tiles * blocks * 32 * SubWords(F::kScales);
    sizes.super = tiles * ((blocks + 3) / 4) * 32 * SuperWords(F::kScales);
  });
  return sizes;
}

void DescribeTiles(DType type, size_t k, const TileSizes& sizes, const uint8_t* data, Tiles* tiles) {
  tiles->low = data;
  tiles->high = data + sizes.low;
  tiles->sub = data + sizes.low + sizes.high;
  tiles->super = data + sizes.low + sizes.high + sizes.sub;
  tiles->blocks = (k + kBlockInputs - 1) / kBlockInputs;
  tiles->bf16 = type == DType::kMXFP4;
  if (type == DType::kI8 || HasWords(type) || type == DType::kF8E4M3) return;
  const Coding coding = CodingOf(type);
  tiles->zero = coding.zero;
  tiles->by = coding.by;
  const Values16 values = TableOf(type);
  for (int i = 0; i < 4; ++i) {
    tiles->table[i] = 0;
    for (int b = 0; b < 4; ++b)
      tiles->table[i] |= static_cast<uint32_t>(static_cast<uint8_t>(values.of_code[4 * i + b])) << 8 * b;
  }
}

void PackRows(Stream stream, const Matrix& w, size_t first, size_t n, const uint8_t* data) {
  const auto count = static_cast<unsigned>((n + kTileOutputs - 1) / kTileOutputs);
  const Source from{data, first, first + n, w.k, w.row_bytes, w.books};
  // A grid has at most 65,535 blocks along y, a million outputs.
  constexpr size_t kMostOutputs = 65535 * kTileOutputs;
  if (n > kMostOutputs) {
    PackRows(stream, w, first, kMostOutputs, data);
    return PackRows(stream, w, first + kMostOutputs, n - kMostOutputs, data + kMostOutputs * w.row_bytes);
  }
  if (HasWords(w.type)) {
    GPU_LAUNCH(PackWordsKernel, gpu::Grid(Blocks(w.tiles.blocks, 4), count), 128, stream, from, w.tiles);
  } else if (w.type == DType::kF8E4M3) {
    GPU_LAUNCH(PackBytesKernel, gpu::Grid(Blocks(w.tiles.blocks, 4), count), 128, stream, from, w.tiles);
  } else {
    WithCodes(w.type, [&]<DType kType>() {
      const size_t steps = w.tiles.blocks / FormOf<kType>::kBlocks;
      GPU_LAUNCH(PackCodesKernel<kType>, gpu::Grid(Blocks(steps, 4), count), 128, stream, from, w.tiles, steps);
      GPU_LAUNCH(PackScalesKernel<kType>, gpu::Grid(Blocks(w.tiles.blocks, 16), count), 128, stream, from, w.tiles,
                 w.scales, w.group);
    });
  }
}

}  // namespace gyre::cuda
