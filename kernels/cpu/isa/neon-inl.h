// The kernels for NEON; with the dot product extension by vdotq.
#pragma once

#include <arm_neon.h>

#include <bit>
#include <type_traits>
#include <utility>

#include "kernels/codes.h"
#include "kernels/cpu/products/books.h"
#include "kernels/cpu/attention/attention_kernels-inl.h"
#include "kernels/cpu/products/float_gemm-inl.h"
#include "kernels/cpu/isa/float_kernels-inl.h"
#include "kernels/cpu/isa/neon_vector-inl.h"
#include "kernels/cpu/state/recurrence-inl.h"

namespace gyre::cpu {
namespace {

// acc + the sums of four neighbouring products of signed bytes.
#ifdef __ARM_FEATURE_DOTPROD
int32x4_t DotFour(int32x4_t acc, int8x16_t a, int8x16_t b) { return vdotq_s32(acc, a, b); }
#else
int32x4_t DotFour(int32x4_t acc, int8x16_t a, int8x16_t b) {
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b))), high = vpaddlq_s16(vmull_high_s8(a, b));
  return vaddq_s32(acc, vpaddq_s32(low, high));
}
#endif

inline void Quantize(const float* x, int8_t* q, float* scale, int32_t (&sums)[2]) {
  float32x4_t v[8];
  float32x4_t max = vdupq_n_f32(0);
  for (int i = 0; i < 8; ++i) {
    v[i] = vld1q_f32(x + 4 * i);
    max = V4::Max(max, vabsq_f32(v[i]));
  }
  float lanes[4];
  vst1q_f32(lanes, max);
  float amax = 0;
  for (const float lane : lanes) amax = lane > amax ? lane : amax;
  *scale = amax / 127.0f;
  const float inverse = amax > 0 ? 127.0f / amax : 0.0f;
  for (int half = 0; half < 2; ++half) {
    int16x4_t words[4];
    for (int i = 0; i < 4; ++i) words[i] = vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(v[4 * half + i], inverse)));
    const int8x8_t low = vqmovn_s16(vcombine_s16(words[0], words[1])),
                   high = vqmovn_s16(vcombine_s16(words[2], words[3]));
    vst1_s8(q + 16 * half, low);
    vst1_s8(q + 16 * half + 8, high);
    sums[half] = vaddlvq_s8(vcombine_s8(low, high));
  }
}

const uint8_t* Bytes(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

template <int shift>
uint8x16_t Shifted(uint8x16_t v) {
  if constexpr (shift > 0) return vshlq_n_u8(v, shift);
  if constexpr (shift < 0) return vshrq_n_u8(v, -shift);
  return v;
}

// Group g of a block for four columns; `block` points to the first of them.
template <typename L, size_t g>
int8x16_t Codes(const std::byte* block) {
  if constexpr (L::kBits == 8) {
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(Bytes(block + g * kGroup)), vdupq_n_u8(0x80)));
  } else if constexpr (L::kBits <= 3) {
    constexpr int shift = static_cast<int>(g % 4);
    const uint8x16_t two = vandq_u8(Shifted<-2 * shift>(vld1q_u8(Bytes(block + g / 4 * kGroup))), vdupq_n_u8(3));
    if constexpr (L::kBits == 2) return vreinterpretq_s8_u8(two);
    const uint8x16_t there = Shifted<2 - static_cast<int>(g)>(vld1q_u8(Bytes(block + L::kPlanes)));
    return vreinterpretq_s8_u8(vorrq_u8(two, vandq_u8(there, vdupq_n_u8(4))));
  } else {
    const uint8x16_t two = vld1q_u8(Bytes(block + g % 4 * kGroup));
    const uint8x16_t low = g < 4 ? vandq_u8(two, vdupq_n_u8(15)) : vshrq_n_u8(two, 4);
    if constexpr (L::kTable) return vqtbl1q_s8(vld1q_s8(L::kIq4 ? kIq4Values : kFp4Doubled), low);
    if constexpr (L::kBits == 4) return vreinterpretq_s8_u8(low);
    if constexpr (L::kBits == 5) {
      const uint8x16_t there = Shifted<4 - static_cast<int>(g)>(vld1q_u8(Bytes(block + L::kPlanes)));
      return vreinterpretq_s8_u8(vorrq_u8(low, vandq_u8(there, vdupq_n_u8(16))));
    }
    const uint8x16_t there =
        Shifted<4 - 2 * static_cast<int>(g % 4)>(vld1q_u8(Bytes(block + L::kPlanes + g / 4 * kGroup)));
    return vreinterpretq_s8_u8(vorrq_u8(low, vandq_u8(there, vdupq_n_u8(48))));
  }
}

