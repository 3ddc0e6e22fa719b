// config.json of Hugging Face's folders: which keys count, and that none that changes the arithmetic is passed over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "model/hf/config.h"
#include "model/hf/generation_config.h"
#include "model/hf/model_types.h"

namespace gyre {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

struct Read {
  Status status;
  HfArchitecture arch;
  Metadata metadata;

  std::optional<std::string> Bytes(const std::string& key) const {
    const auto it = metadata.values().find(key);
    if (it == metadata.values().end()) return std::nullopt;
    return std::string(reinterpret_cast<const char*>(it->second.bytes.data()), it->second.bytes.size());
  }
  std::optional<float> Float(const std::string& key) const {
    const auto bytes = Bytes(key);
    float v = 0;
    if (bytes) std::memcpy(&v, bytes->data(), sizeof v);
    return bytes ? std::optional(v) : std::nullopt;
  }
  // For comparisons: all keys and values.
  std::map<std::string, std::string> All() const {
    std::map<std::string, std::string> all;
    for (const auto& [key, value] : metadata.values()) all[key] = *Bytes(key);
    return all;
  }
};

// `more` overrides; a value "ABSENT" removes a key.
Read ReadConfig(std::string_view text, std::string_view more = "{}") {
  json::object config = json::parse(text).get_object();
  const json::value changes = json::parse(more);
  for (const auto& item : changes.get_object()) {
    if (item.value() == "ABSENT")
      config.erase(item.key());
    else
      config[item.key()] = item.value();
  }
  Read read;
  StatusOr<HfArchitecture> arch = ReadHfConfig(config, &read.metadata);
  read.status = arch.status();
  if (arch.ok()) read.arch = *std::move(arch);
  return read;
}

// The files of published models, as transformers 4 and 5 write them and as their makers wrote them by hand; lists of
// layers are cut with the number of layers.
struct Published {
  const char* name;
  const char* config;
};
constexpr char kCommonKeys[] = R"("bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": null, "use_cache": true,
    "initializer_range": 0.02, "attention_dropout": 0.0, "torch_dtype": "bfloat16", "transformers_version": "4.45.0",)";
