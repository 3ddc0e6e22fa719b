#include "model/arch.h"

#include <cmath>
#include <limits>
#include <utility>

#include "model/quoted.h"

namespace gyre {
namespace {

enum class Bias { kNone, kOptional, kRequired };

// What the metadata leaves unsaid. A row is an architecture.
struct Architecture {
  const char* name;
  RopePairing pairing;
  Activation activation;
  bool scaled_embedding;  // times sqrt(dim)
  Bias qkv_bias;
  bool qk_norm;
  bool post_norms;
  int global_every;        // 0: every layer attends to everything; n: layers n, 2n, ... do, the others in a window
  double local_rope_base;  // of windowed layers
};

constexpr Architecture kArchitectures[] = {
    {"llama", RopePairing::kInterleaved, Activation::kSilu, false, Bias::kOptional, false, false, 0, 0},
    {"qwen2", RopePairing::kHalves, Activation::kSilu, false, Bias::kRequired, false, false, 0, 0},
    {"qwen3", RopePairing::kHalves, Activation::kSilu, false, Bias::kNone, true, false, 0, 0},
    {"gemma3", RopePairing::kHalves, Activation::kGeluTanh, true, Bias::kNone, true, true, 6, 10000.0},
};

constexpr int64_t kMaxDim = 1 << 20;
constexpr int64_t kMaxLayers = 4096;

template <typename T>
StatusOr<T> Required(StatusOr<std::optional<T>> value, const std::string& key) {
  if (!value.ok()) return value.status();
  if (!value->has_value()) return DataLoss("key {} is missing", key);
  return **value;
}

// Keys below "<architecture>.".
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
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.key_length_mla", 0},
    {"attention.value_length_mla", 0},
    {"attention.scale", 0},
    {"attention.shared_kv_layers", 0},
    {"logit_scale", 1},
    {"residual_scale", 1},
    {"embedding_scale", 1},
    {"rope.scale_linear", 1},
    {"rope.scaling.attn_factor", 1},
    {"expert_shared_count", 0},
    {"leading_dense_block_count", 0},
    {"nextn_predict_layers", 0},
};

// Values that would change the arithmetic and that no row above implements.
Status RefuseUnknownValues(const Gguf& gguf, const Keys& keys, const Architecture& arch) {
  GYRE_ASSIGN_OR_RETURN(const auto scaling, gguf.String(keys.Name("rope.scaling.type")));
  if (scaling && *scaling != "none") {
    return Unimplemented("{} is \"{}\", known is \"none\"", keys.Name("rope.scaling.type"), Printable(*scaling));
  }
  GYRE_ASSIGN_OR_RETURN(const auto experts, gguf.Int(keys.Name("expert_count"), 0, kMaxDim));
  if (experts.value_or(0) > 0)
    return Unimplemented("{} is {}: experts are not known", keys.Name("expert_count"), *experts);
  for (const auto& [key, neutral] : kNeutral) {
    GYRE_ASSIGN_OR_RETURN(const auto value, gguf.Float(keys.Name(key)));
    if (value && *value != neutral) {
      return Unimplemented("{} is {}, known for {} is {}", keys.Name(key), *value, arch.name, neutral);
    }
  }
  // A factor is applied where no type says otherwise; converters write 0 for none.
  GYRE_ASSIGN_OR_RETURN(const auto factor, gguf.Float(keys.Name("rope.scaling.factor")));
  if (!scaling && factor && *factor != 1 && *factor != 0) {
    return Unimplemented("{} is {}, known is 1", keys.Name("rope.scaling.factor"), *factor);
  }
  if (arch.global_every == 0) {
    GYRE_ASSIGN_OR_RETURN(const auto window, gguf.Float(keys.Name("attention.sliding_window")));
    GYRE_ASSIGN_OR_RETURN(const auto context, gguf.Float(keys.Name("context_length")));
    // One as wide as the context hides nothing.
    if (window && *window != 0 && !(context && *window >= *context)) {
      return Unimplemented("{} is {}: a window is not known for {}", keys.Name("attention.sliding_window"), *window,
                           arch.name);
    }
  }
  GYRE_ASSIGN_OR_RETURN(const auto parts, gguf.Int("split.count", 0, kMaxDim));
  if (parts.value_or(1) > 1)
    return Unimplemented("one of {} parts of a split model, known are models in one file", *parts);
  GYRE_ASSIGN_OR_RETURN(const auto causal, gguf.Bool(keys.Name("attention.causal")));
  if (causal && !*causal) return Unimplemented("{} is false, known is true", keys.Name("attention.causal"));
  return absl::OkStatus();
}

StatusOr<std::vector<float>> FrequencyFactors(const Gguf& gguf, int dims) {
  if (!gguf.tensors().Has("rope_freqs.weight")) return std::vector<float>();
  GYRE_ASSIGN_OR_RETURN(auto factors, gguf.tensors().Vector("rope_freqs.weight", static_cast<uint64_t>(dims / 2)));
  for (float f : factors) {
    if (!std::isfinite(f) || f <= 0) return DataLoss("tensor rope_freqs.weight holds {}, expected positive numbers", f);
  }
  return factors;
}

// Any of the three: the lookup then names the one that is missing.
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

StatusOr<LayerSpec> LayerDefaults(const Gguf& gguf, const Keys& keys, const Architecture& arch, int dim, int heads) {
  LayerSpec layer;
  GYRE_ASSIGN_OR_RETURN(layer.head_dim, keys.Int("attention.key_length", 4096, dim / heads));
  if (layer.head_dim <= 0 || (!keys.Has("attention.key_length") && dim % heads != 0)) {
    return DataLoss("{} heads do not divide a dimension of {}, and {} is missing", heads, dim,
                    keys.Name("attention.key_length"));
  }
  GYRE_ASSIGN_OR_RETURN(const int value_length, keys.Int("attention.value_length", 4096, layer.head_dim));
  if (value_length != layer.head_dim) {
    return Unimplemented("{} is {}, known is the key length, {}", keys.Name("attention.value_length"), value_length,
                         layer.head_dim);
  }
  GYRE_ASSIGN_OR_RETURN(const double eps, keys.Positive("attention.layer_norm_rms_epsilon", std::nullopt));
  layer.norm_eps = static_cast<float>(eps);
  layer.qk_norm = arch.qk_norm;
  layer.post_norms = arch.post_norms;
  layer.activation = arch.activation;
  layer.attention_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(layer.head_dim)));
  layer.rope.pairing = arch.pairing;
  GYRE_ASSIGN_OR_RETURN(layer.rope.dims, keys.Int("rope.dimension_count", layer.head_dim, layer.head_dim));
  if (layer.rope.dims % 2 != 0)
    return DataLoss("{} is {}, expected an even number", keys.Name("rope.dimension_count"), layer.rope.dims);
  GYRE_ASSIGN_OR_RETURN(layer.rope.base, keys.Positive("rope.freq_base", 10000.0));
  GYRE_ASSIGN_OR_RETURN(layer.rope.frequency_factors, FrequencyFactors(gguf, layer.rope.dims));
  return layer;
}

