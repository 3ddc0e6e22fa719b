// The rotation of queries and keys in config.json: rope_theta and rope_scaling as transformers 4 has them, or
// rope_parameters as transformers 5 does.
#include <algorithm>
#include <cmath>

#include "model/architecture.h"
#include "model/hf/config_families.h"
#include "model/rope_scaling.h"

namespace gyre {
namespace {

namespace json = boost::json;

// transformers does not look at the last three: they are older, another engine's, and a copy of an outer key.
constexpr std::string_view kKnown[] = {"rope_type",
                                       "type",
                                       "rope_theta",
                                       "factor",
                                       "original_max_position_embeddings",
                                       "attention_factor",
                                       "partial_rotary_factor",
                                       "beta_fast",
                                       "beta_slow",
                                       "mscale",
                                       "mscale_all_dim",
                                       "truncate",
                                       "llama_4_scaling_beta",
                                       "low_freq_factor",
                                       "high_freq_factor",
                                       "long_factor",
                                       "short_factor",
                                       "finetuned",
                                       "attn_factor",
                                       "max_position_embeddings"};
// The shares of time, height and width of pictures; in a text all three are equal.
constexpr std::string_view kOfPictures[] = {"mrope_section", "mrope_interleaved"};

// The settings of one kind of layers.
class Rope {
 public:
  // `where`: the object's name, for messages.
  Rope(const json::object& o, std::string where) : values_(o), object_(o), where_(std::move(where)) {}

  Status CheckKeys(bool pictures) const {
    for (const auto& item : object_) {
      const std::string_view key(item.key().data(), item.key().size());
      if (item.value().is_null() || IsListed(kKnown, key) || (pictures && IsListed(kOfPictures, key))) continue;
      return Unimplemented("{}.{} is {}: the key is not known", where_, Printable(key), Shown(item.value()));
    }
    for (const char* text : {"rope_type", "type"}) {
      const json::value* v = values_.Find(text);
      if (v != nullptr && !v->is_string()) return DataLoss("{}.{} is {}, expected a text", where_, text, Shown(*v));
    }
    const std::string older = values_.Text("type");
    if (!older.empty() && older != Type())
      return DataLoss("{}.type is {}, but rope_type is {}", where_, Printable(older), Printable(Type()));
    const json::value* truncate = values_.Find("truncate");
    if (truncate != nullptr && !truncate->is_bool())
      return DataLoss("{}.truncate is {}, expected true or false", where_, Shown(*truncate));
    return absl::OkStatus();
  }
  std::string Type() const {
    std::string type = values_.Text("rope_type");
    if (type.empty()) type = values_.Text("type");
    return type.empty() ? "default" : type;
  }
  StatusOr<std::optional<double>> Number(const char* key) const {
    StatusOr<std::optional<double>> v = values_.Number(key);
    if (!v.ok()) return DataLoss("{}.{}", where_, Message(v.status()));
    return v;
  }
  StatusOr<double> Needed(const char* key) const {
    GYRE_ASSIGN_OR_RETURN(const auto v, Number(key));
    if (!v) return DataLoss("{}.{} is missing, which the type {} needs", where_, key, Printable(Type()));
    return *v;
  }
  std::optional<bool> Bool(const char* key) const { return values_.Bool(key); }
  StatusOr<std::vector<float>> Factors(const char* key) const {
    std::vector<float> out;
    const json::value* v = values_.Find(key);
    if (v == nullptr || !v->is_array()) return DataLoss("{} has no list {}", where_, key);
    for (const json::value& f : v->get_array()) {
      if (!f.is_number()) return DataLoss("{}.{} holds what is no number", where_, key);
      out.push_back(f.to_number<float>());
    }
    return out;
  }
  const std::string& where() const { return where_; }

