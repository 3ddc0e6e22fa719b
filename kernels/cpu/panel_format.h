// Layouts of packed quantized weights. A panel is 16 columns whose bytes lie interleaved, so that the lanes of a vector
// are columns and no sum crosses lanes: 4 bytes along k of column 0, 4 of column 1, ... 4 of column 15 make a group of
// 64 bytes. All weights are stored as unsigned numbers q; what is meant is q - kZero.
#pragma once

#include <cstddef>

namespace gyre {

// 64 elements along k: the f16 scales of 16 columns for two blocks of 32, then 16 groups.
struct PanelQ8 {
  static constexpr size_t kBlocks = 2;
  static constexpr int kZero = 128;
  static constexpr size_t kWeights = 64;
  static constexpr size_t kBytes = kWeights + 16 * 64;
};

// As above with 4 bits: a block of 32 is 4 groups, element i in the low half of a byte, element i + 16 in the high one.
struct PanelQ4 {
  static constexpr size_t kBlocks = 2;
  static constexpr int kZero = 8;
  static constexpr size_t kWeights = 64;
  static constexpr size_t kBytes = kWeights + 8 * 64;
};

// Q4_K, 256 elements: f16 d, f16 dmin of 16 columns; 8 blocks' scales, then minimums, a byte a column; then for each
// pair of blocks 8 groups, the first block in the low halves.
struct PanelQ4K {
  static constexpr size_t kBlocks = 8;
  static constexpr size_t kMin = 32;
  static constexpr size_t kScales = 64;
  static constexpr size_t kMins = kScales + 8 * 16;
  static constexpr size_t kWeights = kMins + 8 * 16;
  static constexpr size_t kBytes = kWeights + 32 * 64;
};

// Q6_K, 256 elements: f16 d of 16 columns (and 32 bytes of nothing); the signed scales of 16 parts of 16 elements; the
// low 4 bits as in PanelQ4K; then for each pair of blocks the high 2 bits, 4 groups: group m has, from the lowest bits,
// groups 2m and 2m + 1 of the first block, then of the second.
struct PanelQ6K {
  static constexpr size_t kBlocks = 8;
  static constexpr int kZero = 32;
  static constexpr size_t kScales = 64;
  static constexpr size_t kWeights = kScales + 16 * 16;
  static constexpr size_t kHigh = kWeights + 32 * 64;
  static constexpr size_t kBytes = kHigh + 16 * 64;
};

}  // namespace gyre