constexpr Published kPublished[] = {
    {"Llama 2",
     R"({"_name_or_path": "m", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
      "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
      "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
      "tie_word_embeddings": false, "vocab_size": 32000})"},
    {"Llama 3.2",
     R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "head_dim": 64, "hidden_act": "silu",
      "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
      "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
      "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
      "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
      "tie_word_embeddings": true, "vocab_size": 128256})"},
    {"SmolLM2",
     R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_act": "silu", "hidden_size": 576,
      "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false,
      "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
      "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
      "tie_word_embeddings": true, "vocab_size": 49152, "transformers.js_config": {"dtype": "q4"}})"},
    {"Mistral 0.1", R"({"architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
      "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
      "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
      "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 32000})"},
    {"Mistral Small 3.1", R"({"architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10,
      "model_type": "mistral3", "multimodal_projector_bias": false, "projector_hidden_act": "gelu",
      "spatial_merge_size": 2, "text_config": {"attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu",
      "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 32768, "max_position_embeddings": 131072,
      "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
      "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0, "sliding_window": null, "use_cache": true, "vocab_size": 131072},
      "vision_config": {"hidden_size": 1024}, "vision_feature_layer": -1})"},
    {"Ministral 3",
     R"({"architectures": ["Mistral3ForConditionalGeneration"], "dtype": "bfloat16", "model_type": "mistral3",
      "quantization_config": {"activation_scheme": "static", "dequantize": false, "modules_to_not_convert":
      ["model.vision_tower", "lm_head"], "quant_method": "fp8", "weight_block_size": null},
      "text_config": {"attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072,
      "initializer_range": 0.02, "intermediate_size": 9216, "max_position_embeddings": 262144, "model_type": "ministral3",
      "num_attention_heads": 32, "num_hidden_layers": 26, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
      "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
      "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1000000.0, "rope_type": "yarn",
      "type": "yarn"}, "sliding_window": null, "tie_word_embeddings": true, "use_cache": true, "vocab_size": 131072},
      "transformers_version": "5.0.0.dev0", "vision_config": {"hidden_act": "silu"}})"},
    {"Mixtral", R"({"architectures": ["MixtralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
      "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
      "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
      "output_router_logits": false, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
      "router_jitter_noise": 0.0, "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 32000})"},
    {"Qwen 2.5", R"({"architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 3584,
      "intermediate_size": 18944, "max_position_embeddings": 32768, "max_window_layers": 28, "model_type": "qwen2",
      "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
      "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": false, "use_mrope": false,
      "use_sliding_window": false, "vocab_size": 152064})"},
    {"Qwen 2 MoE", R"({"architectures": ["Qwen2MoeForCausalLM"], "decoder_sparse_step": 1, "hidden_act": "silu",
      "hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 8192, "max_window_layers": 21,
      "model_type": "qwen2_moe", "moe_intermediate_size": 1408, "norm_topk_prob": false, "num_attention_heads": 16,
      "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16,
      "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
      "shared_expert_intermediate_size": 5632, "sliding_window": 32768, "tie_word_embeddings": false,
      "use_sliding_window": false, "vocab_size": 151936})"},
    {"Qwen 3",
     R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_act": "silu",
      "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 28,
      "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 2, "num_key_value_heads": 8,
      "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
      "layer_types": ["full_attention", "full_attention"], "tie_word_embeddings": true, "use_sliding_window": false,
      "vocab_size": 151936})"},
    {"Qwen 3 MoE", R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1,
      "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
      "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
      "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
      "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false,
      "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
      "sliding_window": null, "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936})"},
    {"Qwen 3 Coder", R"({"architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1, "head_dim": 128,
      "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5472, "max_position_embeddings": 262144,
      "max_window_layers": 28, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
      "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
      "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false, "qkv_bias": false,
      "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000, "router_aux_loss_coef": 0.0,
      "shared_expert_intermediate_size": 0, "sliding_window": null, "tie_word_embeddings": false, "use_qk_norm": true,
      "use_sliding_window": false, "vocab_size": 151936})"},
    {"DeepSeek R1 Qwen 3", R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128,
      "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 131072,
      "max_window_layers": 36, "model_type": "qwen3", "num_attention_heads": 32, "num_hidden_layers": 36,
      "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
      "original_max_position_embeddings": 32768, "attn_factor": 0.8782488562869419}, "rope_theta": 1000000,
      "sliding_window": null, "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936})"},
    {"Gemma 2", R"({"architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attn_logit_softcapping": 50.0,
      "cache_implementation": "hybrid", "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
      "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "intermediate_size": 9216,
      "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8, "num_hidden_layers": 26,
      "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
      "sliding_window": 4096, "sliding_window_size": 4096, "vocab_size": 256000})"},
    {"Gemma 3 1B", R"({"architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attn_logit_softcapping": null,
      "cache_implementation": "hybrid", "final_logit_softcapping": null, "head_dim": 256,
      "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
      "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26,
      "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
      "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
      "vocab_size": 262144})"},
    {"Gemma 3 4B", R"({"architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
      "eoi_token_index": 256000, "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
      "model_type": "gemma3", "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
      "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
      "vision_config": {"hidden_size": 1152}})"},
    {"Gemma 4", R"({"architectures": ["Gemma4ForConditionalGeneration"], "audio_config": null, "audio_token_id": 258881,
      "boi_token_id": 255999, "eoa_token_index": 258883, "model_type": "gemma4", "text_config": {"attention_bias": false,
      "attention_dropout": 0.0, "attention_k_eq_v": true, "bos_token_id": 2, "dtype": "bfloat16", "enable_moe_block": false,
      "eos_token_id": 1, "expert_intermediate_size": null, "final_logit_softcapping": 30.0, "global_head_dim": 512,
      "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 5376, "hidden_size_per_layer_input": 0,
      "initializer_range": 0.02, "intermediate_size": 21504, "layer_types": ["sliding_attention", "full_attention"],
      "max_position_embeddings": 262144, "model_type": "gemma4_text", "moe_intermediate_size": null,
      "num_attention_heads": 32, "num_experts": null, "num_global_key_value_heads": 4, "num_hidden_layers": 2,
      "num_key_value_heads": 16, "num_kv_shared_layers": 0, "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_parameters":
      {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
      "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}, "sliding_window": 1024,
      "tie_word_embeddings": true, "top_k_experts": null, "use_bidirectional_attention": "vision", "use_cache": true,
      "use_double_wide_mlp": false, "vocab_size": 262144, "vocab_size_per_layer_input": 262144},
      "tie_word_embeddings": true, "transformers_version": "5.5.0.dev0", "vision_config": {"head_dim": 72}})"},
    {"Phi 3", R"({"architectures": ["Phi3ForCausalLM"], "auto_map": {"AutoConfig": "c.C"}, "embd_pdrop": 0.0,
      "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
      "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
      "original_max_position_embeddings": 4096, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": null,
      "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": false, "attention_bias": false,
      "vocab_size": 32064})"},
    {"Phi 4 mini",
     R"({"architectures": ["Phi3ForCausalLM"], "attention_bias": false, "embd_pdrop": 0.0, "full_attn_mod": 1,
      "hidden_act": "silu", "hidden_size": 16, "intermediate_size": 32, "interpolate_factor": 1, "lm_head_bias": false,
      "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "phi3", "num_attention_heads": 2,
      "num_hidden_layers": 2, "num_key_value_heads": 1, "original_max_position_embeddings": 4096,
      "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": {"long_factor":
      [1, 1.5, 3], "short_factor": [1, 1, 1], "type": "longrope"}, "rope_theta": 10000.0, "sliding_window": 262144,
      "tie_word_embeddings": true, "vocab_size": 200064})"},
    {"GLM 4.5 Air", R"({"architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "head_dim": 128,
      "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 10944,
      "max_position_embeddings": 131072, "model_type": "glm4_moe", "moe_intermediate_size": 1408, "n_group": 1,
      "n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 96,
      "num_experts_per_tok": 8, "num_hidden_layers": 46, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
      "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000,
      "routed_scaling_factor": 1.0, "tie_word_embeddings": false, "topk_group": 1, "use_qk_norm": false,
      "vocab_size": 151552})"},
    {"GLM 4.7 Flash", R"({"architectures": ["Glm4MoeLiteForCausalLM"], "attention_bias": false, "dtype": "bfloat16",
      "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10240,
      "kv_lora_rank": 512, "max_position_embeddings": 202752, "model_type": "glm4_moe_lite", "moe_intermediate_size": 1536,
      "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 20,
      "num_experts_per_tok": 4, "num_hidden_layers": 47, "num_key_value_heads": 20, "num_nextn_predict_layers": 1,
      "partial_rotary_factor": 1.0, "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
      "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000, "routed_scaling_factor": 1.8,
      "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 256, "vocab_size": 154880})"},
    {"MiniMax M2", R"({"architectures": ["MiniMaxM2ForCausalLM"], "attn_type_list": [1, 1], "auto_map": {},
      "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 1536,
      "layernorm_full_attention_beta": 1.0, "layernorm_linear_attention_beta": 1.0, "layernorm_mlp_beta": 1.0,
      "max_position_embeddings": 196608, "mlp_intermediate_size": 8192, "model_type": "minimax_m2",
      "mtp_transformer_layers": 1, "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 2,
      "num_key_value_heads": 8, "num_local_experts": 256, "num_mtp_modules": 3, "output_router_logits": false,
      "qk_norm_type": "per_layer", "quantization_config": {"activation_scheme": "dynamic", "fmt": "float8_e4m3fn",
      "quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "lm_head"]},
      "rms_norm_eps": 1e-06, "rope_theta": 5000000, "rotary_dim": 64, "router_aux_loss_coef": 0.001,
      "router_jitter_noise": 0.0, "scoring_func": "sigmoid", "shared_intermediate_size": 0, "shared_moe_mode": "sigmoid",
      "sliding_window": null, "tie_word_embeddings": false, "use_mtp": true, "use_qk_norm": true, "use_routing_bias": true,
      "vocab_size": 200064})"},
    {"gpt-oss",
     R"({"architectures": ["GptOssForCausalLM"], "attention_bias": true, "experts_per_token": 4, "head_dim": 64,
      "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880,
      "layer_types": ["sliding_attention", "full_attention"], "max_position_embeddings": 131072, "model_type": "gpt_oss",
      "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 2, "num_key_value_heads": 8,
      "num_local_experts": 32, "output_router_logits": false, "quantization_config": {"modules_to_not_convert":
      ["model.layers.*.self_attn"], "quant_method": "mxfp4"}, "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0,
      "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
      "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
      "tie_word_embeddings": false, "vocab_size": 201088})"},
    {"SmolLM 3", R"({"architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "hidden_act": "silu",
      "hidden_size": 2048, "intermediate_size": 11008, "layer_types": ["full_attention", "full_attention", "full_attention",
      "full_attention"], "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": false,
      "model_type": "smollm3", "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0], "num_attention_heads": 16,
      "num_hidden_layers": 4, "num_key_value_heads": 4, "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": null,
      "rope_theta": 5000000.0, "sliding_window": null, "use_sliding_window": false, "vocab_size": 128256})"},
    {"OLMo 2",
     R"({"architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "hidden_act": "silu", "hidden_size": 4096,
      "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "olmo2", "num_attention_heads": 32,
      "num_hidden_layers": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-06, "rope_scaling": null,
      "rope_theta": 500000, "tie_word_embeddings": false, "vocab_size": 100352})"},
    {"OLMo 3",
     R"({"architectures": ["Olmo3ForCausalLM"], "attention_bias": false, "dtype": "bfloat16", "hidden_act": "silu",
      "hidden_size": 4096, "intermediate_size": 11008, "layer_types": ["sliding_attention", "full_attention"],
      "max_position_embeddings": 65536, "model_type": "olmo3", "num_attention_heads": 32, "num_hidden_layers": 2,
      "num_key_value_heads": 32, "rms_norm_eps": 1e-06, "rope_scaling": {"attention_factor": 1.2079441541679836,
      "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "yarn"},
      "rope_theta": 500000, "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 100278})"},
    {"Granite", R"({"architectures": ["GraniteForCausalLM"], "attention_bias": false, "attention_multiplier": 0.0078125,
      "embedding_multiplier": 12.0, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12800,
      "logits_scaling": 16.0, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "granite",
      "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "residual_multiplier": 0.22,
      "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000000.0, "tie_word_embeddings": true,
      "vocab_size": 49159})"},
    {"Seed-OSS", R"({"architectures": ["SeedOssForCausalLM"], "attention_bias": true, "attention_out_bias": false,
      "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 27648,
      "max_position_embeddings": 524288, "mlp_bias": false, "model_type": "seed_oss", "num_attention_heads": 80,
      "num_hidden_layers": 64, "num_key_value_heads": 8, "residual_dropout": 0.1, "rms_norm_eps": 1e-06,
      "rope_scaling": {"rope_type": "default"}, "rope_theta": 10000000.0, "tie_word_embeddings": false,
      "vocab_size": 155136})"},
    {"DeepSeek V2 Lite",
     R"({"architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "aux_loss_alpha": 0.001,
      "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10944,
      "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v2", "moe_intermediate_size": 1408,
      "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": false,
      "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16,
      "pretraining_tp": 1, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
      "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
      "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 1.0,
      "scoring_func": "softmax", "seq_aux": true, "tie_word_embeddings": false, "topk_group": 1, "topk_method": "greedy",
      "v_head_dim": 128, "vocab_size": 102400})"},
    {"DeepSeek V3.1", R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "ep_size": 1,
      "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432,
      "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
      "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
      "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
      "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
      "weight_block_size": [128, 128]}, "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1,
      "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
      "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false,
      "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280})"},
    {"Kimi K2", R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "aux_loss_alpha": 0.001,
      "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432,
      "kv_lora_rank": 512, "max_position_embeddings": 131072, "model_type": "kimi_k2", "moe_intermediate_size": 2048,
      "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": true,
      "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 64,
      "num_nextn_predict_layers": 0, "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0,
      "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
      "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "seq_aux": true,
      "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 163840})"},
    {"Qwen 3 Next", R"({"architectures": ["Qwen3NextForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1,
      "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5120,
      "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
      "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_next",
      "moe_intermediate_size": 512, "norm_topk_prob": true, "num_attention_heads": 16, "num_experts": 512,
      "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2, "output_router_logits": false,
      "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000,
      "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512, "tie_word_embeddings": false,
      "use_sliding_window": false, "vocab_size": 151936})"},
    {"Qwen 3.5",
     R"({"architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 248056, "model_type": "qwen3_5",
      "text_config": {"attention_bias": false, "attention_dropout": 0.0, "attn_output_gate": true, "dtype": "bfloat16",
      "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 5120,
      "initializer_range": 0.02, "intermediate_size": 17408, "layer_types": ["linear_attention", "full_attention"],
      "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
      "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144,
      "mlp_only_layers": [], "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1,
      "mtp_use_dedicated_embeddings": false, "num_attention_heads": 24, "num_hidden_layers": 2, "num_key_value_heads": 4,
      "output_gate_type": "swish", "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_parameters":
      {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25, "rope_theta": 10000000,
      "rope_type": "default"}, "use_cache": true, "vocab_size": 248320}, "tie_word_embeddings": false,
      "video_token_id": 248057, "vision_config": {"depth": 27}, "vision_end_token_id": 248054,
      "language_model_only": false})"},
};

