#include "model/hf/folder.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "kernels/quant.h"
#include "model/gguf_writer.h"
#include "model/hf/json.h"
#include "model/hf/safetensors.h"
#include "model/quoted.h"

namespace gyre {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

StatusOr<std::string> Slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFound("{} is missing", path.string());
  return std::string((std::istreambuf_iterator<char>(in)), {});
}

StatusOr<json::object> ParseJson(const std::string& text, const fs::path& path) {
  StatusOr<json::object> o = ParseObject(text);
  if (!o.ok()) return Annotate(o.status(), path.string());
  return o;
}

StatusOr<json::object> ReadJson(const fs::path& path) {
  GYRE_ASSIGN_OR_RETURN(const std::string text, Slurp(path));
  return ParseJson(text, path);
}

struct Rename {
  const char* hf;
  const char* gguf;
  const char* gemma = nullptr;  // where it is another
};
constexpr Rename kEnds[] = {{"embed_tokens.weight", "token_embd.weight"},
                            {"norm.weight", "output_norm.weight"},
                            {"lm_head.weight", "output.weight"}};
constexpr Rename kLayer[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight", "post_attention_norm.weight"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.qkv_proj.weight", "attn_qkv.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_proj.bias", "attn_q.bias"},
    {"self_attn.k_proj.bias", "attn_k.bias"},
    {"self_attn.v_proj.bias", "attn_v.bias"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.gate_up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"mlp.gate.weight", "ffn_gate_inp.weight"},
    {"block_sparse_moe.gate.weight", "ffn_gate_inp.weight"},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"},
};
// Of an expert: "experts.3." before, and GGUF's older names, one by one.
constexpr Rename kExpert[] = {{"gate_proj.weight", "ffn_gate"}, {"up_proj.weight", "ffn_up"},
                              {"down_proj.weight", "ffn_down"}, {"w1.weight", "ffn_gate"},
                              {"w3.weight", "ffn_up"},          {"w2.weight", "ffn_down"}};

bool Eat(std::string_view* s, std::string_view prefix) {
  if (s->substr(0, prefix.size()) != prefix) return false;
  s->remove_prefix(prefix.size());
  return true;
}
std::optional<int> EatNumber(std::string_view* s) {
  size_t n = 0;
  int v = 0;
  while (n < s->size() && n < 6 && (*s)[n] >= '0' && (*s)[n] <= '9') v = 10 * v + ((*s)[n++] - '0');
  if (n == 0 || n >= s->size() || (*s)[n] != '.') return std::nullopt;
  s->remove_prefix(n + 1);
  return v;
}

// "" = no part of a language model (a vision tower, buffers); nullopt = not known.
std::optional<std::string> GgufName(std::string_view name, bool gemma) {
  for (std::string_view skip :
       {"vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."}) {
    if (name.substr(0, skip.size()) == skip) return "";
  }
  if (name.find("rotary_emb.inv_freq") != std::string_view::npos) return "";
  Eat(&name, "language_model.");
  if (Eat(&name, "model.")) Eat(&name, "language_model.");
  for (const Rename& r : kEnds) {
    if (name == r.hf) return r.gguf;
  }
  if (!Eat(&name, "layers.")) return std::nullopt;
  const auto layer = EatNumber(&name);
  if (!layer) return std::nullopt;
  const std::string prefix = fmt::format("blk.{}.", *layer);
  for (const Rename& r : kLayer) {
    if (name == r.hf) return prefix + (gemma && r.gemma != nullptr ? r.gemma : r.gguf);
  }
  if (Eat(&name, "mlp.experts.") || Eat(&name, "block_sparse_moe.experts.")) {
    const auto expert = EatNumber(&name);
    for (const Rename& r : kExpert) {
      if (expert && name == r.hf) return fmt::format("{}{}.{}.weight", prefix, r.gguf, *expert);
    }
  }
  return std::nullopt;
}

// OCP 8-bit floating point, E4M3: no infinities, exponent bias 7.
float Fp8(uint8_t b) {
  const int exponent = b >> 3 & 15, mantissa = b & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                          : exponent == 15 && mantissa == 7
                              ? NAN
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (b & 0x80) != 0 ? -magnitude : magnitude;
}

