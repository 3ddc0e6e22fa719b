// Reads a file's layers from its metadata: the facts of their mixers and feed-forward blocks.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <limits>

#include "base/kv_type.h"
#include "model/architecture.h"

namespace gyre {
namespace {

StatusOr<ExpertSpec> ReadExperts(const SpecSource& from, int ffn) {
  ExpertSpec e;
  GYRE_ASSIGN_OR_RETURN(e.count, from.keys.Count("expert_count", 1 << 16));
  if (e.count == 0) return e;
  GYRE_ASSIGN_OR_RETURN(e.used, from.keys.Int("expert_used_count", e.count));
  GYRE_ASSIGN_OR_RETURN(e.width, from.keys.Int("expert_feed_forward_length", kMaxDim, ffn));
  GYRE_ASSIGN_OR_RETURN(const auto normalize, from.gguf.Bool(from.keys.Name("expert_weights_norm")));
  e.normalize = normalize.value_or(from.arch.normalize_experts);
  GYRE_ASSIGN_OR_RETURN(const double scale, from.keys.Number("expert_weights_scale", 0));
  e.scale = scale != 0 ? static_cast<float>(scale) : 1.0f;
  e.activation = from.arch.activation;
  if (from.arch.choice_bias != nullptr) e.choice_bias_name = from.arch.choice_bias;
  e.near = from.arch.near;
  e.router_sees_input = from.arch.router_sees_input;
  e.weight_on_input = from.arch.weight_on_input;
  e.router_bias = e.biases = from.arch.expert_biases;
  e.score = from.arch.router;
  GYRE_ASSIGN_OR_RETURN(const int gating, from.keys.Count("expert_gating_func", 255));
  if (gating == 1) {
    e.score = RouterScore::kSoftmax;
  } else if (gating == 2) {
    e.score = RouterScore::kSigmoid;
  } else if (gating == 3) {  // a softmax of those that were chosen
    e.score = RouterScore::kSoftmax;
    e.normalize = true;
  } else if (gating != 0) {
    return Unimplemented("{} is {}, known are 1 to 3 (softmax, sigmoid, softmax of those chosen)",
                         from.keys.Name("expert_gating_func"), gating);
  }
  GYRE_ASSIGN_OR_RETURN(e.groups, from.keys.Int("expert_group_count", e.count, 1));
  GYRE_ASSIGN_OR_RETURN(e.used_groups, from.keys.Int("expert_group_used_count", e.groups, e.groups));
  if (e.count % e.groups != 0 || e.used > e.count / e.groups * e.used_groups) {
    return DataLoss("{} experts in {} groups, of which {} are used: no {} experts can be chosen", e.count, e.groups,
                    e.used_groups, e.used);
  }
  if (e.groups > 1 && (e.near != 0 || e.weight_on_input)) {
    return Unimplemented("{} is {}, known for {} is 1", from.keys.Name("expert_group_count"), e.groups, from.arch.name);
  }
  if (e.near != 0 && gating > 1) {
    return Unimplemented("{} is {}, known for {} is 1", from.keys.Name("expert_gating_func"), gating, from.arch.name);
  }
  if (e.weight_on_input && e.used != 1) {
    return Unimplemented("{} is {}: known where weights scale what goes into experts is 1",
                         from.keys.Name("expert_used_count"), e.used);
  }
  if (from.arch.shared != SharedExpert::kGated) {
    GYRE_ASSIGN_OR_RETURN(int shared, from.keys.Count("expert_shared_count", 1 << 10));
    if (!from.keys.Has("expert_shared_count")) shared = from.arch.shared_experts;
    if (int64_t{shared} * e.width > kMaxDim) return DataLoss("{} shared experts of {}", shared, e.width);
    e.shared_width = shared * e.width;
    if (from.arch.shared == SharedExpert::kPlain) {
      GYRE_ASSIGN_OR_RETURN(const int stated, from.keys.Count("expert_shared_feed_forward_length", kMaxDim));
      if (stated > 0) e.shared_width = stated;
    }
    if (e.shared_width > 0) e.sum_scale = from.arch.sum_scale;
  } else if (from.arch.beside_dense) {
    e.beside_dense = true;
    e.shared_width = ffn;
  } else {
    GYRE_ASSIGN_OR_RETURN(e.shared_width, from.keys.Count("expert_shared_feed_forward_length", kMaxDim));
    e.shared_gate = e.shared_width > 0;
  }
  return e;
}

// Whether one of them exists: the lookup then names the missing one.
bool HasAny(const Gguf& gguf, size_t layer, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const char* name) { return gguf.tensors().Has(fmt::format("blk.{}.{}", layer, name)); });
}