std::string WithCommonKeys(const char* config) { return std::string("{") + kCommonKeys + (config + 1); }

TEST(HfConfigTest, PublishedFilesAreRead) {
  for (const Published& p : kPublished) {
    const Read read = ReadConfig(WithCommonKeys(p.config));
    EXPECT_TRUE(read.status.ok()) << p.name << ": " << read.status;
  }
}

// Each of these changes what the model computes; none may be passed over, in any of the files.
TEST(HfConfigTest, AnUnknownKeyIsRefusedByNameInEveryFile) {
  for (const Published& p : kPublished) {
    json::object config = json::parse(p.config).get_object();
    json::object& settings = config.contains("text_config") ? config["text_config"].get_object() : config;
    settings["depth_of_thought"] = 1.5;
    const Status status = ReadConfig(json::serialize(config)).status;
    EXPECT_TRUE(absl::IsUnimplemented(status)) << p.name;
    EXPECT_THAT(Message(status), HasSubstr("depth_of_thought is 1.5: the key is not known")) << p.name;
  }
}

constexpr char kLlama[] = R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0, "vocab_size": 272})";

// The same of another type.
std::string Typed(const char* model_type) {
  json::object config = json::parse(kLlama).get_object();
  config["model_type"] = model_type;
  return json::serialize(config);
}

