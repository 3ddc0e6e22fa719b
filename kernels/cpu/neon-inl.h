// The kernels for NEON. The file of each ISA includes this inside an anonymous namespace and defines DotFour before it:
// acc + the sums of four neighbouring products of signed bytes.

#include "kernels/cpu/common-inl.h"

struct V4 : CopiedTails<V4, 4> {
  using T = float32x4_t;
  static constexpr size_t kLanes = 4;
  static constexpr size_t kTileRows = 6, kTileColumns = 4, kChain = 4096, kGemmRows = 8, kGemmVectors = 3,
                          kPageStreams = 4;
  static T Zero() { return vdupq_n_f32(0); }
  static T Load(const float* p) { return vld1q_f32(p); }
  static T LoadHalf(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
  static T LoadBf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
  static T LoadInt8(const int8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))));
  }
  static T Broadcast(float f) { return vdupq_n_f32(f); }
  static T Fma(T a, T b, T c) { return vfmaq_f32(c, a, b); }
  static T Add(T a, T b) { return vaddq_f32(a, b); }
  static T Mul(T a, T b) { return vmulq_f32(a, b); }
  static T Div(T a, T b) { return vdivq_f32(a, b); }
  // Max and Min of NaN and b are b, as on x86.
  static T Max(T a, T b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static T Min(T a, T b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
  static T Round(T a) { return vrndnq_f32(a); }
  static T Floor(T a) { return vrndmq_f32(a); }
  static T TimesPowerOf2(T a, T n) {
    return vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23)));
  }
  static void StoreHalf(uint16_t* p, T v) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
  static void Store(float* p, T v) { vst1q_f32(p, v); }
  static float Sum(T v) {
    const float32x2_t s = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(vpadd_f32(s, s), 0);
  }
  static float Largest(T v) { return vmaxvq_f32(v); }
  static void Transpose(T (&v)[4]) {
    const float32x4x2_t low = vzipq_f32(v[0], v[2]), high = vzipq_f32(v[1], v[3]);
    const float32x4x2_t first = vzipq_f32(low.val[0], high.val[0]), second = vzipq_f32(low.val[1], high.val[1]);
    v[0] = first.val[0];
    v[1] = first.val[1];
    v[2] = second.val[0];
    v[3] = second.val[1];
  }
};

#include "kernels/cpu/float_kernels-inl.h"
#include "kernels/cpu/float_gemm-inl.h"
#include "kernels/cpu/attention_kernels-inl.h"
#include "kernels/cpu/recurrence-inl.h"

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
      const std::byte* block = unit + L::kHeader + b * L::kBlockBytes + first * 4;
      Each<0>(std::make_index_sequence<kParts>(), [&](auto s) {
        int32x4_t dots[R][C];
        for (size_t r = 0; r < R; ++r) {
          for (size_t c = 0; c < C; ++c)
            dots[r][c] = vdupq_n_s32(L::kSigned || L::kHalfMin ? 0 : offset[s() * x.parts + r]);
        }
        Each<s() * kGroups>(std::make_index_sequence<kGroups>(), [&](auto g) {
          int8x16_t codes[C];
          for (size_t c = 0; c < C; ++c) codes[c] = Codes<L, g()>(block + 16 * c);
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
               float* out, size_t ldo) {
  WithPanelType(type, [&]<PanelType t>() { DotTyped<t>(x, rows, w, panels, columns, out, ldo); });
}

constexpr IsaOps kOps = {Dot<V4>,
                         DotPanels,
                         QuantizeRow<Quantize>,
                         Scores<V4>,
                         ExpScores<V4>,
                         WeightedSum<V4>,
                         ExpandKeys<V4>,
                         CombinePartials<V4>,
                         SiluTimes<V4>,
                         GeluTimes<V4>,
                         ClampedSwigluTimes<V4>,
                         SigmoidTimes<V4>,
                         ReluSquaredTimes<V4>,
                         Softcap<V4>,
                         RmsNorm<V4>,
                         ToHalf<V4>,
                         ExpandFp8,
                         ShortConv<V4>,
                         ScanState<V4>,
                         Gemm<V4>::kOps};
