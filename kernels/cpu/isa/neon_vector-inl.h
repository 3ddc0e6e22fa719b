// Four floats of NEON as a vector class V (float_kernels-inl.h).
#pragma once

#include <arm_neon.h>

#include "kernels/cpu/isa/common-inl.h"

namespace gyre::cpu {
namespace {

struct V4 : CopiedTails<V4, 4> {
  using T = float32x4_t;
  using Bytes [[gnu::vector_size(16)]] = uint8_t;
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
  // Exponent and mantissa of E4M3 lie 7 bits higher in f16, whose exponent bias is larger by 8. Its sign, extended to
  // 16 bits, also gets into the exponent's highest bit.
  static T LoadFp8(const std::byte* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    const int16x4_t wide = vshl_n_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)))), 7);
    return vcvt_f32_f16(vreinterpret_f16_s16(vand_s16(wide, vdup_n_s16(static_cast<int16_t>(0xBFFF)))));
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
  using Doubles = float64x2_t;
  static constexpr size_t kDoubles = 2;
  static Doubles LoadDoubles(const float* p) { return vcvt_f64_f32(vld1_f32(p)); }
  static Doubles Splat(double d) { return vdupq_n_f64(d); }
  static Doubles Fma(Doubles a, Doubles b, Doubles c) { return vfmaq_f64(c, a, b); }
  static Doubles Max(Doubles a, Doubles b) { return vbslq_f64(vcgtq_f64(a, b), a, b); }
  static Doubles PowerOf2(Doubles shifted) {
    const int64x2_t n = vshlq_n_s64(vreinterpretq_s64_f64(shifted), 52);
    return vreinterpretq_f64_s64(vaddq_s64(n, vdupq_n_s64(int64_t{1023} << 52)));
  }
  static void Store(double* p, Doubles v) { vst1q_f64(p, v); }
  static void Transpose(T (&v)[4]) {
    const float32x4x2_t low = vzipq_f32(v[0], v[2]), high = vzipq_f32(v[1], v[3]);
    const float32x4x2_t first = vzipq_f32(low.val[0], high.val[0]), second = vzipq_f32(low.val[1], high.val[1]);
    v[0] = first.val[0];
    v[1] = first.val[1];
    v[2] = second.val[0];
    v[3] = second.val[1];
  }
};

}  // namespace
}  // namespace gyre::cpu
