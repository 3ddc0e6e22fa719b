// Reads families with latent attention or recurrent state from a file's metadata.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/kv_type.h"
#include "model/architecture.h"

namespace gyre {
namespace {

// One number for all layers, or one for each; 0 is allowed.
StatusOr<std::vector<int64_t>> EachLayer(const SpecSource& from, const char* key, int64_t max) {
  return Required(from.gguf.Ints(from.keys.Name(key), from.blocks, 0, max), from.keys.Name(key));
}

StatusOr<LatentAttentionSpec> ReadLatent(const SpecSource& from, int heads, int context) {
  const Keys& keys = from.keys;
  LatentAttentionSpec a;
  a.heads = heads;
  GYRE_ASSIGN_OR_RETURN(a.q_rank, keys.Count("attention.q_lora_rank", kMaxDim));
  GYRE_ASSIGN_OR_RETURN(a.kv_rank, keys.Int("attention.kv_lora_rank", kMaxHeadDim));
  GYRE_ASSIGN_OR_RETURN(const int kept, keys.Int("attention.key_length", kMaxHeadDim));
  // Files with the older tensors have the lengths of heads as they are multiplied under the other keys.
  const TensorView* heads_in_one = from.gguf.tensors().Find("blk.0.attn_k_b.weight");
  const bool old = heads_in_one != nullptr && heads_in_one->made != nullptr && !keys.Has("attention.key_length_mla");
  int key = kept;
  if (old) {
    GYRE_ASSIGN_OR_RETURN(a.value_dim, keys.Int("attention.value_length", kMaxHeadDim));
  } else {
    GYRE_ASSIGN_OR_RETURN(key, keys.Int("attention.key_length_mla", kMaxHeadDim));
    GYRE_ASSIGN_OR_RETURN(a.value_dim, keys.Int("attention.value_length_mla", kMaxHeadDim));
  }
  GYRE_ASSIGN_OR_RETURN(a.rope, ReadRope(from, key, context));
  if (a.rope.dims >= key || (!old && kept != a.kv_rank + a.rope.dims)) {
    return DataLoss("{} is {} and {} is {}: expected {} + {}, and more than {}", keys.Name("attention.key_length"),
                    kept, keys.Name("attention.key_length_mla"), key, a.kv_rank, a.rope.dims, a.rope.dims);
  }
  a.key_dim = key - a.rope.dims;
  // If the file has a multiplier, yarn scales the whole score, not only its rotated part.
  GYRE_ASSIGN_OR_RETURN(const double multiplier, keys.Number("rope.scaling.yarn_log_multiplier", 0));
  GYRE_ASSIGN_OR_RETURN(const double factor, keys.Number("rope.scaling.factor", 1));
  if (multiplier != 0) a.rope.magnitude = 1;
  const double grown = factor > 1 ? 1 + multiplier * std::log(factor) : 1;
  a.scale = static_cast<float>(grown * grown / std::sqrt(static_cast<double>(key)));
  return a;
}

StatusOr<DeltaNetSpec> ReadDeltaNet(const SpecSource& from) {
  const Keys& keys = from.keys;
  DeltaNetSpec d;
  GYRE_ASSIGN_OR_RETURN(d.kernel, keys.Int("ssm.conv_kernel", 64));
  GYRE_ASSIGN_OR_RETURN(d.head_dim, keys.Int("ssm.state_size", kMaxHeadDim));
  GYRE_ASSIGN_OR_RETURN(d.key_heads, keys.Int("ssm.group_count", 1 << 12));
  GYRE_ASSIGN_OR_RETURN(d.value_heads, keys.Int("ssm.time_step_rank", 1 << 12));
  GYRE_ASSIGN_OR_RETURN(const int inner, keys.Int("ssm.inner_size", kMaxDim));
  if (d.value_heads % d.key_heads != 0 || inner != d.value_heads * d.head_dim) {
    return DataLoss("{} is {}, with {} heads of {} elements for {} key heads", keys.Name("ssm.inner_size"), inner,
                    d.value_heads, d.head_dim, d.key_heads);
  }
  d.consecutive = d.joint_gates = from.arch.joint_gates;
  return d;
}

StatusOr<KimiDeltaSpec> ReadKimiDelta(const SpecSource& from, int heads) {
  KimiDeltaSpec k{.heads = heads};
  GYRE_ASSIGN_OR_RETURN(k.kernel, from.keys.Int("ssm.conv_kernel", 64));
  GYRE_ASSIGN_OR_RETURN(k.head_dim, from.keys.Int("kda.head_dim", kMaxHeadDim));
  return k;
}

StatusOr<MambaSpec> ReadMamba(const SpecSource& from, int dim) {
  const Keys& keys = from.keys;
  MambaSpec m{.plamo = from.arch.plamo};
  GYRE_ASSIGN_OR_RETURN(m.kernel, keys.Int("ssm.conv_kernel", 64));
  GYRE_ASSIGN_OR_RETURN(m.inner, keys.Int("ssm.inner_size", kMaxDim));
  GYRE_ASSIGN_OR_RETURN(m.state, keys.Int("ssm.state_size", kMaxHeadDim));
  GYRE_ASSIGN_OR_RETURN(m.rank, keys.Int("ssm.time_step_rank", kMaxDim));
  GYRE_ASSIGN_OR_RETURN(const auto norms, from.gguf.Bool(keys.Name("ssm.dt_b_c_rms")));
  m.norm_weights = from.arch.state_norms;
  m.norms = m.norm_weights || norms.value_or(false);
  m.conv_bias = !m.plamo;
  m.heads = m.inner;
  if (m.plamo) {
    m.heads = std::exchange(m.rank, std::max(64, dim / 16));
    if (m.inner % m.heads != 0)
      return DataLoss("{} is {}, expected a multiple of {} heads", keys.Name("ssm.inner_size"), m.inner, m.heads);
  }
  return m;
}

StatusOr<Mamba2Spec> ReadMamba2(const SpecSource& from) {
  const Keys& keys = from.keys;
  Mamba2Spec m;
  m.norm = !from.arch.side_by_side || from.gguf.tensors().Has("blk.0.ssm_norm.weight");
  GYRE_ASSIGN_OR_RETURN(m.kernel, keys.Int("ssm.conv_kernel", 64));
  GYRE_ASSIGN_OR_RETURN(m.inner, keys.Int("ssm.inner_size", kMaxDim));
  GYRE_ASSIGN_OR_RETURN(m.state, keys.Int("ssm.state_size", kMaxHeadDim));
  GYRE_ASSIGN_OR_RETURN(m.heads, keys.Int("ssm.time_step_rank", 1 << 12));
  GYRE_ASSIGN_OR_RETURN(m.groups, keys.Int("ssm.group_count", 1 << 12));
  if (m.inner % m.heads != 0 || m.heads % m.groups != 0 || m.inner % m.groups != 0) {
    return DataLoss("{} is {}, expected a multiple of {} heads, and these of {} groups", keys.Name("ssm.inner_size"),
                    m.inner, m.heads, m.groups);
  }
  return m;
}

StatusOr<TimeMixSpec> ReadTimeMix(const SpecSource& from, int dim) {
  const Keys& keys = from.keys;
  TimeMixSpec t;
  GYRE_ASSIGN_OR_RETURN(t.head_dim, keys.Int("wkv.head_size", kMaxHeadDim));
  if (dim % t.head_dim != 0)
    return DataLoss("{} is {}, which does not divide the dimension {}", keys.Name("wkv.head_size"), t.head_dim, dim);
  t.heads = dim / t.head_dim;
  GYRE_ASSIGN_OR_RETURN(t.decay_rank, keys.Int("attention.decay_lora_rank", kMaxDim));
  GYRE_ASSIGN_OR_RETURN(t.rate_rank, keys.Int("attention.iclr_lora_rank", kMaxDim));
  GYRE_ASSIGN_OR_RETURN(t.value_rank, keys.Int("attention.value_residual_mix_lora_rank", kMaxDim));
  GYRE_ASSIGN_OR_RETURN(t.gate_rank, keys.Int("attention.gate_lora_rank", kMaxDim));
  return t;
}

// Both mixtures of a block are layers: time mixing, then channel mixing.
void AddRwkvBlock(LayerSpec layer, TimeMixSpec time, int width, ModelSpec* spec) {
  layer.feed_forward = NoFeedForward{};
  layer.carries_values = true;
  time.first = spec->layers.empty();
  layer.mixer = time;
  spec->layers.push_back(layer);
  layer.mixer = ChannelMixSpec{.width = width};
  layer.mixer_norm_name = "attn_norm_2.weight";
  spec->layers.push_back(layer);
}

// The experts of these families work as DeepSeek's. Each layer may or may not have a bias on the choice.
StatusOr<ExpertSpec> ReadChosen(const SpecSource& from, int ffn) {
  const Keys& keys = from.keys;
  const bool delta = from.arch.mixers == MixerFamily::kDeltaNet,
             latent = from.arch.mixers == MixerFamily::kLatent || from.arch.mixers == MixerFamily::kKimiDelta;
  ExpertSpec e;
  GYRE_ASSIGN_OR_RETURN(e.count, keys.Count("expert_count", 1 << 16));
  if (e.count == 0) return e;
  GYRE_ASSIGN_OR_RETURN(e.used, keys.Int("expert_used_count", e.count));
  GYRE_ASSIGN_OR_RETURN(e.width, keys.Int("expert_feed_forward_length", kMaxDim, ffn));
  GYRE_ASSIGN_OR_RETURN(const int score, keys.Count("expert_gating_func", 2));
  const bool sigmoid =
      score == 2 || (score == 0 && (from.arch.one_part_layers || from.arch.router == RouterScore::kSigmoid));
  e.score = sigmoid ? RouterScore::kSigmoid : RouterScore::kSoftmax;
  GYRE_ASSIGN_OR_RETURN(const auto normalize, from.gguf.Bool(keys.Name("expert_weights_norm")));
  e.normalize = normalize.value_or(from.arch.normalize_experts);
  GYRE_ASSIGN_OR_RETURN(const double scale, keys.Number("expert_weights_scale", 0));
  e.scale = scale != 0 ? static_cast<float>(scale) : 1.0f;
  GYRE_ASSIGN_OR_RETURN(e.groups, keys.Int("expert_group_count", e.count, 1));
  GYRE_ASSIGN_OR_RETURN(e.used_groups, keys.Int("expert_group_used_count", e.groups, e.groups));
  if (e.count % e.groups != 0 || e.used > e.count / e.groups * e.used_groups) {
    return DataLoss("{} of {} experts are used, of {} of {} groups", e.used, e.count, e.used_groups, e.groups);
  }
  e.activation = from.arch.activation;
  e.gated = from.arch.activation != Activation::kReluSquared;
  GYRE_ASSIGN_OR_RETURN(const int shared, keys.Count("expert_shared_count", 1 << 10));
  if (latent && int64_t{shared} * e.width > kMaxDim) return DataLoss("{} shared experts of {}", shared, e.width);
  GYRE_ASSIGN_OR_RETURN(e.shared_width, keys.Count("expert_shared_feed_forward_length", kMaxDim));
  if (latent) e.shared_width = shared * e.width;
  e.shared_gate = delta && e.shared_width > 0;
  return e;
}

}  // namespace

Status ReadOtherLayers(const SpecSource& from, size_t layers, ModelSpec* spec) {
  const Keys& keys = from.keys;
  const Architecture& arch = from.arch;
  LayerSpec common;
  GYRE_RETURN_IF_ERROR(ReadNorms(from, &common, spec));
  GYRE_ASSIGN_OR_RETURN(const auto heads, EachLayer(from, "attention.head_count", 1 << 16));
  const auto most_heads = static_cast<int>(*std::max_element(heads.begin(), heads.end()));
  if (most_heads == 0 && !arch.mixers_only) return DataLoss("{} is 0", keys.Name("attention.head_count"));
  GYRE_ASSIGN_OR_RETURN(const auto ffn, EachLayer(from, "feed_forward_length", kMaxDim));
  std::vector<int64_t> kv_heads = heads;
  if (keys.Has("attention.head_count_kv")) {
    GYRE_ASSIGN_OR_RETURN(kv_heads, EachLayer(from, "attention.head_count_kv", 1 << 16));
  }
  const auto widest = static_cast<int>(*std::max_element(ffn.begin(), ffn.end()));
  GYRE_ASSIGN_OR_RETURN(const ExpertSpec experts, ReadChosen(from, widest));
  GYRE_ASSIGN_OR_RETURN(const int dense, keys.Count("leading_dense_block_count", kMaxLayers));

  double residual_scale = 0;
  if (arch.scales) {
    GYRE_ASSIGN_OR_RETURN(residual_scale, keys.Number("residual_scale", 0));
  }

  MixerSpec other;  // of layers that do not attend
  AttentionSpec attention;
  LatentAttentionSpec latent;  // in place of it
  std::vector<bool> attends(from.blocks);
  for (size_t i = 0; i < from.blocks; ++i) attends[i] = kv_heads[i] > 0;
  switch (arch.mixers) {
    case MixerFamily::kAttention: break;
    case MixerFamily::kLatent: {
      GYRE_ASSIGN_OR_RETURN(other, ReadLatent(from, most_heads, spec->context));
      attends.assign(from.blocks, false);
      break;
    }
    case MixerFamily::kKimiDelta: {
      GYRE_ASSIGN_OR_RETURN(other, ReadKimiDelta(from, most_heads));
      GYRE_ASSIGN_OR_RETURN(latent, ReadLatent(from, most_heads, spec->context));
      latent.rotates = !arch.no_rope;
      break;
    }
    case MixerFamily::kMamba: {
      GYRE_ASSIGN_OR_RETURN(other, ReadMamba(from, spec->dim));
      break;
    }
    case MixerFamily::kDeltaNet: {
      GYRE_ASSIGN_OR_RETURN(other, ReadDeltaNet(from));
      if (keys.Has("attention.recurrent_layers")) {
        GYRE_ASSIGN_OR_RETURN(const auto recurrent, EachLayer(from, "attention.recurrent_layers", 1));
        for (size_t i = 0; i < from.blocks; ++i) attends[i] = recurrent[i] == 0;
      } else {
        GYRE_ASSIGN_OR_RETURN(const int interval, keys.Int("full_attention_interval", kMaxLayers, 4));
        for (size_t i = 0; i < from.blocks; ++i) attends[i] = (i + 1) % static_cast<size_t>(interval) == 0;
      }
      std::fill(attends.end() - spec->draft_layers, attends.end(), true);
      break;
    }
    case MixerFamily::kMamba2: {
      GYRE_ASSIGN_OR_RETURN(other, ReadMamba2(from));
      break;
    }
    case MixerFamily::kRwkv7: {
      GYRE_ASSIGN_OR_RETURN(other, ReadTimeMix(from, spec->dim));
      attends.assign(from.blocks, false);
      spec->layers_per_block = 2;
      spec->carries_values = true;
      spec->embedding_norm = spec->embedding_norm_bias = true;
      break;
    }
    case MixerFamily::kShortConvolution: {
      ShortConvolutionSpec c;
      GYRE_ASSIGN_OR_RETURN(c.kernel, keys.Int("shortconv.l_cache", 64));
      other = c;
      spec->final_norm_name = "token_embd_norm.weight";
      break;
    }
  }
  if (arch.mixers != MixerFamily::kLatent && arch.mixers != MixerFamily::kKimiDelta &&
      arch.mixers != MixerFamily::kRwkv7 && most_heads > 0) {
    GYRE_ASSIGN_OR_RETURN(attention, ReadAttention(from, *spec, layers, most_heads));
    if (arch.mixers == MixerFamily::kDeltaNet) attention.output_gate = OutputGate::kInQuery;
    if (arch.one_part_layers || arch.no_rope) attention.rope.dims = 0;
  }
  // In a family whose feed-forward blocks are layers, only the tensors say which of them have experts.
  const auto is_dense = [&](size_t layer) {
    const TensorTable& tensors = from.gguf.tensors();
    if (arch.dense == DenseLayers::kByTensors) return !tensors.Has(fmt::format("blk.{}.ffn_gate_inp.weight", layer));
    return arch.one_part_layers && (tensors.Has(fmt::format("blk.{}.ffn_up.weight", layer)) ||
                                    tensors.Has(fmt::format("blk.{}.ffn_down.weight", layer)));
  };
  if (arch.side_by_side) spec->layers_per_block = 2;
  for (size_t i = 0; i < layers; ++i) {
    if (const auto* time = std::get_if<TimeMixSpec>(&other)) {
      if (ffn[i] == 0) return DataLoss("{} of block {} is 0", keys.Name("feed_forward_length"), i);
      AddRwkvBlock(common, *time, static_cast<int>(ffn[i]), spec);
      continue;
    }
    LayerSpec layer = common;
    if (residual_scale != 0) layer.residual_scale = static_cast<float>(residual_scale);
    if (arch.mixers == MixerFamily::kDeltaNet) layer.ffn_norm_name = "post_attention_norm.weight";
    if (arch.one_part_layers) layer.ffn_norm_name = "attn_norm.weight";
    const bool feeds = !arch.mixers_only && (!arch.one_part_layers || ffn[i] > 0),
               mixes = !arch.one_part_layers || ffn[i] == 0;
    if (!mixes) {
      layer.mixer = NoMixer{};
    } else if (!attends[i]) {
      layer.mixer = other;
    } else if (arch.mixers == MixerFamily::kKimiDelta) {
      layer.mixer = latent;
    } else {
      AttentionSpec a = attention;
      a.heads = static_cast<int>(heads[i]);
      a.kv_heads = static_cast<int>(kv_heads[i]);
      if (a.kv_heads == 0 || a.heads == 0)
        return DataLoss("layer {} attends with {} heads, {} of keys and values", i, a.heads, a.kv_heads);
      GYRE_RETURN_IF_ERROR(CheckHeads(i, a));
      layer.mixer = std::move(a);
    }
    if (arch.side_by_side) {
      layer.feed_forward = NoFeedForward{};
      spec->layers.push_back(layer);
      layer.mixer = other;
      layer.same_input = true;
    }
    if (!feeds) {
      layer.feed_forward = NoFeedForward{};
    } else if (experts.count > 0 && i >= static_cast<size_t>(dense) && !is_dense(i)) {
      ExpertSpec e = experts;
      e.choice_bias = from.gguf.tensors().Has(fmt::format("blk.{}.exp_probs_b.bias", i));
      layer.feed_forward = e;
    } else {
      if (ffn[i] == 0) return DataLoss("{} of layer {} is 0", keys.Name("feed_forward_length"), i);
      layer.feed_forward = DenseSpec{.width = static_cast<int>(ffn[i]),
                                     .activation = arch.activation,
                                     .gated = arch.activation != Activation::kReluSquared};
    }
    spec->layers.push_back(std::move(layer));
  }
  return absl::OkStatus();
}

}  // namespace gyre
