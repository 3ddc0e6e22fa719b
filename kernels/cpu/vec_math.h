// exp, tanh and the activations on vectors, to within a few units in the last place, and sums across lanes in one
// order. Included after simd_avx2.h or simd_avx512.h; unnamed namespace, on purpose: see dequant_blocks.h.
#pragma once

#include <cstddef>

#if defined(__clang__)
#define GYRE_UNROLL _Pragma("unroll")
#else
#define GYRE_UNROLL _Pragma("GCC unroll 16")
#endif

namespace gyre {
namespace {

inline float SumAcross(Vec v) {
  return _mm_cvtss_f32(SumEach(v, v, v, v));
}

inline float MaxAcross(Vec v) {
  __m128 f = FoldMaxTo4(v);
  f = _mm_max_ps(f, _mm_movehl_ps(f, f));
  return _mm_cvtss_f32(_mm_max_ss(f, _mm_movehdup_ps(f)));
}

// e^x: x = n ln 2 + r with |r| <= ln(2) / 2, Taylor's polynomial of degree 7 for e^r (truncated at 5e-9). 0 below
// -87.3, where the result would be subnormal; inf above 88.8; NaN of NaN.
inline Vec Exp(Vec x) {
  const Vec low = Set(-87.33f);
  const Vec bounded = Max(low, Min(Set(89.0f), x));
  const Vec n = Round(Mul(bounded, Set(1.44269504f)));
  // ln 2 in two parts, the first of few bits: n * first is exact.
  Vec r = Fma(n, Set(-0.693359375f), bounded);
  r = Fma(n, Set(2.12194440e-4f), r);
  Vec p = Set(1.0f / 5040);
  p = Fma(p, r, Set(1.0f / 720));
  p = Fma(p, r, Set(1.0f / 120));
  p = Fma(p, r, Set(1.0f / 24));
  p = Fma(p, r, Set(1.0f / 6));
  p = Fma(p, r, Set(0.5f));
  p = Fma(p, r, Set(1.0f));
  p = Fma(p, r, Set(1.0f));
  return SelectLess(x, low, Zero(), TimesPowerOfTwo(p, n));
}

// tanh: near 0 the odd polynomial of the Cephes library (S. Moshier, tanhf.c), which keeps the relative error small
// where 1 - 2 / (e^2x + 1) would cancel.
inline Vec Tanh(Vec x) {
  const Vec a = Abs(x);
  const Vec z = Mul(x, x);
  Vec p = Set(-5.70498872745e-3f);
  p = Fma(p, z, Set(2.06390887954e-2f));
  p = Fma(p, z, Set(-5.37397155531e-2f));
  p = Fma(p, z, Set(1.33314422036e-1f));
  p = Fma(p, z, Set(-3.33332819422e-1f));
  const Vec small = Fma(Mul(p, z), x, x);
  const Vec big = Sub(Set(1.0f), Div(Set(2.0f), Add(Exp(Add(a, a)), Set(1.0f))));
  return SelectLess(a, Set(0.625f), small, CopySign(big, x));
}

// x / (1 + e^-x).
inline Vec Silu(Vec x) {
  return Div(x, Add(Set(1.0f), Exp(Sub(Zero(), x))));
}

// 0.5 x (1 + tanh u), u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + e^-2u).
inline Vec GeluTanh(Vec x) {
  const Vec cubic = Fma(Mul(Mul(x, x), Set(0.044715f)), x, x);
  return Div(x, Add(Set(1.0f), Exp(Mul(Set(-1.5957691216f), cubic))));
}

// e^x for x <= 0 in double (Taylor's polynomial of degree 12; truncated at 2e-16). About 3e-308 below -708.
inline VecD ExpD(VecD x) {
  const VecD bounded = MaxD(SetD(-708.0), x);
  const VecD n = RoundD(MulD(bounded, SetD(1.4426950408889634)));
  VecD r = FmaD(n, SetD(-6.93145751953125e-1), bounded);
  r = FmaD(n, SetD(-1.42860682030941723212e-6), r);
  VecD p = SetD(1.0 / 479001600);
  constexpr double kInverse[12] = {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
                                   1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5,         1.0,        1.0};
  GYRE_UNROLL
  for (double c : kInverse) p = FmaD(p, r, SetD(c));
  return TimesPowerOfTwoD(p, n);
}

}  // namespace
}  // namespace gyre