 private:
  const HfConfig values_;
  const json::object& object_;
  const std::string where_;
};

struct ScalingSource {
  const Rope& rope;
  const HfModelType& type;
  const std::string& p;
  double theta = 0;
  uint32_t dims = 0, context = 0;
  std::optional<double> original;  // the context that the model was made for before
};

// The divisors of the frequencies. GGUF has them as a tensor, and no name for the method.
Status ReadLlama3(const ScalingSource& from, HfArchitecture* arch) {
  RopeScaling s{.kind = RopeScalingKind::kLlama3};
  for (const auto& [key, value] : {std::pair("factor", &s.factor),
                                   {"low_freq_factor", &s.low_frequency_factor},
                                   {"high_freq_factor", &s.high_frequency_factor},
                                   {"original_max_position_embeddings", &s.original_context}}) {
    GYRE_ASSIGN_OR_RETURN(const double v, from.rope.Needed(key));
    *value = static_cast<float>(v);
  }
  RopeSpec spec{.dims = static_cast<int>(from.dims), .base = static_cast<float>(from.theta)};
  GYRE_RETURN_IF_ERROR(Annotate(ApplyRopeScaling(s, &spec), from.rope.where()));
  arch->rope_factors = spec.frequency_factors;
  return absl::OkStatus();
}

Status ReadYarn(const ScalingSource& from, Metadata* out) {
  const std::string& p = from.p;
  const bool latent = from.type.family == HfFamily::kLatent;
  out->Set(p + "rope.scaling.type", std::string_view("yarn"));
  const double original = from.original.value_or(from.context);
  GYRE_ASSIGN_OR_RETURN(const auto stated, from.rope.Number("factor"));
  const double factor = stated.value_or(original > 0 ? from.context / original : 1);
  out->Set(p + "rope.scaling.factor", static_cast<float>(factor));
  out->Set(p + "rope.scaling.original_context_length", static_cast<uint32_t>(original));
  for (const auto& [key, to] : {std::pair("beta_fast", "rope.scaling.yarn_beta_fast"),
                                {"beta_slow", "rope.scaling.yarn_beta_slow"},
                                {"llama_4_scaling_beta", "attention.temperature_scale"}}) {
    GYRE_ASSIGN_OR_RETURN(const auto v, from.rope.Number(key));
    if (v) out->Set(p + to, static_cast<float>(*v));
  }
  // GGUF says by the architecture whether the ramp's ends are rounded.
  const bool truncates = from.rope.Bool("truncate").value_or(true),
             usual = from.type.name != std::string_view("gpt-oss");
  if (truncates != usual) out->Set(kYarnTruncateKey, truncates);

  GYRE_ASSIGN_OR_RETURN(const auto scale, from.rope.Number("mscale"));
  GYRE_ASSIGN_OR_RETURN(const auto all, from.rope.Number("mscale_all_dim"));
  GYRE_ASSIGN_OR_RETURN(const auto attention, from.rope.Number("attention_factor"));
  const bool pair = scale.value_or(0) != 0 && all.value_or(0) != 0;
  if (latent) {
    // All scores are multiplied by the square of 0.1 * all * ln(factor) + 1, and the rotated parts by nothing.
    if (all.value_or(0) != 0 && scale.value_or(0) != *all)
      return Unimplemented("{}.mscale is {}, known is mscale_all_dim, {}", from.rope.where(), scale.value_or(0), *all);
    if (attention) return Unimplemented("{}.attention_factor is {}, known is null", from.rope.where(), *attention);
    if (all) out->Set(p + "rope.scaling.yarn_log_multiplier", static_cast<float>(0.1 * *all));
    return absl::OkStatus();
  }
  if (from.type.name == std::string_view("mistral3") && pair && *scale == 1 && !attention) {
    out->Set(p + "rope.scaling.yarn_log_multiplier", static_cast<float>(*all));
    return absl::OkStatus();
  }
  const auto grown = [&](double by) { return factor <= 1 ? 1 : 0.1 * by * std::log(factor) + 1; };
  const double used = attention ? *attention : pair ? grown(*scale) / grown(*all) : grown(1);
  // GGUF's value is relative to the one that the method would compute.
  const double relative = factor > 0 ? used / YarnAttention(factor) : 0;
  if (!(relative > 0) || !std::isfinite(relative)) {
    return DataLoss("{}: a factor of {} and an attention_factor of {}, expected positive numbers", from.rope.where(),
                    factor, used);
  }
  if (used != grown(1)) out->Set(p + "rope.scaling.attn_factor", static_cast<float>(relative));
  return absl::OkStatus();
}

Status ReadLongRope(const ScalingSource& from, HfArchitecture* arch, Metadata* out) {
  const std::string& p = from.p;
  out->Set(p + "rope.scaling.type", std::string_view("longrope"));
  GYRE_ASSIGN_OR_RETURN(arch->rope_long, from.rope.Factors("long_factor"));
  GYRE_ASSIGN_OR_RETURN(arch->rope_short, from.rope.Factors("short_factor"));
  for (const auto& [key, factors] : {std::pair("long_factor", &arch->rope_long), {"short_factor", &arch->rope_short}}) {
    if (factors->size() != from.dims / 2) {
      return DataLoss("{}.{} has {} entries, expected {} for {} rotated elements", from.rope.where(), key,
                      factors->size(), from.dims / 2, from.dims);
    }
  }
  GYRE_ASSIGN_OR_RETURN(const auto attention, from.rope.Number("attention_factor"));
  GYRE_ASSIGN_OR_RETURN(const auto factor, from.rope.Number("factor"));
  const double base = from.original.value_or(from.context),
               ratio = from.original ? (base > 0 ? from.context / base : 1) : factor.value_or(1);
  out->Set(p + "rope.scaling.original_context_length", static_cast<uint32_t>(base));
  const double computed = ratio > 1 && base > 1 ? std::sqrt(1 + std::log(ratio) / std::log(base)) : 1;
  out->Set(p + "rope.scaling.attn_factor", static_cast<float>(attention.value_or(computed)));
  return absl::OkStatus();
}

Status ReadScaling(const ScalingSource& from, HfArchitecture* arch, Metadata* out) {
  std::string type = from.rope.Type();
  // The first models of this type named their method in other ways.
  if (type == "su" || (type == "yarn" && from.type.model_type == std::string_view("phi3"))) type = "longrope";
  if (type == "default") return absl::OkStatus();
  if (type == "linear") {
    GYRE_ASSIGN_OR_RETURN(const double factor, from.rope.Needed("factor"));
    out->Set(from.p + "rope.scaling.type", std::string_view("linear"));
    out->Set(from.p + "rope.scaling.factor", static_cast<float>(factor));
    return absl::OkStatus();
  }
  if (type == "dynamic") {
    GYRE_RETURN_IF_ERROR(from.rope.Needed("factor").status());
    out->Set(kRopeFollowsLengthKey, true);
    return absl::OkStatus();
  }
  if (type == "llama3") return ReadLlama3(from, arch);
  if (type == "yarn") return ReadYarn(from, out);
  if (type == "longrope") return ReadLongRope(from, arch, out);
  return Unimplemented("{} is of the type {}, known are default, linear, dynamic, llama3, yarn and longrope",
                       from.rope.where(), Printable(type));
}

}  // namespace

Status ReadRopeParameters(const HfConfig& config, const HfModelType& type, const std::string& p, HfArchitecture* arch,
                          Metadata* out) {
  // rope_scaling is older, and rope_parameters has rope_theta too; a file may have both.
  json::object both;
  std::string where = "rope_parameters";
  // The values for an absent rope_parameters are complete, and count only without rope_scaling.
  const bool counts = config.States("rope_parameters") || !config.States("rope_scaling");
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const json::value* v = name[5] == 'p' && !counts ? nullptr : config.Find(name);
    for (const auto& item : v != nullptr && v->is_object() ? v->get_object() : json::object()) {
      if (item.value() == "default") continue;  // no statement
      const auto [place, added] = both.emplace(item.key(), item.value());
      if (!added && !Equal(place->value(), item.value())) {
        return DataLoss("rope_scaling.{} is {}, but in rope_parameters it is {}",
                        Printable({item.key().data(), item.key().size()}), Shown(item.value()), Shown(place->value()));
      }
      where = name;
    }
  }
  static const json::object kNone;
  const json::object *all = &both, *window = &kNone;
  const std::string local_where = where + ".sliding_attention";
  if (const json::value* full = both.if_contains("full_attention"); full != nullptr && type.layer_ropes) {
    for (const auto& item : both) {
      const std::string_view key(item.key().data(), item.key().size());
      if ((key == "full_attention" || key == "sliding_attention") && item.value().is_object()) continue;
      return Unimplemented("{}.{} is {}: known are objects for full_attention and sliding_attention", where,
                           Printable(key), Shown(item.value()));
    }
    if (const json::value* local = both.if_contains("sliding_attention")) window = &local->get_object();
    all = &full->get_object();
    where += ".full_attention";
  }
  const Rope rope(*all, where), local(*window, local_where);
  GYRE_RETURN_IF_ERROR(rope.CheckKeys(type.family == HfFamily::kDeltaNet));
  GYRE_RETURN_IF_ERROR(local.CheckKeys(false));