template <typename T>
T LoadBits(const std::byte* p) {
  T v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
// Bytes of ones where the bit is set, the first byte for the lowest bit.
uint8x16_t BytesOfBits(unsigned bits) {
  const uint8x16_t both =
      vcombine_u8(vdup_n_u8(static_cast<uint8_t>(bits)), vdup_n_u8(static_cast<uint8_t>(bits >> 8)));
  return vtstq_u8(both, vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201)));
}

// Which weights of group g are negative, of four columns from `column` on; `signs` has all of a block.
template <typename L, size_t g>
unsigned SignsOf(const std::byte* signs, size_t column) {
  auto word = [&](size_t i) { return unsigned{LoadBits<uint16_t>(signs + 8 * i + column / 2)}; };
  if constexpr (L::kSigns == BookSigns::kAll) return word(g);
  constexpr size_t m = g / 2;
  if constexpr (g % 2 == 0) return word(m);
  unsigned second = word(4 + (m < 3 ? m : 0)) & 0x7777;
  if constexpr (m == 3) second = (word(4) >> 3 & 0x1111) | (word(5) >> 2 & 0x2222) | (word(6) >> 1 & 0x4444);
  unsigned odd = word(m) ^ second;
  odd ^= odd >> 1;
  odd ^= odd >> 2;
  return second | (odd & 0x1111) << 3;
}

// Group g of block b of a codebook type for four columns from `column` on.
template <typename L, size_t g>
int8x16_t BookGroup(const std::byte* unit, size_t column, size_t b) {
  const std::byte* block = unit + L::kHeader + b * L::kBlockBytes;
  const auto* points = PointsOf<L>();
  constexpr size_t m = L::kCoordinates == 8 ? g / 2 : g;
  uint32_t fours[4];
  for (size_t c = 0; c < 4; ++c) {
    const size_t place = BookPlace<L::kCoordinates>(column + c, m);
    unsigned index = static_cast<uint8_t>(block[place]);
    for (size_t h = 0; h < L::kHighBits; ++h) {
      const auto high = static_cast<unsigned>(block[L::kHighAt + h * L::kIndexBytes / 8 + place / 8]);
      index |= (high >> place % 8 & 1) << (8 + h);
    }
    fours[c] = static_cast<uint32_t>(uint64_t{points[index]} >> (L::kCoordinates == 8 && g % 2 == 1 ? 32 : 0));
  }
  const uint8x16_t values = vreinterpretq_u8_u32(vld1q_u32(fours));
  const std::byte* signs = block + L::kSignsAt;
  if constexpr (L::kSigns == BookSigns::kShift || L::kSigns == BookSigns::kNone) {
    uint32_t shifts[4];
    for (size_t c = 0; c < 4; ++c) {
      const size_t at = column + c;
      const unsigned down = L::kSigns == BookSigns::kShift
                                ? static_cast<unsigned>(signs[2 * (g / 2) + at / 8]) >> at % 8
                                : static_cast<unsigned>(unit[L::kNibbles + b / 2 * kPanel + at]) >> (3 + b % 2 * 4);
      shifts[c] = (down & 1) != 0 ? 0xFFFFFFFF : 0x01010101;
    }
    const uint8x16_t shifted = vaddq_u8(values, vreinterpretq_u8_u32(vld1q_u32(shifts)));
    return vreinterpretq_s8_u8(veorq_u8(shifted, vdupq_n_u8(0x80)));
  } else {
    const uint8x16_t negative = BytesOfBits(SignsOf<L, g>(signs, column));
    return vreinterpretq_s8_u8(vsubq_u8(veorq_u8(values, negative), negative));
  }
}