// A number for each layer under the key; 0 where there is no such key.
StatusOr<std::vector<float>> FloatEachLayer(const SpecSource& from, const std::string& key) {
  std::vector<float> out(from.blocks);
  if (!from.gguf.Has(key)) return out;
  GYRE_ASSIGN_OR_RETURN(const GgufValue* array, from.gguf.Array(key, GgufType::kF32));
  if (array->count < from.blocks) return DataLoss("key {} has {} numbers, expected {}", key, array->count, from.blocks);
  std::memcpy(out.data(), array->bytes.data(), out.size() * sizeof(float));
  for (const float v : out) {
    if (!std::isfinite(v)) return DataLoss("key {} holds {}, expected finite numbers", key, v);
  }
  return out;
}

// The activations of a family with xIELU, one for each layer: its keys have no architecture in front.
StatusOr<std::vector<XieluParams>> ReadXielu(const SpecSource& from) {
  std::vector<float> values[4];
  constexpr const char* kKeys[] = {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps"};
  for (size_t i = 0; i < std::size(kKeys); ++i) {
    if (!from.gguf.Has(kKeys[i])) return DataLoss("key {} is missing", kKeys[i]);
    GYRE_ASSIGN_OR_RETURN(values[i], FloatEachLayer(from, kKeys[i]));
  }
  const auto softplus = [](float v) {
    const auto x = static_cast<double>(v);
    return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
  };
  std::vector<XieluParams> out(from.blocks);
  for (size_t i = 0; i < out.size(); ++i) {
    const float beta = values[2][i];
    out[i] = {.positive = static_cast<float>(softplus(values[0][i])),
              .negative = static_cast<float>(static_cast<double>(beta) + softplus(values[1][i])),
              .beta = beta,
              .eps = values[3][i]};
  }
  return out;
}

// A limit on silu(gate) as one on the gate: where silu rises, and limits are positive, it has an inverse.
float InverseSilu(float y) {
  double x = static_cast<double>(y) + 1;
  for (int i = 0; i < 60; ++i) {  // Newton: silu is nearly linear there
    const double s = 1 / (1 + std::exp(-x));
    x -= (x * s - static_cast<double>(y)) / (s * (1 + x * (1 - s)));
  }
  return static_cast<float>(x);
}

StatusOr<std::vector<GateLimits>> ReadLimits(const SpecSource& from, const char* key) {
  GYRE_ASSIGN_OR_RETURN(const std::vector<float> limits, FloatEachLayer(from, from.keys.Name(key)));
  std::vector<GateLimits> out;
  for (const float v : limits) {
    if (v < 0) return DataLoss("key {} holds {}, expected 0 or more", from.keys.Name(key), v);
    out.push_back({.gate = v == 0 ? 0 : InverseSilu(v), .up = v});
  }
  return out;
}

// What the feed-forward block of layer `i` sees.
Status ReadResidual(const SpecSource& from, size_t i, LayerSpec* layer) {
  switch (from.arch.residual) {
    case Residual::kSequential: break;
    case Residual::kParallel: layer->parallel = layer->shared_norm = true; break;
    case Residual::kByNorms:
      layer->parallel = layer->shared_norm = !HasAny(from.gguf, i, {layer->ffn_norm_name.data()});
      break;
    case Residual::kSecondNorm:
      layer->parallel = true;
      layer->shared_norm = !HasAny(from.gguf, i, {"attn_norm_2.weight"});
      if (layer->shared_norm) break;
      layer->ffn_norm_name = layer->mixer_norm_name;
      layer->mixer_norm_name = "attn_norm_2.weight";
      break;
    case Residual::kSwitched: {
      GYRE_ASSIGN_OR_RETURN(const auto parallel, from.gguf.Bool(from.keys.Name("use_parallel_residual")));
      layer->parallel = parallel.value_or(true);
      break;
    }
  }
  return absl::OkStatus();
}

// The number of streams, and the rank of the residuals beside mixers, which only their tensors say.
Status ReadStreams(const SpecSource& from, ModelSpec* spec, LayerSpec* layer) {
  constexpr int kMostStreams = 16;
  GYRE_ASSIGN_OR_RETURN(spec->streams, from.keys.Int("altup.num_inputs", kMostStreams));
  GYRE_ASSIGN_OR_RETURN(const int active, from.keys.Count("altup.active_idx", kMostStreams));
  if (active != 0 || spec->streams < 2) {
    return Unimplemented("{} is {} and {} is {}, known are 0 and 2 or more", from.keys.Name("altup.active_idx"), active,
                         from.keys.Name("altup.num_inputs"), spec->streams);
  }
  layer->streams = spec->streams;
  const TensorView* laurel = from.gguf.tensors().Find("blk.0.laurel_l.weight");
  if (laurel == nullptr || laurel->dims.size() != 2 || laurel->dims[1] == 0 || laurel->dims[1] > kMaxDim)
    return DataLoss("tensor blk.0.laurel_l.weight is missing or has no shape of {} x rank", spec->dim);
  layer->laurel_rank = static_cast<int>(laurel->dims[1]);
  return absl::OkStatus();
}

// 1 for each layer with a window. The pattern's key is a period or one flag a layer; without it the family's period.
StatusOr<std::vector<int64_t>> LocalLayers(const SpecSource& from) {
  const std::string key = from.keys.Name("attention.sliding_window_pattern");
  const auto it = from.gguf.metadata().find(key);
  if (it != from.gguf.metadata().end() && it->second.type == GgufType::kArray) {
    return Required(from.gguf.Ints(key, from.blocks, 0, 1), key);
  }
  GYRE_ASSIGN_OR_RETURN(const int period,
                        from.keys.Int("attention.sliding_window_pattern", kMaxLayers, from.arch.global_every));
  // A family of which every layer would be global has no period of its own: only the file says which layers are.
  if (from.arch.global_every == 1 && it == from.gguf.metadata().end()) return DataLoss("key {} is missing", key);
  std::vector<int64_t> local(from.blocks);
  const size_t after = from.arch.global_first ? 0 : 1;
  for (size_t i = 0; i < local.size(); ++i) local[i] = (i + after) % static_cast<size_t>(period) != 0 ? 1 : 0;
  return local;
}

}  // namespace

