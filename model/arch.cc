#include "model/arch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/counted.h"
#include "model/architecture.h"
#include "model/layer_reader.h"
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
     .choice_bias = "exp_probs_b.bias",
     .shared = SharedExpert::kCounted,
     .drafts = true,
     .rope_sections = true},
    {.name = "minimax-m2",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kRow,
     .experts = true,
     .router = RouterScore::kSigmoid,
     .choice_bias = "exp_probs_b.bias"},
    {.name = "minimax-m3",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kClampedSwiglu,
     .qk_norm = QkNorm::kHead,
     .experts = true,
     .router = RouterScore::kSigmoid,
     .choice_bias = "exp_probs_b.bias",
     .shared = SharedExpert::kCounted,
     .indexer = true},
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
    {.name = "gemma3n",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kGeluTanh,
     .qk_norm = QkNorm::kHead,
     .post_norms = true,
     .scaled_embedding = true,
     .final_softcap = true,
     .global_every = 5,
     .local_rope_base = 10000.0,
     .unit_scale = true,
     .value_norm = true,
     .streams = true,
     .per_layer_embeddings = true},
    {.name = "gemma", .pairing = RopePairing::kHalves, .activation = Activation::kGeluTanh, .scaled_embedding = true},
    {.name = "glm4",
     .pairing = RopePairing::kInterleaved,
     .qkv_bias = Bias::kOptional,
     .post_norms = true,
     .rope_sections = true},
    {.name = "internlm2", .pairing = RopePairing::kInterleaved, .qkv_bias = Bias::kOptional},
    {.name = "exaone", .pairing = RopePairing::kHalves},
    {.name = "arcee", .pairing = RopePairing::kInterleaved, .activation = Activation::kReluSquared, .gated = false},
    {.name = "minicpm", .pairing = RopePairing::kInterleaved, .scales = true, .scales_by_size = true},
    {.name = "qwen3vl", .pairing = RopePairing::kHalves, .qk_norm = QkNorm::kHead, .rope_sections = true},
    {.name = "qwen3vlmoe",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHead,
     .experts = true,
     .rope_sections = true},
    {.name = "ernie4_5", .pairing = RopePairing::kInterleaved},
    {.name = "ernie4_5-moe",
     .pairing = RopePairing::kInterleaved,
     .experts = true,
     .choice_bias = "exp_probs_b.bias",
     .shared = SharedExpert::kPlain},
    {.name = "olmoe",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kRow,
     .experts = true,
     .normalize_experts = false},
    {.name = "deepseek",
     .pairing = RopePairing::kInterleaved,
     .experts = true,
     .normalize_experts = false,
     .shared = SharedExpert::kPlain},
    {.name = "bailingmoe",
     .pairing = RopePairing::kInterleaved,
     .experts = true,
     .normalize_experts = false,
     .shared = SharedExpert::kPlain},
    {.name = "bailingmoe2",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHead,
     .experts = true,
     .router = RouterScore::kSigmoid,
     .normalize_experts = false,
     .choice_bias = "exp_probs_b.bias",
     .shared = SharedExpert::kPlain,
     .drafts = true},
    {.name = "dots1",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHead,
     .experts = true,
     .router = RouterScore::kSigmoid,
     .normalize_experts = false,
     .choice_bias = "exp_probs_b.bias",
     .shared = SharedExpert::kPlain},
    {.name = "hy_v3",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHead,
     .experts = true,
     .router = RouterScore::kSigmoid,
     .normalize_experts = false,
     .choice_bias = "exp_probs_b",
     .shared = SharedExpert::kPlain,
     .dense = DenseLayers::kByTensors,
     .drafts = true},
    {.name = "hunyuan-dense", .pairing = RopePairing::kHalves, .qk_norm = QkNorm::kHead, .norm_after_rope = true},
    {.name = "hunyuan-moe",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHead,
     .norm_after_rope = true,
     .experts = true,
     .shared = SharedExpert::kPlain},
    {.name = "granitemoe",
     .pairing = RopePairing::kInterleaved,
     .scales = true,
     .experts = true,
     .shared = SharedExpert::kPlain},
    {.name = "exaone4",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHead,
     .pre_norms = false,
     .post_norms = true,
     .global_every = 4,
     .global_no_rope = true,
     .optional_window = true},
    {.name = "exaone-moe",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHead,
     .global_every = 4,
     .global_no_rope = true,
     .experts = true,
     .router = RouterScore::kSigmoid,
     .normalize_experts = false,
     .choice_bias = "exp_probs_b.bias",
     .shared = SharedExpert::kPlain,
     .drafts = true},
    {.name = "afmoe",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHead,
     .output_gate = OutputGate::kElements,
     .post_norms = true,
     .scaled_embedding = true,
     .global_every = 4,
     .global_no_rope = true,
     .experts = true,
     .router = RouterScore::kSigmoid,
     .normalize_experts = false,
     .choice_bias = "exp_probs_b.bias",
     .shared = SharedExpert::kPlain},
    {.name = "smallthinker",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kRelu,
     .global_every = 4,
     .global_first = true,
     .global_no_rope = true,
     .optional_window = true,
     .experts = true,
     .router = RouterScore::kSigmoid,
     .router_sees_input = true},
    {.name = "mimo2",
     .pairing = RopePairing::kHalves,
     .optional_sinks = true,
     .global_every = 1,
     .local_rope_base = 10000.0,
     .value_width = true,
     .experts = true,
     .router = RouterScore::kSigmoid,
     .choice_bias = "exp_probs_b.bias",
     .shared = SharedExpert::kPlain,
     .dense = DenseLayers::kByTensors,
     .drafts = true},
    {.name = "step35",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHead,
     .output_gate = OutputGate::kHeads,
     .limits = true,
     .global_every = 1,
     .half_global_rope = true,
     .local_rope_base = 10000.0,
     .experts = true,
     .router = RouterScore::kSigmoid,
     .normalize_experts = false,
     .choice_bias = "exp_probs_b.bias",
     .shared = SharedExpert::kPlain,
     .drafts = true},
    {.name = "llama4",
     .pairing = RopePairing::kInterleaved,
     .qk_norm = QkNorm::kUnit,
     .norm_after_rope = true,
     .global_every = 4,
     .global_no_rope = true,
     .chunk = 8192,
     .experts = true,
     .router = RouterScore::kSigmoid,
     .normalize_experts = false,
     .weight_on_input = true,
     .shared = SharedExpert::kPlain,
     .shared_experts = 1},
    {.name = "command-r",
     .pairing = RopePairing::kInterleaved,
     .qk_norm = QkNorm::kHeads,
     .optional_qk_norm = true,
     .qk_centered = true,
     .norms = Norms::kLayer,
     .residual = Residual::kParallel,
     .logit_factor = true},
    {.name = "cohere2",
     .pairing = RopePairing::kInterleaved,
     .norms = Norms::kLayer,
     .residual = Residual::kParallel,
     .global_every = 4,
     .global_no_rope = true,
     .logit_factor = true},
    {.name = "cohere2moe",
     .pairing = RopePairing::kInterleaved,
     .norms = Norms::kLayerOrRms,
     .residual = Residual::kParallel,
     .global_every = 4,
     .global_no_rope = true,
     .dense_ropes = true,
     .logit_factor = true,
     .experts = true,
     .router = RouterScore::kSigmoid,
     .normalize_experts = false,
     .sum_scale = 0.5f,
     .shared = SharedExpert::kPlain},
    {.name = "phi2",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kGeluTanh,
     .qkv_bias = Bias::kRequired,
     .output_bias = true,
     .norms = Norms::kLayerBiased,
     .residual = Residual::kParallel,
     .gated = false,
     .biases = true,
     .head_bias = true},
    {.name = "phimoe",
     .pairing = RopePairing::kHalves,
     .qkv_bias = Bias::kRequired,
     .output_bias = true,
     .norms = Norms::kLayerBiased,
     .head_bias = true,
     .experts = true,
     .near = 0.02f},
    {.name = "starcoder2",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kGeluTanh,
     .qkv_bias = Bias::kRequired,
     .output_bias = true,
     .norms = Norms::kLayerBiased,
     .gated = false,
     .biases = true},
    {.name = "stablelm",
     .pairing = RopePairing::kHalves,
     .qkv_bias = Bias::kOptional,
     .qk_norm = QkNorm::kHeads,
     .optional_qk_norm = true,
     .qk_centered = true,
     .norms = Norms::kLayerBiased,
     .residual = Residual::kByNorms},
    {.name = "nemotron",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kReluSquared,
     .norms = Norms::kLayerBiased,
     .gated = false},
    {.name = "falcon",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kGelu,
     .norms = Norms::kLayerBiased,
     .residual = Residual::kSecondNorm,
     .gated = false},
    {.name = "gpt2",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kGeluTanh,
     .qkv_bias = Bias::kRequired,
     .output_bias = true,
     .norms = Norms::kLayerBiased,
     .gated = false,
     .biases = true,
     .positions = true},
    // The error function is Pythia's activation; GPT-NeoX-20B's is the tanh form, and no key tells them apart.
    {.name = "gptneox",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kGelu,
     .qkv_bias = Bias::kRequired,
     .output_bias = true,
     .norms = Norms::kLayerBiased,
     .residual = Residual::kSwitched,
     .gated = false,
     .biases = true},
    {.name = "apertus", .pairing = RopePairing::kHalves, .qk_norm = QkNorm::kHead, .gated = false, .xielu = true},
    {.name = "xverse", .pairing = RopePairing::kInterleaved},
    {.name = "baichuan", .pairing = RopePairing::kInterleaved, .alibi_layers = 40},
    {.name = "qwen", .pairing = RopePairing::kHalves, .qkv_bias = Bias::kRequired, .half_width = true},
    {.name = "orion", .pairing = RopePairing::kHalves, .norms = Norms::kLayerBiased},
    {.name = "openelm", .pairing = RopePairing::kHalves, .qk_norm = QkNorm::kHead},
    {.name = "starcoder",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kGeluTanh,
     .qkv_bias = Bias::kRequired,
     .output_bias = true,
     .norms = Norms::kLayerBiased,
     .gated = false,
     .biases = true,
     .positions = true},
    {.name = "codeshell",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kGeluTanh,
     .qkv_bias = Bias::kRequired,
     .output_bias = true,
     .norms = Norms::kLayerBiased,
     .gated = false,
     .biases = true},
    {.name = "plamo", .pairing = RopePairing::kHalves, .residual = Residual::kParallel},
    {.name = "chatglm", .pairing = RopePairing::kInterleaved, .qkv_bias = Bias::kOptional},
    {.name = "qwen2vl", .pairing = RopePairing::kHalves, .qkv_bias = Bias::kRequired, .rope_sections = true},
    {.name = "pangu-embedded", .pairing = RopePairing::kHalves, .qkv_bias = Bias::kRequired, .output_bias = true},
    {.name = "jais2",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kReluSquared,
     .qkv_bias = Bias::kRequired,
     .output_bias = true,
     .norms = Norms::kLayerBiased,
     .gated = false,
     .biases = true},
    {.name = "maincoder", .pairing = RopePairing::kHalves, .qk_norm = QkNorm::kHead, .norm_after_rope = true},
    {.name = "plamo3",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHead,
     .post_norms = true,
     .bare_post_norms = true,
     .global_every = 8,
     .local_rope_base = 10000.0},
    {.name = "bert",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kGelu,
     .qkv_bias = Bias::kRequired,
     .output_bias = true,
     .norms = Norms::kLayerBiased,
     .gated = false,
     .biases = true,
     .positions = true,
     .pre_norms = false,
     .residual_norms = true,
     .encoder = true},
    {.name = "nomic-bert",
     .pairing = RopePairing::kHalves,
     .norms = Norms::kLayerBiased,
     .pre_norms = false,
     .residual_norms = true,
     .encoder = true},
    {.name = "modern-bert",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kGelu,
     .norms = Norms::kLayer,
     .optional_mixer_norm = true,
     .encoder = true,
     .global_every = 3,
     .global_first = true},
    {.name = "eurobert", .pairing = RopePairing::kHalves, .encoder = true},
    {.name = "llama-embed", .pairing = RopePairing::kInterleaved, .encoder = true},
    {.name = "gemma-embedding",
     .pairing = RopePairing::kHalves,
     .activation = Activation::kGeluTanh,
     .qk_norm = QkNorm::kHead,
     .post_norms = true,
     .encoder = true,
     .scaled_embedding = true,
     .global_every = 6,
     .local_rope_base = 10000.0},
    {.name = "deepseek2",
     .pairing = RopePairing::kInterleaved,
     .normalize_experts = false,
     .mixers = MixerFamily::kLatent},
    {.name = "deepseek32",
     .pairing = RopePairing::kInterleaved,
     .normalize_experts = false,
     .mixers = MixerFamily::kLatent,
     .indexer = true},
    {.name = "glm-dsa",
     .pairing = RopePairing::kInterleaved,
     .router = RouterScore::kSigmoid,
     .normalize_experts = false,
     .mixers = MixerFamily::kLatent,
     .indexer = true},
    {.name = "qwen35",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHead,
     .mixers = MixerFamily::kDeltaNet,
     .rope_sections = true},
    {.name = "qwen35moe",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHead,
     .mixers = MixerFamily::kDeltaNet,
     .rope_sections = true},
    {.name = "qwen3next",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHead,
     .mixers = MixerFamily::kDeltaNet,
     .rope_sections = true,
     .joint_gates = true},
    {.name = "lfm2",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHead,
     .mixers = MixerFamily::kShortConvolution},
    {.name = "lfm2moe",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHead,
     .mixers = MixerFamily::kShortConvolution},
    {.name = "kimi-linear", .pairing = RopePairing::kInterleaved, .mixers = MixerFamily::kKimiDelta, .no_rope = true},
    {.name = "falcon-h1",
     .pairing = RopePairing::kHalves,
     .ffn_norm = "ffn_norm",
     .mixers = MixerFamily::kMamba2,
     .side_by_side = true},
    {.name = "mamba", .pairing = RopePairing::kHalves, .mixers = MixerFamily::kMamba, .mixers_only = true},
    {.name = "mamba2", .pairing = RopePairing::kHalves, .mixers = MixerFamily::kMamba2, .mixers_only = true},
    {.name = "rwkv7",
     .pairing = RopePairing::kHalves,
     .norms = Norms::kLayerBiased,
     .mixers = MixerFamily::kRwkv7,
     .mixers_only = true},
    {.name = "jamba",
     .pairing = RopePairing::kHalves,
     .normalize_experts = false,
     .dense = DenseLayers::kByTensors,
     .mixers = MixerFamily::kMamba,
     .state_norms = true,
     .no_rope = true},
    {.name = "plamo2",
     .pairing = RopePairing::kHalves,
     .qk_norm = QkNorm::kHeads,
     .post_norms = true,
     .bare_post_norms = true,
     .mixers = MixerFamily::kMamba,
     .plamo = true,
     .state_norms = true},
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
    {"interleave_moe_layer_step", 1},
    {"moe_every_n_layers", 1},
    {"attention.value_scale", 1},
    {"nextn_predict_layers", 0},
    {"attention.sliding_window", 0},
    {"attention.chunk_size", 0},
    {"rope.scaling.alpha", 0},
};

