#include "model/tensor_table.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include <xxhash.h>

#include "model/quoted.h"
#include "model/scale_name.h"

namespace gyre {
namespace {

std::string KnownTypes() {
  std::string names;
  for (const DTypeInfo& info : DTypes()) {
    if (info.dequantizes) names += (names.empty() ? "" : " ") + std::string(info.name);
  }
  return names;
}

}  // namespace

TensorView TensorView::WithData(MadeTensor::Bytes* held) const {
  TensorView view = *this;
  if (made == nullptr) return view;
  *held = made->Make();
  view.data = (*held)->data();
  return view;
}

WeightView TensorView::Rows() const {
  WeightView w{.type = type, .n = 1, .k = dims[0], .data = data, .scales = scales, .group = group};
  for (size_t d = 1; d < dims.size(); ++d) w.n *= dims[d];
  return w;
}

std::string DescribeDims(const std::vector<uint64_t>& dims) {
  std::string out;
  for (uint64_t d : dims) out += fmt::format("{}{}", out.empty() ? "" : " x ", d);
  return out;
}

Status TensorTable::Add(std::string name, TensorView tensor) {
  const auto [it, added] = tensors_.emplace(std::move(name), std::move(tensor));
  if (!added) return DataLoss("tensor {} stands in the file twice", Printable(it->first));
  return absl::OkStatus();
}

Status TensorTable::AddScales() {
  for (auto& [name, t] : tensors_) {
    // A part of a file does not show yet whose a scale is.
    if (t.type == DType::kNVFP4) t.scales = nullptr, t.group = 0;
    const std::string scale = ScaleNameOf(name);
    const TensorView* s = Find(scale);
    if (s == nullptr || ScaledBy(scale) != name) continue;
    const bool experts = t.dims.size() == 3 && s->dims == std::vector<uint64_t>{t.dims[2]};
    if (s->type != DType::kF32 || (!experts && s->dims != std::vector<uint64_t>{1})) {
      return DataLoss(
          "the scale of tensor {} has the type {} and the shape {}, expected one number in F32 for each matrix",
          Printable(name), Info(s->type).name, DescribeDims(s->dims));
    }
    t.scales = s->data;
    t.group = t.bytes / Info(t.type).block_bytes * Info(t.type).block_elems / s->dims[0];
  }
  return absl::OkStatus();
}

std::string TensorTable::ScaledBy(const std::string& name) const {
  // Gemma 4's experts have a factor of such a name, beside one of their router; it covers the scale.
  if (Has(Sibling(name, "ffn_down_exps.scale", "ffn_gate_inp.scale"))) return "";
  for (const std::string_view end : {".scale", ".input_scale"}) {
    const std::string weight = Sibling(name, end, ".weight");
    if (const TensorView* t = Find(weight); t != nullptr && t->type == DType::kNVFP4) return weight;
  }
  return "";
}

const TensorView* TensorTable::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

uint64_t TensorTable::SampledHash(std::span<const std::byte> header, uint64_t file_bytes) const {
  constexpr size_t kSample = 64 << 10;
  // The order is that of names, as the addresses of expanded tensors change from run to run.
  std::map<std::string_view, const TensorView*> order;
  for (const auto& [name, t] : tensors_) order.emplace(name, &t);
  uint64_t hash = XXH64(&file_bytes, sizeof file_bytes, 0);
  hash = XXH64(header.data(), header.size(), hash);
  for (const auto& [name, t] : order) {
    if (t->made == nullptr) hash = XXH64(t->data, std::min(kSample, t->bytes), hash);
    for (const auto& source : t->made == nullptr ? std::vector<std::span<const std::byte>>() : t->made->sources())
      hash = XXH64(source.data(), std::min(kSample, source.size()), hash);
  }
  return hash;
}

std::vector<std::pair<std::string, const TensorView*>> TensorTable::InFileOrder() const {
  std::vector<std::pair<std::string, const TensorView*>> out;
  for (const auto& [name, t] : tensors_) out.emplace_back(name, &t);
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return std::tie(a.second->data, a.first) < std::tie(b.second->data, b.first);
  });
  return out;
}

uint64_t TensorTable::Parameters() const {
  uint64_t sum = 0;
  for (const auto& [name, tensor] : tensors_) {
    if (name.rfind("rope_", 0) == 0) continue;  // divisors of frequencies
    uint64_t numbers = 1;
    for (const uint64_t d : tensor.dims) numbers *= d;
    sum += numbers;
  }
  return sum;
}

std::string TensorTable::MainType() const {
  std::map<std::string, uint64_t> bytes;
  for (const auto& [name, tensor] : tensors_) bytes[std::string(Info(tensor.type).name)] += tensor.bytes;
  const auto most =
      std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? "" : most->first;
}

StatusOr<const TensorView*> TensorTable::Checked(const std::string& name, const std::vector<uint64_t>& dims) const {
  const TensorView* t = Find(name);
  if (t == nullptr) return DataLoss("tensor {} is missing, expected the shape {}", name, DescribeDims(dims));
  if (t->dims != dims) {
    return DataLoss("tensor {} has the shape {}, expected {}", name, DescribeDims(t->dims), DescribeDims(dims));
  }
  if (!Info(t->type).dequantizes && t->scales == nullptr) {
    return Unimplemented("tensor {} has the type {}, known are {}", name, Info(t->type).name, KnownTypes());
  }
  return t;
}

StatusOr<WeightView> TensorTable::Matrix(const std::string& name, uint64_t n, uint64_t k) const {
  GYRE_ASSIGN_OR_RETURN(const TensorView* t, Checked(name, {k, n}));
  return WeightView{.type = t->type, .n = n, .k = k, .data = t->data, .scales = t->scales, .group = t->group};
}

StatusOr<WeightView> TensorTable::Matrices(const std::string& name, uint64_t count, uint64_t n, uint64_t k) const {
  GYRE_ASSIGN_OR_RETURN(const TensorView* t, Checked(name, {k, n, count}));
  return WeightView{.type = t->type, .n = n * count, .k = k, .data = t->data, .scales = t->scales, .group = t->group};
}

Status TensorTable::CheckVector(const std::string& name, const std::vector<uint64_t>& dims) const {
  GYRE_ASSIGN_OR_RETURN(const TensorView* t, Checked(name, dims));
  if (t->scales == nullptr) return absl::OkStatus();
  return Unimplemented("tensor {} has the type {} with scales, which is for matrices", name, Info(t->type).name);
}

StatusOr<std::vector<float>> TensorTable::Vector(const std::string& name, const std::vector<uint64_t>& dims) const {
  GYRE_RETURN_IF_ERROR(CheckVector(name, dims));
  const TensorView* t = Find(name);
  uint64_t n = 1;
  for (uint64_t d : dims) n *= d;
  std::vector<float> values(n);
  MadeTensor::Bytes held;
  Dequantize(t->type, t->WithData(&held).data, values.data(), n);
  return values;
}

}  // namespace gyre
