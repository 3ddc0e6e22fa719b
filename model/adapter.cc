#include "model/adapter.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <unordered_set>
#include <variant>

#include <xxhash.h>

#include "model/gguf.h"
#include "model/hf/model_types.h"
#include "model/hf/peft.h"
#include "model/hf/rearrange.h"
#include "model/layer_tensors.h"
#include "model/quoted.h"
#include "model/weights.h"

namespace gyre {
namespace {

namespace fs = std::filesystem;

constexpr const char *kA = ".lora_a", *kB = ".lora_b";

// Whether the forward pass can add to the products of this slot. `halves`: the adapter has Hugging Face's orders.
bool MayChange(const ModelSpec& spec, const LayerSpec& layer, Slot slot, bool halves) {
  switch (slot) {
    case Slot::kQ:
    case Slot::kK:
    case Slot::kV: return layer.attention() != nullptr;
    case Slot::kO: {
      // The value heads of Qwen3.5's delta nets have another order in GGUF than in a folder, and so has what they give.
      const auto* delta = std::get_if<DeltaNetSpec>(&layer.mixer);
      const bool two_orders =
          delta != nullptr && spec.architecture.starts_with("qwen35") && delta->value_heads != delta->key_heads;
      return !two_orders || delta->consecutive == halves;
    }
    case Slot::kGate:
    case Slot::kUp:
    case Slot::kDown: return layer.dense() != nullptr && layer.dense()->limits == GateLimits{};
    default: return false;
  }
}

std::string TensorName(const ModelSpec& spec, size_t layer, std::string_view name) {
  return fmt::format("blk.{}.{}", spec.BlockOf(static_cast<int>(layer)), name);
}

}  // namespace

StatusOr<std::shared_ptr<const Adapter>> Adapter::Open(std::string name, const std::string& path, const ModelSpec& spec,
                                                       bool whole) {
  std::shared_ptr<Adapter> adapter(new Adapter);
  adapter->name_ = std::move(name);
  adapter->path_ = path;
  std::error_code error;
  const fs::path p(path);
  if (fs::is_directory(p, error) || p.extension() == ".safetensors") {
    GYRE_RETURN_IF_ERROR(Annotate(adapter->OpenPeft(spec, whole), path));
  } else {
    GYRE_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path));
    adapter->files_.push_back(std::move(file));
    GYRE_RETURN_IF_ERROR(Annotate(adapter->OpenGguf(spec, whole), path));
  }
  return std::shared_ptr<const Adapter>(std::move(adapter));
}

Status Adapter::OpenGguf(const ModelSpec& spec, bool whole) {
  const std::span<const std::byte> bytes = files_[0]->bytes();
  GYRE_ASSIGN_OR_RETURN(const Gguf gguf, Gguf::Parse(bytes));
  GYRE_ASSIGN_OR_RETURN(const auto type, gguf.String("general.type"));
  GYRE_ASSIGN_OR_RETURN(const auto kind, gguf.String("adapter.type"));
  GYRE_ASSIGN_OR_RETURN(const auto architecture, gguf.String("general.architecture"));
  if (type.value_or("model") != "adapter")
    return InvalidArgument("a model, expected an adapter: general.type is {}", Printable(type.value_or("missing")));
  if (kind.value_or("") != "lora")
    return Unimplemented("adapter.type is {}, expected lora", Printable(kind.value_or("missing")));
  if (architecture.value_or("") != spec.architecture) {
    return FailedPrecondition("an adapter for the architecture {}, the model's is {}",
                              Printable(architecture.value_or("(missing)")), spec.architecture);
  }
  if (gguf.Has("adapter.alora.invocation_tokens"))
    return Unimplemented("adapter.alora.invocation_tokens: it works from certain tokens on only");
  GYRE_ASSIGN_OR_RETURN(const auto alpha, gguf.Float("adapter.lora.alpha"));
  tensors_ = gguf.tensors();
  for (const auto& [name, t] : tensors_.all()) {
    if (!name.ends_with(kB) || t.dims.empty() || t.dims[0] == 0) continue;
    const double rank = static_cast<double>(t.dims[0]);
    const double scale = alpha.value_or(0) == 0 ? 1 : *alpha / rank;
    scales_.emplace(name.substr(0, name.size() - std::strlen(kB)), static_cast<float>(scale));
  }
  if (whole) hash_ = tensors_.SampledHash(bytes.first(std::min(gguf.data_offset(), bytes.size())), bytes.size());
  return Place(spec, false);
}

