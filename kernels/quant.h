// Tensor types and their block layouts, as GGUF defines them (ggml's block formats, little-endian), and scalar
// quantization and dequantization. Standard library only: model/ and every kernel include it. All functions are
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace gyre {

// The values are GGUF's type numbers, but for the last, so a number from a file is checked and cast.
enum class DType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ8_1 = 9,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kQ8_K = 15,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIQ1_M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
  kNVFP4 = 40,
  kQ1_0 = 41,
  kQ2_0 = 42,
  kF8E4M3 = 0x10000,  // no number of GGUF's: of safetensors
};

struct DTypeInfo {
  DType type;
  const char* name;
  uint32_t block_elems;  // elements per block
  uint32_t block_bytes;  // bytes per block
  bool dequantizes;      // whether Dequantize supports it
};

// All types that GGUF defines, in the order of their numbers.
std::span<const DTypeInfo> DTypes();
// nullptr if GGUF does not define such a number or name.
const DTypeInfo* FindDType(uint32_t gguf_type);
const DTypeInfo* FindDType(std::string_view name);
const DTypeInfo& Info(DType type);

// Writes `elems` elements to dst as f32. REQUIRES: elems is a multiple of the type's block, src has elems / block_elems
// * block_bytes bytes, Info(type).dequantizes.
void Dequantize(DType type, const std::byte* src, float* dst, size_t elems);

// F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 round to nearest. Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4, Q1_0,
// Q2_0 and TQ2_0 search for the scales with the least squared error, in which value i counts importance[i] times (once
// if it is null). Returns false for any other type. REQUIRES: sizes as for Dequantize.
bool Quantize(DType type, const float* src, std::byte* dst, size_t elems, const float* importance = nullptr);

// A weight matrix W[n][k] as it is in the file: n rows of k elements. Does not own the bytes.
struct WeightView {
  DType type = DType::kF32;
  size_t n = 0;  // outputs
  size_t k = 0;  // inputs; a multiple of the type's block
  const std::byte* data = nullptr;
  // kI8 (llama2.c version 2): one f32 scale, unaligned, for each `group` elements of the flattened matrix. kNVFP4: the
  // same, where a group is a whole matrix (WholeScale). kF8E4M3: one for each block of `group` x `group` elements
  // [n / group][k / group], rounded up.
  const std::byte* scales = nullptr;
  size_t group = 0;
  size_t first_row = 0;  // kF8E4M3: of this view, in the matrix that the scales belong to

  size_t row_bytes() const { return k / Info(type).block_elems * Info(type).block_bytes; }
  size_t bytes() const { return n * row_bytes(); }  // without scales
};
// Rows [begin, begin + n) as a matrix. REQUIRES: begin + n <= w.n.
inline WeightView RowsOf(const WeightView& w, size_t begin, size_t n) {
  WeightView part = w;
  part.n = n;
  part.data = w.data + begin * w.row_bytes();
  if (w.type == DType::kF8E4M3) {
    part.first_row += begin;
  } else if (w.scales != nullptr) {
    part.scales = w.scales + begin * w.k / w.group * sizeof(float);
  }
  return part;
}
// The factor of an element of kF8E4M3 with scales.
inline float BlockScale(const WeightView& w, size_t row, size_t column) {
  const size_t across = (w.k + w.group - 1) / w.group;
  float scale = 0;
  std::memcpy(&scale, w.scales + ((w.first_row + row) / w.group * across + column / w.group) * sizeof scale,
              sizeof scale);
  return scale;
}
// What all weights of the matrix are multiplied by, beside their blocks' scales: NVFP4's scale of the second level,
// else
// 1. REQUIRES: the matrix is one group.
inline float WholeScale(const WeightView& w) {
  float scale = 1;
  if (w.type == DType::kNVFP4 && w.scales != nullptr) std::memcpy(&scale, w.scales, sizeof scale);
  return scale;
}
// Writes row `row` as k floats. REQUIRES: Info(type).dequantizes, or kI8 or kF8E4M3 with scales.
void DequantizeRow(const WeightView& w, size_t row, float* out);

// An 8-bit floating-point number E4M3 of the OCP's: exponent bias 7, no infinities.
float Fp8ToFloat(uint8_t b);
float HalfToFloat(uint16_t h);
uint16_t FloatToHalf(float f);  // round to nearest even
float Bf16ToFloat(uint16_t b);
uint16_t FloatToBf16(float f);  // round to nearest even

}  // namespace gyre