TEST(HfConfigTest, ValuesThatChangeTheResultAreRefusedByName) {
  struct Refusal {
    const char* model_type;
    const char* more;
    const char* says;
  };
  for (const Refusal& r : {
           Refusal{"llama", R"({"hidden_act": "gelu"})", "hidden_act is \"gelu\", known for the model_type llama is"},
           {"mixtral", R"({"hidden_act": "relu"})", "hidden_act is \"relu\""},
           {"gemma2", R"({"hidden_activation": "silu"})", "hidden_activation is \"silu\""},
           {"qwen3", R"({"attention_bias": true})", "attention_bias is true"},
           {"llama", R"({"mlp_bias": true})", "mlp_bias is true"},
           {"llama", R"({"logits_scaling": 3})", "logits_scaling is 3"},
           {"llama", R"({"num_local_experts": 4})", "num_local_experts is 4"},
           {"llama", R"({"is_causal": false})", "is_causal is false"},
           {"llama", R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor is 0.5"},
           {"llama", R"({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}})",
            "rope_parameters.partial_rotary_factor is 0.5"},
           {"llama", R"({"rope_scaling": {"type": "xpos", "factor": 2}})", "rope_scaling is of the type xpos"},
           {"llama", R"({"rope_scaling": {"type": "linear"}})", "rope_scaling.factor is missing"},
           {"llama", R"({"rope_scaling": {"type": "linear", "factor": "8"}})", "rope_scaling.factor is \"8\""},
           {"llama", R"({"rope_scaling": {"type": "linear", "factor": 8, "alpha": 2}})", "rope_scaling.alpha is 2"},
           {"llama", R"({"rope_scaling": {"type": "linear", "factor": 8}, "rope_parameters": {"factor": 4}})",
            "rope_scaling.factor is 8, but in rope_parameters it is 4"},
           {"llama", R"({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}})",
            "rope_parameters.full_attention is"},
           {"gemma3_text", R"({"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "chunked_attention": {}}})",
            "rope_parameters.chunked_attention is"},
           {"gemma3_text", R"({"rope_parameters": {"full_attention": {}, "sliding_attention":
             {"rope_type": "linear", "factor": 2}}})",
            "rope_parameters.sliding_attention is of the type linear"},
           {"olmo3", R"({"rope_parameters": {"full_attention": {"rope_theta": 5e5}, "sliding_attention":
             {"rope_theta": 1e4}}})",
            "rope_parameters.sliding_attention.rope_theta is 10000"},
           {"gemma4_text", R"({"sliding_window": 64, "head_dim": 16, "rope_parameters": {"full_attention": {},
             "sliding_attention": {"factor": 2}}})",
            "sliding_attention has a part of 1 and a factor of 2"},
           {"gemma4_text", R"({"sliding_window": 64, "head_dim": 16, "rope_parameters": {"full_attention": {},
             "sliding_attention": {"partial_rotary_factor": 0.5}}})",
            "sliding_attention has a part of 0.5 and a factor of 1"},
           {"gemma4_text", R"({"sliding_window": 64, "head_dim": 16, "rope_parameters": {"full_attention": {},
             "sliding_attention": {"type": "linear"}}})",
            "sliding_attention has the type linear"},
           {"gemma3_text", R"({"use_bidirectional_attention": true})", "use_bidirectional_attention is true"},
           {"gemma3_text", R"({"attn_logit_softcapping": 50})", "attn_logit_softcapping is 50"},
           {"gemma3_text", R"({"layer_types": ["full_attention", "chunked_attention"]})",
            "layer_types has \"chunked_attention\""},
           {"llama", R"({"layer_types": ["full_attention", "sliding_attention"]})",
            "layer_types names sliding_attention for layer 1"},
           {"qwen3_moe", R"({"use_sliding_window": true})", "use_sliding_window is true"},
           {"qwen3_moe", R"({"decoder_sparse_step": 2})", "decoder_sparse_step is 2"},
           {"qwen2_moe", R"({"mlp_only_layers": [0]})", "mlp_only_layers is [0]"},
           {"qwen2", R"({"use_mrope": true})", "use_mrope is true"},
           {"smollm3", R"({"use_sliding_window": true})", "use_sliding_window is true"},
           {"smollm3", R"({"no_rope_layer_interval": 3})", "no_rope_layer_interval is 3"},
           {"seed_oss", R"({"attention_out_bias": true})", "attention_out_bias is true"},
           {"minimax_m2", R"({"attn_type_list": [1, 0]})", "attn_type_list has 0"},
           {"minimax_m2", R"({"shared_intermediate_size": 8})", "shared_intermediate_size is 8"},
           {"minimax_m2", R"({"rotary_dim": 2147483640, "head_dim": 16, "rope_scaling": {"rope_type": "llama3",
             "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64}})",
            "rotary_dim is 2147483640, expected at most 16"},
           {"gpt_oss", R"({"swiglu_limit": 5})", "swiglu_limit is 5"},
           {"glm4_moe", R"({"mlp_layer_types": ["sparse", "dense"]})", "has a dense layer behind a sparse one"},
           {"mixtral", R"({"num_local_experts": 4, "num_experts": 8})", "num_experts is 8, but num_local_experts is 4"},
           {"llama", R"({"hidden_size": "64"})", "hidden_size is \"64\", expected a whole number"},
           {"llama", R"({"hidden_size": 64.5})", "hidden_size is 64.5, expected a whole number"},
           {"llama", R"({"rms_norm_eps": true})", "rms_norm_eps is true, expected a number"},
           {"llama", R"({"tie_word_embeddings": "yes"})", "tie_word_embeddings is \"yes\", expected true or false"},
           {"llama", R"({"rope_scaling": [2]})", "rope_scaling is [2], expected an object"},
           {"llama", R"({"layer_types": {}})", "layer_types is {}, expected a list"},
           {"llama", R"({"hidden_act": 1})", "hidden_act is 1, expected a text"},
       }) {
    const Status status = ReadConfig(Typed(r.model_type), r.more).status;
    EXPECT_THAT(Message(status), HasSubstr(r.says)) << r.model_type << " " << r.more;
  }
}