// Keys of which the same holds, with one number or several, unless all are 0.
constexpr const char* kZeros[] = {"rope.dimension_sections", "swiglu_clamp_exp", "swiglu_clamp_shexp"};

// Keys of layers with a window, which change nothing where they have the other layers' values.
struct WindowedKey {
  const char *key, *other;
  double fallback;  // of the other; NaN: none
};
constexpr WindowedKey kWindowed[] = {
    {"rope.freq_base_swa", "rope.freq_base", 10000},
    {"rope.dimension_count_swa", "rope.dimension_count", NAN},
    {"attention.key_length_swa", "attention.key_length", NAN},
    {"attention.value_length_swa", "attention.value_length", NAN},
};

// Refuses values that change the arithmetic and that no code above has read.
Status RefuseUnknownValues(const Gguf& gguf, const Keys& keys, const Architecture& arch, bool windowed) {
  for (const auto& [key, neutral] : kNeutral) {
    if (keys.WasRead(key)) continue;
    GYRE_ASSIGN_OR_RETURN(const auto value, gguf.Float(keys.Name(key)));
    if (!value || *value == neutral) continue;
    return Unimplemented("{} is {}, known for {} is {}", keys.Name(key), *value, arch.name, neutral);
  }
  for (const char* key : kZeros) {
    if (keys.WasRead(key) || !keys.HasNonZero(key)) continue;
    return Unimplemented("{} holds numbers other than 0, known for {} is 0", keys.Name(key), arch.name);
  }
  for (const auto& [key, other, fallback] : kWindowed) {
    if (!windowed || keys.WasRead(key)) continue;
    GYRE_ASSIGN_OR_RETURN(const auto value, gguf.Float(keys.Name(key)));
    GYRE_ASSIGN_OR_RETURN(const auto global, gguf.Float(keys.Name(other)));
    if (!value || *value == global.value_or(fallback)) continue;
    return Unimplemented("{} is {}, known for {} is the value of {}", keys.Name(key), *value, arch.name,
                         keys.Name(other));
  }
  GYRE_ASSIGN_OR_RETURN(const auto causal, gguf.Bool(keys.Name("attention.causal")));
  if (causal && *causal == arch.encoder) {
    return Unimplemented("{} is {}, known for {} is {}", keys.Name("attention.causal"), *causal, arch.name,
                         !arch.encoder);
  }
  return absl::OkStatus();
}