Status ReadNorms(const SpecSource& from, LayerSpec* layer, ModelSpec* spec) {
  const Norms norms = from.arch.norms;
  constexpr const char *kRms = "attention.layer_norm_rms_epsilon", *kLayer = "attention.layer_norm_epsilon";
  layer->layer_norms =
      norms == Norms::kLayer || norms == Norms::kLayerBiased || (norms == Norms::kLayerOrRms && !from.keys.Has(kRms));
  layer->norm_biases = norms == Norms::kLayerBiased;
  // Some families have LayerNorms with the other epsilon.
  const bool own = layer->layer_norms && from.keys.Has(kLayer);
  GYRE_ASSIGN_OR_RETURN(const double eps, from.keys.Positive(own ? kLayer : kRms, std::nullopt));
  layer->norm_eps = spec->final_norm_eps = static_cast<float>(eps);
  spec->final_layer_norm = layer->layer_norms;
  spec->final_norm_bias = layer->norm_biases;
  layer->pre_norms = from.arch.pre_norms;
  layer->post_norms = from.arch.post_norms;
  layer->ffn_norm_name = from.arch.ffn_norm;
  layer->residual_norms = from.arch.residual_norms;
  if (from.arch.residual_norms) {
    layer->mixer_post_norm_name = "attn_output_norm.weight";
    layer->ffn_post_norm_name = "layer_output_norm.weight";
  }
  if (from.arch.bare_post_norms) {
    layer->mixer_post_norm_name = "post_attention_norm";
    layer->ffn_post_norm_name = "post_ffw_norm";
  }
  return absl::OkStatus();
}