StatusOr<std::vector<float>> ToFloats(const SafeTensor& t) {
  const DType type = t.dtype == "F32" ? DType::kF32 : t.dtype == "F16" ? DType::kF16 : DType::kBF16;
  if (t.dtype != Info(type).name) return Unimplemented("the type {}, expected floats", Printable(t.dtype));
  std::vector<float> out(t.bytes.size() / Info(type).block_bytes);
  Dequantize(type, t.bytes.data(), out.data(), out.size());
  return out;
}

class Loader {
 public:
  explicit Loader(HfFolder* f) : f_(*f) {}

  Status Files(const fs::path& dir) {
    std::set<std::string> names;
    std::error_code error;
    if (fs::exists(dir / "model.safetensors.index.json", error)) {
      GYRE_ASSIGN_OR_RETURN(const json::object index, ReadJson(dir / "model.safetensors.index.json"));
      const json::value* map = index.if_contains("weight_map");
      if (map == nullptr || !map->is_object()) return DataLoss("model.safetensors.index.json has no weight_map");
      for (const auto& item : map->get_object()) {
        if (!item.value().is_string()) return DataLoss("model.safetensors.index.json: a shard without a name");
        const std::string name(item.value().get_string().data(), item.value().get_string().size());
        if (name.find('/') != std::string::npos)
          return DataLoss("model.safetensors.index.json names {}, which is not in the folder", Printable(name));
        names.insert(name);
      }
    } else {
      names.insert("model.safetensors");
    }
    std::string missing;
    for (const std::string& name : names) {
      if (!fs::exists(dir / name, error)) missing += (missing.empty() ? "" : ", ") + name;
    }
    if (!missing.empty()) return NotFound("missing: {}", missing);
    for (const std::string& name : names) {
      GYRE_ASSIGN_OR_RETURN(auto file, MappedFile::Open((dir / name).string()));
      f_.files.push_back(file);
      StatusOr<std::map<std::string, SafeTensor>> tensors = ParseSafetensors(file->bytes());
      if (!tensors.ok()) return Annotate(tensors.status(), name);
      for (auto& [tensor, view] : *tensors) {
        if (!all_.emplace(tensor, std::move(view)).second)
          return DataLoss("{}: tensor {} is in another shard too", name, Printable(tensor));
      }
    }
    return absl::OkStatus();
  }

  Status Tensors(bool tied) {
    for (const auto& [name, t] : all_) {
      if (Ends(name, ".weight_scale_inv") || Ends(name, ".weight_scale") || Ends(name, ".input_scale") ||
          Ends(name, ".weight_shape"))
        continue;
      const auto renamed = GgufName(name, f_.architecture.gemma);
      if (!renamed)
        return Unimplemented("tensor {} has no place in the architecture {}", Printable(name), f_.architecture.name);
      if (renamed->empty() || (tied && *renamed == "output.weight")) continue;
      GYRE_RETURN_IF_ERROR(Annotate(Add(name, *renamed, t), "tensor " + Printable(name)));
    }
    return absl::OkStatus();
  }

 private:
  static bool Ends(const std::string& s, std::string_view tail) {
    return s.size() > tail.size() && s.compare(s.size() - tail.size(), tail.size(), tail) == 0;
  }