  GYRE_ASSIGN_OR_RETURN(auto theta, rope.Number("rope_theta"));
  if (!theta) {
    GYRE_ASSIGN_OR_RETURN(theta, config.Number("rope_theta"));
  }
  out->Set(p + "rope.freq_base", static_cast<float>(theta.value_or(10000)));
  GYRE_ASSIGN_OR_RETURN(auto local_theta, local.Number("rope_theta"));
  if (!local_theta) {
    GYRE_ASSIGN_OR_RETURN(local_theta, config.Number("rope_local_base_freq"));
  }
  if (type.gemma) {
    if (local_theta) out->Set(p + "rope.freq_base_swa", static_cast<float>(*local_theta));
  } else if (local_theta && *local_theta != theta.value_or(10000)) {
    return Unimplemented("{}.rope_theta is {}, known is that of full_attention, {}", local.where(), *local_theta,
                         theta.value_or(10000));
  }
  if (local.Type() != "default")
    return Unimplemented("{} is of the type {}, known is default", local.where(), Printable(local.Type()));
  GYRE_ASSIGN_OR_RETURN(const auto local_part, local.Number("partial_rotary_factor"));
  if (local_part && *local_part != 1)
    return Unimplemented("{}.partial_rotary_factor is {}, known is 1", local.where(), *local_part);

