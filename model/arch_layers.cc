// A file's layers: the facts of their mixers and feed-forward blocks, from its metadata.
#include <algorithm>
#include <cmath>

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
  GYRE_ASSIGN_OR_RETURN(e.shared_width, from.keys.Count("expert_shared_feed_forward_length", kMaxDim));
  e.shared_gate = e.shared_width > 0;
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
  const bool wide = from.arch.wide_layers != 0 && layers == static_cast<size_t>(from.arch.wide_layers);
  const double scaled = wide ? static_cast<double>(dim) / heads : static_cast<double>(a.head_dim);
  GYRE_ASSIGN_OR_RETURN(const double stated, keys.Number("attention.scale", 0));
  a.scale = static_cast<float>(stated > 0 ? stated : 1 / std::sqrt(scaled));
  if (from.arch.softcaps) {
    GYRE_ASSIGN_OR_RETURN(const double cap, keys.Number("attn_logit_softcapping", 50));
    a.softcap = static_cast<float>(std::max(0.0, cap));
  }
  GYRE_ASSIGN_OR_RETURN(a.rope, ReadRope(from, a.head_dim, spec.context));
  return a;
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
  GYRE_ASSIGN_OR_RETURN(const auto ffn, keys.PerLayer("feed_forward_length", from.blocks, kMaxDim));
  GYRE_ASSIGN_OR_RETURN(const double eps, keys.Positive("attention.layer_norm_rms_epsilon", std::nullopt));
  spec->final_norm_eps = static_cast<float>(eps);
  GYRE_ASSIGN_OR_RETURN(const AttentionSpec global, ReadAttention(from, *spec, layers, static_cast<int>(heads[0])));
  GYRE_ASSIGN_OR_RETURN(const int window, keys.Count("attention.sliding_window", 1 << 30));
  RopeSpec local_rope = global.rope;
  // A window that the file names holds in every layer, unless the family has a pattern.
  std::vector<int64_t> local(from.blocks, window > 0 ? 1 : 0);
  if (arch.global_every > 0) {
    if (window == 0) return DataLoss("key {} is missing", keys.Name("attention.sliding_window"));
    GYRE_ASSIGN_OR_RETURN(local, LocalLayers(from));
    if (arch.local_rope_base > 0) {
      local_rope = {.pairing = global.rope.pairing, .dims = global.rope.dims};
      GYRE_ASSIGN_OR_RETURN(local_rope.base, keys.Positive("rope.freq_base_swa", arch.local_rope_base));
    }
  }
  ExpertSpec experts;
  if (arch.experts) {
    GYRE_ASSIGN_OR_RETURN(experts, ReadExperts(from, static_cast<int>(ffn[0])));
  }
  for (size_t i = 0; i < layers; ++i) {
    LayerSpec layer;
    layer.norm_eps = spec->final_norm_eps;
    layer.post_norms = arch.post_norms;
    AttentionSpec a = global;
    a.heads = static_cast<int>(heads[i]);
    a.kv_heads = static_cast<int>(kv_heads[i]);
    GYRE_RETURN_IF_ERROR(CheckHeads(i, a));
    a.qkv_bias = arch.qkv_bias == Bias::kRequired || (arch.qkv_bias == Bias::kOptional && HasBias(from.gguf, i));
    if (local[i] != 0) {
      a.window = window;
      a.rope = local_rope;
    }
    layer.mixer = std::move(a);
    if (experts.count > 0)
      layer.feed_forward = experts;
    else
      layer.feed_forward = DenseSpec{.width = static_cast<int>(ffn[i]), .activation = arch.activation};
    spec->layers.push_back(std::move(layer));
  }
  return absl::OkStatus();
}

}  // namespace gyre