  Status Add(const std::string& name, const std::string& renamed, const SafeTensor& t) {
    TensorView v;
    v.dims.assign(t.shape.rbegin(), t.shape.rend());
    if (renamed.find("ffn_gate_inp_shexp") != std::string::npos && v.dims.size() == 2 && v.dims[1] == 1)
      v.dims.pop_back();
    v.data = t.bytes.data();
    v.bytes = t.bytes.size();
    if (t.dtype == "F32" || t.dtype == "F16" || t.dtype == "BF16") {
      v.type = t.dtype == "F32" ? DType::kF32 : t.dtype == "F16" ? DType::kF16 : DType::kBF16;
      if (f_.architecture.gemma && renamed.find("norm.weight") != std::string::npos)
        GYRE_RETURN_IF_ERROR(AddOne(t, &v));
    } else if (t.dtype == "F8_E4M3") {
      GYRE_RETURN_IF_ERROR(BlockFp8(name, t, &v));
    } else if (t.dtype == "I8") {
      GYRE_RETURN_IF_ERROR(ChannelInt8(name, t, &v));
    } else {
      return Unimplemented(
          "the type {}, known are F32, F16, BF16, F8_E4M3 with weight_scale_inv and I8 with weight_scale",
          Printable(t.dtype));
    }
    // Bytes of a mapped file need not lie where a float may.
    return f_.tensors.Add(renamed, std::move(v));
  }

  // Gemma's norms are stored as what is added to one.
  Status AddOne(const SafeTensor& t, TensorView* v) {
    GYRE_ASSIGN_OR_RETURN(std::vector<float> values, ToFloats(t));
    for (float& f : values) f += 1;
    Own(std::move(values), v);
    return absl::OkStatus();
  }
  void Own(std::vector<float> values, TensorView* v) {
    f_.owned_floats.push_back(std::move(values));
    v->type = DType::kF32;
    v->data = reinterpret_cast<const std::byte*>(f_.owned_floats.back().data());
    v->bytes = 4 * f_.owned_floats.back().size();
  }

  // weight_scale_inv has a factor for each block of 128 x 128. The product is kept as bf16.
  Status BlockFp8(const std::string& name, const SafeTensor& t, TensorView* v) {
    constexpr uint64_t kSide = 128;
    const auto it = all_.find(name + "_scale_inv");
    if (t.shape.size() != 2 || it == all_.end()) return Unimplemented("8-bit floats without {}_scale_inv", name);
    const uint64_t n = t.shape[0], k = t.shape[1], down = (n + kSide - 1) / kSide, across = (k + kSide - 1) / kSide;
    if (it->second.shape != std::vector<uint64_t>{down, across})
      return DataLoss("its scales are no {} x {}", down, across);
    GYRE_ASSIGN_OR_RETURN(const std::vector<float> scales, ToFloats(it->second));
    float table[256];
    for (unsigned b = 0; b < 256; ++b) table[b] = Fp8(static_cast<uint8_t>(b));
    std::vector<uint16_t> out(n * k);
    for (uint64_t r = 0; r < n; ++r) {
      for (uint64_t c = 0; c < k; ++c) {
        const float scale = scales[r / kSide * across + c / kSide];
        out[r * k + c] = FloatToBf16(table[static_cast<uint8_t>(t.bytes[r * k + c])] * scale);
      }
    }
    f_.owned_halves.push_back(std::move(out));
    v->type = DType::kBF16;
    v->data = reinterpret_cast<const std::byte*>(f_.owned_halves.back().data());
    v->bytes = 2 * n * k;
    return absl::OkStatus();
  }

  // compressed-tensors: weight_scale has a factor a row. Read as they lie.
  Status ChannelInt8(const std::string& name, const SafeTensor& t, TensorView* v) {
    const auto it = all_.find(name + "_scale");
    if (t.shape.size() != 2 || it == all_.end()) return Unimplemented("8-bit integers without {}_scale", name);
    GYRE_ASSIGN_OR_RETURN(std::vector<float> scales, ToFloats(it->second));
    if (scales.size() != t.shape[0]) return DataLoss("{} scales for {} rows", scales.size(), t.shape[0]);
    f_.owned_floats.push_back(std::move(scales));
    v->type = DType::kI8;
    v->scales = reinterpret_cast<const std::byte*>(f_.owned_floats.back().data());
    v->group = t.shape[1];
    return absl::OkStatus();
  }

  HfFolder& f_;
  std::map<std::string, SafeTensor> all_;
};

void AddFactors(const std::vector<float>& factors, const char* name, HfFolder* f) {
  if (factors.empty()) return;
  f->owned_floats.push_back(factors);
  TensorView v;
  v.dims = {factors.size()};
  v.data = reinterpret_cast<const std::byte*>(f->owned_floats.back().data());
  v.bytes = 4 * factors.size();
  (void)f->tensors.Add(name, std::move(v));
}