StatusOr<AttentionSpec> ReadAttention(const SpecSource& from, const ModelSpec& spec, size_t layers, int heads) {
  const Keys& keys = from.keys;
  AttentionSpec a;
  const int dim = spec.dim;
  GYRE_ASSIGN_OR_RETURN(a.head_dim, keys.Int("attention.key_length", kMaxHeadDim, dim / heads));
  if (a.head_dim > kMaxHeadDim)
    return DataLoss("{} heads of a dimension of {} have {} elements each, expected at most {}", heads, dim, a.head_dim,
                    kMaxHeadDim);
  if (a.head_dim <= 0 || (!keys.Has("attention.key_length") && dim % heads != 0)) {
    return DataLoss("{} heads do not divide a dimension of {}, and {} is missing", heads, dim,
                    keys.Name("attention.key_length"));
  }
  GYRE_ASSIGN_OR_RETURN(const int value_length, keys.Int("attention.value_length", kMaxHeadDim, a.head_dim));
  if (from.arch.value_width) {
    if (value_length > a.head_dim) {
      return Unimplemented("{} is {}, known is at most the key length, {}", keys.Name("attention.value_length"),
                           value_length, a.head_dim);
    }
    a.value_dim = value_length == a.head_dim ? 0 : value_length;
    GYRE_ASSIGN_OR_RETURN(const double scale, keys.Number("attention.value_scale", 1));
    a.value_scale = static_cast<float>(scale);
  } else if (value_length != a.head_dim) {
    return Unimplemented("{} is {}, known is the key length, {}", keys.Name("attention.value_length"), value_length,
                         a.head_dim);
  }
  a.causal = !from.arch.encoder;
  a.qk_norm = from.arch.qk_norm;
  a.qk_centered = from.arch.qk_centered;
  a.norm_after_rope = from.arch.norm_after_rope;
  a.output_gate = from.arch.output_gate;
  a.output_bias = from.arch.output_bias;
  a.sinks = from.arch.sinks;
  const bool wide = from.arch.wide_layers != 0 && layers == static_cast<size_t>(from.arch.wide_layers);
  a.value_norm = from.arch.value_norm;
  const double scaled = wide ? static_cast<double>(dim) / heads : static_cast<double>(a.head_dim);
  GYRE_ASSIGN_OR_RETURN(const double stated, keys.Number("attention.scale", 0));
  a.scale = static_cast<float>(stated > 0 ? stated : from.arch.unit_scale ? 1 : 1 / std::sqrt(scaled));
  if (from.arch.softcaps) {
    GYRE_ASSIGN_OR_RETURN(const double cap, keys.Number("attn_logit_softcapping", 50));
    a.softcap = static_cast<float>(std::max(0.0, cap));
  }
  GYRE_ASSIGN_OR_RETURN(a.rope, ReadRope(from, a.head_dim, spec.context));
  if (from.arch.positions) a.rope.dims = 0;
  if (from.arch.scales) {
    GYRE_ASSIGN_OR_RETURN(const auto rotates, from.gguf.Bool(keys.Name("rope.scaling.finetuned")));
    if (rotates && !*rotates) a.rope.dims = 0;
  }
  if (from.arch.temperature) {
    GYRE_ASSIGN_OR_RETURN(const double temperature, keys.Number("attention.temperature_scale", 0));
    a.temperature = static_cast<float>(temperature);
    GYRE_ASSIGN_OR_RETURN(a.temperature_length, keys.Int("rope.scaling.original_context_length",
                                                         std::numeric_limits<int32_t>::max(), spec.context));
  }
  return a;
}