// Group g of block b for four columns from `column` on.
template <typename L, size_t g>
int8x16_t GroupCodes(const std::byte* unit, size_t column, size_t b) {
  const std::byte* block = unit + L::kHeader + b * L::kBlockBytes;
  if constexpr (L::kBook) {
    return BookGroup<L, g>(unit, column, b);
  } else if constexpr (L::kTernary) {
    constexpr uint8_t kPowers[] = {1, 3, 9, 27, 81};
    const size_t slot = 8 * b + g;
    const uint8x16_t fraction =
        vmulq_u8(vld1q_u8(Bytes(unit + L::kHeader + slot % kTernaryVectors * kGroup + column * 4)),
                 vdupq_n_u8(kPowers[slot / kTernaryVectors]));
    const uint8x16_t reached =
        vaddq_u8(vcgeq_u8(fraction, vdupq_n_u8(86)), vcgeq_u8(fraction, vdupq_n_u8(171)));  // 0, -1 or -2
    return vnegq_s8(vreinterpretq_s8_u8(reached));
  } else if constexpr (L::kBinary) {
    const uint8x16_t bits = BytesOfBits(LoadBits<uint16_t>(block + g * kGroup / 8 + column / 2));
    return vreinterpretq_s8_u8(vandq_u8(bits, vdupq_n_u8(2)));
  } else {
    return Codes<L, g>(block + column * 4);
  }
}

float32x4_t Halves(const std::byte* p) {
  uint16x4_t v;
  __builtin_memcpy(&v, p, sizeof v);
  return vcvt_f32_f16(vreinterpret_f16_u16(v));
}
float32x4_t SignedBytes(const std::byte* p) { return V4::LoadInt8(reinterpret_cast<const int8_t*>(p)); }
uint32x4_t UnsignedBytes(const std::byte* p) {
  uint32_t four;
  __builtin_memcpy(&four, p, 4);
  return vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)))));
}

// The scales of part s of block b for four columns from `first` on; below, their minima.
template <typename L>
float32x4_t Scales(const std::byte* unit, size_t first, size_t b, size_t s) {
  if constexpr (L::kWide) {
    float32x4_t v;
    __builtin_memcpy(&v, unit + ((b * L::kScalesPerBlock + s) * kPanel + first) * 4, sizeof v);
    return v;
  }
  if constexpr (L::kBook) {
    const size_t at = L::kScalesPerBlock * b + s;
    const uint32x4_t both = UnsignedBytes(unit + L::kNibbles + at / 2 * kPanel + first);
    const uint32x4_t nibbles =
        vandq_u32(at % 2 == 0 ? both : vshrq_n_u32(both, 4), vdupq_n_u32(L::kType == PanelType::kIq1S ? 7 : 15));
    const float32x4_t steps = vcvtq_f32_u32(vorrq_u32(vshlq_n_u32(nibbles, 1), vdupq_n_u32(1)));
    return vmulq_f32(vmulq_n_f32(Halves(unit + first * 2), L::kBookUnit), steps);
  }
  if constexpr (L::kOneScale) return Halves(unit + first * 2);
  if constexpr (L::kByteScale) {
    const uint32x4_t bits = UnsignedBytes(unit + (b * L::kScalesPerBlock + s) * kPanel + first);
    if constexpr (L::kType == PanelType::kNvFp4) {  // shifted by 7 bits, an E4M3 is the f16 of its value / 256
      const uint16x4_t halves = vmovn_u32(vshlq_n_u32(bits, 7));
      return vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(halves)), 128);
    }
    return vmulq_n_f32(vreinterpretq_f32_u32(vmaxq_u32(vshlq_n_u32(bits, 23), vdupq_n_u32(0x400000))), 0.5f);
  }
  if constexpr (!L::kSuper) return Halves(unit + (b * kPanel + first) * 2);
  const std::byte* bytes = unit + L::kMins + (b * L::kScalesPerBlock + s) * kPanel + first;
  if constexpr (L::kHalfMin)
    return vmulq_f32(Halves(unit + first * 2), vcvtq_f32_u32(vandq_u32(UnsignedBytes(bytes), vdupq_n_u32(15))));
  return vmulq_f32(Halves(unit + first * 2), SignedBytes(bytes));
}
template <typename L>
float32x4_t HalfMins(const std::byte* unit, size_t first, size_t b, size_t s) {
  const uint32x4_t bytes = UnsignedBytes(unit + L::kMins + (b * 2 + s) * kPanel + first);
  return vmulq_f32(Halves(unit + (kPanel + first) * 2), vcvtq_f32_u32(vshrq_n_u32(bytes, 4)));
}
template <typename L>
float32x4_t Mins(const std::byte* unit, size_t first, size_t b) {
  if constexpr (!L::kSuper) return Halves(unit + L::kMins + (b * kPanel + first) * 2);
  return vmulq_f32(Halves(unit + (kPanel + first) * 2),
                   vcvtq_f32_u32(UnsignedBytes(unit + L::kByteMins + b * kPanel + first)));
}

