// Rows and columns of the forward pass's scratch. For forward*.cc only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace gyre {

template <typename Buffer>
float* EnsureCapacity(Buffer& buffer, size_t n) {
  if (buffer.size() < n) buffer.resize(n);
  return buffer.data();
}

inline const float* Data(const std::vector<float>& v) { return v.data(); }

// Moves the rows [dim] with these indices, which rise, to the front of x.
inline void Gather(std::span<const size_t> numbers, size_t dim, float* x) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] != i) std::copy_n(x + numbers[i] * dim, dim, x + i * dim);
  }
}

// The first `width` columns of `rows` rows, from rows of `from_stride` floats to rows of `to_stride`.
inline void CopyColumns(const float* from, size_t rows, size_t from_stride, size_t width, float* to, size_t to_stride) {
  for (size_t r = 0; r < rows; ++r) std::copy_n(from + r * from_stride, width, to + r * to_stride);
}

}  // namespace gyre