Status Adapter::OpenPeft(const ModelSpec& spec, bool whole) {
  GYRE_ASSIGN_OR_RETURN(PeftAdapter peft, ReadPeft(path_));
  files_ = std::move(peft.files);
  tensors_ = std::move(peft.tensors);
  scales_ = std::move(peft.scales);
  if (whole) hash_ = tensors_.SampledHash(files_[1]->bytes(), files_[0]->bytes().size());
  return Place(spec, true);
}

Status Adapter::Place(const ModelSpec& spec, bool halves) {
  std::unordered_set<std::string> placed;
  const std::optional<bool> permuted = IsPermuted(spec.architecture);
  if (halves && !permuted)
    return Unimplemented(
        "an adapter of PEFT for the architecture {}, whose order of rows is not known here: GGUF's form of it is read",
        spec.architecture);
  const bool two_orders = permuted.value_or(false);
  layers_.resize(spec.layers.size());
  const auto place = [&](size_t layer, const std::string& tensor, std::span<const TensorRow> rows) -> Status {
    const TensorView *a = tensors_.Find(tensor + kA), *b = tensors_.Find(tensor + kB);
    if (a == nullptr && b == nullptr) return absl::OkStatus();
    if (a == nullptr || b == nullptr)
      return DataLoss("tensor {}{} is missing", Printable(tensor), a == nullptr ? kA : kB);
    uint64_t n = 0;
    for (const TensorRow& row : rows) {
      if (!MayChange(spec, spec.layers[layer], row.slot, halves)) return absl::OkStatus();  // it has no place
      n += row.dims[1];
    }
    const uint64_t rank = a->dims.size() == 2 ? a->dims[1] : 0;
    if (rank == 0) return DataLoss("tensor {}{} has the shape {}", Printable(tensor), kA, DescribeDims(a->dims));
    GYRE_RETURN_IF_ERROR(tensors_.Matrix(tensor + kA, rank, rows[0].dims[0]).status());
    GYRE_ASSIGN_OR_RETURN(const WeightView view, tensors_.Matrix(tensor + kB, n, rank));
    placed.insert({tensor + kA, tensor + kB});
    uint64_t first = 0;
    for (const TensorRow& row : rows) {
      layers_[layer].push_back({.slot = row.slot, .tensor = tensor, .first_row = first, .rows = row.dims[1]});
      first += row.dims[1];
    }
    const AttentionSpec* attention = spec.layers[layer].attention();
    const Slot slot = rows[0].slot;
    if (!two_orders || attention == nullptr || (slot != Slot::kQ && slot != Slot::kK)) return absl::OkStatus();
    if (halves == (attention->rope.pairing == RopePairing::kHalves)) return absl::OkStatus();
    if (rows.size() > 1) return Unimplemented("tensor {}: its rows have another order than the model's", tensor);
    TensorView other = *b;
    const uint64_t heads = Unsigned(slot == Slot::kQ ? attention->heads : attention->kv_heads);
    const std::span<const std::byte> bytes(view.data, view.bytes());
    other.data = nullptr;
    other.made = std::make_shared<const MadeTensor>(
        std::vector<std::span<const std::byte>>{bytes},
        [=, row_bytes = view.row_bytes()] { return RepairHeads(bytes, heads, row_bytes, halves); });
    tensors_.Remove(tensor + kB);
    return tensors_.Add(tensor + kB, std::move(other));
  };
  for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
    const std::vector<TensorRow> rows = LayerTensors(spec.layers[layer], spec.dim);
    for (size_t i = 0, end; i < rows.size(); i = end) {
      end = i + 1;
      if (rows[i].form != TensorForm::kMatrix) continue;
      while (end < rows.size() && !rows[i].fused.empty() && rows[end].fused == rows[i].fused) ++end;
      // A tensor for all of them may have the name of the last one's own.
      const std::span<const TensorRow> group(&rows[i], end - i);
      uint64_t n = 0;
      for (const TensorRow& row : group) n += row.dims[1];
      const std::string fused = TensorName(spec, layer, rows[i].fused);
      const TensorView* whole = group.size() > 1 ? tensors_.Find(fused + kB) : nullptr;
      if (whole != nullptr && whole->dims.size() == 2 && whole->dims[1] == n) {
        GYRE_RETURN_IF_ERROR(place(layer, fused, group));
        continue;
      }
      for (const TensorRow& row : group)
        GYRE_RETURN_IF_ERROR(place(layer, TensorName(spec, layer, row.name), std::span(&row, 1)));
    }
  }
  for (const auto& [name, t] : tensors_.all()) {
    if (placed.contains(name)) continue;
    return Unimplemented(
        "tensor {} has no place: an adapter may change the matrices of attention's queries, keys and values, those of "
        "mixers' outputs, and those of dense feed-forward blocks",
        Printable(name));
  }
  if (placed.empty()) return DataLoss("it has no tensors");
  return absl::OkStatus();
}

