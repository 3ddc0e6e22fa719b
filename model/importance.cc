#include "model/importance.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/gguf.h"
#include "model/gguf_writer.h"
#include "model/mapped_file.h"
#include "model/quoted.h"

namespace gyre {
namespace {

constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";

std::vector<float> FloatsOf(const TensorView& t) {
  std::vector<float> out(t.bytes / sizeof(float));
  std::memcpy(out.data(), t.data, out.size() * sizeof(float));
  return out;
}

// Reads the older form: a number of tensors, then of each its name, the number of times it was used, and sums that are
// multiplied by that number; all numbers have 32 bits.
class DatReader {
 public:
  explicit DatReader(std::span<const std::byte> bytes) : rest_(bytes) {}
  bool Number(int32_t* out) {
    if (rest_.size() < 4) return false;
    std::memcpy(out, rest_.data(), sizeof *out);
    rest_ = rest_.subspan(4);
    return true;
  }
  bool Bytes(int32_t count, size_t each, std::span<const std::byte>* out) {
    if (count < 0 || rest_.size() / each < static_cast<size_t>(count)) return false;
    *out = rest_.first(static_cast<size_t>(count) * each);
    rest_ = rest_.subspan(out->size());
    return true;
  }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace

void Importance::Add(const std::string& tensor, std::vector<float> sums, const std::vector<float>& counts) {
  const size_t experts = counts.size(), columns = experts == 0 ? 0 : sums.size() / experts;
  for (size_t i = 0; i < sums.size(); ++i) {
    const float count = counts[i / columns];
    sums[i] = count > 0 ? sums[i] / count : 1;
    // Neither a column that no token used nor a damaged number makes a quantizer blind.
    if (!std::isfinite(sums[i]) || sums[i] < 0) sums[i] = 0;
  }
  for (size_t e = 0; e < experts; ++e) {
    const auto begin = sums.begin() + static_cast<std::ptrdiff_t>(e * columns),
               end = begin + static_cast<std::ptrdiff_t>(columns);
    double mean = 0;
    for (auto it = begin; it != end; ++it) mean += static_cast<double>(*it) / static_cast<double>(columns);
    for (auto it = begin; it != end; ++it) *it = std::max(*it, static_cast<float>(mean * 1e-4));
    if (!(mean > 0)) std::fill(begin, end, 1.0f);
  }
  means_[tensor] = std::move(sums);
}

std::span<const float> Importance::Find(const std::string& tensor) const {
  const auto it = means_.find(tensor);
  return it == means_.end() ? std::span<const float>() : std::span<const float>(it->second);
}

StatusOr<Importance> Importance::Load(const std::string& path) {
  GYRE_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
  Importance out;
  if (IsGguf(file->bytes())) {
    StatusOr<Gguf> gguf = Gguf::Parse(file->bytes());
    if (!gguf.ok()) return Annotate(gguf.status(), path);
    for (const auto& [name, t] : gguf->tensors().all()) {
      if (!name.ends_with(kSums)) continue;
      const std::string tensor = name.substr(0, name.size() - kSums.size());
      const auto& all = gguf->tensors().all();
      const auto counts = all.find(tensor + std::string(kCounts));
      if (counts == all.end() || counts->second.type != DType::kF32 || t.type != DType::kF32)
        return DataLoss("{}: tensor {} and its counts are expected as F32", path, Printable(name));
      const std::vector<float> each = FloatsOf(counts->second);
      std::vector<float> sums = FloatsOf(t);
      if (each.empty() || sums.size() % each.size() != 0)
        return DataLoss("{}: tensor {} has {} numbers for {} counts", path, Printable(name), sums.size(), each.size());
      out.Add(tensor, std::move(sums), each);
    }
    if (out.empty()) return DataLoss("{}: it has no tensor with a name that ends in {}", path, kSums);
    return out;
  }
  DatReader in(file->bytes());
  int32_t entries = 0;
  const auto damaged = [&] { return DataLoss("{}: it is no importance matrix, neither GGUF nor .dat", path); };
  if (!in.Number(&entries) || entries < 1) return damaged();
  for (int32_t i = 0; i < entries; ++i) {
    int32_t length = 0, calls = 0, count = 0;
    std::span<const std::byte> name, values;
    if (!in.Number(&length) || length < 1 || !in.Bytes(length, 1, &name) || !in.Number(&calls) || !in.Number(&count) ||
        count < 1 || !in.Bytes(count, sizeof(float), &values)) {
      return damaged();
    }
    std::vector<float> sums(static_cast<size_t>(count));
    std::memcpy(sums.data(), values.data(), values.size());
    out.Add(std::string(reinterpret_cast<const char*>(name.data()), name.size()), std::move(sums),
            {static_cast<float>(std::max(calls, 1))});
  }
  return out;
}

void ImportanceSums::Add(const std::string& name, uint64_t expert, uint64_t experts, const float* x, uint64_t rows,
                         uint64_t k) {
  Tensor& t = tensors_[name];
  if (t.counts.empty()) {
    t.columns = k;
    t.sums.resize(experts * k);
    t.counts.resize(experts);
  }
  t.counts[expert] += static_cast<double>(rows);
  double* sums = t.sums.data() + expert * k;
  for (uint64_t r = 0; r < rows; ++r, x += k) {
    for (uint64_t i = 0; i < k; ++i) sums[i] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
}

Status ImportanceSums::Write(const std::string& path, const NewFileOptions& place, const std::string& text,
                             uint32_t chunk, uint32_t chunks) const {
  GYRE_ASSIGN_OR_RETURN(GgufWriter writer, GgufWriter::Create(path, place));
  writer.Add("general.type", "imatrix");
  writer.Add("imatrix.chunk_count", chunks);
  writer.Add("imatrix.chunk_size", chunk);
  // An array of one string.
  const uint64_t length = text.size();
  std::vector<std::byte> bytes(sizeof length + text.size());
  std::memcpy(bytes.data(), &length, sizeof length);
  std::memcpy(bytes.data() + sizeof length, text.data(), text.size());
  writer.Add("imatrix.datasets",
             GgufValue{.type = GgufType::kArray, .element = GgufType::kString, .count = 1, .bytes = bytes});
  const auto with = [](const std::string& name, std::string_view end) { return name + std::string(end); };
  for (const auto& [name, t] : tensors_) {
    writer.AddTensor(with(name, kCounts), DType::kF32, {1, t.counts.size()});
    writer.AddTensor(with(name, kSums), DType::kF32, {t.columns, t.counts.size()});
  }
  GYRE_RETURN_IF_ERROR(writer.Begin());
  for (const auto& [name, t] : tensors_) {
    for (const std::vector<double>* values : {&t.counts, &t.sums}) {
      const std::vector<float> floats(values->begin(), values->end());
      GYRE_RETURN_IF_ERROR(writer.Write(std::as_bytes(std::span(floats))));
    }
  }
  return writer.Finish();
}

}  // namespace gyre
