#include "kernels/wire_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

namespace gyre {
namespace {

constexpr size_t kBlock = 32;  // of Q8_0
constexpr size_t kQ8BlockBytes = 34;
constexpr float kLargestHalf = 65504;
constexpr uint16_t kHalfNan = 0x7E00;

// Copies n values and cuts those beyond +-limit to it; infinities and NaN stay. Returns how many were cut.
size_t Cut(const float* x, size_t n, float limit, float* out) {
  size_t cut = 0;
  for (size_t i = 0; i < n; ++i) {
    const bool over = std::fabs(x[i]) > limit && std::isfinite(x[i]);
    out[i] = over ? std::copysign(limit, x[i]) : x[i];
    cut += over ? 1 : 0;
  }
  return cut;
}

// A NaN as the scale makes every value of the block NaN: q8 has no other way to carry one.
void MarkBroken(const float* x, size_t blocks, std::byte* out) {
  for (size_t b = 0; b < blocks; ++b) {
    const float* block = x + b * kBlock;
    if (std::all_of(block, block + kBlock, [](float v) { return std::isfinite(v); })) continue;
    std::memset(out + b * kQ8BlockBytes, 0, kQ8BlockBytes);
    std::memcpy(out + b * kQ8BlockBytes, &kHalfNan, sizeof kHalfNan);
  }
}

}  // namespace

size_t WireRowBytes(DType type, size_t dim) {
  const DTypeInfo& info = Info(type);
  return (dim + info.block_elems - 1) / info.block_elems * info.block_bytes;
}

size_t EncodeWireRows(DType type, const float* x, size_t rows, size_t dim, std::byte* out) {
  const size_t width = WireRowBytes(type, dim);
  if (type == DType::kF32) {
    if (rows > 0) std::memcpy(out, x, rows * width);
    return 0;
  }
  const bool half = type == DType::kF16;
  const size_t blocks = (dim + kBlock - 1) / kBlock;
  std::vector<float> row(blocks * kBlock);  // zeros after the first dim values
  size_t cut = 0;
  for (size_t r = 0; r < rows; ++r) {
    std::byte* to = out + r * width;
    cut += Cut(x + r * dim, dim, half ? kLargestHalf : 127 * kLargestHalf, row.data());
    Quantize(type, row.data(), to, half ? dim : row.size());
    if (!half) MarkBroken(row.data(), blocks, to);
  }
  return cut;
}

void DecodeWireRows(DType type, const std::byte* in, size_t rows, size_t dim, float* x) {
  if (rows == 0) return;
  const size_t width = WireRowBytes(type, dim);
  if (type == DType::kF32) {
    std::memcpy(x, in, rows * width);
    return;
  }
  if (type == DType::kF16) return Dequantize(DType::kF16, in, x, rows * dim);
  const size_t whole = dim / kBlock * kBlock;
  for (size_t r = 0; r < rows; ++r, x += dim) {
    const std::byte* row = in + r * width;
    Dequantize(DType::kQ8_0, row, x, whole);
    if (whole == dim) continue;
    std::array<float, kBlock> last;
    Dequantize(DType::kQ8_0, row + whole / kBlock * kQ8BlockBytes, last.data(), kBlock);
    std::copy_n(last.begin(), dim - whole, x + whole);
  }
}

}  // namespace gyre
