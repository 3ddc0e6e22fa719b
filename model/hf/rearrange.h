// Tensors whose rows or columns stand in another order in GGUF than in Hugging Face's files.
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

// The rows of `runs`, one after the other, in memory of its own; with their scales, if there are some.
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
// Of Qwen3-Next's in_proj_qkvz, which has for each key head its query, key, values and gates: the rows of all queries,
// keys and values, and those of all gates.
std::vector<RowRun> QkvRuns(const DeltaHeads& heads);
std::vector<RowRun> GateRuns(const DeltaHeads& heads);

// GGUF's qwen35 and qwen35moe deal value heads out: value head j reads key head j % keys, where the folder's heads of
// one key head follow each other. This is GGUF's order of a tensor whose first `before` rows are not of value heads and
// whose others are `size` rows for each of them.
std::vector<RowRun> DealtRuns(const DeltaHeads& heads, uint64_t before, uint64_t size);

// Of kv_b_proj [heads * (key + value)][rank], in bf16 where it has scales: each head's keys transposed, [heads][rank]
// [key], and its values [heads][value][rank].
struct LatentHeads {
  DType type = DType::kBF16;
  std::vector<std::byte> keys, values;
};
// kDataLoss: the shape.
StatusOr<LatentHeads> SplitLatent(const TensorView& t, uint64_t heads, uint64_t key, uint64_t value, uint64_t rank);

// 8-bit numbers with scales beside them, as bf16.
std::vector<std::byte> AsBf16(const TensorView& t);

}  // namespace gyre
