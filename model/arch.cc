#include "model/arch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "model/architecture.h"
#include "model/quoted.h"

namespace gyre {
namespace {

constexpr Architecture kArchitectures[] = {
    {.name = "llama", .pairing = RopePairing::kInterleaved, .qkv_bias = Bias::kOptional, .experts = true},
    {.name = "mistral", .pairing = RopePairing::kInterleaved, .qkv_bias = Bias::kOptional},
    {.name = "qwen2", .pairing = RopePairing::kHalves, .qkv_bias = Bias::kRequired},
    {.name = "qwen2moe",
     .pairing = RopePairing::kHalves,
     .qkv_bias = Bias::kRequired,
     .experts = true,
     .normalize_experts = false},
    {.name = "qwen3", .pairing = RopePairing::kHalves, .qk_norm = QkNorm::kHead},
    {.name = "qwen3moe", .pairing = RopePairing::kHalves, .qk_norm = QkNorm::kHead, .experts = true},
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
     .qk_norm = QkNorm::kHead,
     .post_norms = true,
     .scaled_embedding = true,
     .global_every = 6,
     .local_rope_base = 10000.0,
     .wide_layers = 62},
    {.name = "phi3", .pairing = RopePairing::kHalves},
    {.name = "glm4moe",
     .pairing = RopePairing::kHalves,
     .qkv_bias = Bias::kOptional,
     .qk_norm = QkNorm::kHead,
     .optional_qk_norm = true,
     .ffn_norm = "post_attention_norm.weight",
     .experts = true,
     .router = RouterScore::kSigmoid,
     .choice_bias = true,
     .counted_shared = true,
     .drafts = true},
    {.name = "minimax-m2",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kRow,
     .experts = true,
     .router = RouterScore::kSigmoid,
     .choice_bias = true},
    {.name = "gpt-oss",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kClampedSwiglu,
     .qkv_bias = Bias::kRequired,
     .output_bias = true,
     .sinks = true,
     .ffn_norm = "post_attention_norm.weight",
     .global_every = 2,
     .yarn_fractions = true,
     .experts = true,
     .expert_biases = true},
    {.name = "mistral3", .pairing = RopePairing::kInterleaved, .yarn_log_multiplier = true, .temperature = true},
    {.name = "smollm3", .pairing = RopePairing::kInterleaved, .no_rope_every = 4},
    // This row is for OLMo 2, and for OLMo 3, which has a window.
    {.name = "olmo2",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kRow,
     .pre_norms = false,
     .post_norms = true,
     .global_every = 4,
     .optional_window = true,
     .plain_local_rope = true},
    {.name = "granite", .pairing = RopePairing::kInterleaved, .qkv_bias = Bias::kOptional, .scales = true},
    {.name = "seed_oss",
     .pairing = RopePairing::kHalves,
     .qkv_bias = Bias::kOptional,
     .ffn_norm = "post_attention_norm.weight"},
    {.name = "gemma4",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kGeluTanh,
     .qk_norm = QkNorm::kHead,
     .post_norms = true,
     .scaled_embedding = true,
     .final_softcap = true,
     .global_every = 6,
     .local_rope_base = 10000.0,
     .local_heads = true,
     .unit_scale = true,
     .value_norm = true,
     .values_from_keys = true,
     .output_scale = true,
     .experts = true,
     .beside_dense = true,
     .per_layer_embeddings = true},
    {.name = "deepseek2",
     .pairing = RopePairing::kInterleaved,
     .normalize_experts = false,
     .mixers = MixerFamily::kLatent},
    {.name = "qwen35", .pairing = RopePairing::kHalves, .qk_norm = QkNorm::kHead, .mixers = MixerFamily::kDeltaNet},
    {.name = "qwen35moe", .pairing = RopePairing::kHalves, .qk_norm = QkNorm::kHead, .mixers = MixerFamily::kDeltaNet},
    {.name = "qwen3next",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHead,
     .mixers = MixerFamily::kDeltaNet,
     .joint_gates = true},
    {.name = "lfm2",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHead,
     .mixers = MixerFamily::kShortConvolution},
    {.name = "granitehybrid", .pairing = RopePairing::kInterleaved, .scales = true, .mixers = MixerFamily::kMamba2},
    {.name = "nemotron_h",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kReluSquared,
     .mixers = MixerFamily::kMamba2,
     .one_part_layers = true},
    {.name = "nemotron_h_moe",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kReluSquared,
     .normalize_experts = false,
     .mixers = MixerFamily::kMamba2,
     .one_part_layers = true},
};

// Keys that change the arithmetic in some families, with the values that change nothing.
constexpr std::pair<const char*, double> kNeutral[] = {
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.key_length_mla", 0},
    {"attention.value_length_mla", 0},
    {"attention.shared_kv_layers", 0},
    {"attention.temperature_scale", 0},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"logit_scale", 1},
    {"residual_scale", 1},
    {"embedding_scale", 1},
    {"embedding_length_per_layer_input", 0},
    {"rope.scaling.yarn_log_multiplier", 0},
    {"expert_count", 0},
    {"expert_shared_count", 0},
    {"expert_group_count", 1},
    {"expert_gating_func", 1},  // softmax
    {"leading_dense_block_count", 0},
    {"nextn_predict_layers", 0},
};

