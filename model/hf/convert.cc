// Converts a folder in Hugging Face's format to one GGUF file.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "kernels/quant.h"
#include "model/gguf_writer.h"
#include "model/hf/folder.h"
#include "model/hf/rearrange.h"
#include "model/hf/tensor_names.h"
#include "model/layer_reader.h"
#include "model/scale_name.h"
#include "model/source_files.h"

namespace gyre {
namespace {

// A tensor of the file, made from one of the folder's, or from all experts of a layer.
struct Item {
  std::string name;
  std::vector<const TensorView*> parts;
  bool experts = false;
  bool second_scales = false;  // of NVFP4, and not the weights
};

// All tensors of the file, sorted by name. kDataLoss: an expert is missing, or the experts differ.
StatusOr<std::vector<Item>> OrderItems(const TensorTable& tensors) {
  std::map<std::string, std::map<int, const TensorView*>> experts;
  std::vector<Item> items;
  for (const auto& [name, t] : tensors.all()) {
    if (const auto one = ParseExpertName(name)) {
      experts[one->all][one->expert] = &t;
    } else {
      items.push_back({.name = name, .parts = {&t}});
    }
  }
  for (const auto& [name, parts] : experts) {
    Item item{.name = name, .parts = {}, .experts = true};
    for (const auto& [number, t] : parts) {
      if (static_cast<size_t>(number) != item.parts.size())
        return DataLoss("{}: expert {} is missing", name, item.parts.size());
      if (t->dims != parts.begin()->second->dims || t->type != parts.begin()->second->type)
        return DataLoss("{}: the experts differ in shape or type", name);
      item.parts.push_back(t);
    }
    items.push_back(std::move(item));
  }
  for (size_t i = 0, weights = items.size(); i < weights; ++i) {
    if (items[i].parts[0]->type != DType::kNVFP4 || items[i].parts[0]->scales == nullptr) continue;
    Item scales = items[i];
    scales.name = ScaleNameOf(scales.name);
    if (tensors.Has(scales.name))
      return Unimplemented("{} stands in the way of the second scales of {}", scales.name, items[i].name);
    scales.second_scales = true;
    items.push_back(std::move(scales));
  }
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.name < b.name; });
  return items;
}

// Integers with one scale per row become Q8_0, which has an f16 scale for each 32.
constexpr uint64_t kBlock = 32;
bool FitsQ8(const TensorView& t) {
  if (t.type != DType::kI8 || t.scales == nullptr || t.dims[0] % kBlock != 0 || t.group != t.dims[0]) return false;
  for (uint64_t r = 0; r < t.bytes / t.group; ++r) {
    float scale = 0;
    std::memcpy(&scale, t.scales + r * sizeof scale, sizeof scale);
    constexpr float kLeast = 6.2e-5f, kMost = 65504;  // between these f16 has all of its bits
    if (scale != 0 && !(std::fabs(scale) >= kLeast && std::fabs(scale) <= kMost)) return false;
  }
  return true;
}
std::vector<std::byte> AsQ8(const TensorView& t) {
  std::vector<std::byte> out;
  out.reserve(t.bytes / kBlock * (kBlock + 2));
  for (uint64_t at = 0; at < t.bytes; at += kBlock) {
    float scale = 0;
    std::memcpy(&scale, t.scales + at / t.group * sizeof scale, sizeof scale);
    const uint16_t half = FloatToHalf(scale);
    const auto* first = reinterpret_cast<const std::byte*>(&half);
    out.insert(out.end(), first, first + sizeof half);
    out.insert(out.end(), t.data + at, t.data + at + kBlock);
  }
  return out;
}

// The type in the file. Vectors are in f32, as other programs expect them, and GGUF has no type for numbers with
// separate scales.
DType StoredType(const Item& item, uint64_t head_size) {
  const TensorView& t = *item.parts[0];
  if (item.second_scales) return DType::kF32;
  if (t.type == DType::kNVFP4) return t.type;
  if (t.scales != nullptr) {
    // The columns of ssm_out are reordered by heads, which must be whole blocks.
    const bool fits = (head_size % Info(DType::kQ8_0).block_elems == 0 || !item.name.ends_with(".ssm_out.weight")) &&
                      std::all_of(item.parts.begin(), item.parts.end(), [](const TensorView* p) { return FitsQ8(*p); });
    return fits ? DType::kQ8_0 : DType::kBF16;
  }
  const bool vector = t.dims.size() == 1 || item.name.ends_with(".ssm_conv1d.weight");
  return vector && Info(t.type).block_elems == 1 && Info(t.type).dequantizes ? DType::kF32 : t.type;
}

std::vector<std::byte> Stored(const TensorView& t, DType type) {
  if (type == t.type) return {t.data, t.data + t.bytes};
  if (type == DType::kQ8_0) return AsQ8(t);
  if (type == DType::kBF16) return AsBf16(t);
  std::vector<std::byte> out(t.bytes / Info(t.type).block_bytes * sizeof(float));
  Dequantize(t.type, t.data, reinterpret_cast<float*>(out.data()), out.size() / sizeof(float));
  return out;
}