// Refuses a wanted context of more positions than `most`. `why`: what the model has or Gyre computes for so many.
Status LimitContext(int most, const char* why, int wanted_context, ModelSpec* spec) {
  if (wanted_context > most) return InvalidArgument("a context of {} positions: {} {}", wanted_context, why, most);
  spec->most_context = most;
  spec->context = std::min(spec->context, most);
  return absl::OkStatus();
}

// The positions that a model has a vector for: a text can't be longer.
Status ReadPositionTable(const Gguf& gguf, int wanted_context, ModelSpec* spec) {
  const TensorView* table = gguf.tensors().Find("position_embd.weight");
  if (table == nullptr) return DataLoss("tensor position_embd.weight is missing");
  if (table->dims.size() != 2 || table->dims[1] == 0 || table->dims[1] > uint64_t{1} << 24) {
    return DataLoss("tensor position_embd.weight has the shape {}, expected {} x positions", DescribeDims(table->dims),
                    spec->dim);
  }
  spec->positions = static_cast<int>(table->dims[1]);
  return LimitContext(spec->positions, "this model has vectors for", wanted_context, spec);
}

// What a model makes of a text where that is a vector, and what an encoder has at its beginning and end.
Status ReadEncoder(const SpecSource& from, int wanted_context, ModelSpec* spec) {
  GYRE_ASSIGN_OR_RETURN(const int pooling, from.keys.Count("pooling_type", 4));
  constexpr std::optional<Pooling> kPoolings[] = {std::nullopt, Pooling::kMean, Pooling::kFirst, Pooling::kLast,
                                                  std::nullopt};
  spec->pooling = kPoolings[pooling];
  constexpr int kRanks = 4;
  if (pooling == kRanks && !from.arch.encoder) {
    constexpr const char* kLabels = "classifier.output_labels";
    constexpr uint64_t kMostLabels = 1024;
    GYRE_ASSIGN_OR_RETURN(const GgufValue* labels, from.gguf.Array(from.keys.Name(kLabels), GgufType::kString));
    if (labels == nullptr || labels->count == 0 || labels->count > kMostLabels)
      return DataLoss("{} is missing or has no labels, or more than {}", from.keys.Name(kLabels), kMostLabels);
    ForEachString(*labels, [&](uint64_t, std::string_view label) { spec->labels.emplace_back(label); });
    spec->pooling = Pooling::kLast;
  }
  if (!from.arch.encoder) return absl::OkStatus();
  if (pooling == kRanks) {
    return Unimplemented("{} is {}: an encoder with a classifier, which is not computed",
                         from.keys.Name("pooling_type"), pooling);
  }
  GYRE_ASSIGN_OR_RETURN(const auto activation, from.gguf.String(from.keys.Name("hidden_activation")));
  if (activation && *activation != "gelu") {
    return Unimplemented("{} is {}, known is gelu", from.keys.Name("hidden_activation"), Printable(*activation));
  }
  spec->encoder = true;
  spec->tied_head = false;
  spec->embedding_norm = from.arch.norms != Norms::kRms;
  spec->embedding_norm_bias = spec->final_norm_bias;
  spec->token_types = from.gguf.tensors().Has("token_types.weight");
  spec->final_norm = !from.arch.residual_norms;
  return LimitContext(spec->context, "texts of this model have at most", wanted_context, spec);
}

