// How packed matrices lie on a device, and how a warp reads them.
//
// A tile has 16 outputs; along k it goes by blocks of 64 inputs. A lane l of the warp that reads a tile has, with g = l
// / 4 and t = l % 4, the outputs g and g + 8 and of each 16 inputs the four from 4 t on. Four inputs of one output are
// a quad: quad j of 32 inputs has output g + 8 (j % 2) and inputs 16 (j / 2) + 4 t .. + 3. Those are the registers of
// operand A of mma.m16n8k32 on bytes; on 16-bit numbers mma.m16n8k16 gets the two pairs of a quad as if they lay 8
// inputs apart, and so does operand B (products/operand.h), as the order of inputs in a sum is free.
//
// All parts lie by [tile][step] and have the bytes of lane 0 first, so that a warp reads them side by side:
//   low    16 bytes a lane for 64 inputs of 4 bits or 128 of 2 bits: word j has quad j of each 32 inputs, the first 32
//          in the lowest bits of each byte. 8 bits: 16 bytes for 32 inputs. 16 bits: 16 bytes for 16 inputs, the quad
//          of output g before that of g + 8.
//   high   the bits above those: of one bit a word for 64 inputs, with bit 4 (i % 2) + j of a byte for quad j of the
//          i-th 32; of two bits a word for 32, with bits 2 j and 2 j + 1.
//   sub    scales of 32 or 16 inputs, for each g those of the outputs g and g + 8: Scales
//   super  scales of 256 inputs
#pragma once

#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/products/matrix.h"
#include "kernels/cuda/weights/blocks.cuh"

namespace gyre::cuda {

inline constexpr size_t kTileOutputs = 16, kBlockInputs = 64;

// The words of a block of 64 inputs, for one g; h is 0 for output g and 1 for g + 8, i counts 32 inputs, s 16 of these.
enum class Scales : uint8_t {
  kHalf,      // word i: f16 (or bf16) of h = 0 and 1
  kHalf16,    // word 2 i + s: bf16 of h = 0 and 1
  kHalfMin,   // word 2 i + h: f16 scale and minimum
  kFloat,     // word 2 i + h: f32
  kSub32,     // byte 2 i + h: int8; super: f16 of h = 0 and 1
  kSub16,     // byte 4 i + 2 s + h: int8; super as above
  kSub32Min,  // bytes 4 i + 2 h: scale and minimum; super: of each h a pair of f16, for scales and minima
  kSub16Min,  // byte 4 i + 2 s + h: scale and minimum, 4 bits each; super as above
};
constexpr int SubWords(Scales s) {
  return s == Scales::kSub32 ? 1 : s == Scales::kHalf16 || s == Scales::kHalfMin || s == Scales::kFloat ? 4 : 2;
}
constexpr int SuperWords(Scales s) {
  if (s == Scales::kSub32 || s == Scales::kSub16) return 1;
  return s == Scales::kSub32Min || s == Scales::kSub16Min ? 2 : 0;
}
constexpr bool HasMin(Scales s) { return s == Scales::kHalfMin || s == Scales::kSub32Min || s == Scales::kSub16Min; }
constexpr Scales ScalesOf(DType type) {
  switch (type) {
    case DType::kI8: return Scales::kFloat;
    case DType::kNVFP4: return Scales::kHalf16;
    case DType::kQ4_1:
    case DType::kQ5_1: return Scales::kHalfMin;
    case DType::kQ2_K: return Scales::kSub16Min;
    case DType::kQ4_K:
    case DType::kQ5_K: return Scales::kSub32Min;
    case DType::kQ3_K:
    case DType::kQ6_K:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ1_M: return Scales::kSub16;
    case DType::kIQ4_XS:
    case DType::kIQ2_XXS:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S:
    case DType::kIQ1_S:
    case DType::kTQ1_0:
    case DType::kTQ2_0: return Scales::kSub32;
    default: return Scales::kHalf;
  }
}

// A form of integer codes; several types share one.
template <int kBitsOfCode, bool kWithTable, Scales kScalesOfForm>
struct Form {
  static constexpr int kBits = kBitsOfCode, kLow = kBits == 8 ? 8 : kBits >= 4 ? 4 : 2, kHigh = kBits - kLow;
  static constexpr bool kTable = kWithTable;
  static constexpr Scales kScales = kScalesOfForm;
  static constexpr bool kMin = HasMin(kScales);
  static constexpr bool kSixteen =
      kScales == Scales::kHalf16 || kScales == Scales::kSub16 || kScales == Scales::kSub16Min;  // inputs of a scale
  static constexpr int kBlocks = kLow == 2 ? 2 : 1;    // of a step, of 64 inputs
  static constexpr int kLowWords = kLow == 8 ? 8 : 4;  // of a lane and step
  static constexpr int kHighWords = kHigh == 2 ? 2 : kHigh * kBlocks;
};
template <DType kType>
using FormOf = Form<kType == DType::kI8 ? 8 : CodingOf(kType).bits,
                    kType != DType::kI8 && CodingOf(kType).values == Values::kTable, ScalesOf(kType)>;

// The values of the eight 4-bit codes of a word: those in the low halves of its bytes, and those in the high halves.
GPU_FN void FromTable(uint32_t codes, const uint32_t (&table)[4], uint32_t* low, uint32_t* high) {
  uint32_t found[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t four = codes >> 16 * i & 0xFFFF, below = four & 0x7777;
    const uint32_t first = gpu::PermuteBytes(table[0], table[1], below),
                   second = gpu::PermuteBytes(table[2], table[3], below);
    found[i] = gpu::PermuteBytes(first, second, 0x3210u | (four & 0x8888) >> 1);
  }
  *low = gpu::PermuteBytes(found[0], found[1], 0x6420u);
  *high = gpu::PermuteBytes(found[0], found[1], 0x7531u);
}

// The bytes of a lane's quads, of one step of a tile.
template <typename F>
struct Codes {
  uint32_t low[F::kLowWords];
  uint32_t high[F::kHighWords == 0 ? 1 : F::kHighWords];

