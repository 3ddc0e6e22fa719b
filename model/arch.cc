#include "model/arch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/kv_type.h"
#include "model/quoted.h"
#include "model/rope_scaling.h"

namespace gyre {
namespace {

enum class Bias { kNone, kOptional, kRequired };

// One architecture: what its metadata does not say.
struct Architecture {
  const char* name;
  RopePairing pairing;
  Activation activation = Activation::kSilu;
  Bias qkv_bias = Bias::kNone;
  bool qk_norm = false;
  bool post_norms = false;
  bool scaled_embedding = false;  // the embedding is multiplied by sqrt(dim)
  bool softcaps = false;          // attention and logits have softcaps, which the metadata gives
  int global_every = 0;           // n: layers n, 2n, ... attend to everything, the others in a window. 0: all are alike
  double local_rope_base = 0;     // windowed layers have this base and no scaling; 0: they rotate as all others
  int wide_layers = 0;            // a model of so many layers scales by dim / heads in place of the head's size
  bool experts = false;           // a file may have experts
  bool normalize_experts = true;
};

constexpr Architecture kArchitectures[] = {
    {.name = "llama", .pairing = RopePairing::kInterleaved, .qkv_bias = Bias::kOptional, .experts = true},
    {.name = "mistral", .pairing = RopePairing::kInterleaved, .qkv_bias = Bias::kOptional},
    {.name = "qwen2", .pairing = RopePairing::kHalves, .qkv_bias = Bias::kRequired},
    {.name = "qwen2moe",
     .pairing = RopePairing::kHalves,
     .qkv_bias = Bias::kRequired,
     .experts = true,
     .normalize_experts = false},
    {.name = "qwen3", .pairing = RopePairing::kHalves, .qk_norm = true},
    {.name = "qwen3moe", .pairing = RopePairing::kHalves, .qk_norm = true, .experts = true},
    {.name = "gemma2",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kGeluTanh,
     .post_norms = true,
     .scaled_embedding = true,
     .softcaps = true,
     .global_every = 2,
     .wide_layers = 46},
    {.name = "gemma3",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kGeluTanh,
     .qk_norm = true,
     .post_norms = true,
     .scaled_embedding = true,
     .global_every = 6,
     .local_rope_base = 10000.0,
     .wide_layers = 62},
    {.name = "phi3", .pairing = RopePairing::kHalves},
};

constexpr int64_t kMaxDim = 1 << 20;
constexpr int64_t kMaxLayers = 4096;

template <typename T>
StatusOr<T> Required(StatusOr<std::optional<T>> value, const std::string& key) {
  if (!value.ok()) return value.status();
  if (!value->has_value()) return DataLoss("key {} is missing", key);
  return **value;
}

// Reads keys that begin with "<architecture>.".
class Keys {
 public:
  Keys(const Gguf& gguf, std::string arch) : gguf_(gguf), arch_(std::move(arch)) {}
  std::string Name(const char* key) const { return arch_ + "." + key; }

  StatusOr<int> Int(const char* key, int64_t max) const {
    GYRE_ASSIGN_OR_RETURN(const int64_t v, Required(gguf_.Int(Name(key), 1, max), Name(key)));
    return static_cast<int>(v);
  }
  StatusOr<int> Int(const char* key, int64_t max, int fallback) const {
    GYRE_ASSIGN_OR_RETURN(const auto v, gguf_.Int(Name(key), 1, max));
    return v ? static_cast<int>(*v) : fallback;
  }
  StatusOr<std::vector<int64_t>> PerLayer(const char* key, size_t layers, int64_t max) const {
    return Required(gguf_.Ints(Name(key), layers, 1, max), Name(key));
  }
  StatusOr<double> Positive(const char* key, std::optional<double> fallback) const {
    GYRE_ASSIGN_OR_RETURN(const auto v, gguf_.Float(Name(key)));
    if (!v && !fallback) return DataLoss("key {} is missing", Name(key));
    const double value = v ? *v : *fallback;
    if (!(value > 0) || !(static_cast<float>(value) > 0) || value > std::numeric_limits<float>::max())
      return DataLoss("key {} is {}, expected a positive number", Name(key), value);
    return value;
  }
  bool Has(const char* key) const { return gguf_.Has(Name(key)); }