Status ReadTokenizer(const fs::path& dir, const json::object& config, HfFolder* f) {
  std::error_code error;
  json::object settings;
  if (fs::exists(dir / "tokenizer_config.json", error)) {
    GYRE_ASSIGN_OR_RETURN(settings, ReadJson(dir / "tokenizer_config.json"));
  }
  if (fs::exists(dir / "chat_template.jinja", error)) {
    GYRE_ASSIGN_OR_RETURN(f->chat_template, Slurp(dir / "chat_template.jinja"));
  } else if (const json::value* t = settings.if_contains("chat_template")) {
    // One text, or several with names.
    for (const json::value& one : t->is_array() ? t->get_array() : json::array{}) {
      const json::object* o = one.if_object();
      const json::value* text = o != nullptr ? o->if_contains("template") : nullptr;
      const json::value* name = o != nullptr ? o->if_contains("name") : nullptr;
      if (text != nullptr && text->is_string() &&
          (f->chat_template.empty() || (name != nullptr && name->is_string() && name->get_string() == "default"))) {
        f->chat_template.assign(text->get_string().data(), text->get_string().size());
      }
    }
    if (t->is_string()) f->chat_template.assign(t->get_string().data(), t->get_string().size());
  }
  if (!fs::exists(dir / "tokenizer.json", error)) {
    f->tokenizer_note = "the folder has no tokenizer.json";
    return absl::OkStatus();
  }
  GYRE_ASSIGN_OR_RETURN(const json::object tokenizer, ReadJson(dir / "tokenizer.json"));
  json::object generation;  // knows more ends than config.json
  if (fs::exists(dir / "generation_config.json", error)) {
    GYRE_ASSIGN_OR_RETURN(generation, ReadJson(dir / "generation_config.json"));
  }
  for (const json::object* o : {&config, static_cast<const json::object*>(&generation)}) {
    if (const json::value* end = o->if_contains("eos_token_id"); end != nullptr && !end->is_null())
      settings["eos_token_id"] = *end;
  }
  const TensorView* embedding = f->tensors.Find("token_embd.weight");
  const int vocab = embedding != nullptr && embedding->dims.size() == 2
                        ? static_cast<int>(std::min<uint64_t>(embedding->dims[1], 1 << 24))
                        : 0;
  StatusOr<HfTokenizer> t = ReadTokenizerJson(tokenizer, settings, vocab);
  if (absl::IsUnimplemented(t.status())) {
    f->tokenizer_note = "tokenizer.json: " + Message(t.status());
    return absl::OkStatus();
  }
  if (!t.ok()) return Annotate(t.status(), "tokenizer.json");
  f->tokenizer = *std::move(t);
  return absl::OkStatus();
}

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

// Rows of int8 with a scale each as bf16.
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

}  // namespace

StatusOr<std::unique_ptr<HfFolder>> OpenHfFolder(const std::string& path) {
  const fs::path dir(path);
  auto f = std::make_unique<HfFolder>();
  std::error_code error;
  if (!fs::exists(dir, error)) return NotFound("{}: no such folder", path);
  if (!fs::is_directory(dir, error)) {
    return InvalidArgument("{}: a file, expected a folder with config.json and *.safetensors", path);
  }
  if (!fs::exists(dir / "config.json", error)) return NotFound("{}: the folder has no config.json", path);
  GYRE_ASSIGN_OR_RETURN(f->config, Slurp(dir / "config.json"));
  GYRE_ASSIGN_OR_RETURN(const json::object config, ParseJson(f->config, dir / "config.json"));
  StatusOr<HfArchitecture> arch = ReadHfConfig(config, &f->metadata);
  if (!arch.ok()) return Annotate(arch.status(), (dir / "config.json").string());
  f->architecture = *std::move(arch);
  const std::string name = fs::weakly_canonical(dir).filename().string();
  f->metadata.Set("general.name", std::string_view(name));
  const json::value* tied = config.if_contains("tie_word_embeddings");
  if (tied == nullptr && config.if_contains("text_config") != nullptr && config.at("text_config").is_object()) {
    tied = config.at("text_config").get_object().if_contains("tie_word_embeddings");
  }
  Loader loader(f.get());
  GYRE_RETURN_IF_ERROR(Annotate(loader.Files(dir), path));
  // Gemma ties unless it says otherwise.
  const bool is_tied = tied != nullptr && tied->is_bool() ? tied->get_bool() : f->architecture.gemma;
  GYRE_RETURN_IF_ERROR(Annotate(loader.Tensors(is_tied), path));
  AddFactors(f->architecture.rope_long, "rope_factors_long.weight", f.get());
  AddFactors(f->architecture.rope_short, "rope_factors_short.weight", f.get());
  GYRE_RETURN_IF_ERROR(Annotate(ReadTokenizer(dir, config, f.get()), path));
  return f;
}