TEST(HfConfigTest, QuantizationThatIsNotKnownIsRefusedByName) {
  for (
      const auto& [more, says] : std::initializer_list<std::pair<const char*, const char*>>{
          {R"({"quantization_config": {"quant_method": "awq", "bits": 4}})", "quant_method is \"awq\", known are fp8"},
          {R"({"quantization_config": {"quant_method": "gptq"}})", "\"gptq\""},
          {R"({"quantization_config": {"load_in_4bit": true}})", "quant_method is missing"},
          {R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}})",
           "weight_block_size is [64,64], known is [128,128]"},
          {R"({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}})", "fmt is \"e5m2\""},
          {R"({"quantization_config": {"quant_method": "fp8", "rotation": 1}})", "quantization_config.rotation is 1"},
          {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}})",
           "format is \"pack-quantized\", known is \"int-quantized\""},
          {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups":
              {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "group",
              "group_size": 64, "symmetric": true}}}}})",
           "group_0.weights.strategy is \"group\", known is \"channel\""},
          {R"({"quantization_config": {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}})",
           "kv_cache_scheme is"},
          {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups":
              {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "tensor_group"}}}}})",
           "group_0.weights.type is \"int\", known is \"float\""},
          {R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}})",
           "quant_algo is \"NVFP4_AWQ\", known is \"NVFP4\""},
          {R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": {"group_0":
              {"weights": {"num_bits": 8, "type": "float"}}}}})",
           "group_0.weights.num_bits is 8, known is 4"},
          {R"({"compression_config": {"quant_method": "gguf"}})", "compression_config.quant_method is \"gguf\""},
          {R"({"quantization": {"group_size": 64, "bits": 4}})", "MLX"},
          {R"({"quantization_config": "int8"})", "quantization_config is \"int8\", expected an object"}}) {
    EXPECT_THAT(Message(ReadConfig(kLlama, more).status), HasSubstr(says)) << more;
  }
  EXPECT_TRUE(ReadConfig(kLlama, R"({"quantization_config": {"quant_method": "compressed-tensors", "version": "0.9",
      "format": "int-quantized", "global_compression_ratio": 1.5, "ignore": ["lm_head"], "kv_cache_scheme": null,
      "quantization_status": "compressed", "sparsity_config": {}, "transform_config": {}, "config_groups": {"group_0":
      {"format": null, "input_activations": {"num_bits": 8, "dynamic": true}, "output_activations": null,
       "targets": ["Linear"], "weights": {"actorder": null, "block_structure": null, "dynamic": false, "group_size": null,
       "num_bits": 8, "observer": "minmax", "observer_kwargs": {}, "strategy": "channel", "symmetric": true,
       "type": "int"}}}}})")
                  .status.ok());
  for (
      const char* known : {
          R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {"name": "modelopt"},
               "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": false}, "ignore": ["lm_head"], "config_groups":
               {"group_0": {"targets": ["Linear"], "input_activations": {"num_bits": 4}, "weights": {"num_bits": 4,
               "type": "float", "group_size": 16, "dynamic": false}}}}})",
          R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
               "config_groups": {"group_0": {"format": "nvfp4-pack-quantized", "targets": ["Linear"], "weights":
               {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": true,
               "dynamic": false, "scale_dtype": "torch.float8_e4m3fn", "zp_dtype": null}}}}})",
          R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
               "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float",
               "strategy": "group", "group_size": 32, "symmetric": true}}}}})"}) {
    EXPECT_TRUE(ReadConfig(kLlama, known).status.ok()) << known << ReadConfig(kLlama, known).status;
  }
}

