#include "model/hf/rearrange.h"

#include <cstring>

#include "kernels/quant.h"

namespace gyre {

StatusOr<GatheredRows> GatherRows(const TensorView& t, std::span<const RowRun> runs) {
  GatheredRows out;
  const uint64_t rows = t.dims.back(), row_bytes = rows == 0 ? 0 : t.bytes / rows;
  const bool blocks = t.type == DType::kF8E4M3 && t.scales != nullptr;
  const uint64_t across = blocks ? (t.dims[0] + t.group - 1) / t.group : 1;
  for (const RowRun& run : runs) {
    if (blocks && (run.first % t.group != 0 || run.count % t.group != 0)) {
      return Unimplemented("8-bit floats with a scale for each {0} x {0}, of which rows {1} to {2} are needed together",
                           t.group, run.first, run.first + run.count);
    }
    const std::byte* from = t.data + run.first * row_bytes;
    out.bytes.insert(out.bytes.end(), from, from + run.count * row_bytes);
    out.rows += run.count;
    if (t.scales == nullptr) continue;
    const uint64_t each = blocks ? t.group : 1;  // rows that share scales
    const size_t n = run.count / each * across, at = out.scales.size();
    out.scales.resize(at + n);
    std::memcpy(out.scales.data() + at, t.scales + run.first / each * across * sizeof(float), n * sizeof(float));
  }
  return out;
}

std::vector<RowRun> QkvRuns(const DeltaHeads& h) {
  const uint64_t values = h.values / h.keys * h.size, each = 2 * h.size + 2 * values;
  std::vector<RowRun> runs;
  for (const uint64_t part : {uint64_t{0}, h.size}) {
    for (uint64_t k = 0; k < h.keys; ++k) runs.push_back({k * each + part, h.size});
  }
  for (uint64_t k = 0; k < h.keys; ++k) runs.push_back({k * each + 2 * h.size, values});
  return runs;
}

std::vector<RowRun> GateRuns(const DeltaHeads& h) {
  const uint64_t values = h.values / h.keys * h.size, each = 2 * h.size + 2 * values;
  std::vector<RowRun> runs;
  for (uint64_t k = 0; k < h.keys; ++k) runs.push_back({k * each + 2 * h.size + values, values});
  return runs;
}

std::vector<RowRun> DealtRuns(const DeltaHeads& h, uint64_t before, uint64_t size) {
  std::vector<RowRun> runs;
  if (before > 0) runs.push_back({0, before});
  const uint64_t each = h.values / h.keys;
  for (uint64_t j = 0; j < h.values; ++j) runs.push_back({before + (j % h.keys * each + j / h.keys) * size, size});
  return runs;
}

StatusOr<LatentHeads> SplitLatent(const TensorView& t, uint64_t heads, uint64_t key, uint64_t value, uint64_t rank) {
  if (t.dims != std::vector<uint64_t>{rank, heads * (key + value)}) {
    return DataLoss("its shape is {}, expected {} x {} * ({} + {})", DescribeDims(t.dims), rank, heads, key, value);
  }
  LatentHeads out;
  std::vector<std::byte> expanded;
  const std::byte* data = t.data;
  if (t.scales != nullptr) {
    expanded = AsBf16(t);
    data = expanded.data();
  } else {
    out.type = t.type;
  }
  const size_t size = Info(out.type).block_bytes, row = rank * size;
  out.keys.resize(heads * key * row);
  out.values.resize(heads * value * row);
  for (uint64_t h = 0; h < heads; ++h) {
    const std::byte* from = data + h * (key + value) * row;
    std::byte* to = out.keys.data() + h * key * row;
    for (uint64_t r = 0; r < rank; ++r) {
      for (uint64_t k = 0; k < key; ++k) std::memcpy(to + (r * key + k) * size, from + k * row + r * size, size);
    }
    std::memcpy(out.values.data() + h * value * row, from + key * row, value * row);
  }
  return out;
}

std::vector<std::byte> AsBf16(const TensorView& t) {
  const uint64_t k = t.dims[0], n = t.bytes / k;
  const WeightView w{.type = t.type, .n = n, .k = k, .data = t.data, .scales = t.scales, .group = t.group};
  std::vector<std::byte> out(2 * n * k);
  std::vector<float> row(k);
  for (uint64_t r = 0; r < n; ++r) {
    DequantizeRow(w, r, row.data());
    Quantize(DType::kBF16, row.data(), out.data() + 2 * r * k, k);
  }
  return out;
}

}  // namespace gyre
