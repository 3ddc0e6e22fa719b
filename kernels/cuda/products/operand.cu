#include "kernels/cuda/products/operand.h"

#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/quantize.cuh"
#include "kernels/cuda/warp.cuh"

namespace gyre::cuda {
namespace {

constexpr size_t kMostEights = 65535;  // along y of a grid

// The quad of a row at an input, zeros beyond k and beyond the last row.
GPU_FN gpu::Float4 QuadOf(const OperandSource& from, size_t head, size_t row, size_t at) {
  if (row >= from.rows || at >= from.k) return {0, 0, 0, 0};
  return LoadFour(from.x + row * from.stride + head * from.head_stride + at, from.k - at);
}
GPU_FN float Largest(const gpu::Float4& v) {
  const float a = gpu::Abs(v.x), b = gpu::Abs(v.y), c = gpu::Abs(v.z), d = gpu::Abs(v.w);
  const float ab = a > b ? a : b, cd = c > d ? c : d;
  return ab > cd ? ab : cd;
}
GPU_FN bool HasNan(const gpu::Float4& v) { return v.x != v.x || v.y != v.y || v.z != v.z || v.w != v.w; }

GPU_FN int Code(float v, float inverse) { return Level(gpu::Mul(v, inverse), -127, 127); }
struct CodedQuad {
  uint32_t word;
  int sum;
};
GPU_FN CodedQuad CodesOf(const gpu::Float4& v, float inverse) {
  const int a = Code(v.x, inverse), b = Code(v.y, inverse), c = Code(v.z, inverse), d = Code(v.w, inverse);
  const auto byte = [](int code) { return static_cast<uint32_t>(code) & 255; };
  return {byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24, a + b + c + d};
}

// Grid (blocks of 64 inputs / 4, eights, heads): a warp rounds 64 inputs of eight rows. A NaN makes the scale NaN.
GPU_KERNEL(128, 8) RoundToInt8Kernel(OperandSource from, Operand to, uint8_t* codes, uint8_t* scales, size_t first) {
  const size_t block = gpu::BlockX() * 4 + gpu::Warp(), eight = first + gpu::BlockY(), head = gpu::BlockZ();
  if (block >= to.blocks) return;
  const unsigned lane = gpu::Lane(), t = lane % 4;
  const size_t row = eight * 8 + lane / 4, of_head = head * to.eights + eight;
  uint32_t words[4];
#pragma unroll
  for (size_t i = 0; i < 2; ++i) {
    const size_t at = block * 64 + i * 32 + 4 * t;
    const gpu::Float4 low = QuadOf(from, head, row, at), high = QuadOf(from, head, row, at + 16);
    float most = Largest(low);
    most = Largest(high) > most ? Largest(high) : most;
    uint32_t nan = HasNan(low) || HasNan(high) ? 1 : 0;
#pragma unroll
    for (unsigned by = 1; by <= 2; by *= 2) {
      const float other = gpu::ShflXor(most, by);
      most = other > most ? other : most;
      nan |= gpu::ShflXor(nan, by);
    }
    const float scale = nan != 0 ? gpu::OfBits(0x7FC00000u) : gpu::Div(most, 127.0f);
    const float inverse = most > 0 ? gpu::Div(127.0f, most) : 0.0f;
    const CodedQuad a = CodesOf(low, inverse), b = CodesOf(high, inverse);
    words[2 * i] = a.word;
    words[2 * i + 1] = b.word;
    // Both sums in one word.
    uint32_t sums = (static_cast<uint32_t>(a.sum) & 0xFFFF) | static_cast<uint32_t>(b.sum) << 16;
#pragma unroll
    for (unsigned by = 1; by <= 2; by *= 2) {
      const uint32_t other = gpu::ShflXor(sums, by);
      sums = ((sums + other) & 0xFFFF) | ((sums >> 16) + (other >> 16)) << 16;
    }
    if (t == i) {
      gpu::Store(scales + ((of_head * to.blocks * 2 + block * 2 + i) * 8 + lane / 4) * 8,
                 gpu::Uint2{gpu::Bits(scale), sums});
    }
  }
  gpu::Store(codes + ((of_head * to.blocks + block) * 32 + lane) * 16,
             gpu::Uint4{words[0], words[1], words[2], words[3]});
}

struct FactorShared {
  OfWarps<float, 4> largest;
};
// A block a row, grid (rows of the eights, heads): factors[head][row] = 2^-e, so that 2^e x is at most 2^14.
GPU_KERNEL(128, 8) RowFactorKernel(OperandSource from, float* factors, size_t rows) {
  GPU_SHARED(FactorShared, s);
  const size_t row = gpu::BlockX(), head = gpu::BlockY();
  float most = 0;
  for (size_t at = gpu::Thread() * 4; at < from.k; at += 512) {
    const float of_quad = Largest(QuadOf(from, head, row, at));
    most = of_quad > most ? of_quad : most;
  }
  most = s.largest.Max(most);
  int exponent = static_cast<int>(gpu::Bits(most) >> 23) - 127 - 13;
  if (exponent < -126) exponent = -126;
  if (exponent > 114) exponent = 0;  // infinity stays one
  if (gpu::Thread() == 0) factors[head * rows + row] = PowerOf2(exponent);
}

// Takes the next piece off each element.
template <Pieces kPieces>
GPU_FN gpu::Uint2 PieceOf(gpu::Float4* v) {
  constexpr bool kF16 = kPieces == Pieces::kF16x2;
  const auto pair = [](float a, float b) { return kF16 ? gpu::ToHalfPair(a, b) : gpu::ToBf16Pair(a, b); };
  const auto take = [](float f, uint32_t bits) {
    const auto word = static_cast<uint16_t>(bits);
    return gpu::Add(f, -(kF16 ? gpu::OfHalf(word) : gpu::OfBf16(word)));
  };
  const gpu::Uint2 piece{pair(v->x, v->y), pair(v->z, v->w)};
  *v = {take(v->x, piece.x & 0xFFFF), take(v->y, piece.x >> 16), take(v->z, piece.y & 0xFFFF),
        take(v->w, piece.y >> 16)};
  return piece;
}

// Grid (32 inputs / 4, eights, heads): a warp rounds 32 inputs of eight rows.
template <Pieces kPieces>
GPU_KERNEL(128, 8)
RoundToPiecesKernel(OperandSource from, Operand to, uint8_t* codes, size_t first) {
  const size_t part = gpu::BlockX() * 4 + gpu::Warp(), eight = first + gpu::BlockY(), head = gpu::BlockZ();
  if (part >= to.blocks * 2) return;
  const unsigned lane = gpu::Lane();
  const size_t row = eight * 8 + lane / 4, of_head = head * to.eights + eight;
  gpu::Float4 low = QuadOf(from, head, row, part * 32 + lane % 4 * 4),
              high = QuadOf(from, head, row, part * 32 + lane % 4 * 4 + 16);
  if constexpr (kPieces == Pieces::kF16x2) {
    const float by = gpu::Div(1.0f, to.factors[of_head * 8 + lane / 4]);
    low = {gpu::Mul(low.x, by), gpu::Mul(low.y, by), gpu::Mul(low.z, by), gpu::Mul(low.w, by)};
    high = {gpu::Mul(high.x, by), gpu::Mul(high.y, by), gpu::Mul(high.z, by), gpu::Mul(high.w, by)};
  }
  constexpr size_t kCount = PieceCount(kPieces);
#pragma unroll
  for (size_t piece = 0; piece < kCount; ++piece) {
    const gpu::Uint2 a = PieceOf<kPieces>(&low), b = PieceOf<kPieces>(&high);
    gpu::Store(codes + (((of_head * to.blocks * 2 + part) * kCount + piece) * 32 + lane) * 16,
               gpu::Uint4{a.x, a.y, b.x, b.y});
  }
}

}  // namespace

OperandSizes SizesOfOperand(Pieces pieces, size_t rows, size_t k, size_t heads) {
  const size_t eights = (rows + 7) / 8 * heads, blocks = (k + 63) / 64;
  if (pieces == Pieces::kInt8) return {eights * blocks * 512, eights * blocks * 128};
  return {eights * blocks * 1024 * PieceCount(pieces), pieces == Pieces::kF16x2 ? eights * 32 : 0};
}

Operand MakeOperand(Stream stream, Pieces pieces, const OperandSource& from, uint8_t* memory) {
  const OperandSizes sizes = SizesOfOperand(pieces, from.rows, from.k, from.heads);
  uint8_t* scales = memory + sizes.codes;
  auto* factors = reinterpret_cast<float*>(scales);
  const Operand to{pieces, (from.rows + 7) / 8, (from.k + 63) / 64, memory, scales, factors};
  if (from.rows == 0 || from.k == 0 || from.heads == 0) return to;
  const auto heads = static_cast<unsigned>(from.heads);
  if (pieces == Pieces::kF16x2) {
    GPU_LAUNCH(RowFactorKernel, gpu::Grid(static_cast<unsigned>(to.eights * 8), heads), 128, stream, from, factors,
               to.eights * 8);
  }
  for (size_t first = 0; first < to.eights; first += kMostEights) {
    const auto eights = static_cast<unsigned>(to.eights - first < kMostEights ? to.eights - first : kMostEights);
    const gpu::Grid wide(Blocks(to.blocks, 4), eights, heads), narrow(Blocks(to.blocks * 2, 4), eights, heads);
    switch (pieces) {
      case Pieces::kInt8: GPU_LAUNCH(RoundToInt8Kernel, wide, 128, stream, from, to, memory, scales, first); break;
      case Pieces::kBf16:
        GPU_LAUNCH(RoundToPiecesKernel<Pieces::kBf16>, narrow, 128, stream, from, to, memory, first);
        break;
      case Pieces::kBf16x3:
        GPU_LAUNCH(RoundToPiecesKernel<Pieces::kBf16x3>, narrow, 128, stream, from, to, memory, first);
        break;
      case Pieces::kF16x2:
        GPU_LAUNCH(RoundToPiecesKernel<Pieces::kF16x2>, narrow, 128, stream, from, to, memory, first);
        break;
    }
  }
  return to;
}

}  // namespace gyre::cuda
