#include "model/hf/config.h"

#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <optional>

#include "model/architecture.h"
#include "model/hf/config_families.h"
#include "model/quoted.h"
#include "model/rope_scaling.h"

namespace gyre {
namespace {

namespace json = boost::json;

struct Row {
  const char* model_type;
  const char* name;
  HfFamily family = HfFamily::kAttention;
  bool gemma = false, permuted = false;
  bool added_one = false;  // norm weights are stored minus one
  // The tensor post_attention_layernorm is post_attention_norm in GGUF too.
  bool after_attention = false;
  bool pattern = false;  // layer_types says which layers have a window
  bool sigmoid = false;  // the router's score, where scoring_func does not say it
};
constexpr Row kRows[] = {
    {.model_type = "llama", .name = "llama", .permuted = true},
    {.model_type = "mistral", .name = "llama", .permuted = true},
    {.model_type = "mixtral", .name = "llama", .permuted = true},
    {.model_type = "qwen2", .name = "qwen2"},
    {.model_type = "qwen2_moe", .name = "qwen2moe"},
    {.model_type = "qwen3", .name = "qwen3"},
    {.model_type = "qwen3_moe", .name = "qwen3moe"},
    {.model_type = "gemma2", .name = "gemma2", .gemma = true, .added_one = true, .pattern = true},
    {.model_type = "gemma3_text", .name = "gemma3", .gemma = true, .added_one = true, .pattern = true},
    {.model_type = "gemma3", .name = "gemma3", .gemma = true, .added_one = true, .pattern = true},
    {.model_type = "phi3", .name = "phi3"},
    {.model_type = "glm4_moe", .name = "glm4moe", .after_attention = true},
    {.model_type = "minimax_m2", .name = "minimax-m2"},
    {.model_type = "gpt_oss", .name = "gpt-oss", .after_attention = true, .pattern = true},
    {.model_type = "ministral3", .name = "mistral3", .permuted = true},
    {.model_type = "smollm3", .name = "smollm3", .permuted = true},
    {.model_type = "olmo2", .name = "olmo2", .after_attention = true},
    {.model_type = "olmo3", .name = "olmo2", .after_attention = true, .pattern = true},
    {.model_type = "granite", .name = "granite", .permuted = true},
    {.model_type = "seed_oss", .name = "seed_oss", .after_attention = true},
    {.model_type = "gemma4", .name = "gemma4", .family = HfFamily::kGemma4, .after_attention = true},
    {.model_type = "gemma4_text", .name = "gemma4", .family = HfFamily::kGemma4, .after_attention = true},
    {.model_type = "qwen3_5_text",
     .name = "qwen35",
     .family = HfFamily::kDeltaNet,
     .added_one = true,
     .after_attention = true},
    {.model_type = "qwen3_5",
     .name = "qwen35",
     .family = HfFamily::kDeltaNet,
     .added_one = true,
     .after_attention = true},
    {.model_type = "qwen3_5_moe_text",
     .name = "qwen35moe",
     .family = HfFamily::kDeltaNet,
     .added_one = true,
     .after_attention = true},
    {.model_type = "qwen3_5_moe",
     .name = "qwen35moe",
     .family = HfFamily::kDeltaNet,
     .added_one = true,
     .after_attention = true},
    {.model_type = "qwen3_next",
     .name = "qwen3next",
     .family = HfFamily::kDeltaNet,
     .added_one = true,
     .after_attention = true},
    {.model_type = "deepseek_v2", .name = "deepseek2", .family = HfFamily::kLatent},
    {.model_type = "deepseek_v3", .name = "deepseek2", .family = HfFamily::kLatent, .sigmoid = true},
    {.model_type = "kimi_k2", .name = "deepseek2", .family = HfFamily::kLatent, .sigmoid = true},
    {.model_type = "glm4_moe_lite", .name = "deepseek2", .family = HfFamily::kLatent, .sigmoid = true},
};

StatusOr<std::vector<float>> Factors(const json::object& scaling, const char* key) {
  std::vector<float> out;
  const json::value* v = scaling.if_contains(key);
  if (v == nullptr || !v->is_array()) return DataLoss("rope_scaling has no array {}", key);
  for (const json::value& f : v->get_array()) {
    if (!f.is_number()) return DataLoss("rope_scaling.{} holds what is no number", key);
    out.push_back(f.to_number<float>());
  }
  return out;
}

Status ReadRopeScaling(const json::object& scaling, const std::string& p, uint32_t context, const HfConfig& config,
                       HfFamily family, HfArchitecture* arch, Metadata* out) {
  const HfConfig s(scaling);
  std::string type = s.Text("rope_type");
  if (type.empty()) type = s.Text("type");
  if (type.empty() || type == "default") return absl::OkStatus();
  auto copy = [&](const char* from, const char* to) -> Status {
    GYRE_ASSIGN_OR_RETURN(const auto v, s.Number(from));
    if (v) out->Set(p + to, static_cast<float>(*v));
    return absl::OkStatus();
  };
  GYRE_ASSIGN_OR_RETURN(auto original, s.Number("original_max_position_embeddings"));
  if (!original) {
    GYRE_ASSIGN_OR_RETURN(original, config.Number("original_max_position_embeddings"));
  }
  if (original) out->Set(p + "rope.scaling.original_context_length", static_cast<uint32_t>(*original));
  GYRE_RETURN_IF_ERROR(copy("factor", "rope.scaling.factor"));
  if (type == "linear" || type == "llama3") {
    out->Set(p + "rope.scaling.type", std::string_view(type));
    GYRE_RETURN_IF_ERROR(copy("low_freq_factor", "rope.scaling.low_freq_factor"));
    return copy("high_freq_factor", "rope.scaling.high_freq_factor");
  }
  if (type == "dynamic" || type == "ntk") {
    out->Set(p + "rope.scaling.type", std::string_view("ntk"));
    return absl::OkStatus();
  }
  if (type == "yarn") {
    out->Set(p + "rope.scaling.type", std::string_view("yarn"));
    GYRE_RETURN_IF_ERROR(copy("beta_fast", "rope.scaling.yarn_beta_fast"));
    GYRE_RETURN_IF_ERROR(copy("beta_slow", "rope.scaling.yarn_beta_slow"));
    GYRE_ASSIGN_OR_RETURN(const auto all, s.Number("mscale_all_dim"));
    // In deepseek2 GGUF's number is the factor of all logarithms, in mistral3 it is relative to yarn's 0.1.
    if (all) {
      out->Set(p + "rope.scaling.yarn_log_multiplier",
               static_cast<float>(family == HfFamily::kLatent ? 0.1 * *all : *all));
    }
    GYRE_RETURN_IF_ERROR(copy("llama_4_scaling_beta", "attention.temperature_scale"));
    GYRE_ASSIGN_OR_RETURN(const auto scale, s.Number("mscale"));
    const double known = family == HfFamily::kLatent ? all.value_or(1) : 1;
    if (scale && *scale != known) return Unimplemented("rope_scaling.mscale is {}, known is {}", *scale, known);
    GYRE_ASSIGN_OR_RETURN(const auto attention, s.Number("attention_factor"));
    GYRE_ASSIGN_OR_RETURN(const auto factor, s.Number("factor"));
    // GGUF's value is relative to the one that the method would compute.
    if (attention && factor && *factor > 1) {
      out->Set(p + "rope.scaling.attn_factor", static_cast<float>(*attention / YarnAttention(*factor)));
    }
    return absl::OkStatus();
  }
  if (type == "longrope" || type == "su") {
    out->Set(p + "rope.scaling.type", std::string_view("longrope"));
    GYRE_ASSIGN_OR_RETURN(arch->rope_long, Factors(scaling, "long_factor"));
    GYRE_ASSIGN_OR_RETURN(arch->rope_short, Factors(scaling, "short_factor"));
    GYRE_ASSIGN_OR_RETURN(const auto attention, s.Number("attention_factor"));
    const double from = original.value_or(context), ratio = from > 0 ? context / from : 1;
    const double computed = ratio > 1 && from > 1 ? std::sqrt(1 + std::log(ratio) / std::log(from)) : 1;
    out->Set(p + "rope.scaling.attn_factor", static_cast<float>(attention.value_or(computed)));
    return absl::OkStatus();
  }
  return Unimplemented("rope_scaling is of the type {}, known are linear, llama3, dynamic, yarn and longrope",
                       Printable(type));
}

// Reads which layers have a window: from layer_types, or from Gemma 3's period.
Status ReadPattern(const HfConfig& config, const json::object& o, const std::string& p, uint32_t layers,
                   Metadata* out) {
  GYRE_ASSIGN_OR_RETURN(const auto period, config.Uint("sliding_window_pattern"));
  if (period) out->Set(p + "attention.sliding_window_pattern", *period);
  const json::value* types = o.if_contains("layer_types");
  if (types == nullptr || !types->is_array()) return absl::OkStatus();
  std::vector<bool> local;
  for (const json::value& t : types->get_array())
    local.push_back(t.is_string() && t.get_string() == "sliding_attention");
  if (local.size() != layers) return DataLoss("layer_types has {} entries for {} layers", local.size(), layers);
  out->SetBools(p + "attention.sliding_window_pattern", local);
  return absl::OkStatus();
}

// Settings of some families, with their names in GGUF.
constexpr std::pair<const char*, const char*> kCounts[] = {
    {"n_routed_experts", "expert_count"},
    {"n_shared_experts", "expert_shared_count"},
    {"first_k_dense_replace", "leading_dense_block_count"},
    {"n_group", "expert_group_count"},
    {"topk_group", "expert_group_used_count"},
    {"num_nextn_predict_layers", "nextn_predict_layers"},
    {"rotary_dim", "rope.dimension_count"},
};
constexpr std::pair<const char*, const char*> kNumbers[] = {
    {"routed_scaling_factor", "expert_weights_scale"},
    {"embedding_multiplier", "embedding_scale"},
    {"residual_multiplier", "residual_scale"},
    {"attention_multiplier", "attention.scale"},
    {"logits_scaling", "logit_scale"},
};

// Values that GGUF has no key for, as they are the same in all models of the family.
Status RefuseOthers(const HfConfig& config, const json::object& o, uint32_t layers) {
  GYRE_ASSIGN_OR_RETURN(const auto limit, config.Number("swiglu_limit"));
  if (limit && *limit != 7) return Unimplemented("swiglu_limit is {}, known is 7", *limit);
  const json::value* rotates = o.if_contains("no_rope_layers");  // 1: the layer rotates
  if (rotates == nullptr || !rotates->is_array()) return absl::OkStatus();
  if (rotates->get_array().size() != layers)
    return DataLoss("no_rope_layers has {} entries for {} layers", rotates->get_array().size(), layers);
  for (uint32_t i = 0; i < layers; ++i) {
    const json::value& v = rotates->get_array()[i];
    if (!v.is_int64() || (v.get_int64() != 0) != ((i + 1) % 4 != 0))
      return Unimplemented("no_rope_layers names others than every fourth layer");
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
  // Vision models keep the language model's settings one level deeper.
  const json::value* inner = whole.if_contains("text_config");
  const json::object& o = inner != nullptr && inner->is_object() ? inner->get_object() : whole;
  const HfConfig config(o);
  std::string type = config.Text("model_type");
  if (type.empty()) type = HfConfig(whole).Text("model_type");
  const Row* row = nullptr;
  std::string known;
  for (const Row& r : kRows) {
    if (type == r.model_type) row = &r;
    known += std::string(" ") + r.model_type;
  }
  if (row == nullptr) return Unimplemented("model_type \"{}\" is not known; known are{}", Printable(type), known);
  HfArchitecture arch{.name = row->name,
                      .gemma = row->gemma || row->family == HfFamily::kGemma4,
                      .added_one = row->added_one,
                      .permuted = row->permuted,
                      .after_attention = row->gemma || row->after_attention,
                      .consecutive_heads = row->family == HfFamily::kDeltaNet};
  const std::string p = arch.name + ".";
  out->Set("general.architecture", std::string_view(arch.name));

  auto required = [&](const char* key, const char* to) -> StatusOr<uint32_t> {
    GYRE_ASSIGN_OR_RETURN(const auto v, config.Uint(key));
    if (!v) return DataLoss("{} is missing", key);
    out->Set(p + to, *v);
    return *v;
  };
  auto optional = [&](const char* key, const char* to) -> Status {
    GYRE_ASSIGN_OR_RETURN(const auto v, config.Uint(key));
    if (v) out->Set(p + to, *v);
    return absl::OkStatus();
  };
  auto real = [&](const char* key, const char* to) -> Status {
    GYRE_ASSIGN_OR_RETURN(const auto v, config.Number(key));
    if (v) out->Set(p + to, static_cast<float>(*v));
    return absl::OkStatus();
  };
  GYRE_ASSIGN_OR_RETURN(const uint32_t layers, required("num_hidden_layers", "block_count"));
  if (layers > kMaxLayers) return DataLoss("num_hidden_layers is {}, expected at most {}", layers, kMaxLayers);
  GYRE_ASSIGN_OR_RETURN(const uint32_t dim, required("hidden_size", "embedding_length"));
  GYRE_ASSIGN_OR_RETURN(const uint32_t heads, required("num_attention_heads", "attention.head_count"));
  // A model whose layers all have experts may say only their width.
  const bool experts_only = config.Find("intermediate_size") == nullptr && row->family == HfFamily::kDeltaNet;
  GYRE_RETURN_IF_ERROR(
      required(experts_only ? "moe_intermediate_size" : "intermediate_size", "feed_forward_length").status());
  GYRE_ASSIGN_OR_RETURN(const uint32_t context, required("max_position_embeddings", "context_length"));
  GYRE_RETURN_IF_ERROR(optional("num_key_value_heads", "attention.head_count_kv"));
  GYRE_RETURN_IF_ERROR(optional("head_dim", "attention.key_length"));
  GYRE_RETURN_IF_ERROR(optional("head_dim", "attention.value_length"));
  GYRE_RETURN_IF_ERROR(optional("vocab_size", "vocab_size"));
  GYRE_RETURN_IF_ERROR(real("rms_norm_eps", "attention.layer_norm_rms_epsilon"));
  GYRE_RETURN_IF_ERROR(real("rope_theta", "rope.freq_base"));
  GYRE_RETURN_IF_ERROR(real("rope_local_base_freq", "rope.freq_base_swa"));
  GYRE_ASSIGN_OR_RETURN(const auto head_dim, config.Uint("head_dim"));
  GYRE_ASSIGN_OR_RETURN(const auto partial, config.Number("partial_rotary_factor"));
  if (partial && heads > 0) {
    const uint32_t size = head_dim.value_or(dim / heads);
    out->Set(p + "rope.dimension_count", static_cast<uint32_t>(size * *partial));
  }
  if (row->gemma) {
    GYRE_ASSIGN_OR_RETURN(const auto scalar, config.Number("query_pre_attn_scalar"));
    if (scalar && *scalar > 0) out->Set(p + "attention.scale", static_cast<float>(1 / std::sqrt(*scalar)));
    GYRE_RETURN_IF_ERROR(real("attn_logit_softcapping", "attn_logit_softcapping"));
    GYRE_RETURN_IF_ERROR(real("final_logit_softcapping", "final_logit_softcapping"));
  }
  if (row->pattern) GYRE_RETURN_IF_ERROR(ReadPattern(config, o, p, layers, out));
  if (config.Bool("use_sliding_window").value_or(true))
    GYRE_RETURN_IF_ERROR(optional("sliding_window", "attention.sliding_window"));
  for (const char* key : {"num_local_experts", "num_experts"}) GYRE_RETURN_IF_ERROR(optional(key, "expert_count"));
  GYRE_RETURN_IF_ERROR(optional("num_experts_per_tok", "expert_used_count"));
  GYRE_RETURN_IF_ERROR(optional("moe_intermediate_size", "expert_feed_forward_length"));
  GYRE_RETURN_IF_ERROR(optional("shared_expert_intermediate_size", "expert_shared_feed_forward_length"));
  for (const auto& [key, to] : kCounts) GYRE_RETURN_IF_ERROR(optional(key, to));
  for (const auto& [key, to] : kNumbers) GYRE_RETURN_IF_ERROR(real(key, to));
  // GGUF counts the layers for drafts too, which follow the others.
  GYRE_ASSIGN_OR_RETURN(const auto drafts, config.Uint("num_nextn_predict_layers"));
  if (drafts) out->Set(p + "block_count", layers + *drafts);
  GYRE_RETURN_IF_ERROR(RefuseOthers(config, o, layers));
  if (const auto normalize = config.Bool("norm_topk_prob")) out->Set(p + "expert_weights_norm", *normalize);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json::value* scaling = config.Find(key);
    if (scaling == nullptr || !scaling->is_object() || row->family == HfFamily::kGemma4) continue;
    GYRE_ASSIGN_OR_RETURN(const auto theta, HfConfig(scaling->get_object()).Number("rope_theta"));
    if (theta) out->Set(p + "rope.freq_base", static_cast<float>(*theta));
    GYRE_RETURN_IF_ERROR(ReadRopeScaling(scaling->get_object(), p, context, config, row->family, &arch, out));
  }
  switch (row->family) {
    case HfFamily::kAttention: break;
    case HfFamily::kGemma4: GYRE_RETURN_IF_ERROR(ReadGemma4Config(config, p, layers, &arch, out)); break;
    case HfFamily::kDeltaNet: GYRE_RETURN_IF_ERROR(ReadDeltaNetConfig(config, p, layers, out)); break;
    case HfFamily::kLatent: GYRE_RETURN_IF_ERROR(ReadLatentConfig(config, p, layers, row->sigmoid, out)); break;
  }
  return arch;
}

}  // namespace gyre
