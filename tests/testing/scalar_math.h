// Vectors and matrices in double for forward passes that are written from papers, and an engine's distance to them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/gguf.h"

namespace gyre::testing {

using Vector = std::vector<double>;
using Rows = std::vector<Vector>;

struct Matrix {
  size_t rows = 0, columns = 0;
  Vector values;
  Vector Times(const Vector& x) const {
    Vector out(rows);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < columns; ++c) out[r] += values[r * columns + c] * x[c];
    }
    return out;
  }
  // The rows [first, first + count).
  Matrix Part(size_t first, size_t count) const {
    const auto begin = values.begin() + static_cast<ptrdiff_t>(first * columns);
    return {count, columns, {begin, begin + static_cast<ptrdiff_t>(count * columns)}};
  }
};

// A tensor of f32; one of three dimensions as a matrix with the rows of all. Throws if there is none.
inline Matrix ScalarTensor(const Gguf& gguf, const std::string& name) {
  const TensorView* t = gguf.tensors().Find(name);
  if (t == nullptr || t->type != DType::kF32) throw std::runtime_error(name);
  Matrix m{1, t->dims[0], {}};
  for (size_t i = 1; i < t->dims.size(); ++i) m.rows *= t->dims[i];
  for (size_t i = 0; i < m.rows * m.columns; ++i) {
    float v = 0;
    std::memcpy(&v, t->data + 4 * i, 4);
    m.values.push_back(static_cast<double>(v));
  }
  return m;
}

inline void AddTo(const Vector& v, Vector* x) {
  for (size_t i = 0; i < x->size(); ++i) (*x)[i] += v[i];
}
// Zhang and Sennrich 2019, with an epsilon of 1e-5.
inline Vector RmsNorm(const Vector& x, const Vector& weight) {
  double squares = 0;
  for (double v : x) squares += v * v;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + static_cast<double>(1e-5f));
  Vector out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * weight[i];
  return out;
}
inline double Silu(double x) { return x / (1 + std::exp(-x)); }
inline double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The largest error of a row, relative to that row's length.
inline double WorstRow(const std::vector<std::vector<float>>& got, const Rows& expected) {
  double worst = 0;
  for (size_t p = 0; p < expected.size(); ++p) {
    double error = 0, norm = 0;
    for (size_t i = 0; i < expected[p].size(); ++i) {
      const double e = static_cast<double>(got[p][i]) - expected[p][i];
      error += e * e;
      norm += expected[p][i] * expected[p][i];
    }
    worst = std::max(worst, std::sqrt(error / norm));
  }
  return worst;
}

}  // namespace gyre::testing
