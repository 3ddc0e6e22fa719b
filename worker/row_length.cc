#include "worker/row_length.h"

namespace gyre {

const PackedWeight& RowLength::OnesOf(size_t n) {
  Ones& ones = ones_[n];
  if (ones.packed == nullptr) {
    ones.host.assign(n, 1.0f);
    ones.packed = backend_.Pack({.n = 1, .k = n, .data = reinterpret_cast<const std::byte*>(ones.host.data())}, {});
  }
  return *ones.packed;
}

void RowLength::Divide(const float* x, size_t rows, size_t n, float* unit) {
  constexpr float kNoLength = 1e-30f;  // a row of zeros stays one
  backend_.RmsNorm(x, rows, n, nullptr, kNoLength, unit);
}

const float* RowLength::SumOf(const float* x, size_t rows, size_t n) {
  float* sums = lengths_.EnsureCapacity(backend_.device(), rows);
  backend_.MatMul(x, rows, OnesOf(n), sums, Arithmetic::kExact);
  return sums;
}

const float* RowLength::Of(const float* x, size_t rows, size_t n, float* unit) {
  Divide(x, rows, n, unit);
  float* products = products_.EnsureCapacity(backend_.device(), rows * n);
  // The sum of squares, divided by the length once, is n times the length.
  backend_.Copy(x, products, rows * n * sizeof(float));
  backend_.MultiplyInPlace(products, unit, rows * n);
  SumOf(products, rows, n);
  backend_.Scale(lengths_.data(), rows, 1 / static_cast<float>(n));
  return lengths_.data();
}

}  // namespace gyre