 private:
  const Gguf& gguf_;
  const std::string arch_;
};

// Keys that change the arithmetic, and the value at which they do not.
constexpr std::pair<const char*, double> kNeutral[] = {
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.key_length_mla", 0},
    {"attention.value_length_mla", 0},
    {"attention.shared_kv_layers", 0},
    {"logit_scale", 1},
    {"residual_scale", 1},
    {"embedding_scale", 1},
    {"rope.scaling.yarn_log_multiplier", 0},
    {"expert_shared_count", 0},
    {"expert_group_count", 1},
    {"expert_gating_func", 1},  // softmax
    {"leading_dense_block_count", 0},
    {"nextn_predict_layers", 0},
};

// Values that would change the arithmetic and that no row above implements.
Status RefuseUnknownValues(const Gguf& gguf, const Keys& keys, const Architecture& arch) {
  auto refuse = [&](const char* key, double neutral) -> Status {
    GYRE_ASSIGN_OR_RETURN(const auto value, gguf.Float(keys.Name(key)));
    if (!value || *value == neutral) return absl::OkStatus();
    return Unimplemented("{} is {}, known for {} is {}", keys.Name(key), *value, arch.name, neutral);
  };
  for (const auto& [key, neutral] : kNeutral) GYRE_RETURN_IF_ERROR(refuse(key, neutral));
  if (!arch.softcaps) {
    GYRE_RETURN_IF_ERROR(refuse("attn_logit_softcapping", 0));
    GYRE_RETURN_IF_ERROR(refuse("final_logit_softcapping", 0));
  }
  if (!arch.experts) GYRE_RETURN_IF_ERROR(refuse("expert_count", 0));
  GYRE_ASSIGN_OR_RETURN(const auto causal, gguf.Bool(keys.Name("attention.causal")));
  if (causal && !*causal) return Unimplemented("{} is false, known is true", keys.Name("attention.causal"));
  return absl::OkStatus();
}

StatusOr<std::vector<float>> FrequencyFactors(const Gguf& gguf, const char* tensor, int dims) {
  if (!gguf.tensors().Has(tensor)) return std::vector<float>();
  GYRE_ASSIGN_OR_RETURN(auto factors, gguf.tensors().Vector(tensor, static_cast<uint64_t>(dims / 2)));
  for (float f : factors) {
    if (!std::isfinite(f) || f <= 0) return DataLoss("tensor {} holds {}, expected positive numbers", tensor, f);
  }
  return factors;
}

StatusOr<RopeScaling> ReadScaling(const Gguf& gguf, const Keys& keys, int context) {
  RopeScaling s;
  GYRE_ASSIGN_OR_RETURN(const auto type, gguf.String(keys.Name("rope.scaling.type")));
  auto number = [&](const char* key, double fallback) -> StatusOr<double> {
    GYRE_ASSIGN_OR_RETURN(const auto value, gguf.Float(keys.Name(key)));
    return value.value_or(fallback);
  };
  // The older key says the same; converters write 0 for none. Where no type is said, a factor is linear.
  GYRE_ASSIGN_OR_RETURN(const double older, number("rope.scale_linear", 1));
  GYRE_ASSIGN_OR_RETURN(s.factor, number("rope.scaling.factor", older));
  if (s.factor == 0) s.factor = 1;
  const std::string kind = type.value_or(s.factor == 1 ? "none" : "linear");
  if (kind == "none") {
    s.kind = RopeScalingKind::kNone;
  } else if (kind == "linear") {
    s.kind = RopeScalingKind::kLinear;
  } else if (kind == "ntk") {
    s.kind = RopeScalingKind::kNtk;
  } else if (kind == "yarn") {
    s.kind = RopeScalingKind::kYarn;
  } else if (kind == "llama3") {
    s.kind = RopeScalingKind::kLlama3;
  } else if (kind != "longrope") {  // longrope has its factors in tensors
    return Unimplemented("{} is \"{}\", known are none, linear, ntk, yarn, llama3 and longrope",
                         keys.Name("rope.scaling.type"), Printable(kind));
  }
  GYRE_ASSIGN_OR_RETURN(s.original_context, number("rope.scaling.original_context_length", context));
  GYRE_ASSIGN_OR_RETURN(s.beta_fast, number("rope.scaling.yarn_beta_fast", 32));
  GYRE_ASSIGN_OR_RETURN(s.beta_slow, number("rope.scaling.yarn_beta_slow", 1));
  GYRE_ASSIGN_OR_RETURN(s.extrapolation, number("rope.scaling.yarn_ext_factor", 1));
  if (s.extrapolation < 0) s.extrapolation = 1;  // "as the method says"
  GYRE_ASSIGN_OR_RETURN(s.low_frequency_factor, number("rope.scaling.low_freq_factor", 1));
  GYRE_ASSIGN_OR_RETURN(s.high_frequency_factor, number("rope.scaling.high_freq_factor", 4));
  GYRE_ASSIGN_OR_RETURN(const double plain, number("rope.scaling.attn_factor", 1));
  GYRE_ASSIGN_OR_RETURN(const double yarn, number("rope.scaling.yarn_attn_factor", 1));
  if (!(plain > 0) || !(yarn > 0))
    return DataLoss("{} is {}, expected a positive number", keys.Name("rope.scaling.attn_factor"), plain);
  s.attention_factor = plain * yarn;
  return s;
}

// The rotation of layers without a window. `context`: the positions that the caller wants.
StatusOr<RopeSpec> ReadRope(const Gguf& gguf, const Keys& keys, const Architecture& arch, int head_dim, int trained,
                            int context) {
  RopeSpec rope;
  rope.pairing = arch.pairing;
  GYRE_ASSIGN_OR_RETURN(rope.dims, keys.Int("rope.dimension_count", head_dim, head_dim));
  if (rope.dims % 2 != 0)
    return DataLoss("{} is {}, expected an even number", keys.Name("rope.dimension_count"), rope.dims);
  GYRE_ASSIGN_OR_RETURN(rope.base, keys.Positive("rope.freq_base", 10000.0));
  GYRE_ASSIGN_OR_RETURN(const RopeScaling scaling, ReadScaling(gguf, keys, trained));
  GYRE_RETURN_IF_ERROR(Annotate(ApplyRopeScaling(scaling, &rope), keys.Name("rope.scaling")));
  const char* tensor = "rope_freqs.weight";
  if (gguf.tensors().Has("rope_factors_long.weight") || gguf.tensors().Has("rope_factors_short.weight")) {  // longrope
    tensor = context > scaling.original_context ? "rope_factors_long.weight" : "rope_factors_short.weight";
    if (!gguf.tensors().Has(tensor)) return DataLoss("tensor {} is missing", tensor);
    rope.magnitude = static_cast<float>(scaling.attention_factor);
  }
  GYRE_ASSIGN_OR_RETURN(const auto factors, FrequencyFactors(gguf, tensor, rope.dims));
  if (rope.frequency_factors.empty()) {
    rope.frequency_factors = factors;
  } else {
    for (size_t i = 0; i < factors.size(); ++i) rope.frequency_factors[i] *= factors[i];
  }
  return rope;
}

StatusOr<ExpertSpec> ReadExperts(const Gguf& gguf, const Keys& keys, const Architecture& arch, int ffn) {
  ExpertSpec e;
  GYRE_ASSIGN_OR_RETURN(const auto count, gguf.Int(keys.Name("expert_count"), 0, 1 << 16));
  if (!count || *count == 0) return e;
  e.count = static_cast<int>(*count);
  GYRE_ASSIGN_OR_RETURN(e.used, keys.Int("expert_used_count", e.count));
  GYRE_ASSIGN_OR_RETURN(e.ffn, keys.Int("expert_feed_forward_length", kMaxDim, ffn));
  GYRE_ASSIGN_OR_RETURN(const auto normalize, gguf.Bool(keys.Name("expert_weights_norm")));
  e.normalize = normalize.value_or(arch.normalize_experts);
  GYRE_ASSIGN_OR_RETURN(const auto scale, gguf.Float(keys.Name("expert_weights_scale")));
  e.scale = scale && *scale != 0 ? static_cast<float>(*scale) : 1.0f;
  return e;
}

// True if one of the three is there: the lookup then names the one that is missing.
bool HasBias(const Gguf& gguf, size_t layer) {
  for (const char* which : {"q", "k", "v"}) {
    if (gguf.tensors().Has(fmt::format("blk.{}.attn_{}.bias", layer, which))) return true;
  }
  return false;
}

// 1 for each layer with a window. The pattern's key is a period or one bool a layer; without it the family's period.
StatusOr<std::vector<int64_t>> LocalLayers(const Gguf& gguf, const Keys& keys, const Architecture& arch,
                                           size_t layers) {
  const std::string key = keys.Name("attention.sliding_window_pattern");
  const auto it = gguf.metadata().find(key);
  if (it != gguf.metadata().end() && it->second.type == GgufType::kArray) {
    if (it->second.element != GgufType::kBool) return DataLoss("key {} is no array of bools", key);
    return Required(gguf.Ints(key, layers, 0, 1), key);
  }
  GYRE_ASSIGN_OR_RETURN(const int period, keys.Int("attention.sliding_window_pattern", kMaxLayers, arch.global_every));
  std::vector<int64_t> local(layers);
  for (size_t i = 0; i < layers; ++i) local[i] = (i + 1) % static_cast<size_t>(period) != 0 ? 1 : 0;
  return local;
}

const Architecture* FindArchitecture(const std::string& name) {
  for (const Architecture& a : kArchitectures) {
    if (name == a.name) return &a;
  }
  return nullptr;
}

StatusOr<LayerSpec> LayerDefaults(const Gguf& gguf, const Keys& keys, const Architecture& arch, const ModelSpec& spec,
                                  size_t layers, int heads, int context) {
  LayerSpec layer;
  const int dim = spec.dim;
  GYRE_ASSIGN_OR_RETURN(layer.head_dim, keys.Int("attention.key_length", kMaxHeadDim, dim / heads));
  if (layer.head_dim > kMaxHeadDim)
    return DataLoss("{} heads of a dimension of {} have {} elements each, expected at most {}", heads, dim,
                    layer.head_dim, kMaxHeadDim);
  if (layer.head_dim <= 0 || (!keys.Has("attention.key_length") && dim % heads != 0)) {
    return DataLoss("{} heads do not divide a dimension of {}, and {} is missing", heads, dim,
                    keys.Name("attention.key_length"));
  }
  GYRE_ASSIGN_OR_RETURN(const int value_length, keys.Int("attention.value_length", kMaxHeadDim, layer.head_dim));
  if (value_length != layer.head_dim) {
    return Unimplemented("{} is {}, known is the key length, {}", keys.Name("attention.value_length"), value_length,
                         layer.head_dim);
  }
  GYRE_ASSIGN_OR_RETURN(const double eps, keys.Positive("attention.layer_norm_rms_epsilon", std::nullopt));
  layer.norm_eps = static_cast<float>(eps);
  layer.qk_norm = arch.qk_norm;
  layer.post_norms = arch.post_norms;
  layer.activation = arch.activation;
  const bool wide = arch.wide_layers != 0 && layers == static_cast<size_t>(arch.wide_layers);
  const double scaled = wide ? static_cast<double>(dim) / heads : static_cast<double>(layer.head_dim);
  GYRE_ASSIGN_OR_RETURN(const auto stated, gguf.Float(keys.Name("attention.scale")));
  layer.attention_scale = static_cast<float>(stated && *stated > 0 ? *stated : 1 / std::sqrt(scaled));
  if (arch.softcaps) {
    GYRE_ASSIGN_OR_RETURN(const auto cap, gguf.Float(keys.Name("attn_logit_softcapping")));
    layer.attention_softcap = static_cast<float>(std::max(0.0, cap.value_or(50)));
  }
  GYRE_ASSIGN_OR_RETURN(layer.rope, ReadRope(gguf, keys, arch, layer.head_dim, spec.context, context));
  return layer;
}

Status ReadLayers(const Gguf& gguf, const Keys& keys, const Architecture& arch, size_t n, int context,
                  ModelSpec* spec) {
  GYRE_ASSIGN_OR_RETURN(const auto heads, keys.PerLayer("attention.head_count", n, 1 << 16));
  std::vector<int64_t> kv_heads = heads;
  if (keys.Has("attention.head_count_kv")) {
    GYRE_ASSIGN_OR_RETURN(kv_heads, keys.PerLayer("attention.head_count_kv", n, 1 << 16));
  }
  GYRE_ASSIGN_OR_RETURN(const auto ffn, keys.PerLayer("feed_forward_length", n, kMaxDim));
  GYRE_ASSIGN_OR_RETURN(const LayerSpec defaults,
                        LayerDefaults(gguf, keys, arch, *spec, n, static_cast<int>(heads[0]), context));
  GYRE_ASSIGN_OR_RETURN(const auto stated_window, gguf.Int(keys.Name("attention.sliding_window"), 0, 1 << 30));
  const int window = static_cast<int>(stated_window.value_or(0));
  RopeSpec local_rope = defaults.rope;
  // A window that the file names holds in every layer, unless the family has a pattern.
  std::vector<int64_t> local(n, window > 0 ? 1 : 0);
  if (arch.global_every > 0) {
    if (window == 0) return DataLoss("key {} is missing", keys.Name("attention.sliding_window"));
    GYRE_ASSIGN_OR_RETURN(local, LocalLayers(gguf, keys, arch, n));
    if (arch.local_rope_base > 0) {
      local_rope = {.pairing = defaults.rope.pairing, .dims = defaults.rope.dims};
      GYRE_ASSIGN_OR_RETURN(local_rope.base, keys.Positive("rope.freq_base_swa", arch.local_rope_base));
    }
  }
  GYRE_ASSIGN_OR_RETURN(const ExpertSpec experts, ReadExperts(gguf, keys, arch, static_cast<int>(ffn[0])));
  GYRE_ASSIGN_OR_RETURN(const auto shared, gguf.Int(keys.Name("expert_shared_feed_forward_length"), 0, kMaxDim));
  spec->final_norm_eps = defaults.norm_eps;
  for (size_t i = 0; i < n; ++i) {
    LayerSpec layer = defaults;
    layer.heads = static_cast<int>(heads[i]);
    layer.kv_heads = static_cast<int>(kv_heads[i]);
    layer.ffn = static_cast<int>(experts.count > 0 ? shared.value_or(0) : ffn[i]);
    layer.experts = experts;
    if (layer.heads % layer.kv_heads != 0) {
      return DataLoss("layer {}: {} heads, expected a multiple of the {} key-value heads", i, layer.heads,
                      layer.kv_heads);
    }
    if (static_cast<int64_t>(layer.heads) * layer.head_dim > int64_t{1} << 24) {
      return DataLoss("layer {}: {} heads of {} elements, expected at most {} in all", i, layer.heads, layer.head_dim,
                      1 << 24);
    }
    layer.qkv_bias = arch.qkv_bias == Bias::kRequired || (arch.qkv_bias == Bias::kOptional && HasBias(gguf, i));
    if (local[i] != 0) {
      layer.window = window;
      layer.rope = local_rope;
    }
    spec->layers.push_back(std::move(layer));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> KnownArchitectures() {
  std::vector<std::string> names;
  for (const Architecture& a : kArchitectures) names.emplace_back(a.name);
  return names;
}

StatusOr<ModelSpec> SpecFromGguf(const Gguf& gguf, int wanted_context) {
  GYRE_ASSIGN_OR_RETURN(const std::string name, Required(gguf.String("general.architecture"), "general.architecture"));
  const Architecture* arch = FindArchitecture(name);
  if (arch == nullptr) {
    std::string known;
    for (const std::string& a : KnownArchitectures()) known += " " + a;
    return Unimplemented("the architecture \"{}\" is not known; known are{}", Printable(name), known);
  }
  const Keys keys(gguf, name);
  GYRE_RETURN_IF_ERROR(RefuseUnknownValues(gguf, keys, *arch));
  ModelSpec spec;
  spec.architecture = name;
  GYRE_ASSIGN_OR_RETURN(const auto title, gguf.String("general.name"));
  spec.name = title.value_or("");
  GYRE_ASSIGN_OR_RETURN(spec.dim, keys.Int("embedding_length", kMaxDim));
  GYRE_ASSIGN_OR_RETURN(spec.context, keys.Int("context_length", std::numeric_limits<int32_t>::max()));
  GYRE_ASSIGN_OR_RETURN(const int layers, keys.Int("block_count", kMaxLayers));
  const TensorView* embedding = gguf.tensors().Find("token_embd.weight");
  if (embedding == nullptr) return DataLoss("tensor token_embd.weight is missing");
  if (embedding->dims.size() != 2 || embedding->dims[1] > uint64_t{1} << 24) {
    return DataLoss("tensor token_embd.weight has the shape {}, expected {} x vocabulary",
                    DescribeDims(embedding->dims), spec.dim);
  }
  spec.vocab = static_cast<int>(embedding->dims[1]);
  GYRE_ASSIGN_OR_RETURN(const int stated_vocab, keys.Int("vocab_size", 1 << 24, spec.vocab));
  if (stated_vocab != spec.vocab) {
    return DataLoss("{} is {}, but tensor token_embd.weight has {} rows", keys.Name("vocab_size"), stated_vocab,
                    spec.vocab);
  }
  spec.tied_head = !gguf.tensors().Has("output.weight");
  if (arch->scaled_embedding) spec.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(spec.dim)));

  if (arch->softcaps) {
    GYRE_ASSIGN_OR_RETURN(const auto cap, gguf.Float(keys.Name("final_logit_softcapping")));
    spec.final_softcap = static_cast<float>(std::max(0.0, cap.value_or(30)));
  }
  const int context = wanted_context > 0 ? wanted_context : spec.context;
  GYRE_RETURN_IF_ERROR(ReadLayers(gguf, keys, *arch, static_cast<size_t>(layers), context, &spec));
  return spec;
}

}  // namespace gyre
