// The weights of a packed matrix as floats, for a warp that reads a tile: what DequantizeRow says, bit by bit.
#pragma once

#include "kernels/cuda/weights/forms.cuh"

namespace gyre::cuda {

// One step of a tile: kBlocks blocks of 64 inputs. Values(i) gives a lane's quads of the i-th 32 inputs; beyond n and k
// they are zeros.
template <typename F>
struct CodeReader {
  static constexpr int kBlocks = F::kBlocks;
  Codes<F> codes;
  BlockScales<F::kScales> scales[kBlocks];

  GPU_FN void Load(const Matrix& m, size_t tile, size_t step, unsigned lane) {
    codes.Load(m.tiles, tile, m.tiles.blocks / kBlocks, step, lane);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) scales[b].Load(m.tiles, tile, step * kBlocks + static_cast<size_t>(b), lane / 4);
  }
  GPU_FN void Values(const Matrix& m, int i, float (&w)[4][4]) const {
    uint32_t quads[4];
    codes.Quads(m.tiles, i, quads);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float scale = scales[i / 2].Scale(m.tiles, i % 2, j / 2, j % 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        w[j][e] = gpu::Mul(scale, OfInt(ValueOf<F>(m.tiles, quads[j], e)));
        if constexpr (F::kMin) w[j][e] = gpu::Add(w[j][e], scales[i / 2].Min(i % 2, j / 2, j % 2));
      }
    }
  }
};

template <DType kType>
struct WordReader {  // F16, BF16
  static constexpr int kBlocks = 1;
  gpu::Uint4 words[4];

  GPU_FN void Load(const Matrix& m, size_t tile, size_t step, unsigned lane) {
#pragma unroll
    for (size_t i = 0; i < 4; ++i)
      words[i] = gpu::LoadConstant16(m.tiles.low + (((tile * m.tiles.blocks + step) * 4 + i) * 32 + lane) * 16);
  }
  GPU_FN void Values(const Matrix&, int i, float (&w)[4][4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const gpu::Uint4& v = words[2 * i + j / 2];
      const uint32_t pairs[2] = {j % 2 == 0 ? v.x : v.z, j % 2 == 0 ? v.y : v.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const auto bits = static_cast<uint16_t>(pairs[e / 2] >> 16 * (e % 2) & 0xFFFF);
        w[j][e] = kType == DType::kF16 ? gpu::OfHalf(bits) : gpu::OfBf16(bits);
      }
    }
  }
};

struct Fp8Reader {
  static constexpr int kBlocks = 1;
  gpu::Uint4 words[2];
  float scale[2];

  // A group of scales has whole blocks of inputs.
  GPU_FN void Load(const Matrix& m, size_t tile, size_t step, unsigned lane) {
#pragma unroll
    for (size_t i = 0; i < 2; ++i)
      words[i] = gpu::LoadConstant16(m.tiles.low + (((tile * m.tiles.blocks + step) * 2 + i) * 32 + lane) * 16);
    const size_t across = (m.k + m.group - 1) / m.group;
#pragma unroll
    for (size_t h = 0; h < 2; ++h) {
      const size_t output = tile * kTileOutputs + lane / 4 + 8 * h, n = output < m.n ? output : m.n - 1;
      scale[h] = m.scales[(m.first_row + n) / m.group * across + step * kBlockInputs / m.group];
    }
  }
  GPU_FN void Values(const Matrix&, int i, float (&w)[4][4]) const {
    const uint32_t quads[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) w[j][e] = gpu::Mul(OfFp8(quads[j] >> 8 * e & 255), scale[j % 2]);
    }
  }
};

// Calls f.template operator()<Reader>() for the reader of a packed type.
template <typename Fn>
void WithReader(DType type, const Fn& f) {
  switch (type) {
    case DType::kF16: return f.template operator()<WordReader<DType::kF16>>();
    case DType::kBF16: return f.template operator()<WordReader<DType::kBF16>>();
    case DType::kF8E4M3: return f.template operator()<Fp8Reader>();
    default: return WithCodes(type, [&]<DType kType>() { f.template operator()<CodeReader<FormOf<kType>>>(); });
  }
}

}  // namespace gyre::cuda
