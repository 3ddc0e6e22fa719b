#include "model/hf/rearrange.h"

#include <cstring>

#include "kernels/quant.h"

namespace gyre {

std::vector<std::byte> GatherRows(const TensorView& t, std::span<const RowRun> runs) {
  std::vector<std::byte> out;
  const uint64_t rows = t.dims.back(), row_bytes = rows == 0 ? 0 : t.bytes / rows;
  uint64_t gathered = 0;
  for (const RowRun& run : runs) gathered += run.count;
  out.reserve(gathered * row_bytes);
  for (const RowRun& run : runs) {
    const std::byte* from = t.data + run.first * row_bytes;
    out.insert(out.end(), from, from + run.count * row_bytes);
  }
  return out;
}

StatusOr<std::vector<float>> GatherScales(const TensorView& t, std::span<const RowRun> runs) {
  std::vector<float> out;
  if (t.scales == nullptr) return out;
  const bool blocks = t.type == DType::kF8E4M3;
  const uint64_t across = blocks ? (t.dims[0] + t.group - 1) / t.group : 1,
                 each = blocks ? t.group : 1;  // rows that share scales
  for (const RowRun& run : runs) {
    if (run.first % each != 0 || run.count % each != 0) {
      return Unimplemented("8-bit floats with a scale for each {0} x {0}, of which rows {1} to {2} are needed together",
                           t.group, run.first, run.first + run.count);
    }
    const size_t n = run.count / each * across, at = out.size();
    out.resize(at + n);
    std::memcpy(out.data() + at, t.scales + run.first / each * across * sizeof(float), n * sizeof(float));
  }
  return out;
}

std::vector<std::byte> RepairHeads(std::span<const std::byte> rows, uint64_t heads, size_t row_bytes,
                                   bool from_halves) {
  std::vector<std::byte> out(rows.size());
  const uint64_t size = rows.size() / row_bytes / heads, half = size / 2;
  for (uint64_t h = 0; h < heads; ++h) {
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t in_pairs = h * size + i, in_halves = h * size + i % 2 * half + i / 2;
      std::memcpy(out.data() + (from_halves ? in_pairs : in_halves) * row_bytes,
                  rows.data() + (from_halves ? in_halves : in_pairs) * row_bytes, row_bytes);
    }
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

std::vector<RowRun> InterleavedRuns(const DeltaHeads& h, uint64_t before, uint64_t size) {
  std::vector<RowRun> runs;
  if (before > 0) runs.push_back({0, before});
  const uint64_t each = h.values / h.keys;
  for (uint64_t j = 0; j < h.values; ++j) runs.push_back({before + (j % h.keys * each + j / h.keys) * size, size});
  return runs;
}

namespace {

// The rows of a run as floats of `type`; as they are where they have it already.
std::vector<std::byte> Expand(const TensorView& t, const RowRun& run, DType type) {
  if (t.scales == nullptr && t.type == type) return GatherRows(t, std::span(&run, 1));
  const uint64_t k = t.dims[0], row_bytes = k * Info(type).block_bytes;
  const WeightView w{.type = t.type, .n = t.dims[1], .k = k, .data = t.data, .scales = t.scales, .group = t.group};
  std::vector<std::byte> out(run.count * row_bytes);
  std::vector<float> row(k);
  for (uint64_t r = 0; r < run.count; ++r) {
    DequantizeRow(w, run.first + r, row.data());
    Quantize(type, row.data(), out.data() + r * row_bytes, k);
  }
  return out;
}

}  // namespace

DType LatentType(const TensorView& t) {
  if (t.scales != nullptr) return DType::kBF16;
  return Info(t.type).block_elems > 1 ? DType::kF16 : t.type;
}

std::vector<std::byte> LatentKeys(const TensorView& t, const LatentHeads& h) {
  const size_t size = Info(LatentType(t)).block_bytes, row = h.rank * size;
  std::vector<std::byte> out(h.heads * h.key * row);
  for (uint64_t head = 0; head < h.heads; ++head) {
    const std::vector<std::byte> from = Expand(t, {head * (h.key + h.value), h.key}, LatentType(t));
    std::byte* to = out.data() + head * h.key * row;
    for (uint64_t r = 0; r < h.rank; ++r) {
      for (uint64_t k = 0; k < h.key; ++k) {
        std::memcpy(to + (r * h.key + k) * size, from.data() + k * row + r * size, size);
      }
    }
  }
  return out;
}

std::vector<std::byte> LatentValues(const TensorView& t, const LatentHeads& h) {
  std::vector<std::byte> out;
  out.reserve(h.heads * h.value * h.rank * Info(LatentType(t)).block_bytes);
  for (uint64_t head = 0; head < h.heads; ++head) {
    const std::vector<std::byte> rows = Expand(t, {head * (h.key + h.value) + h.key, h.value}, LatentType(t));
    out.insert(out.end(), rows.begin(), rows.end());
  }
  return out;
}

std::vector<std::byte> AsBf16(const TensorView& t) { return Expand(t, {0, t.dims[1]}, DType::kBF16); }

}  // namespace gyre
