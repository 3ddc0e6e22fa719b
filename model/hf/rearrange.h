// Tensors whose rows or columns have another order in GGUF than in Hugging Face's files.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/tensor_table.h"

namespace gyre {

// Rows [first, first + count) of a tensor.
struct RowRun {
  uint64_t first = 0, count = 0;
};

// The rows of `runs`, one after the other, in their own memory; with their scales, if there are any.
struct GatheredRows {
  std::vector<std::byte> bytes;
  std::vector<float> scales;
  uint64_t rows = 0;
};
// REQUIRES: two dimensions, runs within them. kUnimplemented: 8-bit floats whose blocks of scales the runs cut.
StatusOr<GatheredRows> GatherRows(const TensorView& t, std::span<const RowRun> runs);

// A delta net's heads.
struct DeltaHeads {
  uint64_t keys = 0, values = 0, size = 0;
};
// For Qwen3-Next's in_proj_qkvz, which has for each key head its query, key, values and gates: the rows of all
// queries, keys and values, and those of all gates.
std::vector<RowRun> QkvRuns(const DeltaHeads& heads);
std::vector<RowRun> GateRuns(const DeltaHeads& heads);

// In GGUF's qwen35 and qwen35moe value head j reads key head j % keys, whereas the folder's value heads of one key head
// follow each other. The result is GGUF's order of a tensor that has `before` rows first and then `size` rows for each
// value head.
std::vector<RowRun> DealtRuns(const DeltaHeads& heads, uint64_t before, uint64_t size);

// The parts of kv_b_proj [heads * (key + value)][rank], in bf16 if it has scales: each head's keys transposed,
// [heads][rank][key], and its values [heads][value][rank].
struct LatentHeads {
  DType type = DType::kBF16;
  std::vector<std::byte> keys, values;
};
// kDataLoss: the shape is wrong.
StatusOr<LatentHeads> SplitLatent(const TensorView& t, uint64_t heads, uint64_t key, uint64_t value, uint64_t rank);

// Converts 8-bit numbers with separate scales to bf16.
std::vector<std::byte> AsBf16(const TensorView& t);

}  // namespace gyre
