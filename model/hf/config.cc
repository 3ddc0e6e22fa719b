#include "model/hf/config.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>

#include "model/architecture.h"
#include "model/hf/config_families.h"
#include "model/hf/json.h"
#include "model/hf/model_types.h"
#include "model/hf/quantization_config.h"
#include "model/quoted.h"

namespace gyre {
namespace {

namespace json = boost::json;

// Reads which layers have a window, and its size.
Status ReadWindows(const HfConfig& config, const HfModelType& type, const std::string& p, uint32_t layers,
                   Metadata* out) {
  if (type.window == WindowRule::kOwn) return absl::OkStatus();
  uint32_t window = 0;  // none
  const bool off = type.window == WindowRule::kSwitched && !config.Bool("use_sliding_window").value_or(false);
  if (type.window != WindowRule::kNone && !off) {
    GYRE_ASSIGN_OR_RETURN(const auto stated, config.Uint("sliding_window"));
    window = stated.value_or(0);
  }
  const bool listed = config.Find("layer_types") != nullptr;
  std::vector<bool> local(layers, type.window == WindowRule::kAll && window > 0);
  if (type.window == WindowRule::kEvery) {
    uint32_t every = type.every;
    for (const char* key : {"_sliding_window_pattern", "sliding_window_pattern"}) {
      if (FindKey(type, key) == nullptr) continue;
      GYRE_ASSIGN_OR_RETURN(const auto period, config.Uint(key));
      if (!period || listed) continue;
      if (*period == 0) return DataLoss("{} is 0, expected a positive number", key);
      every = *period;
      out->Set(p + "attention.sliding_window_pattern", every);
    }
    GYRE_ASSIGN_OR_RETURN(local, LayersOf(config, layers, "sliding_attention", "full_attention", every));
    if (listed) out->SetBools(p + "attention.sliding_window_pattern", local);
  } else if (listed) {
    GYRE_ASSIGN_OR_RETURN(const auto stated, LayersOf(config, layers, "sliding_attention", "full_attention", 1));
    if (type.window == WindowRule::kSwitched && window > 0) local = stated;
    for (uint32_t i = 0; i < layers; ++i) {
      if (stated[i] == local[i]) continue;
      const auto named = [](bool has_window) { return has_window ? "sliding_attention" : "full_attention"; };
      return Unimplemented("layer_types names {} for layer {}, but the other settings mean {} for the model_type {}",
                           named(stated[i]), i, named(local[i]), type.model_type);
    }
  } else if (type.window == WindowRule::kSwitched && window > 0) {
    GYRE_ASSIGN_OR_RETURN(const auto first, config.Uint("max_window_layers"));
    for (uint32_t i = first.value_or(0); i < layers; ++i) local[i] = true;
  }
  const auto with = std::count(local.begin(), local.end(), true);
  if (window == 0 || (with == 0 && type.window != WindowRule::kEvery)) return absl::OkStatus();
  out->Set(p + "attention.sliding_window", window);
  if (type.window == WindowRule::kSwitched && with < static_cast<int64_t>(layers))
    out->SetBools(p + "attention.sliding_window_pattern", local);
  return absl::OkStatus();
}

// Settings that GGUF has no key for, as they are the same in all models of the type.
Status CheckLayers(const HfConfig& config, uint32_t layers) {
  GYRE_ASSIGN_OR_RETURN(const auto interval, config.Uint("no_rope_layer_interval"));
  const json::value* rotates = config.Find("no_rope_layers");  // 1: the layer rotates
  if (interval && *interval != 4 && rotates == nullptr)
    return Unimplemented("no_rope_layer_interval is {}, known is 4", *interval);
  if (rotates != nullptr && rotates->get_array().size() != layers)
    return DataLoss("no_rope_layers has {} entries for {} layers", rotates->get_array().size(), layers);
  for (uint32_t i = 0; rotates != nullptr && i < layers; ++i) {
    const json::value& v = rotates->get_array()[i];
    if (!v.is_int64() || (v.get_int64() != 0) != ((i + 1) % 4 != 0))
      return Unimplemented("no_rope_layers names others than every fourth layer");
  }
  const json::value* types = config.Find("attn_type_list");  // 1: softmax attention
  for (const json::value& v : types != nullptr ? types->get_array() : json::array()) {
    if (v != 1) return Unimplemented("attn_type_list has {}, known is 1", Shown(v));
  }
  return absl::OkStatus();
}

// Copies the settings that have a key in GGUF.
Status CopySettings(const HfConfig& config, const HfModelType& type, const std::string& p, Metadata* out) {
  std::map<std::string_view, const ConfigKey*> stated;
  for (std::span<const ConfigKey> keys : type.keys) {
    for (const ConfigKey& key : keys) {
      const json::value* v = config.Find(key.name);
      if (key.to == nullptr || v == nullptr || FindKey(type, key.name) != &key) continue;
      const auto [other, first] = stated.emplace(key.to, &key);
      if (!first && !Equal(*config.Find(other->second->name), *v)) {
        return DataLoss("{} is {}, but {} is {}", key.name, Shown(*v), other->second->name,
                        Shown(*config.Find(other->second->name)));
      }
      if (key.kind == KeyKind::kFlag) {
        out->Set(p + key.to, v->is_bool() && v->get_bool());
      } else if (key.kind == KeyKind::kNumber) {
        GYRE_ASSIGN_OR_RETURN(const auto number, config.Number(key.name));
        out->Set(p + key.to, static_cast<float>(*number));
      } else {
        GYRE_ASSIGN_OR_RETURN(const auto whole, config.Uint(key.name));
        out->Set(p + key.to, *whole);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::span<const std::byte> Metadata::Keep(const void* data, size_t bytes) {
  bytes_.emplace_back(static_cast<const char*>(data), bytes);
  return std::as_bytes(std::span(bytes_.back()));
}
void Metadata::Set(const std::string& key, std::string_view text) {
  values_[key] = {.type = GgufType::kString, .bytes = Keep(text.data(), text.size())};
}
void Metadata::Set(const std::string& key, uint32_t v) {
  values_[key] = {.type = GgufType::kU32, .bytes = Keep(&v, sizeof v)};
}
void Metadata::Set(const std::string& key, float v) {
  values_[key] = {.type = GgufType::kF32, .bytes = Keep(&v, sizeof v)};
}
void Metadata::Set(const std::string& key, bool v) { values_[key] = {.type = GgufType::kBool, .bytes = Keep(&v, 1)}; }
void Metadata::SetStrings(const std::string& key, const std::vector<std::string>& values) {
  std::string all;
  for (const std::string& s : values) {
    const uint64_t n = s.size();
    all.append(reinterpret_cast<const char*>(&n), sizeof n);
    all += s;
  }
  values_[key] = {.type = GgufType::kArray,
                  .element = GgufType::kString,
                  .count = values.size(),
                  .bytes = Keep(all.data(), all.size())};
}
void Metadata::SetInts(const std::string& key, const std::vector<int32_t>& v) {
  values_[key] = {
      .type = GgufType::kArray, .element = GgufType::kI32, .count = v.size(), .bytes = Keep(v.data(), 4 * v.size())};
}
void Metadata::SetBytes(const std::string& key, std::string_view v) {
  values_[key] = {
      .type = GgufType::kArray, .element = GgufType::kU8, .count = v.size(), .bytes = Keep(v.data(), v.size())};
}
void Metadata::SetFloats(const std::string& key, const std::vector<float>& v) {
  values_[key] = {
      .type = GgufType::kArray, .element = GgufType::kF32, .count = v.size(), .bytes = Keep(v.data(), 4 * v.size())};
}
void Metadata::SetBools(const std::string& key, const std::vector<bool>& v) {
  std::string bytes;
  for (bool b : v) bytes.push_back(b ? 1 : 0);
  values_[key] = {.type = GgufType::kArray,
                  .element = GgufType::kBool,
                  .count = v.size(),
                  .bytes = Keep(bytes.data(), bytes.size())};
}

uint32_t Metadata::Number(const std::string& key) const {
  const auto it = values_.find(key);
  uint32_t v = 0;
  if (it != values_.end() && it->second.type == GgufType::kU32) std::memcpy(&v, it->second.bytes.data(), sizeof v);
  return v;
}

StatusOr<HfArchitecture> ReadHfConfig(const json::object& whole, Metadata* out) {
  // Models of pictures and sound keep the language model's settings one level deeper. What is beside them concerns the
  // other parts.
  const json::value* inner = whole.if_contains("text_config");
  const json::object& o = inner != nullptr && inner->is_object() ? inner->get_object() : whole;
  std::string name = HfConfig(o).Text("model_type");
  if (name.empty()) name = HfConfig(whole).Text("model_type");
  const HfModelType* type = FindModelType(name);
  if (type == nullptr)
    return Unimplemented("model_type \"{}\" is not known; known are{}", Printable(name), KnownModelTypes());
  for (const json::object* part : {&o, &whole}) GYRE_RETURN_IF_ERROR(CheckQuantization(*part));
  GYRE_RETURN_IF_ERROR(CheckKeys(*type, o));
  const HfConfig config(o, json::parse(type->absent).get_object());
  HfArchitecture arch{.name = type->name,
                      .added_one = type->added_one,
                      .permuted = type->permuted,
                      .after_attention = type->gemma || type->after_attention,
                      .consecutive_heads = type->family == HfFamily::kDeltaNet,
                      .qk_norm = config.Bool("use_qk_norm")};
  if (const ConfigKey* key = FindKey(*type, "attention_bias"); key != nullptr && key->kind == KeyKind::kFlag)
    arch.attention_bias = config.Bool("attention_bias");
  // transformers ties by the outer object's key; older files have it beside the other settings only.
  const std::optional<bool> outer = HfConfig(whole).Bool("tie_word_embeddings");
  arch.tied = outer ? *outer : config.Bool("tie_word_embeddings").value_or(false);
  const std::string p = arch.name + ".";
  out->Set("general.architecture", std::string_view(arch.name));

  const auto required = [&](const char* key) -> StatusOr<uint32_t> {
    GYRE_ASSIGN_OR_RETURN(const auto v, config.Uint(key));
    if (!v) return DataLoss("{} is missing", key);
    return *v;
  };
  GYRE_ASSIGN_OR_RETURN(const uint32_t layers, required("num_hidden_layers"));
  if (layers > kMaxLayers) return DataLoss("num_hidden_layers is {}, expected at most {}", layers, kMaxLayers);
  for (const char* key : {"hidden_size", "num_attention_heads", "max_position_embeddings"})
    GYRE_RETURN_IF_ERROR(required(key).status());
  GYRE_RETURN_IF_ERROR(CopySettings(config, *type, p, out));
  if (type->family == HfFamily::kAttention && config.Find("mlp_layer_types") != nullptr) {
    GYRE_ASSIGN_OR_RETURN(const uint32_t dense, LeadingDense(config, layers, 0));
    out->Set(p + "leading_dense_block_count", dense);
  }
  if (type->family == HfFamily::kDeltaNet && config.Find("intermediate_size") == nullptr) {
    // A model whose layers all have experts may say only their width.
    GYRE_ASSIGN_OR_RETURN(const uint32_t width, required("moe_intermediate_size"));
    out->Set(p + "feed_forward_length", width);
  } else {
    GYRE_RETURN_IF_ERROR(required("intermediate_size").status());
  }
  if (type->family != HfFamily::kLatent) {
    GYRE_ASSIGN_OR_RETURN(const auto head_dim, config.Uint("head_dim"));
    if (head_dim) out->Set(p + "attention.value_length", *head_dim);
  }
  // GGUF counts the layers for drafts too, which follow the others.
  GYRE_ASSIGN_OR_RETURN(const auto drafts, config.Uint("num_nextn_predict_layers"));
  if (drafts) out->Set(p + "block_count", layers + *drafts);
  if (type->gemma) {
    GYRE_ASSIGN_OR_RETURN(const auto scalar, config.Number("query_pre_attn_scalar"));
    if (scalar && *scalar > 0) out->Set(p + "attention.scale", static_cast<float>(1 / std::sqrt(*scalar)));
    for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
      GYRE_ASSIGN_OR_RETURN(const auto cap, config.Number(key));
      // In GGUF an absent cap is the one of the first models, and 0 is none.
      if (arch.name == "gemma2" || cap) out->Set(p + key, static_cast<float>(cap.value_or(0)));
    }
  }
  GYRE_RETURN_IF_ERROR(ReadWindows(config, *type, p, layers, out));
  GYRE_RETURN_IF_ERROR(CheckLayers(config, layers));
  if (type->family != HfFamily::kGemma4) GYRE_RETURN_IF_ERROR(ReadRopeParameters(config, *type, p, &arch, out));
  switch (type->family) {
    case HfFamily::kAttention: break;
    case HfFamily::kGemma4: GYRE_RETURN_IF_ERROR(ReadGemma4Config(config, p, layers, &arch, out)); break;
    case HfFamily::kDeltaNet: GYRE_RETURN_IF_ERROR(ReadDeltaNetConfig(config, p, layers, out)); break;
    case HfFamily::kLatent: GYRE_RETURN_IF_ERROR(ReadLatentConfig(config, p, layers, type->sigmoid, out)); break;
  }
  return arch;
}

}  // namespace gyre