const Architecture* FindArchitecture(const std::string& name) {
  for (const Architecture& a : kArchitectures) {
    if (name == a.name) return &a;
  }
  return nullptr;
}

// The first of the layers for drafts. The model is used without it where it can't be computed. `blank`: the spec before
// its layers were read.
void ReadMtp(const SpecSource& from, ModelSpec blank, ModelSpec* spec) {
  if (spec->draft_layers == 0) return;
  spec->mtp_note.clear();
  if (const Status read = ReadLayers(from, spec->layers.size() + 1, &blank); !read.ok()) {
    spec->mtp_note = fmt::format("the layer for drafts: {}", Message(read));
    return;
  }
  LayerSpec& layer = blank.layers.back();
  const AttentionSpec* a = layer.attention();
  const bool attends = a != nullptr || std::holds_alternative<LatentAttentionSpec>(layer.mixer);
  if (!attends || spec->encoder || (a != nullptr && a->kv_layer >= 0) || layer.side.width > 0 ||
      spec->final_layer_norm) {
    spec->mtp_note = fmt::format("the layer for drafts has parts that are not known of one in {}", spec->architecture);
    return;
  }
  // It may be dense behind layers with experts.
  const auto has = [&](const char* name) {
    return from.gguf.tensors().Has(fmt::format("blk.{}.{}", spec->layers.size(), name));
  };
  if (layer.experts() != nullptr && !has("ffn_gate_inp.weight") && has("ffn_up.weight")) {
    const auto widths = from.keys.PerLayer("feed_forward_length", from.blocks, kMaxDim);
    const int64_t width = widths.ok() ? (*widths)[spec->layers.size()] : 0;
    layer.feed_forward = DenseSpec{.width = static_cast<int>(width), .activation = from.arch.activation};
  }
  layer.kv_group = kPageGroup;  // also with a window: the attention leaves out what is before it
  spec->mtp = std::move(layer);
}

