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

// The rows of `runs`, one after the other. REQUIRES: two dimensions, runs within them.
std::vector<std::byte> GatherRows(const TensorView& t, std::span<const RowRun> runs);
// Their scales; none where the tensor has none. kUnimplemented: 8-bit floats whose blocks of scales the runs cut.
StatusOr<std::vector<float>> GatherScales(const TensorView& t, std::span<const RowRun> runs);

// The rows of a matrix of `heads` equal heads, from one order of rotated elements to the other: in halves, as folders
// have it, the elements i and i + size / 2 of a head are a pair, in GGUF's order for some architectures 2 i and 2 i
// + 1. REQUIRES: rows of row_bytes, an even number for each head.
std::vector<std::byte> RepairHeads(std::span<const std::byte> rows, uint64_t heads, size_t row_bytes, bool from_halves);

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
std::vector<RowRun> InterleavedRuns(const DeltaHeads& heads, uint64_t before, uint64_t size);

// The sizes of latent attention's kv_b_proj [heads * (key + value)][rank].
struct LatentHeads {
  uint64_t heads = 0, key = 0, value = 0, rank = 0;
};
// The type of its parts, which are transposed: bf16 where it has scales, f16 where it is quantized, else its own.
DType LatentType(const TensorView& t);
// The keys of such a tensor, transposed by head: [heads][rank][key]; and its values, [heads][value][rank]. Both have
// LatentType. REQUIRES: the shape.
std::vector<std::byte> LatentKeys(const TensorView& t, const LatentHeads& h);
std::vector<std::byte> LatentValues(const TensorView& t, const LatentHeads& h);

// Converts 8-bit numbers with separate scales to bf16.
std::vector<std::byte> AsBf16(const TensorView& t);

}  // namespace gyre