  // steps: of a tile.
  GPU_FN void Load(const Tiles& tiles, size_t tile, size_t steps, size_t step, unsigned lane) {
    const size_t at = tile * steps + step;
#pragma unroll
    for (int i = 0; i < F::kLowWords / 4; ++i) {
      const auto v =
          gpu::LoadConstant16(tiles.low + ((at * (F::kLowWords / 4) + static_cast<size_t>(i)) * 32 + lane) * 16);
      low[4 * i] = v.x, low[4 * i + 1] = v.y, low[4 * i + 2] = v.z, low[4 * i + 3] = v.w;
    }
    if constexpr (F::kHighWords == 1) high[0] = gpu::Load<uint32_t>(tiles.high + (at * 32 + lane) * 4);
    if constexpr (F::kHighWords == 2) {
      const auto v = gpu::Load<gpu::Uint2>(tiles.high + (at * 32 + lane) * 8);
      high[0] = v.x, high[1] = v.y;
    }
  }
  // The quads of the 32 inputs number i of the step: values from a table, codes otherwise.
  GPU_FN void Quads(const Tiles& tiles, int i, uint32_t (&quads)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (F::kLow == 8) {
        quads[j] = low[4 * i + j];
      } else if constexpr (F::kTable) {
        uint32_t of[2];
        FromTable(low[j], tiles.table, &of[0], &of[1]);
        quads[j] = of[i];
      } else {
        constexpr uint32_t kMask = (1u << F::kLow) - 1, kHighMask = (1u << F::kHigh) - 1;
        quads[j] = low[j] >> F::kLow * i & kMask * 0x01010101u;
        if constexpr (F::kHigh == 1)
          quads[j] |= (high[i / 2] >> (4 * (i % 2) + j) & kHighMask * 0x01010101u) << F::kLow;
        if constexpr (F::kHigh == 2) quads[j] |= (high[i] >> 2 * j & kHighMask * 0x01010101u) << F::kLow;
      }
    }
  }
};

// The scales of a lane's two outputs, for a block of 64 inputs. A weight is Scale * value + Min, value as ValueOf says.
template <Scales kScales>
struct BlockScales {
  uint32_t sub[SubWords(kScales)];
  uint32_t super[SuperWords(kScales) == 0 ? 1 : SuperWords(kScales)];