// R rows of one group against C times four columns from `first` on, units [begin, end), added to `sum`.
template <typename L, size_t R, size_t C>
[[gnu::always_inline]] inline void Tile(const Quantized& x, size_t row, const std::byte* w, size_t first, size_t begin,
                                        size_t end, float32x4_t (&sum)[R][C]) {
  constexpr size_t kParts = L::kScalesPerBlock, kGroups = kBlock / 4 / kParts;
  const size_t at = x.At(row, begin * L::kBlocks), group = x.group;
  const int8_t* q = x.q + at * kBlock;
  const float* scale = x.scale + at;
  const float* total = x.sum + at;
  const int32_t* offset = x.offset + at;
  for (size_t u = begin; u < end; ++u) {
    const std::byte* unit = w + u * L::kUnitBytes;
    for (size_t b = 0; b < L::kBlocks; ++b, q += group * kBlock, scale += group, total += group, offset += group) {
      Each<0>(std::make_index_sequence<kParts>(), [&](auto s) {
        int32x4_t dots[R][C];
        for (size_t r = 0; r < R; ++r) {
          for (size_t c = 0; c < C; ++c)
            dots[r][c] = vdupq_n_s32(L::kSigned || L::kHalfMin ? 0 : offset[s() * x.parts + r]);
        }
        Each<s() * kGroups>(std::make_index_sequence<kGroups>(), [&](auto g) {
          int8x16_t codes[C];
          for (size_t c = 0; c < C; ++c) codes[c] = GroupCodes<L, g()>(unit, first + 4 * c, b);
          for (size_t r = 0; r < R; ++r) {
            int32_t four;
            __builtin_memcpy(&four, q + r * kBlock + 4 * g(), 4);
            const int8x16_t fours = vreinterpretq_s8_s32(vdupq_n_s32(four));
            for (size_t c = 0; c < C; ++c) dots[r][c] = DotFour(dots[r][c], codes[c], fours);
          }
        });
        for (size_t c = 0; c < C; ++c) {
          const float32x4_t scales = Scales<L>(unit, first + 4 * c, b, s());
          for (size_t r = 0; r < R; ++r)
            sum[r][c] = vfmaq_n_f32(sum[r][c], vmulq_f32(vcvtq_f32_s32(dots[r][c]), scales), scale[r]);
          if constexpr (L::kHalfMin) {
            const float32x4_t mins = HalfMins<L>(unit, first + 4 * c, b, s());
            for (size_t r = 0; r < R; ++r)
              sum[r][c] = vfmaq_n_f32(sum[r][c], mins, scale[r] * static_cast<float>(offset[s() * x.parts + r]));
          }
        }
      });
      if constexpr (L::kMin) {
        for (size_t c = 0; c < C; ++c) {
          const float32x4_t mins = Mins<L>(unit, first + 4 * c, b);
          for (size_t r = 0; r < R; ++r) sum[r][c] = vfmaq_n_f32(sum[r][c], mins, total[r]);
        }
      }
    }
  }
}