// The spec of a file as one of this family; `keys` have the file's name of it.
StatusOr<ModelSpec> SpecAs(const Architecture& arch, const Keys& keys, const Gguf& gguf, int wanted_context) {
  ModelSpec spec;
  spec.architecture = arch.name;
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
  if (arch.scaled_embedding) spec.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(spec.dim)));

  if (arch.softcaps || arch.final_softcap) {
    GYRE_ASSIGN_OR_RETURN(const double cap, keys.Number("final_logit_softcapping", arch.softcaps ? 30 : 0));
    spec.final_softcap = static_cast<float>(std::max(0.0, cap));
  }
  if (arch.scales) {
    const bool by_size = arch.scales_by_size;
    GYRE_ASSIGN_OR_RETURN(const double embedding, keys.Number("embedding_scale", by_size ? 12 : 0));
    GYRE_ASSIGN_OR_RETURN(const double logits, keys.Number("logit_scale", by_size ? spec.dim / 256.0 : 0));
    if (embedding != 0) spec.embedding_scale = static_cast<float>(embedding);
    if (logits != 0) spec.logit_scale = static_cast<float>(1 / logits);
  }
  if (arch.logit_factor) {
    GYRE_ASSIGN_OR_RETURN(const double factor, keys.Positive("logit_scale", 1));
    spec.logit_scale = static_cast<float>(factor);
  }
  spec.head_bias = arch.head_bias;
  if (arch.positions) GYRE_RETURN_IF_ERROR(ReadPositionTable(gguf, wanted_context, &spec));
  spec.indexer = arch.indexer;
  if (arch.indexer) {
    GYRE_ASSIGN_OR_RETURN(const int most, keys.Int("attention.indexer.top_k", std::numeric_limits<int32_t>::max()));
    // It may choose blocks of positions.
    GYRE_ASSIGN_OR_RETURN(const int block,
                          keys.Int("attention.indexer.block_size", std::numeric_limits<int32_t>::max() / most, 1));
    GYRE_RETURN_IF_ERROR(LimitContext(most * block,
                                      "a row of this model attends to the positions that an indexer chooses, which "
                                      "is not computed, and to all of the first",
                                      wanted_context, &spec));
  }
  if (arch.alibi_layers == layers) {
    return Unimplemented(
        "{} is {}: such a model of {} has linear biases (ALiBi) in place of a rotation, which are not "
        "computed",
        keys.Name("block_count"), layers, arch.name);
  }
  if (arch.drafts || arch.mixers != MixerFamily::kAttention) {
    GYRE_ASSIGN_OR_RETURN(spec.draft_layers, keys.Count("nextn_predict_layers", arch.side_by_side ? 0 : layers - 1));
  }
  const SpecSource from{.gguf = gguf,
                        .keys = keys,
                        .arch = arch,
                        .blocks = static_cast<size_t>(layers),
                        .context = wanted_context > 0 ? wanted_context : spec.context};
  const ModelSpec blank = spec;
  GYRE_RETURN_IF_ERROR(ReadLayers(from, from.blocks - static_cast<size_t>(spec.draft_layers), &spec));
  GYRE_RETURN_IF_ERROR(ReadEncoder(from, wanted_context, &spec));
  spec.AssignKvGroups();
  ReadMtp(from, blank, &spec);
  return spec;
}

