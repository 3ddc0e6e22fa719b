// Exponential functions in terms of a vector class V (float_kernels-inl.h). The
// polynomials minimize the largest relative error (Remez exchange).
#pragma once

#include <cstddef>

namespace gyre::cpu {
namespace {

// c[0] x^n + c[1] x^(n-1) + ... + c[n]
template <typename V, size_t n>
typename V::T Polynomial(typename V::T x, const float (&c)[n]) {
  typename V::T p = V::Broadcast(c[0]);
  for (size_t i = 1; i < n; ++i) p = V::Fma(p, x, V::Broadcast(c[i]));
  return p;
}

// exp(x) for x <= 88; results below the smallest normal number become 0 or nearly 0. Relative error about 1e-7: x = n
// ln 2 + r with |r| <= ln(2) / 2, and exp(r) is the polynomial 1 + r + ... of degree 6.
template <typename V>
typename V::T Exp(typename V::T x) {
  x = V::Max(x, V::Broadcast(-87.3f));
  const typename V::T n = V::Round(V::Mul(x, V::Broadcast(1.44269504f)));
  // ln 2 in two parts, the first exact in few bits (Cody and Waite)
  typename V::T r = V::Fma(n, V::Broadcast(-0.693359375f), x);
  r = V::Fma(n, V::Broadcast(2.12194440e-4f), r);
  return V::TimesPowerOf2(
      Polynomial<V>(r, {0x1.6A2352p-10f, 0x1.123A6Cp-7f, 0x1.5558F4p-5f, 0x1.555490p-3f, 0x1.FFFFFCp-2f, 1, 1}), n);
}

// 2^x for x in [-126, 0], relative error 1.6e-7, exact for 0: 2^f for f in [0, 1) is the polynomial 1 + f ... of degree
// 5.
template <typename V>
typename V::T PowerOf2(typename V::T x) {
  const typename V::T n = V::Floor(x), f = V::Fma(n, V::Broadcast(-1.0f), x);
  return V::TimesPowerOf2(Polynomial<V>(f, {0.0018671301659196615f, 0.009017029777169228f, 0.05579991266131401f,
                                            0.24016444385051727f, 0.6931512951850891f, 1.0f}),
                          n);
}

// exp(x) in f64 for x <= 0; below -708 it is that of -708. Relative error about 1e-14: as Exp, with a polynomial of
// degree 11 (Taylor).
template <typename V>
typename V::Doubles ExpDoubles(typename V::Doubles x) {
  x = V::Max(V::Splat(-708), x);  // NaN stays
  // n, rounded, stands in the low bits of a large number.
  const typename V::Doubles large = V::Splat(0x1.8p52), shifted = V::Fma(x, V::Splat(1.4426950408889634), large),
                            n = shifted - large;
  const typename V::Doubles r =
      V::Fma(n, V::Splat(-0x1.abc9e3b39803fp-56), V::Fma(n, V::Splat(-0x1.62e42fefa39efp-1), x));
  typename V::Doubles y = V::Splat(1.0 / 39916800);
  for (const double c :
       {1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0}) {
    y = V::Fma(y, r, V::Splat(c));
  }
  return y * V::PowerOf2(shifted);
}

}  // namespace
}  // namespace gyre::cpu