  if (type.family == HfFamily::kLatent) {
    GYRE_ASSIGN_OR_RETURN(const auto part, rope.Number("partial_rotary_factor"));
    if (part && *part != 1) return Unimplemented("{}.partial_rotary_factor is {}, known is 1", where, *part);
  }
  GYRE_ASSIGN_OR_RETURN(const auto heads, config.Uint("num_attention_heads"));
  GYRE_ASSIGN_OR_RETURN(const auto dim, config.Uint("hidden_size"));
  GYRE_ASSIGN_OR_RETURN(const auto stated, config.Uint("head_dim"));
  const uint32_t head_dim = stated.value_or(heads.value_or(0) > 0 ? dim.value_or(0) / *heads : 0);
  if (head_dim > 1 << 20) return DataLoss("heads of {} elements, expected at most {}", head_dim, 1 << 20);
  uint32_t dims = head_dim;
  if (type.family == HfFamily::kLatent) {
    GYRE_ASSIGN_OR_RETURN(const auto rotated, config.Uint("qk_rope_head_dim"));
    dims = std::min<uint32_t>(rotated.value_or(0), 1 << 20);
  } else {
    GYRE_ASSIGN_OR_RETURN(auto part, rope.Number("partial_rotary_factor"));
    if (part && *part != 1) {
      const ConfigKey* key = FindKey(type, "partial_rotary_factor");
      if (key == nullptr || key->only != nullptr)
        return Unimplemented("{}.partial_rotary_factor is {}, known for the model_type {} is 1", where, *part,
                             type.model_type);
    }
    GYRE_ASSIGN_OR_RETURN(const auto rotary, config.Uint("rotary_dim"));
    if (!part && rotary) {
      if (*rotary > head_dim)
        return DataLoss("rotary_dim is {}, expected at most {}, the elements of a head", *rotary, head_dim);
      dims = *rotary;
      out->Set(p + "rope.dimension_count", dims);
    } else {
      if (!part) {
        GYRE_ASSIGN_OR_RETURN(part, config.Number("partial_rotary_factor"));
      }
      if (part) {
        if (!(*part > 0) || *part > 1)
          return DataLoss("partial_rotary_factor is {}, expected more than 0 and at most 1", *part);
        dims = static_cast<uint32_t>(head_dim * *part);
        if (dims == 0) return DataLoss("partial_rotary_factor is {} of {} elements", *part, head_dim);
        out->Set(p + "rope.dimension_count", dims);
      }
    }
  }
  GYRE_ASSIGN_OR_RETURN(const auto context, config.Uint("max_position_embeddings"));
  ScalingSource from{.rope = rope,
                     .type = type,
                     .p = p,
                     .theta = theta.value_or(10000),
                     .dims = dims,
                     .context = context.value_or(0),
                     .original = {}};
  GYRE_ASSIGN_OR_RETURN(from.original, rope.Number("original_max_position_embeddings"));
  if (!from.original) {
    GYRE_ASSIGN_OR_RETURN(from.original, config.Number("original_max_position_embeddings"));
  }
  if (from.original && (!(*from.original >= 1) || *from.original > std::numeric_limits<int32_t>::max()))
    return DataLoss("original_max_position_embeddings is {}, expected a positive whole number", *from.original);
  return ReadScaling(from, arch, out);
}

}  // namespace gyre