// The same model, as transformers 4 and as transformers 5 writes it.
TEST(HfConfigTest, BothFormsOfTheRotationMeanTheSame) {
  struct Pair {
    const char* model_type;
    const char* four;
    const char* five;
  };
  for (
      const Pair& pair : {
          Pair{
              "llama", R"({"rope_scaling": {"rope_type": "linear", "factor": 8}})",
              R"({"rope_theta": "ABSENT", "rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e4}})"},
          {"llama", R"({"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 128}})",
           R"({"rope_theta": "ABSENT", "rope_parameters": {"rope_type": "yarn", "factor": 4, "rope_theta": 50000,
                "original_max_position_embeddings": 128}})"},
          {"gemma3_text", R"({"rope_theta": 2e5, "rope_local_base_freq": 5000, "rope_scaling":
             {"rope_type": "linear", "factor": 8}})",
           R"({"rope_theta": "ABSENT", "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8,
               "rope_theta": 2e5}, "sliding_attention": {"rope_type": "default", "rope_theta": 5000}}})"},
          {"olmo3", R"({"rope_scaling": {"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 64}})",
           R"({"rope_theta": "ABSENT", "rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 8,
               "rope_theta": 5e4, "original_max_position_embeddings": 64}, "sliding_attention":
               {"rope_type": "default", "rope_theta": 5e4}}})"},
          {"phi3", R"({"partial_rotary_factor": 0.5})",
           R"({"rope_theta": "ABSENT", "rope_parameters": {"rope_type": "default", "rope_theta": 5e4,
               "partial_rotary_factor": 0.5}})"},
          {"glm4_moe", R"({"partial_rotary_factor": 0.25})",
           R"({"rope_theta": "ABSENT", "rope_parameters": {"rope_theta": 5e4, "partial_rotary_factor": 0.25}})"},
          {"phi3", R"({"partial_rotary_factor": 0.5, "original_max_position_embeddings": 128, "rope_scaling":
             {"type": "longrope", "long_factor": [1, 1.1, 1.2, 1.3], "short_factor": [1, 1, 1, 1]}})",
           R"({"rope_theta": "ABSENT", "rope_parameters": {"rope_type": "longrope", "long_factor": [1, 1.1, 1.2, 1.3],
               "short_factor": [1, 1, 1, 1], "original_max_position_embeddings": 128, "partial_rotary_factor": 0.5,
               "rope_theta": 5e4}})"},
          {"llama", R"({"rope_scaling": {"type": "linear", "factor": 8}})",
           R"({"rope_scaling": {"type": "linear", "factor": 8}, "rope_parameters": {"factor": 8.0, "rope_theta": 5e4}})"},
          {"minimax_m2", R"({"rotary_dim": 8, "head_dim": 16})",
           R"({"rope_theta": "ABSENT", "head_dim": 16, "rope_parameters": {"rope_theta": 5e4,
               "partial_rotary_factor": 0.5}})"},
      }) {
    const std::string base = Typed(pair.model_type);
    const Read four = ReadConfig(base, pair.four), five = ReadConfig(base, pair.five);
    ASSERT_TRUE(four.status.ok()) << pair.four << four.status;
    ASSERT_TRUE(five.status.ok()) << pair.five << five.status;
    EXPECT_EQ(four.All(), five.All()) << pair.model_type << pair.four;
    EXPECT_EQ(four.arch.rope_long, five.arch.rope_long);
    EXPECT_EQ(four.arch.rope_short, five.arch.rope_short);
  }
}