// What a file of an unknown architecture has beside the family whose parts are most like its own, for an error's end.
std::string DescribeNearest(const Gguf& gguf, const std::string& name) {
  std::string nearest;
  size_t least = std::numeric_limits<size_t>::max();
  for (const Architecture& arch : kArchitectures) {
    const Keys keys(gguf, name);
    const auto spec = SpecAs(arch, keys, gguf, 0);
    if (!spec.ok()) continue;
    const auto left = TensorsWithoutPlace(gguf.tensors(), *spec);
    if (!left.ok() || left->size() >= least) continue;
    least = left->size();
    nearest = fmt::format("; the nearest is {}, in which ", arch.name);
    if (left->empty())
      nearest += "every tensor has a place";
    else
      nearest += fmt::format("{} no place, such as {}", Counted(left->size(), "tensor has", "tensors have"),
                             Printable(left->front()));
    constexpr size_t kNamed = 8;
    std::string unread;
    size_t count = 0;
    for (const auto& [key, value] : gguf.metadata()) {
      if (!key.starts_with(name + ".") || keys.WasRead(key.c_str() + name.size() + 1)) continue;
      if (++count <= kNamed) unread += " " + Printable(key);
    }
    if (count > kNamed) unread += fmt::format(" and {} more", count - kNamed);
    if (count > 0) nearest += "; it does not read the keys" + unread;
  }
  return nearest;
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
    return Unimplemented("the architecture \"{}\" is not known; known are{}{}", Printable(name), known,
                         DescribeNearest(gguf, name));
  }
  const Keys keys(gguf, name);
  GYRE_ASSIGN_OR_RETURN(ModelSpec spec, SpecAs(*arch, keys, gguf, wanted_context));
  GYRE_RETURN_IF_ERROR(RefuseUnknownValues(gguf, keys, *arch, spec.window > 0));
  return spec;
}

void ModelSpec::AssignKvGroups() {
  kv_groups = 1;
  has_slots = false;
  window = 0;
  for (LayerSpec& layer : layers) {
    // A layer that reads keys and values of an earlier layer belongs to the group of that layer.
    const AttentionSpec* a = layer.attention();
    // What rows of an encoder see is all in their step, so that nothing moves on.
    const bool windowed = a != nullptr && a->window > 0 && a->causal;
    layer.kv_group = StateOf(layer, dim).floats() > 0 ? kSlotGroup : windowed ? kWindowGroup : kPageGroup;
    if (a != nullptr && a->kv_layer >= 0) layer.kv_group = layers[static_cast<size_t>(a->kv_layer)].kv_group;
    kv_groups = std::max(kv_groups, layer.kv_group + 1);
    has_slots = has_slots || layer.kv_group == kSlotGroup;
    if (layer.kv_group == kWindowGroup) window = std::max(window, windowed ? a->window : INT32_MAX);
  }
}

}  // namespace gyre