template <typename L, size_t R, size_t C>
void StoreTile(const Quantized& x, size_t row, const std::byte* w, size_t column, size_t columns, size_t begin,
               size_t end, float* out, size_t ldo) {
  float32x4_t sum[R][C];
  auto each = [&](auto f) {
    for (size_t c = 0; c < C; ++c) {
      const size_t at = column + 4 * c, n = at >= columns ? 0 : columns - at < 4 ? columns - at : 4;
      for (size_t r = 0; r < R; ++r) f(sum[r][c], out + (row + r) * ldo + at, n);
    }
  };
  each([&](float32x4_t& v, const float* from, size_t n) {
    v = begin == 0 || n == 0 ? V4::Zero() : n == 4 ? V4::Load(from) : V4::LoadTail(from, n);
  });
  Tile<L, R, C>(x, row, w, column % kPanel, begin, end, sum);
  each([](const float32x4_t& v, float* to, size_t n) {
    if (n == 4)
      V4::Store(to, v);
    else if (n > 0)
      V4::StoreTail(to, v, n);
  });
}

template <PanelType type>
void DotTyped(const Quantized& x, size_t rows, const std::byte* w, size_t panels, size_t columns, float* out,
              size_t ldo) {
  using L = PanelLayout<type>;
  constexpr size_t kColumns = 8;  // two registers
  const size_t units = x.blocks / L::kBlocks, stride = units * L::kUnitBytes,
               segment = rows > 3 ? 512 / L::kUnit : units;
  for (size_t p = 0; p < panels; ++p, w += stride) {
    for (size_t at = 0; at < units; at += segment) {
      const size_t end = at + segment < units ? at + segment : units;
      for (size_t column = p * kPanel; column < columns && column < (p + 1) * kPanel; column += kColumns) {
        size_t r = 0;
        for (; r + 3 <= rows; r += 3) StoreTile<L, 3, 2>(x, r, w, column, columns, at, end, out, ldo);
        for (; r + 2 <= rows; r += 2) StoreTile<L, 2, 2>(x, r, w, column, columns, at, end, out, ldo);
        for (; r < rows; ++r) StoreTile<L, 1, 2>(x, r, w, column, columns, at, end, out, ldo);
      }
    }
  }
}

void DotPanels(const Quantized& x, size_t rows, PanelType type, const std::byte* w, size_t panels, size_t columns,
               float* out, size_t ldo, size_t) {
  WithPanelType(type, [&]<PanelType t>() { DotTyped<t>(x, rows, w, panels, columns, out, ldo); });
}

constexpr IsaOps kOps = {.dot = Dot<V4>,
                         .dot_fp8 = DotFp8<V4>,
                         .dot_panels = DotPanels,
                         .quantize = QuantizeRow<Quantize>,
                         .scores = Scores<V4>,
                         .exp_scores = ExpScores<V4>,
                         .weighted_sum = WeightedSum<V4>,
                         .expand_keys = ExpandKeys<V4>,
                         .combine_partials = CombinePartials<V4>,
                         .silu_times = SiluTimes<V4>,
                         .gelu_times = GeluTimes<V4>,
                         .clamped_swiglu_times = ClampedSwigluTimes<V4>,
                         .sigmoid_times = SigmoidTimes<V4>,
                         .relu_squared_times = ReluSquaredTimes<V4>,
                         .gelu_erf_times = GeluErfTimes<V4>,
                         .relu_times = ReluTimes<V4>,
                         .softcap = Softcap<V4>,
                         .rms_norm = RmsNorm<V4>,
                         .to_half = ToHalf<V4>,
                         .expand_fp8 = ExpandFp8<V4>,
                         .largest = LargestOf<V4>,
                         .sum_exp = SumExp<V4>,
                         .short_conv = ShortConv<V4>,
                         .scan_state = ScanState<V4>,
                         .float_gemm = Gemm<V4>::kOps};

}  // namespace
}  // namespace gyre::cpu