// Reads the values of layers with a window that differ from the other layers' values. `trained`: as ReadRope's.
Status ReadWindowed(const SpecSource& from, int trained, AttentionSpec* a) {
  const Keys& keys = from.keys;
  if (from.arch.local_heads) {
    GYRE_ASSIGN_OR_RETURN(a->head_dim, keys.Int("attention.key_length_swa", kMaxHeadDim, a->head_dim));
    GYRE_ASSIGN_OR_RETURN(const int values, keys.Int("attention.value_length_swa", kMaxHeadDim, a->head_dim));
    if (values != a->head_dim) {
      return Unimplemented("{} is {}, known is the key length, {}", keys.Name("attention.value_length_swa"), values,
                           a->head_dim);
    }
    a->rope.dims = a->head_dim;
  }
  if (from.arch.local_heads || from.arch.half_global_rope) {
    GYRE_ASSIGN_OR_RETURN(a->rope.dims, keys.Int("rope.dimension_count_swa", a->head_dim, a->rope.dims));
    if (a->rope.dims % 2 != 0)
      return DataLoss("{} is {}, expected an even number", keys.Name("rope.dimension_count_swa"), a->rope.dims);
  }
  constexpr const char* kOwnBase = "rope.freq_base_swa";
  const bool stated = keys.Has(kOwnBase);
  if (from.arch.local_rope_base > 0 || from.arch.plain_local_rope) {
    a->rope = {.pairing = a->rope.pairing, .dims = a->rope.dims};
    const bool own = from.arch.local_rope_base > 0;
    GYRE_ASSIGN_OR_RETURN(a->rope.base, keys.Positive(own || stated ? kOwnBase : "rope.freq_base",
                                                      own ? from.arch.local_rope_base : 10000.0));
  } else if (stated) {  // the base alone differs: factors follow from it and the scaling
    const int dims = a->rope.dims;
    GYRE_ASSIGN_OR_RETURN(a->rope, ReadRope(from, a->head_dim, trained, kOwnBase));
    a->rope.dims = dims;
  }
  return absl::OkStatus();
}

Status CheckHeads(size_t layer, const AttentionSpec& a) {
  if (a.heads % a.kv_heads != 0) {
    return DataLoss("layer {}: {} heads, expected a multiple of the {} key-value heads", layer, a.heads, a.kv_heads);
  }
  if (static_cast<int64_t>(a.heads) * a.head_dim > int64_t{1} << 24) {
    return DataLoss("layer {}: {} heads of {} elements, expected at most {} in all", layer, a.heads, a.head_dim,
                    1 << 24);
  }
  return absl::OkStatus();
}