Status ReadLayers(const Gguf& gguf, const Keys& keys, const Architecture& arch, size_t n, ModelSpec* spec) {
  GYRE_ASSIGN_OR_RETURN(const auto heads, keys.PerLayer("attention.head_count", n, 1 << 16));
  std::vector<int64_t> kv_heads = heads;
  if (keys.Has("attention.head_count_kv")) {
    GYRE_ASSIGN_OR_RETURN(kv_heads, keys.PerLayer("attention.head_count_kv", n, 1 << 16));
  }
  GYRE_ASSIGN_OR_RETURN(const auto ffn, keys.PerLayer("feed_forward_length", n, kMaxDim));
  GYRE_ASSIGN_OR_RETURN(const LayerSpec defaults,
                        LayerDefaults(gguf, keys, arch, spec->dim, static_cast<int>(heads[0])));
  int window = 0;
  double local_base = 0;
  std::vector<int64_t> local;
  if (arch.global_every > 0) {
    GYRE_ASSIGN_OR_RETURN(window, keys.Int("attention.sliding_window", 1 << 30));
    GYRE_ASSIGN_OR_RETURN(local, LocalLayers(gguf, keys, arch, n));
    GYRE_ASSIGN_OR_RETURN(local_base, keys.Positive("rope.freq_base_swa", arch.local_rope_base));
  }
  spec->final_norm_eps = defaults.norm_eps;
  for (size_t i = 0; i < n; ++i) {
    LayerSpec layer = defaults;
    layer.heads = static_cast<int>(heads[i]);
    layer.kv_heads = static_cast<int>(kv_heads[i]);
    layer.ffn = static_cast<int>(ffn[i]);
    if (layer.heads % layer.kv_heads != 0) {
      return DataLoss("layer {}: {} heads, expected a multiple of the {} key-value heads", i, layer.heads,
                      layer.kv_heads);
    }
    if (static_cast<int64_t>(layer.heads) * layer.head_dim > int64_t{1} << 24) {
      return DataLoss("layer {}: {} heads of {} elements, expected at most {} in all", i, layer.heads, layer.head_dim,
                      1 << 24);
    }
    layer.qkv_bias = arch.qkv_bias == Bias::kRequired || (arch.qkv_bias == Bias::kOptional && HasBias(gguf, i));
    if (!local.empty() && local[i] != 0) {
      layer.window = window;
      layer.rope.base = local_base;
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

StatusOr<ModelSpec> SpecFromGguf(const Gguf& gguf) {
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

  GYRE_RETURN_IF_ERROR(ReadLayers(gguf, keys, *arch, static_cast<size_t>(layers), &spec));
  return spec;
}

}  // namespace gyre