Status ConvertToGguf(const HfFolder& folder, const std::string& out, const ConvertToGgufOptions& options) {
  Metadata tokenizer;
  if (folder.tokenizer) {
    GYRE_RETURN_IF_ERROR(WriteTokenizer(*folder.tokenizer, &tokenizer));
  } else {
    tokenizer.Set("tokenizer.ggml.model", std::string_view("none"));
  }
  if (!folder.chat_template.empty()) tokenizer.Set("tokenizer.chat_template", std::string_view(folder.chat_template));
  GYRE_ASSIGN_OR_RETURN(GgufWriter writer, GgufWriter::Create(out, {.overwrite = options.overwrite, .sources = folder.files}));
  for (const Metadata* m : {&folder.metadata, static_cast<const Metadata*>(&tokenizer)}) {
    for (const auto& [key, value] : m->values()) writer.Add(key, value);
  }
  // Experts of a layer become one tensor.
  struct Item {
    std::string name;
    std::vector<const TensorView*> parts;
  };
  std::map<std::string, std::map<int, const TensorView*>> experts;
  std::vector<Item> items;
  uint64_t total = 0, done = 0;
  for (const auto& [name, t] : folder.tensors.all()) {
    total += t.bytes;
    std::string_view rest(name);
    bool is_expert = false;
    if (Eat(&rest, "blk.") && EatNumber(&rest)) {
      for (std::string_view part : {"ffn_gate.", "ffn_up.", "ffn_down."}) {
        std::string_view tail = rest;
        if (!Eat(&tail, part)) continue;
        if (const auto number = EatNumber(&tail)) {
          experts[name.substr(0, name.size() - rest.size()) + std::string(part.substr(0, part.size() - 1)) +
                  "_exps.weight"][*number] = &t;
          is_expert = true;
        }
      }
    }
    if (!is_expert) items.push_back({name, {&t}});
  }
  for (const auto& [name, parts] : experts) {
    Item item{.name = name, .parts = {}};
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
  for (const Item& item : items) {
    std::vector<uint64_t> dims = item.parts[0]->dims;
    if (item.name.find("_exps.") != std::string::npos) dims.push_back(item.parts.size());
    const DType type = item.parts[0]->type == DType::kI8 ? DType::kBF16 : item.parts[0]->type;
    writer.AddTensor(item.name, type, dims);
  }
  GYRE_RETURN_IF_ERROR(writer.Begin());
  auto heads_of = [&](const char* key) -> uint64_t {
    const auto it = folder.metadata.values().find(folder.architecture.name + "." + key);
    uint32_t v = 0;
    if (it != folder.metadata.values().end()) std::memcpy(&v, it->second.bytes.data(), 4);
    return v;
  };
  const uint64_t heads = heads_of("attention.head_count"), stated = heads_of("attention.head_count_kv"),
                 kv_heads = stated == 0 ? heads : stated;
  for (const Item& item : items) {
    for (const TensorView* t : item.parts) {
      HintRead({t->data, t->bytes}, ReadHint::kSoon);
      std::vector<std::byte> bytes;
      if (t->type == DType::kI8) bytes = AsBf16(*t);
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