  GPU_FN void Load(const Tiles& tiles, size_t tile, size_t block, unsigned g) {
    constexpr int kSub = SubWords(kScales), kSuper = SuperWords(kScales);
    LoadWords<kSub>(tiles.sub + ((tile * tiles.blocks + block) * 8 + g) * 4 * kSub, sub);
    if constexpr (kSuper != 0) {
      const size_t supers = (tiles.blocks + 3) / 4;
      LoadWords<kSuper>(tiles.super + ((tile * supers + block / 4) * 8 + g) * 4 * kSuper, super);
    }
  }
  GPU_FN float Scale(const Tiles& tiles, int i, int s, int h) const {
    if constexpr (kScales == Scales::kFloat) return gpu::OfBits(sub[2 * i + h]);
    if constexpr (kScales == Scales::kHalf) {
      const uint32_t bits = sub[i] >> 16 * h & 0xFFFF;
      return tiles.bf16 ? gpu::OfBf16(static_cast<uint16_t>(bits)) : gpu::OfHalf(static_cast<uint16_t>(bits));
    }
    if constexpr (kScales == Scales::kHalf16)
      return gpu::Mul(gpu::OfBf16(static_cast<uint16_t>(sub[2 * i + s] >> 16 * h & 0xFFFF)), tiles.by);
    if constexpr (kScales == Scales::kHalfMin) return gpu::OfHalf(static_cast<uint16_t>(sub[2 * i + h] & 0xFFFF));
    int scale = 0;
    if constexpr (kScales == Scales::kSub32) scale = SignedByte(sub[0], 2 * i + h);
    if constexpr (kScales == Scales::kSub16) scale = SignedByte(sub[i], 2 * s + h);
    if constexpr (kScales == Scales::kSub32Min) scale = Byte(sub[i], 2 * h);
    if constexpr (kScales == Scales::kSub16Min) scale = Byte(sub[i], 2 * s + h) & 15;
    const uint32_t of_super = SuperWords(kScales) == 1 ? super[0] >> 16 * h : super[h];
    const float d = gpu::OfHalf(static_cast<uint16_t>(of_super & 0xFFFF));
    return gpu::Mul(SuperWords(kScales) == 1 ? gpu::Mul(d, tiles.by) : d, OfInt(scale));
  }
  // REQUIRES: HasMin(kScales).
  GPU_FN float Min(int i, int s, int h) const {
    if constexpr (kScales == Scales::kHalfMin) return gpu::OfHalf(static_cast<uint16_t>(sub[2 * i + h] >> 16));
    const int min = kScales == Scales::kSub32Min ? Byte(sub[i], 2 * h + 1) : Byte(sub[i], 2 * s + h) >> 4;
    return -gpu::Mul(gpu::OfHalf(static_cast<uint16_t>(super[h] >> 16)), OfInt(min));
  }

 private:
  template <int kWords>
  GPU_FN static void LoadWords(const uint8_t* from, uint32_t* to) {
    if constexpr (kWords == 1) {
      to[0] = gpu::Load<uint32_t>(from);
    } else if constexpr (kWords == 2) {
      const auto v = gpu::Load<gpu::Uint2>(from);
      to[0] = v.x, to[1] = v.y;
    } else {
      const auto v = gpu::LoadConstant16(from);
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    }
  }
};

// The value of a quad's code. Quads of 8 bits and of tables are signed.
template <typename F>
GPU_FN int ValueOf(const Tiles& tiles, uint32_t quad, int i) {
  return F::kBits == 8 || F::kTable ? SignedByte(quad, i) : Byte(quad, i) - tiles.zero;
}

// Calls f.template operator()<type>() for types of integer codes.
template <typename Fn>
void WithCodes(DType type, const Fn& f) {
  switch (type) {
#define GYRE_TYPE(name) \
  case DType::name: return f.template operator()<DType::name>();
    GYRE_TYPE(kQ4_0)
    GYRE_TYPE(kQ4_1)
    GYRE_TYPE(kQ5_0)
    GYRE_TYPE(kQ5_1)
    GYRE_TYPE(kQ8_0)
    GYRE_TYPE(kQ2_K)
    GYRE_TYPE(kQ3_K)
    GYRE_TYPE(kQ4_K)
    GYRE_TYPE(kQ5_K)
    GYRE_TYPE(kQ6_K)
    GYRE_TYPE(kIQ1_S)
    GYRE_TYPE(kIQ1_M)
    GYRE_TYPE(kIQ2_XXS)
    GYRE_TYPE(kIQ2_XS)
    GYRE_TYPE(kIQ2_S)
    GYRE_TYPE(kIQ3_XXS)
    GYRE_TYPE(kIQ3_S)
    GYRE_TYPE(kIQ4_NL)
    GYRE_TYPE(kIQ4_XS)
    GYRE_TYPE(kTQ1_0)
    GYRE_TYPE(kTQ2_0)
    GYRE_TYPE(kMXFP4)
    GYRE_TYPE(kNVFP4)
    GYRE_TYPE(kQ1_0)
    GYRE_TYPE(kQ2_0)
    GYRE_TYPE(kI8)
#undef GYRE_TYPE
    default: return;
  }
}

}  // namespace gyre::cuda