TEST(HfConfigTest, TheRotationOfATypeThatFollowsTheLengthIsPlainWithinTheContext) {
  const Read plain = ReadConfig(kLlama), dynamic = ReadConfig(kLlama, R"({"rope_scaling": {"type": "dynamic",
      "factor": 2.0}})");
  ASSERT_TRUE(dynamic.status.ok()) << dynamic.status;
  auto expected = plain.All();
  expected["gyre.rope.follows_length"] = std::string(1, '\1');
  EXPECT_EQ(dynamic.All(), expected);
}

TEST(HfConfigTest, DivisorsOfLlama3AreATensorThatEveryProgramReads) {
  const Read read = ReadConfig(kLlama, R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
      "high_freq_factor": 4, "original_max_position_embeddings": 64}})");
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_FALSE(read.Bytes("llama.rope.scaling.type"));
  ASSERT_EQ(read.arch.rope_factors.size(), 8u);
  EXPECT_EQ(read.arch.rope_factors.front(), 1.0f);
  EXPECT_EQ(read.arch.rope_factors.back(), 8.0f);
}

TEST(HfConfigTest, YarnsRampIsRoundedAsTheFileSays) {
  constexpr char kRope[] =
      R"({"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64)";
  const std::string usual = std::string(kRope) + "}}", exact = std::string(kRope) + R"(, "truncate": false}})";
  const auto key = [](const char* type, const std::string& more) {
    return ReadConfig(Typed(type), more).Bytes("gyre.rope.yarn_truncate");
  };
  EXPECT_EQ(key("llama", usual), std::nullopt);
  EXPECT_EQ(key("llama", exact), std::string(1, '\0'));
  EXPECT_EQ(key("gpt_oss", exact), std::nullopt);
  EXPECT_EQ(key("gpt_oss", usual), std::string(1, '\1'));
}