Status ReadLayers(const SpecSource& from, size_t layers, ModelSpec* spec) {
  if (from.arch.mixers != MixerFamily::kAttention) return ReadOtherLayers(from, layers, spec);
  const Keys& keys = from.keys;
  const Architecture& arch = from.arch;
  GYRE_ASSIGN_OR_RETURN(const auto heads, keys.PerLayer("attention.head_count", from.blocks, 1 << 16));
  std::vector<int64_t> kv_heads = heads;
  if (keys.Has("attention.head_count_kv")) {
    GYRE_ASSIGN_OR_RETURN(kv_heads, keys.PerLayer("attention.head_count_kv", from.blocks, 1 << 16));
  }
  std::vector<int64_t> ffn(from.blocks, 0);
  if (!arch.experts || keys.Has("feed_forward_length")) {
    GYRE_ASSIGN_OR_RETURN(ffn, keys.PerLayer("feed_forward_length", from.blocks, kMaxDim));
  }
  LayerSpec common;
  GYRE_RETURN_IF_ERROR(ReadNorms(from, &common, spec));
  GYRE_ASSIGN_OR_RETURN(AttentionSpec global, ReadAttention(from, *spec, layers, static_cast<int>(heads[0])));
  GYRE_ASSIGN_OR_RETURN(int window, keys.Count("attention.sliding_window", 1 << 30));
  if (arch.chunk > 0) {
    GYRE_ASSIGN_OR_RETURN(const int chunk, keys.Count("attention.chunk_size", 1 << 30));
    for (const int n : {window, chunk}) {
      if (n == 0 || n == arch.chunk) continue;
      return Unimplemented("{} or {} is {}, known for {} are 0 and {}", keys.Name("attention.sliding_window"),
                           keys.Name("attention.chunk_size"), n, arch.name, arch.chunk);
    }
    if (!keys.Has("attention.sliding_window")) window = arch.chunk;
  }
  AttentionSpec windowed = global;
  windowed.window = window;
  windowed.chunk = arch.chunk > 0 ? window : 0;
  // A window in the file holds for every layer, unless the family or the file has a pattern.
  std::vector<int64_t> local(from.blocks, window > 0 ? 1 : 0);
  const bool optional = arch.optional_window || arch.chunk > 0;
  if (arch.global_every > 0 && !(optional && window == 0)) {
    if (window == 0) return DataLoss("key {} is missing", keys.Name("attention.sliding_window"));
    GYRE_ASSIGN_OR_RETURN(local, LocalLayers(from));
    GYRE_RETURN_IF_ERROR(ReadWindowed(from, spec->context, &windowed));
  } else if (window > 0 && keys.Has("attention.sliding_window_pattern")) {
    GYRE_ASSIGN_OR_RETURN(local, LocalLayers(from));
  }
  if (arch.half_global_rope) {  // of both halves of the pairs' divisors the first
    RopeSpec& rope = global.rope;
    rope.dims = rope.dims / 4 * 2;
    if (!rope.frequency_factors.empty()) rope.frequency_factors.resize(static_cast<size_t>(rope.dims) / 2);
  }
  if (arch.chunk > 0 && window > 0) {  // Llama 4's: no key states them
    global.temperature = 0.1f;
    global.temperature_length = window;
    global.temperature_offset = 1;
  }
  ExpertSpec experts;
  if (arch.experts) {
    GYRE_ASSIGN_OR_RETURN(experts, ReadExperts(from, static_cast<int>(ffn[0])));
  }
  int dense = 0, step = 1;  // layers before the first with experts, and from one to the next
  if (experts.count > 0) {
    GYRE_ASSIGN_OR_RETURN(dense, keys.Count("leading_dense_block_count", kMaxLayers));
    GYRE_ASSIGN_OR_RETURN(step, keys.Int("interleave_moe_layer_step", kMaxLayers, 1));
  }
  const auto has_experts = [&](size_t i) {
    if (experts.count == 0) return false;
    if (arch.dense == DenseLayers::kByTensors) return HasAny(from.gguf, i, {"ffn_gate_inp.weight"});
    return i >= static_cast<size_t>(dense) && (i + 1) % static_cast<size_t>(step) == 0;
  };
  double residual_scale = 0;
  if (arch.scales) {
    const double by_size = arch.scales_by_size ? 1.4 / std::sqrt(static_cast<double>(layers)) : 0;
    GYRE_ASSIGN_OR_RETURN(residual_scale, keys.Number("residual_scale", by_size));
  }
  std::vector<XieluParams> xielu;
  if (arch.xielu) {
    GYRE_ASSIGN_OR_RETURN(xielu, ReadXielu(from));
  }
  std::vector<GateLimits> limits(from.blocks), shared_limits(from.blocks);
  if (arch.limits) {
    GYRE_ASSIGN_OR_RETURN(limits, ReadLimits(from, "swiglu_clamp_exp"));
    GYRE_ASSIGN_OR_RETURN(shared_limits, ReadLimits(from, "swiglu_clamp_shexp"));
  }
  int side = 0;
  size_t own_kv = layers;  // layers from here on read earlier ones' keys and values
  if (arch.per_layer_embeddings) {
    GYRE_ASSIGN_OR_RETURN(side, keys.Count("embedding_length_per_layer_input", 1 << 16));
    GYRE_ASSIGN_OR_RETURN(const int shared, keys.Count("attention.shared_kv_layers", static_cast<int64_t>(layers) - 1));
    own_kv -= static_cast<size_t>(shared);
    spec->per_layer_width = side * static_cast<int>(layers);
  }
  std::vector<float> sparsity(from.blocks);
  if (arch.streams) {
    GYRE_RETURN_IF_ERROR(ReadStreams(from, spec, &common));
    GYRE_ASSIGN_OR_RETURN(sparsity, FloatEachLayer(from, keys.Name("activation_sparsity_scale")));
  }
  for (size_t i = 0; i < layers; ++i) {
    LayerSpec layer = common;
    layer.side = {
        .width = side, .number = side > 0 ? static_cast<int>(i) : 0, .pieces = side > 0 ? static_cast<int>(layers) : 0};
    if (arch.optional_mixer_norm) layer.mixer_norm = HasAny(from.gguf, i, {layer.mixer_norm_name.data()});
    GYRE_RETURN_IF_ERROR(ReadResidual(from, i, &layer));
    if (residual_scale != 0) layer.residual_scale = static_cast<float>(residual_scale);
    AttentionSpec a = local[i] != 0 ? windowed : global;
    a.heads = static_cast<int>(heads[i]);
    a.kv_heads = static_cast<int>(kv_heads[i]);
    GYRE_RETURN_IF_ERROR(CheckHeads(i, a));
    a.qkv_bias = arch.qkv_bias == Bias::kRequired ||
                 (arch.qkv_bias == Bias::kOptional &&
                  HasAny(from.gguf, i, {"attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_qkv.bias"}));
    if (arch.optional_qk_norm && !HasAny(from.gguf, i, {"attn_q_norm.weight", "attn_k_norm.weight"}))
      a.qk_norm = QkNorm::kNone;
    a.sinks = a.sinks || (arch.optional_sinks && HasAny(from.gguf, i, {"attn_sinks.weight"}));
    a.value_is_key = arch.values_from_keys && local[i] == 0 && !HasAny(from.gguf, i, {"attn_v.weight"});
    layer.output_scale = arch.output_scale && HasAny(from.gguf, i, {"layer_output_scale.weight"});
    if (i >= own_kv) {
      for (size_t j = 0; j < own_kv; ++j) {
        if (local[j] == local[i]) a.kv_layer = static_cast<int>(j);
      }
      if (a.kv_layer < 0) {
        return DataLoss("layer {} has no keys and values, and no layer before {} has a window as it has", i, own_kv);
      }
      a.value_is_key = false;
      if (kv_heads[static_cast<size_t>(a.kv_layer)] != kv_heads[i]) {
        return DataLoss("layer {} has {} key-value heads, layer {}, whose it reads, has {}", i, kv_heads[i], a.kv_layer,
                        kv_heads[static_cast<size_t>(a.kv_layer)]);
      }
    }
    if (arch.no_rope_every > 0 && (i + 1) % static_cast<size_t>(arch.no_rope_every) == 0) a.rope.dims = 0;
    const bool mixture = has_experts(i);
    if (arch.global_no_rope && window > 0 && local[i] == 0 && (mixture || !arch.dense_ropes)) a.rope.dims = 0;
    // Llama 4 norms what it rotates, but not in its largest model, of 128 experts.
    if (a.qk_norm == QkNorm::kUnit && (a.rope.dims == 0 || experts.count == 128)) a.qk_norm = QkNorm::kNone;
    layer.mixer = std::move(a);
    if (mixture) {
      layer.feed_forward = experts;
      layer.experts()->choice_bias = arch.choice_bias != nullptr && HasAny(from.gguf, i, {arch.choice_bias});
      layer.experts()->limits = limits[i];
      layer.experts()->shared_limits = shared_limits[i];
      if (arch.beside_dense) layer.experts()->shared_width = static_cast<int>(ffn[i]);
    } else {
      if (ffn[i] == 0) return DataLoss("key {} is missing", keys.Name("feed_forward_length"));
      DenseSpec block{.width = static_cast<int>(arch.half_width ? ffn[i] / 2 : ffn[i]),
                      .activation = arch.activation,
                      .gated = arch.gated,
                      .biases = arch.biases,
                      .limits = shared_limits[i]};
      if (arch.xielu) block.xielu = xielu[i];
      block.sparsity = sparsity[i];
      layer.feed_forward = block;
    }
    spec->layers.push_back(std::move(layer));
  }
  return absl::OkStatus();
}

}  // namespace gyre