size_t Adapter::LayerBytes(int layer) const {
  if (layer < 0 || static_cast<size_t>(layer) >= layers_.size()) return 0;
  size_t sum = 0;
  for (const Change& c : layers_[static_cast<size_t>(layer)]) {
    sum += tensors_.Find(c.tensor + kA)->bytes;
    const TensorView& b = *tensors_.Find(c.tensor + kB);
    sum += b.bytes / b.dims[1] * c.rows;
  }
  return sum;
}

std::vector<LowRankWeights> Adapter::Layer(int layer, std::vector<MadeTensor::Bytes>* made) const {
  std::vector<LowRankWeights> out;
  if (layer < 0 || static_cast<size_t>(layer) >= layers_.size()) return out;
  for (const Change& c : layers_[static_cast<size_t>(layer)]) {
    const auto view = [&](const char* part) {
      const TensorView* t = tensors_.Find(c.tensor + part);
      WeightView w = *tensors_.Matrix(c.tensor + part, t->dims[1], t->dims[0]);  // Place has looked it up
      if (w.data == nullptr) {
        MadeTensor::Bytes held;
        w.data = t->WithData(&held).data;
        made->push_back(std::move(held));
      }
      return w;
    };
    out.push_back(
        {.slot = c.slot, .a = view(kA), .b = RowsOf(view(kB), c.first_row, c.rows), .scale = scales_.at(c.tensor)});
  }
  return out;
}

StatusOr<std::map<std::string, std::vector<RowAddition>>> Adapter::Additions(
    const TensorTable& file, const ModelSpec& spec, std::vector<MadeTensor::Bytes>* made) const {
  std::map<std::string, std::vector<RowAddition>> out;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const std::vector<TensorRow> rows = LayerTensors(spec.layers[layer], spec.dim);
    for (const LowRankWeights& w : Layer(static_cast<int>(layer), made)) {
      const auto row = std::ranges::find(rows, w.slot, &TensorRow::slot);
      // The tensor that has the row, alone or with its neighbours.
      uint64_t before = 0, n = 0;
      for (const TensorRow& other : rows) {
        if (row->fused.empty() || other.fused != row->fused) continue;
        if (&other < &*row) before += other.dims[1];
        n += other.dims[1];
      }
      const std::string own = TensorName(spec, layer, row->name), fused = TensorName(spec, layer, row->fused);
      const auto has = [&](const std::string& name, uint64_t count) {
        const TensorView* t = file.Find(name);
        return t != nullptr && t->dims == std::vector<uint64_t>{row->dims[0], count};
      };
      if (n > 0 && has(fused, n)) {
        out[fused].push_back({.first_row = before, .weights = w});
      } else if (has(own, row->dims[1])) {
        out[own].push_back({.first_row = 0, .weights = w});
      } else {
        return Unimplemented("the file has no tensor {} of {} rows", own, row->dims[1]);
      }
    }
  }
  return out;
}

}  // namespace gyre