TEST(HfConfigTest, AWindowCountsWhereTransformersHasIt) {
  const auto windows = [](const char* type, const char* more) {
    const Read read = ReadConfig(Typed(type), more);
    EXPECT_TRUE(read.status.ok()) << read.status;
    const std::string p = read.arch.name + ".attention.sliding_window";
    const auto pattern = read.Bytes(p + "_pattern");
    std::string layers = std::to_string(read.metadata.Number(p)) + ":";
    for (char c : pattern.value_or("")) layers += c != 0 ? 'w' : 'f';
    return layers;
  };
  EXPECT_EQ(windows("llama", R"({"sliding_window": 4})"), "0:");
  EXPECT_EQ(windows("mistral", R"({"sliding_window": 4})"), "4:");
  EXPECT_EQ(windows("mistral", R"({"sliding_window": null})"), "0:");
  EXPECT_EQ(windows("mistral", "{}"), "4096:");
  EXPECT_EQ(windows("phi3", "{}"), "0:");
  for (const char* qwen : {"qwen2", "qwen3"}) {
    EXPECT_EQ(windows(qwen, R"({"sliding_window": 4})"), "0:");
    EXPECT_EQ(windows(qwen, R"({"sliding_window": 4, "use_sliding_window": true})"), "0:");  // 28 layers have none
    EXPECT_EQ(windows(qwen, R"({"sliding_window": 4, "use_sliding_window": true, "max_window_layers": 0})"), "4:");
    EXPECT_EQ(windows(qwen, R"({"sliding_window": 4, "use_sliding_window": true, "max_window_layers": 1})"), "4:fw");
    EXPECT_EQ(windows(qwen, R"({"sliding_window": 4, "use_sliding_window": true, "max_window_layers": 2})"), "0:");
    EXPECT_EQ(windows(qwen, R"({"sliding_window": 4, "use_sliding_window": true, "max_window_layers": 1,
                                "layer_types": ["sliding_attention", "full_attention"]})"),
              "4:wf");
  }
  EXPECT_EQ(windows("gpt_oss", R"({"layer_types": ["full_attention", "sliding_attention"]})"), "128:fw");
}

TEST(HfConfigTest, WhatIsNotAppliedOfTheAdviceIsNamed) {
  const auto unused = [](const char* text) { return UnusedAdvice(json::parse(text).get_object()); };
  // As makers of models publish it.
  for (const char* published : {
           R"({"bos_token_id": 128000, "do_sample": true, "eos_token_id": [128001, 128008, 128009], "temperature": 0.6,
               "top_p": 0.9, "transformers_version": "4.45.0.dev0"})",
           R"({"bos_token_id": 151643, "do_sample": true, "eos_token_id": [151645, 151643], "pad_token_id": 151643,
               "repetition_penalty": 1.05, "temperature": 0.7, "top_k": 20, "top_p": 0.8})",
           R"({"cache_implementation": "hybrid", "do_sample": true, "eos_token_id": [1, 106], "pad_token_id": 0,
               "top_k": 64, "top_p": 0.95})",
           R"({"_from_model_config": true, "eos_token_id": 2, "max_length": 4096, "num_beams": 1, "typical_p": 1.0})",
       }) {
    const auto names = unused(published);
    ASSERT_TRUE(names.ok()) << names.status();
    EXPECT_TRUE(names->empty()) << (*names)[0];
  }
  EXPECT_EQ(*unused(R"({"num_beams": 4, "suppress_tokens": [7], "guidance_scale": 1.0, "bad_words_ids": null})"),
            (std::vector<std::string>{"num_beams (4)", "suppress_tokens ([7])"}));
  EXPECT_THAT(Message(unused(R"({"eos_token_id": "2"})").status()), HasSubstr("eos_token_id is \"2\", expected an id"));
  EXPECT_THAT(Message(unused(R"({"eos_token_id": [2, -1]})").status()), HasSubstr("expected an id or a list of ids"));
  EXPECT_THAT(Message(unused(R"({"temperature": "warm"})").status()), HasSubstr("temperature is \"warm\""));
}

TEST(HfConfigTest, AbsentKeysHaveTheValuesThatTransformersAssumes) {
  const auto number = [](const char* type, const char* more, const char* key) {
    const Read read = ReadConfig(Typed(type), more);
    EXPECT_TRUE(read.status.ok()) << read.status;
    return read.Float(read.arch.name + "." + key);
  };
  EXPECT_EQ(number("llama", R"({"rope_theta": "ABSENT"})", "rope.freq_base"), 1e4f);
  EXPECT_EQ(number("mixtral", R"({"rope_theta": "ABSENT"})", "rope.freq_base"), 1e6f);
  EXPECT_EQ(number("gemma3_text", R"({"rope_theta": "ABSENT"})", "rope.freq_base_swa"), 1e4f);
  EXPECT_EQ(number("gemma2", "{}", "attn_logit_softcapping"), 50.0f);
  EXPECT_EQ(number("gemma2", R"({"attn_logit_softcapping": null})", "attn_logit_softcapping"), 0.0f);
  EXPECT_EQ(number("granite", "{}", "attention.scale"), 1.0f);
  const Read qwen = ReadConfig(kLlama, R"({"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2})");
  EXPECT_EQ(qwen.Bytes("qwen3moe.expert_weights_norm"), std::string(1, '\0'));
  EXPECT_TRUE(ReadConfig(kLlama, R"({"model_type": "smollm3"})").arch.tied);
  EXPECT_FALSE(ReadConfig(kLlama).arch.tied);
}

}  // namespace
}  // namespace gyre
