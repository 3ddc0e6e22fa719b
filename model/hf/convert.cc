// A folder of Hugging Face's as one GGUF file.
#include <algorithm>
#include <cstring>
#include <map>

#include "kernels/quant.h"
#include "model/gguf_writer.h"
#include "model/hf/folder.h"
#include "model/hf/tensor_names.h"

namespace gyre {
namespace {

// GGUF's order of the rows of queries and keys: the two halves of each head's rotated elements alternate.
void Permute(const std::byte* from, uint64_t rows, uint64_t heads, size_t row_bytes, std::byte* to) {
  const uint64_t size = rows / heads, half = size / 2;
  for (uint64_t h = 0; h < heads; ++h) {
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t source = h * size + i % 2 * half + i / 2;
      std::memcpy(to + (h * size + i) * row_bytes, from + source * row_bytes, row_bytes);
    }
  }
}

// 8-bit numbers with scales beside them, as bf16: GGUF has no such type.
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

// A tensor of the file, made of one of the folder's or of all experts of a layer.
struct Item {
  std::string name;
  std::vector<const TensorView*> parts;
  bool experts = false;
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
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.name < b.name; });
  return items;
}

// A whole number of the architecture's metadata; 0: it is not there.
uint64_t Number(const HfFolder& folder, const char* key) {
  const auto it = folder.metadata.values().find(folder.architecture.name + "." + key);
  uint32_t v = 0;
  if (it != folder.metadata.values().end()) std::memcpy(&v, it->second.bytes.data(), 4);
  return v;
}

}  // namespace

Status ConvertToGguf(const HfFolder& folder, const std::string& out, const ConvertToGgufOptions& options) {
  Metadata tokenizer;
  if (folder.tokenizer) {
    GYRE_RETURN_IF_ERROR(WriteTokenizer(*folder.tokenizer, &tokenizer));
  } else {
    tokenizer.Set("tokenizer.ggml.model", std::string_view("none"));
  }
  if (!folder.chat_template.empty()) tokenizer.Set("tokenizer.chat_template", std::string_view(folder.chat_template));
  GYRE_ASSIGN_OR_RETURN(GgufWriter writer,
                        GgufWriter::Create(out, {.overwrite = options.overwrite, .sources = folder.files}));
  for (const Metadata* m : {&folder.metadata, static_cast<const Metadata*>(&tokenizer)}) {
    for (const auto& [key, value] : m->values()) writer.Add(key, value);
  }
  GYRE_ASSIGN_OR_RETURN(const std::vector<Item> items, OrderItems(folder.tensors));
  uint64_t total = 0, done = 0;
  for (const auto& [name, t] : folder.tensors.all()) total += t.bytes;
  for (const Item& item : items) {
    std::vector<uint64_t> dims = item.parts[0]->dims;
    if (item.experts) dims.push_back(item.parts.size());
    const DType type = item.parts[0]->scales != nullptr ? DType::kBF16 : item.parts[0]->type;
    writer.AddTensor(item.name, type, dims);
  }
  GYRE_RETURN_IF_ERROR(writer.Begin());
  const uint64_t heads = Number(folder, "attention.head_count"), stated = Number(folder, "attention.head_count_kv"),
                 kv_heads = stated == 0 ? heads : stated;
  for (const Item& item : items) {
    for (const TensorView* t : item.parts) {
      HintRead({t->data, t->bytes}, ReadHint::kSoon);
      std::vector<std::byte> bytes;
      if (t->scales != nullptr) bytes = AsBf16(*t);
      const std::byte* data = bytes.empty() ? t->data : bytes.data();
      const size_t size = bytes.empty() ? t->bytes : bytes.size();
      const bool q = item.name.find(".attn_q.") != std::string::npos,
                 k = item.name.find(".attn_k.") != std::string::npos;
      std::vector<std::byte> turned;
      if (folder.architecture.permuted && (q || k)) {
        const uint64_t rows = t->dims.back(), n = q ? heads : kv_heads;
        if (n == 0 || rows % (2 * n) != 0) return DataLoss("{}: {} rows for {} heads", item.name, rows, n);
        turned.resize(size);
        Permute(data, rows, n, size / rows, turned.data());
        data = turned.data();
      }
      GYRE_RETURN_IF_ERROR(writer.Write({data, size}));
      done += t->bytes;
      if (options.progress) GYRE_RETURN_IF_ERROR(options.progress(done, total));
    }
  }
  return writer.Finish();
}

}  // namespace gyre