// Puts a delta net's values of each value head into GGUF's order.
std::vector<std::byte> DealHeads(const std::string& name, const DeltaHeads& heads, const std::vector<uint64_t>& dims,
                                 DType type, std::vector<std::byte> bytes) {
  const size_t dot = name.find('.', sizeof "blk." - 1);
  const std::string part = dot == name.npos ? "" : name.substr(dot + 1);
  const uint64_t keys = 2 * heads.keys * heads.size;
  uint64_t before = 0, size = 0, rows = dims.size() == 1 ? dims[0] : dims[1], repeats = 1;
  if (part == "attn_qkv.weight" || part == "ssm_conv1d.weight") {
    before = keys;
    size = heads.size;
  } else if (part == "attn_gate.weight") {
    size = heads.size;
  } else if (part == "ssm_beta.weight" || part == "ssm_alpha.weight" || part == "ssm_a" || part == "ssm_dt.bias") {
    size = 1;
  } else if (part == "ssm_out.weight") {  // its columns; each row is a list of runs of blocks
    repeats = rows;
    size = heads.size / Info(type).block_elems;
    rows = dims[0] / Info(type).block_elems;
  } else {
    return bytes;
  }
  const size_t each = bytes.size() / repeats, unit = each / rows;
  const std::vector<RowRun> runs = InterleavedRuns(heads, before, size);
  std::vector<std::byte> out;
  out.reserve(bytes.size());
  for (uint64_t r = 0; r < repeats; ++r) {
    for (const RowRun& run : runs) {
      const std::byte* from = bytes.data() + r * each + run.first * unit;
      out.insert(out.end(), from, from + run.count * unit);
    }
  }
  return out;
}

}  // namespace

StatusOr<ConvertReport> ConvertToGguf(const HfFolder& folder, const std::string& out,
                                      const ConvertToGgufOptions& options) {
  // The tensors' shapes are checked before values that depend on them.
  GYRE_ASSIGN_OR_RETURN(const ModelSpec spec, SpecOf(folder));
  GYRE_RETURN_IF_ERROR(CheckTensors(folder.tensors, spec));
  ConvertReport report;
  Metadata tokenizer;
  if (folder.vocabulary.tokenizer) {
    GYRE_RETURN_IF_ERROR(WriteTokenizer(*folder.vocabulary.tokenizer, &tokenizer));
  } else {
    tokenizer.Set("tokenizer.ggml.model", std::string_view("none"));
  }
  const ChatTemplates& chat = folder.vocabulary.templates;
  if (!chat.text.empty()) tokenizer.Set("tokenizer.chat_template", std::string_view(chat.text));
  if (!chat.tools.empty()) tokenizer.Set(kToolTemplateKey, std::string_view(chat.tools));
  GYRE_ASSIGN_OR_RETURN(GgufWriter writer,
                        GgufWriter::Create(out, {.overwrite = options.overwrite, .sources = SourceFiles(folder.path)}));
  for (const Metadata* m : {&folder.metadata, static_cast<const Metadata*>(&tokenizer)}) {
    for (const auto& [key, value] : m->values()) writer.Add(key, value);
  }
  GYRE_ASSIGN_OR_RETURN(const std::vector<Item> items, OrderItems(folder.tensors));
  uint64_t total = 0, done = 0;
  for (const auto& [name, t] : folder.tensors.all()) total += t.bytes;
  std::vector<DType> types;
  for (const Item& item : items) {
    std::vector<uint64_t> dims = item.parts[0]->dims;
    if (item.experts) dims.push_back(item.parts.size());
    if (item.second_scales) dims = {item.parts.size()};
    types.push_back(StoredType(item, folder.metadata.Number(folder.architecture.name + ".ssm.state_size")));
    if (item.parts[0]->scales != nullptr && types.back() != item.parts[0]->type && !item.second_scales)
      report.changed[{item.parts[0]->type, types.back()}] += static_cast<int>(item.parts.size());
    writer.AddTensor(item.name, types.back(), dims);
  }
  GYRE_RETURN_IF_ERROR(writer.Begin());
  const std::string prefix = folder.architecture.name + ".";
  auto number = [&](const char* key) { return uint64_t{folder.metadata.Number(prefix + key)}; };
  const uint64_t heads = number("attention.head_count"), stated = number("attention.head_count_kv"),
                 kv_heads = stated == 0 ? heads : stated;
  const DeltaHeads delta{number("ssm.group_count"), number("ssm.time_step_rank"), number("ssm.state_size")};
  const bool deals = folder.architecture.consecutive_heads && folder.architecture.name != "qwen3next";
  for (size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    for (const TensorView* t : item.parts) {
      if (item.second_scales) {
        GYRE_RETURN_IF_ERROR(writer.Write({t->scales, sizeof(float)}));
        continue;
      }
      MadeTensor::Bytes held;
      const TensorView data = t->WithData(&held);
      if (held == nullptr) HintRead({data.data, data.bytes}, ReadHint::kSoon);
      std::vector<std::byte> bytes = Stored(data, types[i]);
      const bool q = item.name.find(".attn_q.") != std::string::npos,
                 k = item.name.find(".attn_k.") != std::string::npos;
      if (folder.architecture.permuted && (q || k)) {
        const uint64_t rows = t->dims.back(), n = q ? heads : kv_heads;
        if (n == 0 || rows % (2 * n) != 0) return DataLoss("{}: {} rows for {} heads", item.name, rows, n);
        bytes = RepairHeads(bytes, n, bytes.size() / rows, true);
      }
      if (deals) bytes = DealHeads(item.name, delta, t->dims, types[i], std::move(bytes));
      GYRE_RETURN_IF_ERROR(writer.Write(bytes));
      done += t->bytes;
      if (options.progress) GYRE_RETURN_IF_ERROR(options.progress(done, total));
    }
  }
  GYRE_RETURN_IF_ERROR(writer.Finish());
  return report;
}

}  // namespace gyre
