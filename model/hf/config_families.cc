#include "model/hf/config_families.h"

#include <cmath>
#include <vector>

namespace gyre {
namespace {

namespace json = boost::json;

StatusOr<uint32_t> Positive(const HfConfig& config, const char* key) {
  GYRE_ASSIGN_OR_RETURN(const auto v, config.Uint(key));
  if (!v || *v == 0) return DataLoss("{} is {}, expected a positive number", key, v ? "0" : "missing");
  return *v;
}

const json::object* AsObject(const json::value* v) { return v != nullptr ? v->if_object() : nullptr; }

}  // namespace

StatusOr<std::vector<bool>> LayersOf(const HfConfig& config, uint32_t layers, std::string_view kind,
                                     std::string_view other, uint32_t every) {
  std::vector<bool> out;
  const json::value* types = config.Find("layer_types");
  if (types == nullptr) {
    for (uint32_t i = 0; i < layers; ++i) out.push_back((i + 1) % every != 0);
    return out;
  }
  if (!types->is_array() || types->get_array().size() != layers)
    return DataLoss("layer_types is no list of {} entries, one for each layer", layers);
  for (const json::value& t : types->get_array()) {
    const std::string_view name =
        t.is_string() ? std::string_view(t.get_string().data(), t.get_string().size()) : std::string_view();
    if (name != kind && name != other)
      return Unimplemented("layer_types has {}, known are {} and {}", Shown(t), kind, other);
    out.push_back(name == kind);
  }
  return out;
}

StatusOr<uint32_t> LeadingDense(const HfConfig& config, uint32_t layers, uint32_t fallback) {
  GYRE_ASSIGN_OR_RETURN(const auto stated, config.Uint("first_k_dense_replace"));
  const json::value* types = config.Find("mlp_layer_types");
  if (types == nullptr) return stated.value_or(fallback);
  if (!types->is_array() || types->get_array().size() != layers)
    return DataLoss("mlp_layer_types is no list of {} entries, one for each layer", layers);
  uint32_t dense = 0;
  bool sparse = false;
  for (const json::value& t : types->get_array()) {
    const bool is_dense = t.is_string() && t.get_string() == "dense";
    if (!is_dense && !(t.is_string() && t.get_string() == "sparse"))
      return Unimplemented("mlp_layer_types has {}, known are dense and sparse", Shown(t));
    if (is_dense && sparse) return Unimplemented("mlp_layer_types has a dense layer behind a sparse one");
    sparse = sparse || !is_dense;
    dense += is_dense ? 1 : 0;
  }
  return dense;
}

Status ReadDeltaNetConfig(const HfConfig& config, const std::string& p, uint32_t layers, Metadata* out) {
  GYRE_ASSIGN_OR_RETURN(const uint32_t kernel, Positive(config, "linear_conv_kernel_dim"));
  GYRE_ASSIGN_OR_RETURN(const uint32_t key_heads, Positive(config, "linear_num_key_heads"));
  GYRE_ASSIGN_OR_RETURN(const uint32_t value_heads, Positive(config, "linear_num_value_heads"));
  GYRE_ASSIGN_OR_RETURN(const uint32_t key_dim, Positive(config, "linear_key_head_dim"));
  GYRE_ASSIGN_OR_RETURN(const uint32_t value_dim, Positive(config, "linear_value_head_dim"));
  constexpr uint32_t kMost = 1 << 12;
  if (key_heads > kMost || value_heads > kMost || key_dim > kMost)
    return DataLoss(
        "linear_num_key_heads, linear_num_value_heads and linear_key_head_dim are {}, {} and {}, expected at "
        "most {}",
        key_heads, value_heads, key_dim, kMost);
  if (key_dim != value_dim) {
    return Unimplemented("linear_value_head_dim is {}, known is linear_key_head_dim, {}", value_dim, key_dim);
  }
  uint32_t inner = 0;
  if (__builtin_mul_overflow(value_heads, value_dim, &inner))
    return DataLoss("linear_num_value_heads is {}, with linear_value_head_dim {}", value_heads, value_dim);
  out->Set(p + "ssm.conv_kernel", kernel);
  out->Set(p + "ssm.state_size", key_dim);
  out->Set(p + "ssm.group_count", key_heads);
  out->Set(p + "ssm.time_step_rank", value_heads);
  out->Set(p + "ssm.inner_size", inner);
  GYRE_ASSIGN_OR_RETURN(const auto every, config.Uint("full_attention_interval"));
  GYRE_ASSIGN_OR_RETURN(const auto recurrent, LayersOf(config, layers, "linear_attention", "full_attention",
                                                       every.value_or(0) == 0 ? 4 : *every));
  out->SetBools(p + "attention.recurrent_layers", recurrent);
  // The shares of time, height and width of pictures in the rotated pairs; in a text all three are equal.
  const json::object* rope = AsObject(config.Find("rope_parameters"));
  if (rope == nullptr) rope = AsObject(config.Find("rope_scaling"));
  const json::value* sections = rope != nullptr ? rope->if_contains("mrope_section") : nullptr;
  if (sections != nullptr && sections->is_array() && sections->get_array().size() <= 4) {
    std::vector<int32_t> pairs;
    for (const json::value& n : sections->get_array())
      pairs.push_back(n.is_int64() && n.get_int64() >= 0 && n.get_int64() < 4096 ? static_cast<int32_t>(n.get_int64())
                                                                                 : 0);
    pairs.resize(4);
    out->SetInts(p + "rope.dimension_sections", pairs);
  }
  return absl::OkStatus();
}

Status ReadLatentConfig(const HfConfig& config, const std::string& p, uint32_t layers, bool sigmoid, Metadata* out) {
  GYRE_ASSIGN_OR_RETURN(const uint32_t rank, Positive(config, "kv_lora_rank"));
  GYRE_ASSIGN_OR_RETURN(const uint32_t rotated, Positive(config, "qk_rope_head_dim"));
  GYRE_ASSIGN_OR_RETURN(const uint32_t plain, Positive(config, "qk_nope_head_dim"));
  GYRE_ASSIGN_OR_RETURN(const uint32_t value, Positive(config, "v_head_dim"));
  for (const uint32_t n : {rank, rotated, plain, value}) {
    if (n > 1 << 20) return DataLoss("latent attention with a width of {}", n);
  }
  GYRE_ASSIGN_OR_RETURN(const auto q_rank, config.Uint("q_lora_rank"));
  out->Set(p + "attention.head_count_kv", uint32_t{1});
  out->Set(p + "attention.q_lora_rank", q_rank.value_or(0));
  out->Set(p + "attention.kv_lora_rank", rank);
  out->Set(p + "attention.key_length", rank + rotated);
  out->Set(p + "attention.value_length", rank);
  out->Set(p + "attention.key_length_mla", plain + rotated);
  out->Set(p + "attention.value_length_mla", value);
  out->Set(p + "rope.dimension_count", rotated);
  GYRE_ASSIGN_OR_RETURN(const uint32_t dense,
                        LeadingDense(config, layers, config.Find("first_k_dense_replace") ? 0 : 1));
  out->Set(p + "leading_dense_block_count", dense);
  const std::string score = config.Text("scoring_func"), method = config.Text("topk_method");
  if (!score.empty()) sigmoid = score == "sigmoid";
  out->Set(p + "expert_gating_func", uint32_t{sigmoid ? 2u : 1u});
  if (sigmoid && !config.Bool("norm_topk_prob")) out->Set(p + "expert_weights_norm", true);
  if (method == "greedy") {  // over all experts, whatever groups the file names
    out->Set(p + "expert_group_count", uint32_t{1});
    out->Set(p + "expert_group_used_count", uint32_t{1});
  }
  // Here groups are ranked by their best two experts, in GGUF by the best one.
  GYRE_ASSIGN_OR_RETURN(const auto groups, config.Uint("n_group"));
  if (method == "group_limited_greedy" && groups.value_or(1) > 1)
    return Unimplemented("topk_method is group_limited_greedy with {} groups, known is noaux_tc", *groups);
  return absl::OkStatus();
}

Status ReadGemma4Config(const HfConfig& config, const std::string& p, uint32_t layers, HfArchitecture* arch,
                        Metadata* out) {
  GYRE_ASSIGN_OR_RETURN(std::vector<bool> local, LayersOf(config, layers, "sliding_attention", "full_attention", 6));
  if (!local.empty()) local.back() = false;  // the last one sees everything, whatever the list says
  out->SetBools(p + "attention.sliding_window_pattern", local);
  GYRE_ASSIGN_OR_RETURN(const uint32_t window, Positive(config, "sliding_window"));
  out->Set(p + "attention.sliding_window", window);
  GYRE_ASSIGN_OR_RETURN(const uint32_t local_dim, Positive(config, "head_dim"));
  GYRE_ASSIGN_OR_RETURN(const auto stated_dim, config.Uint("global_head_dim"));
  const uint32_t dim = stated_dim.value_or(local_dim);
  if (dim > 1 << 20) return DataLoss("global_head_dim is {}", dim);
  for (const char* part : {"attention.key_length", "attention.value_length", "rope.dimension_count"}) {
    out->Set(p + part, dim);
    out->Set(p + part + "_swa", local_dim);
  }
  GYRE_ASSIGN_OR_RETURN(const uint32_t kv_heads, Positive(config, "num_key_value_heads"));
  GYRE_ASSIGN_OR_RETURN(const auto global_heads, config.Uint("num_global_key_value_heads"));
  const bool shared_values = config.Bool("attention_k_eq_v").value_or(false);
  GYRE_ASSIGN_OR_RETURN(const uint32_t ffn, Positive(config, "intermediate_size"));
  GYRE_ASSIGN_OR_RETURN(const auto stated_shared, config.Uint("num_kv_shared_layers"));
  const uint32_t shared = stated_shared.value_or(0);
  const bool wide = config.Bool("use_double_wide_mlp").value_or(false);
  if (shared >= layers || ffn > 1 << 20) return DataLoss("num_kv_shared_layers is {} of {} layers", shared, layers);
  std::vector<int32_t> heads, widths;
  for (uint32_t i = 0; i < layers; ++i) {
    heads.push_back(static_cast<int32_t>(shared_values && !local[i] && global_heads ? *global_heads : kv_heads));
    widths.push_back(static_cast<int32_t>(wide && i >= layers - shared ? 2 * ffn : ffn));
  }
  out->SetInts(p + "attention.head_count_kv", heads);
  out->SetInts(p + "feed_forward_length", widths);
  out->Set(p + "attention.shared_kv_layers", shared);
  GYRE_ASSIGN_OR_RETURN(const auto side, config.Uint("hidden_size_per_layer_input"));
  out->Set(p + "embedding_length_per_layer_input", side.value_or(0));
  GYRE_ASSIGN_OR_RETURN(const auto cap, config.Number("final_logit_softcapping"));
  if (cap) out->Set(p + "final_logit_softcapping", static_cast<float>(*cap));
  const bool experts = config.Bool("enable_moe_block").value_or(false);
  GYRE_ASSIGN_OR_RETURN(const auto used, config.Uint("top_k_experts"));
  if (experts && used) out->Set(p + "expert_used_count", *used);
  if (!experts) out->Set(p + "expert_count", uint32_t{0});

  const json::object* rope = AsObject(config.Find("rope_parameters"));
  const json::object* full = AsObject(rope != nullptr ? rope->if_contains("full_attention") : nullptr);
  const json::object* local_rope = AsObject(rope != nullptr ? rope->if_contains("sliding_attention") : nullptr);
  if (rope != nullptr && (full == nullptr || local_rope == nullptr))
    return DataLoss("rope_parameters lacks full_attention or sliding_attention");
  double base = 1e6, local_base = 1e4, part = 0.25, factor = 1;
  if (rope != nullptr) {
    constexpr std::string_view kRopeKeys[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor"};
    for (const auto& [name, o] : {std::pair("full_attention", full), {"sliding_attention", local_rope}}) {
      for (const auto& item : *o) {
        const std::string_view key(item.key().data(), item.key().size());
        if (item.value().is_null() || IsListed(kRopeKeys, key)) continue;
        return Unimplemented("rope_parameters.{}.{} is {}: the key is not known", name, Printable(key),
                             Shown(item.value()));
      }
    }
    const HfConfig f(*full), w(*local_rope);
    auto read = [](const HfConfig& from, const char* key, double* value) -> Status {
      GYRE_ASSIGN_OR_RETURN(const auto v, from.Number(key));
      if (v) *value = *v;
      return absl::OkStatus();
    };
    GYRE_RETURN_IF_ERROR(read(f, "rope_theta", &base));
    GYRE_RETURN_IF_ERROR(read(w, "rope_theta", &local_base));
    const auto type_of = [](const HfConfig& from) {  // "type" is the older name
      const std::string type = from.Text("rope_type").empty() ? from.Text("type") : from.Text("rope_type");
      return type.empty() ? "default" : type;
    };
    const std::string type = type_of(f), local_type = type_of(w);
    part = 1;
    double local_part = 1, local_factor = 1;
    GYRE_RETURN_IF_ERROR(read(w, "partial_rotary_factor", &local_part));
    GYRE_RETURN_IF_ERROR(read(w, "factor", &local_factor));
    if (local_part != 1 || local_factor != 1) {
      return Unimplemented("rope_parameters: sliding_attention has a part of {} and a factor of {}, known are 1 and 1",
                           local_part, local_factor);
    }
    GYRE_RETURN_IF_ERROR(read(f, "partial_rotary_factor", &part));
    GYRE_RETURN_IF_ERROR(read(f, "factor", &factor));
    if (type != "proportional" && !(type == "default" && part == 1))
      return Unimplemented("rope_parameters: full_attention has the type {}, known is proportional", Printable(type));
    if (local_type != "default")
      return Unimplemented("rope_parameters: sliding_attention has the type {}, known is default",
                           Printable(local_type));
  }
  out->Set(p + "rope.freq_base", static_cast<float>(base));
  out->Set(p + "rope.freq_base_swa", static_cast<float>(local_base));
  if (!(part > 0 && part <= 1) || !(factor > 0))
    return DataLoss("rope_parameters: a part of {}, a factor of {}", part, factor);
  // The divisor of pairs that are not rotated: it is so large that they do not move.
  constexpr float kStill = 1e30f;
  const auto turned = static_cast<size_t>(part * dim) / 2;
  arch->rope_factors.assign(dim / 2, kStill);
  for (size_t i = 0; i < turned; ++i) arch->rope_factors[i] = static_cast<float>(factor);
  return absl::OkStatus();
}

}  // namespace gyre
