// Reads a file's layers from its metadata: the facts of their mixers and feed-forward blocks.
#include <algorithm>
#include <cmath>
#include <initializer_list>
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
  e.choice_bias = from.arch.choice_bias;
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
  if (from.arch.counted_shared) {
    GYRE_ASSIGN_OR_RETURN(const int shared, from.keys.Count("expert_shared_count", 1 << 10));
    if (int64_t{shared} * e.width > kMaxDim) return DataLoss("{} shared experts of {}", shared, e.width);
    e.shared_width = shared * e.width;
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

// 1 for each layer with a window. The pattern's key is a period or one bool a layer; without it the family's period.
StatusOr<std::vector<int64_t>> LocalLayers(const SpecSource& from) {
  const std::string key = from.keys.Name("attention.sliding_window_pattern");
  const auto it = from.gguf.metadata().find(key);
  if (it != from.gguf.metadata().end() && it->second.type == GgufType::kArray) {
    if (it->second.element != GgufType::kBool) return DataLoss("key {} is no array of bools", key);
    return Required(from.gguf.Ints(key, from.blocks, 0, 1), key);
  }
  GYRE_ASSIGN_OR_RETURN(const int period,
                        from.keys.Int("attention.sliding_window_pattern", kMaxLayers, from.arch.global_every));
  std::vector<int64_t> local(from.blocks);
  for (size_t i = 0; i < local.size(); ++i) local[i] = (i + 1) % static_cast<size_t>(period) != 0 ? 1 : 0;
  return local;
}

}  // namespace

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
  if (value_length != a.head_dim) {
    return Unimplemented("{} is {}, known is the key length, {}", keys.Name("attention.value_length"), value_length,
                         a.head_dim);
  }
  a.qk_norm = from.arch.qk_norm;
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

// Reads the values of layers with a window that differ from the other layers' values.
Status ReadWindowed(const SpecSource& from, AttentionSpec* a) {
  const Keys& keys = from.keys;
  if (from.arch.local_heads) {
    GYRE_ASSIGN_OR_RETURN(a->head_dim, keys.Int("attention.key_length_swa", kMaxHeadDim, a->head_dim));
    GYRE_ASSIGN_OR_RETURN(const int values, keys.Int("attention.value_length_swa", kMaxHeadDim, a->head_dim));
    if (values != a->head_dim) {
      return Unimplemented("{} is {}, known is the key length, {}", keys.Name("attention.value_length_swa"), values,
                           a->head_dim);
    }
    GYRE_ASSIGN_OR_RETURN(a->rope.dims, keys.Int("rope.dimension_count_swa", a->head_dim, a->head_dim));
    if (a->rope.dims % 2 != 0)
      return DataLoss("{} is {}, expected an even number", keys.Name("rope.dimension_count_swa"), a->rope.dims);
  }
  if (from.arch.local_rope_base > 0 || from.arch.plain_local_rope) {
    a->rope = {.pairing = a->rope.pairing, .dims = a->rope.dims};
    const bool own = from.arch.local_rope_base > 0;
    GYRE_ASSIGN_OR_RETURN(a->rope.base, keys.Positive(own ? "rope.freq_base_swa" : "rope.freq_base",
                                                      own ? from.arch.local_rope_base : 10000.0));
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
  GYRE_ASSIGN_OR_RETURN(const double eps, keys.Positive("attention.layer_norm_rms_epsilon", std::nullopt));
  spec->final_norm_eps = static_cast<float>(eps);
  GYRE_ASSIGN_OR_RETURN(const AttentionSpec global, ReadAttention(from, *spec, layers, static_cast<int>(heads[0])));
  GYRE_ASSIGN_OR_RETURN(const int window, keys.Count("attention.sliding_window", 1 << 30));
  AttentionSpec windowed = global;
  windowed.window = window;
  // A window in the file holds for every layer, unless the family or the file has a pattern.
  std::vector<int64_t> local(from.blocks, window > 0 ? 1 : 0);
  if (arch.global_every > 0 && !(arch.optional_window && window == 0)) {
    if (window == 0) return DataLoss("key {} is missing", keys.Name("attention.sliding_window"));
    GYRE_ASSIGN_OR_RETURN(local, LocalLayers(from));
    GYRE_RETURN_IF_ERROR(ReadWindowed(from, &windowed));
  } else if (window > 0 && keys.Has("attention.sliding_window_pattern")) {
    GYRE_ASSIGN_OR_RETURN(local, LocalLayers(from));
  }
  ExpertSpec experts;
  if (arch.experts) {
    GYRE_ASSIGN_OR_RETURN(experts, ReadExperts(from, static_cast<int>(ffn[0])));
  }
  int dense = 0;  // layers, before the first with experts
  if (experts.count > 0) {
    GYRE_ASSIGN_OR_RETURN(dense, keys.Count("leading_dense_block_count", kMaxLayers));
  }
  double residual_scale = 0;
  if (arch.scales) {
    GYRE_ASSIGN_OR_RETURN(residual_scale, keys.Number("residual_scale", 0));
  }
  int side = 0;
  size_t own_kv = layers;  // layers from here on read earlier ones' keys and values
  if (arch.per_layer_embeddings) {
    GYRE_ASSIGN_OR_RETURN(side, keys.Count("embedding_length_per_layer_input", 1 << 16));
    GYRE_ASSIGN_OR_RETURN(const int shared, keys.Count("attention.shared_kv_layers", static_cast<int64_t>(layers) - 1));
    own_kv -= static_cast<size_t>(shared);
    spec->per_layer_width = side * static_cast<int>(layers);
  }
  for (size_t i = 0; i < layers; ++i) {
    LayerSpec layer;
    layer.side = {
        .width = side, .number = side > 0 ? static_cast<int>(i) : 0, .pieces = side > 0 ? static_cast<int>(layers) : 0};
    layer.norm_eps = spec->final_norm_eps;
    layer.pre_norms = arch.pre_norms;
    layer.post_norms = arch.post_norms;
    layer.ffn_norm_name = arch.ffn_norm;
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
    layer.mixer = std::move(a);
    if (experts.count > 0 && i >= static_cast<size_t>(dense)) {
      layer.feed_forward = experts;
      if (arch.beside_dense) layer.experts()->shared_width = static_cast<int>(ffn[i]);
    } else {
      if (ffn[i] == 0) return DataLoss("key {} is missing", keys.Name("feed_forward_length"));
      layer.feed_forward = DenseSpec{.width = static_cast<int>(ffn[i]), .activation = arch.activation};
    }
    spec->layers.push_back(std::move(layer));
  }
  return absl::OkStatus();
}

}  // namespace gyre
