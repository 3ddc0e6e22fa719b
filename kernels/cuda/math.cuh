// Functions of kernels, made of operations that IEEE 754 defines: a GPU and the emulator give the same bits.
#pragma once

#include "kernels/cuda/gpu.cuh"
#include "kernels/op_types.h"

namespace gyre::cuda {

// Infinities without the constants of the host's library.
GPU_FN float Infinity() { return gpu::OfBits(0x7F800000u); }
GPU_FN double Infinity64() { return gpu::OfBits(uint64_t{0x7FF0000000000000}); }

// 2^n for -126 <= n <= 127, and in double for -1022 <= n <= 1023.
GPU_FN float PowerOf2(int n) { return gpu::OfBits(static_cast<uint32_t>(n + 127) << 23); }
GPU_FN double PowerOf2Double(int n) { return gpu::OfBits(static_cast<uint64_t>(n + 1023) << 52); }

// e^x within 2 units in the last place; NaN stays.
GPU_FN float Exp(float x) {
  if (x > 89.0f) return Infinity();
  if (x < -104.0f) return 0;
  const float n = gpu::Rint(gpu::Mul(x, 1.44269504f));
  // x - n log(2), with log(2) in two parts
  const float r = gpu::Fma(n, -1.42860682e-6f, gpu::Fma(n, -0.693145752f, x));
  float p = 1.0f / 5040;
  p = gpu::Fma(p, r, 1.0f / 720);
  p = gpu::Fma(p, r, 1.0f / 120);
  p = gpu::Fma(p, r, 1.0f / 24);
  p = gpu::Fma(p, r, 1.0f / 6);
  p = gpu::Fma(p, r, 0.5f);
  p = gpu::Fma(p, r, 1.0f);
  p = gpu::Fma(p, r, 1.0f);
  // In two steps: the result may be too small for one, or infinite.
  const int whole = gpu::Nearest(n), half = whole >> 1;
  return gpu::Mul(gpu::Mul(p, PowerOf2(half)), PowerOf2(whole - half));
}

GPU_FN float Sigmoid(float x) { return gpu::Div(1.0f, gpu::Add(1.0f, Exp(-x))); }

GPU_FN float Tanh(float x) {
  const float square = gpu::Mul(x, x);
  if (square < 0.0225f) {
    float p = gpu::Fma(square, -17.0f / 315, 2.0f / 15);
    p = gpu::Fma(square, p, -1.0f / 3);
    return gpu::Fma(gpu::Mul(x, square), p, x);
  }
  return gpu::Add(1.0f, gpu::Div(-2.0f, gpu::Add(1.0f, Exp(gpu::Mul(2.0f, x)))));
}

// As GeluErfTimes of kernels/cpu/isa/float_kernels-inl.h.
GPU_FN float Gelu(float x) {
  const float size = x < 0 ? -x : x, z = gpu::Mul(size, 0.70710678f);
  const float t = gpu::Div(1.0f, gpu::Fma(z, 0.5f, 1.0f));
  float p = 0.140507134f;
  p = gpu::Fma(p, t, -0.656615832f);
  p = gpu::Fma(p, t, 1.09943846f);
  p = gpu::Fma(p, t, -0.619523332f);
  p = gpu::Fma(p, t, -0.144173503f);
  p = gpu::Fma(p, t, 0.0354678628f);
  p = gpu::Fma(p, t, 0.0228741432f);
  p = gpu::Fma(p, t, 0.389117147f);
  p = gpu::Fma(p, t, 0.998341449f);
  p = gpu::Fma(p, t, -1.26543349f);
  const float tail = gpu::Mul(gpu::Mul(t, -0.5f), Exp(gpu::Fma(-z, z, p)));
  return tail == 0 ? (x < 0 ? 0.0f : x) : gpu::Fma(size, tail, x < 0 ? 0.0f : x);  // without infinity times 0
}

// An activation of one argument.
GPU_FN float Activated(float x, Activation act) {
  switch (act) {
    case Activation::kClampedSwiglu: break;  // it has two
    case Activation::kSilu: return gpu::Div(x, gpu::Add(1.0f, Exp(-x)));
    case Activation::kGeluTanh: {
      // 0.5 x (1 + tanh(u)) = x sigmoid(2 u)
      const float cube = gpu::Mul(gpu::Mul(x, x), x);
      return gpu::Mul(x, Sigmoid(gpu::Mul(1.59576912f, gpu::Fma(0.044715f, cube, x))));
    }
    case Activation::kSigmoid: return Sigmoid(x);
    case Activation::kReluSquared: return x < 0 ? 0.0f : gpu::Mul(x, x);
    case Activation::kGelu: return Gelu(x);
    case Activation::kRelu: return x < 0 ? 0.0f : x;
  }
  return x;
}
GPU_FN float Gated(float gate, float up, Activation act) {
  if (act != Activation::kClampedSwiglu) return gpu::Mul(Activated(gate, act), up);
  // NaN passes these limits.
  const float g = gate > 7.0f ? 7.0f : gate, u = up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up;
  return gpu::Mul(gpu::Mul(g, Sigmoid(gpu::Mul(1.702f, g))), gpu::Add(u, 1.0f));
}

// In double, within a few units in the last place.
GPU_FN double Exp(double x) {
  if (x > 710.0) return Infinity64();
  if (x < -746.0) return 0;
  const double n = gpu::Rint(gpu::Mul(x, 1.4426950408889634));
  const double r = gpu::Fma(n, -1.9082149292705877e-10, gpu::Fma(n, -0.6931471803691238, x));
  // Taylor: r^14 / 14! is below the last place.
  double p = 1.0 / 6227020800;
  p = gpu::Fma(p, r, 1.0 / 479001600);
  p = gpu::Fma(p, r, 1.0 / 39916800);
  p = gpu::Fma(p, r, 1.0 / 3628800);
  p = gpu::Fma(p, r, 1.0 / 362880);
  p = gpu::Fma(p, r, 1.0 / 40320);
  p = gpu::Fma(p, r, 1.0 / 5040);
  p = gpu::Fma(p, r, 1.0 / 720);
  p = gpu::Fma(p, r, 1.0 / 120);
  p = gpu::Fma(p, r, 1.0 / 24);
  p = gpu::Fma(p, r, 1.0 / 6);
  p = gpu::Fma(p, r, 0.5);
  p = gpu::Fma(p, r, 1.0);
  p = gpu::Fma(p, r, 1.0);
  const int whole = n == n ? static_cast<int>(n) : 0, half = whole >> 1;
  return gpu::Mul(gpu::Mul(p, PowerOf2Double(half)), PowerOf2Double(whole - half));
}

// REQUIRES: a normal positive number.
GPU_FN double Log(double x) {
  const uint64_t bits = gpu::Bits(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = gpu::OfBits((bits & 0xFFFFFFFFFFFFF) | uint64_t{1023} << 52);  // 1 <= m < 2
  if (m > 1.4142135623730951) {
    m = gpu::Mul(m, 0.5);
    ++exponent;
  }
  // log(m) = 2 artanh((m - 1) / (m + 1))
  const double s = gpu::Div(gpu::Add(m, -1.0), gpu::Add(m, 1.0)), square = gpu::Mul(s, s);
  double p = 1.0 / 21;
#pragma unroll
  for (int i = 19; i >= 3; i -= 2) p = gpu::Fma(p, square, 1.0 / i);
  const double of_m = gpu::Mul(2.0, gpu::Fma(gpu::Mul(s, square), p, s));
  return gpu::Fma(static_cast<double>(exponent), 0.6931471805599453, of_m);
}

// sin and cos of an angle of at most 2^40, as good as float needs them.
struct SinCos {
  double sin, cos;
};
GPU_FN SinCos SinCosOf(double angle) {
  // What is left of quarter turns, with a quarter in two parts: a product with n is exact in each Fma.
  const double n = gpu::Rint(gpu::Mul(angle, 0.6366197723675814));
  const double r = gpu::Fma(n, -6.123233995736766e-17, gpu::Fma(n, -1.5707963267948966, angle)), q = gpu::Mul(r, r);
  double s = -1.0 / 1307674368000;
  s = gpu::Fma(s, q, 1.0 / 6227020800);
  s = gpu::Fma(s, q, -1.0 / 39916800);
  s = gpu::Fma(s, q, 1.0 / 362880);
  s = gpu::Fma(s, q, -1.0 / 5040);
  s = gpu::Fma(s, q, 1.0 / 120);
  s = gpu::Fma(s, q, -1.0 / 6);
  s = gpu::Fma(gpu::Mul(s, q), r, r);
  double c = 1.0 / 20922789888000;
  c = gpu::Fma(c, q, -1.0 / 87178291200);
  c = gpu::Fma(c, q, 1.0 / 479001600);
  c = gpu::Fma(c, q, -1.0 / 3628800);
  c = gpu::Fma(c, q, 1.0 / 40320);
  c = gpu::Fma(c, q, -1.0 / 720);
  c = gpu::Fma(c, q, 1.0 / 24);
  c = gpu::Fma(c, q, -0.5);
  c = gpu::Fma(c, q, 1.0);
  const auto quarter = static_cast<unsigned>(static_cast<long long>(n) & 3);
  const double sine = quarter % 2 == 0 ? s : c, cosine = quarter % 2 == 0 ? c : s;
  return {quarter >= 2 ? -sine : sine, quarter == 1 || quarter == 2 ? -cosine : cosine};
}

}  // namespace gyre::cuda