// Refuses values that change the arithmetic and that no code above has read.
Status RefuseUnknownValues(const Gguf& gguf, const Keys& keys, const Architecture& arch) {
  for (const auto& [key, neutral] : kNeutral) {
    if (keys.WasRead(key)) continue;
    GYRE_ASSIGN_OR_RETURN(const auto value, gguf.Float(keys.Name(key)));
    if (!value || *value == neutral) continue;
    return Unimplemented("{} is {}, known for {} is {}", keys.Name(key), *value, arch.name, neutral);
  }
  GYRE_ASSIGN_OR_RETURN(const auto causal, gguf.Bool(keys.Name("attention.causal")));
  if (causal && !*causal) return Unimplemented("{} is false, known is true", keys.Name("attention.causal"));
  return absl::OkStatus();
}

const Architecture* FindArchitecture(const std::string& name) {
  for (const Architecture& a : kArchitectures) {
    if (name == a.name) return &a;
  }
  return nullptr;
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
  ModelSpec spec;
  spec.architecture = name;
  const auto title = gguf.String("general.name");  // for people only: of another type it is none
  spec.name = title.ok() ? title->value_or("") : "";
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

  if (arch->softcaps || arch->final_softcap) {
    GYRE_ASSIGN_OR_RETURN(const double cap, keys.Number("final_logit_softcapping", arch->softcaps ? 30 : 0));
    spec.final_softcap = static_cast<float>(std::max(0.0, cap));
  }
  if (arch->scales) {
    GYRE_ASSIGN_OR_RETURN(const double embedding, keys.Number("embedding_scale", 0));
    GYRE_ASSIGN_OR_RETURN(const double logits, keys.Number("logit_scale", 0));
    if (embedding != 0) spec.embedding_scale = static_cast<float>(embedding);
    if (logits != 0) spec.logit_scale = static_cast<float>(1 / logits);
  }
  if (arch->drafts || arch->mixers != MixerFamily::kAttention) {
    GYRE_ASSIGN_OR_RETURN(spec.draft_layers, keys.Count("nextn_predict_layers", layers - 1));
  }
  const SpecSource from{.gguf = gguf,
                        .keys = keys,
                        .arch = *arch,
                        .blocks = static_cast<size_t>(layers),
                        .context = wanted_context > 0 ? wanted_context : spec.context};
  GYRE_RETURN_IF_ERROR(ReadLayers(from, from.blocks - static_cast<size_t>(spec.draft_layers), &spec));
  spec.AssignKvGroups();
  GYRE_RETURN_IF_ERROR(RefuseUnknownValues(gguf, keys, *arch));
  return spec;
}

void ModelSpec::AssignKvGroups() {
  kv_groups = 1;
  has_slots = false;
  window = 0;
  for (LayerSpec& layer : layers) {
    // A layer that reads keys and values of an earlier layer belongs to the group of that layer.
    const AttentionSpec* a = layer.attention();
    const bool windowed = a != nullptr && a->window > 0;
    layer.kv_group = StateOf(layer, dim).floats() > 0 ? kSlotGroup : windowed ? kWindowGroup : kPageGroup;
    if (a != nullptr && a->kv_layer >= 0) layer.kv_group = layers[static_cast<size_t>(a->kv_layer)].kv_group;
    kv_groups = std::max(kv_groups, layer.kv_group + 1);
    has_slots = has_slots || layer.kv_group == kSlotGroup;
    if (layer.kv_group == kWindowGroup) window = std::max(window, windowed ? a->window : INT32_MAX);
  }
}

}  // namespace gyre
