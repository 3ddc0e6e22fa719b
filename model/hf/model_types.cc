#include "model/hf/model_types.h"

#include <cmath>

#include "model/hf/json.h"
#include "model/quoted.h"

namespace gyre {
namespace {

namespace json = boost::json;
using enum KeyKind;

constexpr ConfigKey kBasics[] = {
    {"model_type", kText},
    {"num_hidden_layers", kWhole, "block_count"},
    {"hidden_size", kWhole, "embedding_length"},
    {"num_attention_heads", kWhole, "attention.head_count"},
    {"num_key_value_heads", kWhole, "attention.head_count_kv"},
    {"intermediate_size", kWhole, "feed_forward_length"},
    {"max_position_embeddings", kWhole, "context_length"},
    {"vocab_size", kWhole, "vocab_size"},
    {"rms_norm_eps", kNumber, "attention.layer_norm_rms_epsilon"},
    {"tie_word_embeddings", kFlag},
    {"head_dim", kWhole, "attention.key_length"},
    {"rope_theta", kNumber},
    {"rope_scaling", kObject},
    {"rope_parameters", kObject},
    {"layer_types", kList},
    {"quantization_config", kObject},
    {"compression_config", kObject},
    {"quantization", kObject},
    {"partial_rotary_factor", kNumber, nullptr, "[1]"},
    {"is_causal", kFlag, nullptr, "[true]"},
    {"use_bidirectional_attention", kFlag, nullptr, "[false]"},
    {"is_encoder_decoder", kFlag, nullptr, "[false]"},
    {"add_cross_attention", kFlag, nullptr, "[false]"},
};

constexpr ConfigKey kSilu[] = {{"hidden_act", kText, nullptr, R"(["silu", "swish"])"}};
constexpr ConfigKey kNoBiases[] = {{"attention_bias", kFlag, nullptr, "[false]"},
                                   {"mlp_bias", kFlag, nullptr, "[false]"}};
// attention_bias is the bias of queries, keys and values. OpenHfFolder compares the key with the tensors.
constexpr ConfigKey kBiases[] = {{"attention_bias", kFlag}, {"mlp_bias", kFlag, nullptr, "[false]"}};

// These types have no window, but their files carry the keys along.
constexpr ConfigKey kNoWindow[] = {
    {"sliding_window", kNothing}, {"use_sliding_window", kNothing}, {"max_window_layers", kNothing}};
constexpr ConfigKey kWindow[] = {{"sliding_window", kWhole}, {"use_sliding_window", kNothing}};
constexpr ConfigKey kQwenWindow[] = {
    {"use_sliding_window", kFlag},
    {"sliding_window", kWhole},
    {"max_window_layers", kWhole},
    // Attention over far parts of very long texts, which other engines have and transformers does not.
    {"dual_chunk_attention_config", kNothing},
    {"sparse_attention_config", kNothing},
};
// transformers has changed its mind on which layers of these types have the window.
constexpr ConfigKey kNoQwenWindow[] = {
    {"use_sliding_window", kFlag, nullptr, "[false]"},
    {"sliding_window", kNothing},
    {"max_window_layers", kNothing},
    {"dual_chunk_attention_config", kNothing},
    {"sparse_attention_config", kNothing},
};
constexpr ConfigKey kExperts[] = {
    {"num_local_experts", kWhole, "expert_count"},
    {"num_experts", kWhole, "expert_count"},
    {"num_experts_per_tok", kWhole, "expert_used_count"},
    {"moe_intermediate_size", kWhole, "expert_feed_forward_length"},
    {"norm_topk_prob", kFlag, "expert_weights_norm"},
    {"decoder_sparse_step", kWhole, nullptr, "[1]"},
    {"mlp_only_layers", kList, nullptr, "[[]]"},
};
// These types divide the weights of the chosen experts by their sum in any case.
constexpr ConfigKey kNormalizedExperts[] = {{"norm_topk_prob", kFlag, nullptr, "[true]"}};
constexpr ConfigKey kSharedExpert[] = {
    {"shared_expert_intermediate_size", kWhole, "expert_shared_feed_forward_length"}};
constexpr ConfigKey kRoutedExperts[] = {
    {"n_routed_experts", kWhole, "expert_count"},
    {"n_shared_experts", kWhole, "expert_shared_count"},
    {"first_k_dense_replace", kWhole, "leading_dense_block_count"},
    {"n_group", kWhole, "expert_group_count"},
    {"topk_group", kWhole, "expert_group_used_count"},
    {"mlp_layer_types", kList},
    {"num_nextn_predict_layers", kWhole, "nextn_predict_layers"},
    {"routed_scaling_factor", kNumber, "expert_weights_scale"},
};

constexpr ConfigKey kLlama[] = {{"is_llama_config", kNothing}, {"rope_interleaved", kFlag, nullptr, "[false]"}};
constexpr ConfigKey kQwen2[] = {{"attention_bias", kNothing},  // there always is one
                                {"mlp_bias", kFlag, nullptr, "[false]"},
                                {"qkv_bias", kFlag, nullptr, "[true]"},
                                {"use_mrope", kFlag, nullptr, "[false]"}};
constexpr ConfigKey kQwen3[] = {{"qkv_bias", kFlag, nullptr, "[false]"}, {"use_qk_norm", kFlag, nullptr, "[true]"}};
constexpr ConfigKey kNoSharedExpert[] = {{"shared_expert_intermediate_size", kWhole, nullptr, "[0]"}};
constexpr ConfigKey kGemma2[] = {
    {"hidden_activation", kText, nullptr, R"(["gelu_pytorch_tanh", "gelu_new"])"},
    {"hidden_act", kNothing},
    {"query_pre_attn_scalar", kNumber},
    {"attn_logit_softcapping", kNumber},
    {"final_logit_softcapping", kNumber},
    {"sliding_window", kWhole},
    {"sliding_window_size", kNothing},
};
constexpr ConfigKey kGemma3[] = {
    {"attn_logit_softcapping", kNumber, nullptr, "[]"},
    {"final_logit_softcapping", kNumber, nullptr, "[]"},
    {"rope_local_base_freq", kNumber},
    {"sliding_window_pattern", kWhole},
    {"_sliding_window_pattern", kWhole},
};
constexpr ConfigKey kGemma4[] = {
    {"hidden_activation", kText, nullptr, R"(["gelu_pytorch_tanh", "gelu_new"])"},
    {"hidden_act", kNothing},
    {"use_bidirectional_attention", kText, nullptr, R"(["vision"])"},
    {"sliding_window", kWhole},
    {"global_head_dim", kWhole},
    {"num_global_key_value_heads", kWhole},
    {"attention_k_eq_v", kFlag},
    {"num_kv_shared_layers", kWhole},
    {"use_double_wide_mlp", kFlag},
    {"hidden_size_per_layer_input", kWhole},
    {"vocab_size_per_layer_input", kNothing},  // the tensor has as many rows
    {"final_logit_softcapping", kNumber},
    {"enable_moe_block", kFlag},
    {"num_experts", kWhole, "expert_count"},
    {"top_k_experts", kWhole},
    {"expert_intermediate_size", kWhole, "expert_feed_forward_length"},
    {"moe_intermediate_size", kWhole, "expert_feed_forward_length"},
};
constexpr ConfigKey kPhi3[] = {{"partial_rotary_factor", kNumber},
                               {"original_max_position_embeddings", kWhole},
                               {"full_attn_mod", kWhole, nullptr, "[1]"},
                               {"interpolate_factor", kWhole, nullptr, "[1]"},
                               {"lm_head_bias", kFlag, nullptr, "[false]"}};
constexpr ConfigKey kGlm4Moe[] = {{"partial_rotary_factor", kNumber},
                                  {"use_qk_norm", kFlag},
                                  {"scoring_func", kText, nullptr, R"(["sigmoid"])"},
                                  {"topk_method", kText, nullptr, R"(["noaux_tc"])"}};
constexpr ConfigKey kMiniMax[] = {{"sliding_window", kWhole, nullptr, "[]"},
                                  {"rotary_dim", kWhole},
                                  {"partial_rotary_factor", kNumber},
                                  {"attn_type_list", kList},
                                  {"use_qk_norm", kFlag, nullptr, "[true]"},
                                  {"qk_norm_type", kText, nullptr, R"(["per_layer"])"},
                                  {"use_routing_bias", kFlag, nullptr, "[true]"},
                                  {"scoring_func", kText, nullptr, R"(["sigmoid"])"},
                                  {"shared_intermediate_size", kWhole, nullptr, "[0]"},
                                  {"shared_moe_mode", kNothing},
                                  {"mlp_intermediate_size", kNothing},
                                  {"postnorm", kFlag, nullptr, "[false]"},
                                  {"layernorm_full_attention_alpha", kNothing},  // of another model of its maker
                                  {"layernorm_full_attention_beta", kNothing},
                                  {"layernorm_linear_attention_alpha", kNothing},
                                  {"layernorm_linear_attention_beta", kNothing},
                                  {"layernorm_mlp_alpha", kNothing},
                                  {"layernorm_mlp_beta", kNothing}};
constexpr ConfigKey kGptOss[] = {{"hidden_act", kNothing},  // the experts have their own
                                 {"attention_bias", kFlag, nullptr, "[true]"},
                                 {"mlp_bias", kNothing},
                                 {"swiglu_limit", kNumber, nullptr, "[7]"},
                                 {"swiglu_alpha", kNumber, nullptr, "[1.702]"},
                                 {"experts_per_token", kNothing},       // num_experts_per_tok says it
                                 {"initial_context_length", kNothing},  // the scaling says it
                                 {"sliding_window", kWhole}};
constexpr ConfigKey kSmolLm3[] = {{"use_sliding_window", kFlag, nullptr, "[false]"},
                                  {"sliding_window", kNothing},
                                  {"max_window_layers", kNothing},
                                  {"no_rope_layers", kList},
                                  {"no_rope_layer_interval", kWhole}};
constexpr ConfigKey kGranite[] = {{"embedding_multiplier", kNumber, "embedding_scale"},
                                  {"residual_multiplier", kNumber, "residual_scale"},
                                  {"attention_multiplier", kNumber, "attention.scale"},
                                  {"logits_scaling", kNumber, "logit_scale"}};
constexpr ConfigKey kSeedOss[] = {{"attention_out_bias", kFlag, nullptr, "[false]"}};
constexpr ConfigKey kDeltaNet[] = {{"use_sliding_window", kFlag, nullptr, "[false]"},
                                   {"sliding_window", kNothing},
                                   {"max_window_layers", kNothing},
                                   {"partial_rotary_factor", kNumber},
                                   {"linear_conv_kernel_dim", kWhole},
                                   {"linear_num_key_heads", kWhole},
                                   {"linear_num_value_heads", kWhole},
                                   {"linear_key_head_dim", kWhole},
                                   {"linear_value_head_dim", kWhole},
                                   {"full_attention_interval", kWhole},
                                   {"attn_output_gate", kFlag, nullptr, "[true]"},
                                   {"output_gate_type", kText, nullptr, R"(["silu", "swish"])"},
                                   {"mamba_ssm_dtype", kNothing},
                                   {"num_nextn_predict_layers", kWhole, "nextn_predict_layers"}};
constexpr ConfigKey kLatent[] = {{"head_dim", kNothing},  // that of the rotated part, or of all
                                 {"qk_head_dim", kNothing},
                                 {"num_key_value_heads", kNothing},  // all heads have their own
                                 {"kv_lora_rank", kWhole},
                                 {"q_lora_rank", kWhole},
                                 {"qk_rope_head_dim", kWhole},
                                 {"qk_nope_head_dim", kWhole},
                                 {"v_head_dim", kWhole},
                                 {"rope_interleave", kFlag, nullptr, "[true]"},
                                 {"moe_layer_freq", kWhole, nullptr, "[1]"},
                                 {"scoring_func", kText, nullptr, R"(["sigmoid", "softmax"])"},
                                 {"topk_method", kText, nullptr, R"(["noaux_tc", "greedy", "group_limited_greedy"])"},
                                 {"first_k_dense_replace", kWhole}};
// Its code never divides the weights of the chosen experts by their sum.
constexpr ConfigKey kDeepseek2[] = {{"norm_topk_prob", kFlag, "expert_weights_norm", "[false]"}};

constexpr char kYarnOfGptOss[] =
    R"({"rms_norm_eps": 1e-5, "rope_theta": 150000, "head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128,
        "rope_parameters": {"rope_type": "yarn", "factor": 32, "beta_fast": 32, "beta_slow": 1, "truncate": false,
                            "original_max_position_embeddings": 4096}})";
constexpr char kYarnOfMinistral[] =
    R"({"rms_norm_eps": 1e-5, "rope_theta": 1000000, "head_dim": 128, "num_key_value_heads": 8,
        "rope_parameters": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1, "mscale": 1,
                            "mscale_all_dim": 1, "original_max_position_embeddings": 16384,
                            "llama_4_scaling_beta": 0.1}})";
// Files of pictures and text leave out values that are the defaults.
constexpr char kAbsentGemma3[] =
    R"({"rms_norm_eps": 1e-6, "rope_theta": 1000000, "rope_local_base_freq": 10000, "head_dim": 256,
        "num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 4096, "query_pre_attn_scalar": 256,
        "max_position_embeddings": 131072, "tie_word_embeddings": true})";
constexpr char kAbsentGemma4[] =
    R"({"rms_norm_eps": 1e-6, "head_dim": 256, "global_head_dim": 512, "num_key_value_heads": 4, "sliding_window": 512,
        "hidden_size_per_layer_input": 256, "tie_word_embeddings": true})";
constexpr char kAbsentDelta[] = R"({"rms_norm_eps": 1e-6, "head_dim": 256, "partial_rotary_factor": 0.25})";
constexpr char kAbsentDeltaExperts[] =
    R"({"rms_norm_eps": 1e-6, "head_dim": 256, "partial_rotary_factor": 0.25, "norm_topk_prob": true})";
constexpr char kAbsentDeepseek3[] = R"({"rms_norm_eps": 1e-6, "norm_topk_prob": true, "routed_scaling_factor": 2.5})";

// Files of texts and files of pictures and texts name one type differently.
constexpr HfModelType Named(const char* model_type, HfModelType type) {
  type.model_type = model_type;
  return type;
}
constexpr HfModelType kGemma3Type = {.name = "gemma3",
                                     .gemma = true,
                                     .added_one = true,
                                     .layer_ropes = true,
                                     .window = WindowRule::kEvery,
                                     .every = 6,
                                     .keys = {kGemma3, kGemma2, kNoBiases, kBasics},
                                     .absent = kAbsentGemma3};
constexpr HfModelType kGemma4Type = {.name = "gemma4",
                                     .family = HfFamily::kGemma4,
                                     .after_attention = true,
                                     .layer_ropes = true,
                                     .window = WindowRule::kOwn,
                                     .keys = {kGemma4, kNoBiases, kBasics},
                                     .absent = kAbsentGemma4};
constexpr HfModelType kQwen35Type = {.name = "qwen35",
                                     .family = HfFamily::kDeltaNet,
                                     .added_one = true,
                                     .after_attention = true,
                                     .window = WindowRule::kOwn,
                                     .keys = {kDeltaNet, kSilu, kNoBiases, kExperts, kSharedExpert, kBasics},
                                     .absent = kAbsentDelta};
constexpr HfModelType kQwen35MoeType = {.name = "qwen35moe",
                                        .family = HfFamily::kDeltaNet,
                                        .added_one = true,
                                        .after_attention = true,
                                        .window = WindowRule::kOwn,
                                        .keys = {kDeltaNet, kSilu, kNoBiases, kExperts, kSharedExpert, kBasics},
                                        .absent = kAbsentDeltaExperts};

constexpr HfModelType kTypes[] = {
    {.model_type = "llama",
     .name = "llama",
     .permuted = true,
     .keys = {kLlama, kSilu, kBiases, kNoWindow, kBasics},
     .absent = R"({"rms_norm_eps": 1e-6})"},
    {.model_type = "mistral",
     .name = "llama",
     .permuted = true,
     .window = WindowRule::kAll,
     .keys = {kSilu, kNoBiases, kWindow, kBasics},
     .absent = R"({"rms_norm_eps": 1e-6, "num_key_value_heads": 8, "sliding_window": 4096})"},
    {.model_type = "mixtral",
     .name = "llama",
     .permuted = true,
     .window = WindowRule::kAll,
     .keys = {kSilu, kNoBiases, kWindow, kNormalizedExperts, kExperts, kBasics},
     .absent = R"({"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "rope_theta": 1000000})"},
    {.model_type = "qwen2",
     .name = "qwen2",
     .window = WindowRule::kSwitched,
     .keys = {kQwen2, kSilu, kQwenWindow, kBasics},
     .absent = R"({"rms_norm_eps": 1e-6, "num_key_value_heads": 32, "sliding_window": 4096,
                   "max_window_layers": 28})"},
    {.model_type = "qwen2_moe",
     .name = "qwen2moe",
     .keys = {kQwen2, kSilu, kNoQwenWindow, kExperts, kSharedExpert, kBasics},
     .absent = R"({"rms_norm_eps": 1e-6, "num_key_value_heads": 16, "norm_topk_prob": false})"},
    {.model_type = "qwen3",
     .name = "qwen3",
     .window = WindowRule::kSwitched,
     .keys = {kQwen3, kSilu, kNoBiases, kQwenWindow, kBasics},
     .absent = R"({"rms_norm_eps": 1e-6, "num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096,
                   "max_window_layers": 28})"},
    {.model_type = "qwen3_moe",
     .name = "qwen3moe",
     .keys = {kQwen3, kSilu, kNoBiases, kNoQwenWindow, kExperts, kNoSharedExpert, kBasics},
     .absent = R"({"rms_norm_eps": 1e-6, "num_key_value_heads": 4, "norm_topk_prob": false})"},
    {.model_type = "gemma2",
     .name = "gemma2",
     .gemma = true,
     .added_one = true,
     .window = WindowRule::kEvery,
     .every = 2,
     .keys = {kGemma2, kNoBiases, kBasics},
     .absent = R"({"rms_norm_eps": 1e-6, "head_dim": 256, "num_key_value_heads": 4, "sliding_window": 4096,
                   "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50, "final_logit_softcapping": 30,
                   "tie_word_embeddings": true})"},
    Named("gemma3_text", kGemma3Type),
    Named("gemma3", kGemma3Type),
    {.model_type = "phi3",
     .name = "phi3",
     .window = WindowRule::kAll,
     .keys = {kPhi3, kSilu, kNoBiases, kWindow, kBasics},
     .absent = R"({"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096})"},
    {.model_type = "glm4_moe",
     .name = "glm4moe",
     .after_attention = true,
     .keys = {kGlm4Moe, kSilu, kBiases, kNoWindow, kRoutedExperts, kExperts, kBasics},
     .absent = R"({"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "partial_rotary_factor": 0.5, "norm_topk_prob": true,
                   "first_k_dense_replace": 1})"},
    {.model_type = "minimax_m2",
     .name = "minimax-m2",
     .keys = {kMiniMax, kSilu, kNoBiases, kNormalizedExperts, kExperts, kBasics},
     .absent = R"({"rms_norm_eps": 1e-6, "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 5000000})"},
    {.model_type = "gpt_oss",
     .name = "gpt-oss",
     .after_attention = true,
     .window = WindowRule::kEvery,
     .every = 2,
     .keys = {kGptOss, kNormalizedExperts, kExperts, kBasics},
     .absent = kYarnOfGptOss},
    {.model_type = "ministral3",
     .name = "mistral3",
     .permuted = true,
     .window = WindowRule::kAll,
     .keys = {kSilu, kNoBiases, kWindow, kBasics},
     .absent = kYarnOfMinistral},
    {.model_type = "smollm3",
     .name = "smollm3",
     .permuted = true,
     .keys = {kSmolLm3, kSilu, kNoBiases, kBasics},
     .absent = R"({"rms_norm_eps": 1e-6, "num_key_value_heads": 4, "rope_theta": 2000000, "no_rope_layer_interval": 4,
                   "tie_word_embeddings": true})"},
    {.model_type = "olmo2",
     .name = "olmo2",
     .after_attention = true,
     .keys = {kSilu, kNoBiases, kNoWindow, kBasics},
     .absent = R"({"rms_norm_eps": 1e-5})"},
    {.model_type = "olmo3",
     .name = "olmo2",
     .after_attention = true,
     .layer_ropes = true,
     .window = WindowRule::kEvery,
     .every = 4,
     .keys = {kSilu, kNoBiases, kWindow, kBasics},
     .absent = R"({"rms_norm_eps": 1e-5, "rope_theta": 500000, "sliding_window": 4096})"},
    {.model_type = "granite",
     .name = "granite",
     .permuted = true,
     .keys = {kGranite, kSilu, kBiases, kNoWindow, kBasics},
     .absent = R"({"rms_norm_eps": 1e-6, "embedding_multiplier": 1, "residual_multiplier": 1, "attention_multiplier": 1,
                   "logits_scaling": 1})"},
    {.model_type = "seed_oss",
     .name = "seed_oss",
     .after_attention = true,
     .keys = {kSeedOss, kSilu, kBiases, kNoWindow, kBasics},
     .absent = R"({"rms_norm_eps": 1e-6, "num_key_value_heads": 8, "head_dim": 128})"},
    Named("gemma4", kGemma4Type),
    Named("gemma4_text", kGemma4Type),
    Named("qwen3_5_text", kQwen35Type),
    Named("qwen3_5", kQwen35Type),
    Named("qwen3_5_moe_text", kQwen35MoeType),
    Named("qwen3_5_moe", kQwen35MoeType),
    {.model_type = "qwen3_next",
     .name = "qwen3next",
     .family = HfFamily::kDeltaNet,
     .added_one = true,
     .after_attention = true,
     .window = WindowRule::kOwn,
     .keys = {kDeltaNet, kSilu, kNoBiases, kExperts, kSharedExpert, kBasics},
     .absent = kAbsentDeltaExperts},
    {.model_type = "deepseek_v2",
     .name = "deepseek2",
     .family = HfFamily::kLatent,
     .keys = {kDeepseek2, kLatent, kSilu, kNoBiases, kRoutedExperts, kExperts, kBasics},
     .absent = R"({"rms_norm_eps": 1e-6, "norm_topk_prob": false, "topk_method": "greedy"})"},
    {.model_type = "deepseek_v3",
     .name = "deepseek2",
     .family = HfFamily::kLatent,
     .sigmoid = true,
     .keys = {kLatent, kSilu, kNoBiases, kRoutedExperts, kExperts, kBasics},
     .absent = kAbsentDeepseek3},
    {.model_type = "kimi_k2",
     .name = "deepseek2",
     .family = HfFamily::kLatent,
     .sigmoid = true,
     .keys = {kLatent, kSilu, kNoBiases, kRoutedExperts, kExperts, kBasics},
     .absent = kAbsentDeepseek3},
    {.model_type = "glm4_moe_lite",
     .name = "deepseek2",
     .family = HfFamily::kLatent,
     .sigmoid = true,
     .keys = {kLatent, kSilu, kNoBiases, kRoutedExperts, kExperts, kBasics},
     .absent = R"({"rms_norm_eps": 1e-5, "norm_topk_prob": true, "routed_scaling_factor": 1.8})"},
};

// Keys that say how a model was trained, how a program is to load it, how a text is to be sampled, or what belongs to
// pictures and sound.
constexpr std::string_view kMeaningless[] = {
    "_*", "architectures", "auto_map", "custom_pipelines", "transformers_version", "transformers.js_config",
    "torch_dtype", "dtype", "name_or_path", "tokenizer_class", "license", "unsloth_*", "mlx_*", "attn_implementation",
    "flash_attn*", "use_flash_attn*", "use_flash_attention*", "use_cache", "use_parallel*", "cache_implementation",
    "gradient_checkpointing", "torchscript", "use_bfloat16", "tf_legacy_loss", "keys_to_ignore_at_inference",
    "chunk_size_feed_forward", "pretraining_tp", "ep_size", "pruned_heads",
    // Training.
    "initializer_range", "*_dropout", "*_dropout_prob", "*_pdrop", "dropout", "neftune_noise_alpha",
    "router_aux_loss_coef", "router_z_loss_coef", "router_jitter_noise", "aux_loss_alpha", "seq_aux",
    "output_router_logits", "output_attentions", "output_hidden_states", "output_scores", "output_past", "return_dict",
    "return_dict_in_generate", "tie_encoder_decoder", "is_decoder", "cross_attention_hidden_size", "finetuning_task",
    "task_specific_params", "problem_type", "num_labels", "id2label", "label2id", "classifier_*", "summary_*",
    // Layers that predict further tokens.
    "mtp_*", "use_mtp", "num_mtp_modules",
    // Lengths that others than the model's code look at.
    "max_sequence_length", "model_max_length", "max_model_len", "seq_length",
    // Tokens.
    "*_token_id", "*_token_ids", "*_token_index", "bos_token", "eos_token", "pad_token", "unk_token", "prefix",
    // Sampling, which older files have here.
    "do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "length_penalty",
    "diversity_penalty", "early_stopping", "num_beams", "num_beam_groups", "num_return_sequences", "max_length",
    "min_length", "max_new_tokens", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
    // Pictures and sound.
    "vision_*", "image_*", "video_*", "audio_*", "mm_*", "multimodal_*", "projector_*", "language_model_only"};

Status CheckKind(const ConfigKey& key, const json::value& v) {
  const char* expected = nullptr;
  switch (key.kind) {
    case kNothing: break;
    case kWhole:
      if (!v.is_int64() || v.get_int64() < 0) expected = "a whole number";
      break;
    case kNumber:
      if (!v.is_number() || !std::isfinite(v.to_number<double>())) expected = "a number";
      break;
    case kFlag:
      if (!v.is_bool()) expected = "true or false";
      break;
    case kText:
      if (!v.is_string()) expected = "a text";
      break;
    case kList:
      if (!v.is_array()) expected = "a list";
      break;
    case kObject:
      if (!v.is_object()) expected = "an object";
      break;
  }
  if (expected != nullptr) return DataLoss("{} is {}, expected {}", key.name, Shown(v), expected);
  return absl::OkStatus();
}

}  // namespace

bool IsListed(std::span<const std::string_view> names, std::string_view name) {
  for (std::string_view listed : names) {
    if (listed.back() == '*' ? name.starts_with(listed.substr(0, listed.size() - 1))
        : listed[0] == '*'   ? name.ends_with(listed.substr(1))
                             : name == listed) {
      return true;
    }
  }
  return false;
}

Status OnlyKeys(const json::object& o, std::span<const std::string_view> known, std::string_view where) {
  for (const auto& item : o) {
    const std::string_view key(item.key().data(), item.key().size());
    if (IsEmpty(item.value()) || IsListed(known, key)) continue;
    return Unimplemented("{}.{} is {}: the key is not known", where, Printable(key), Shown(item.value()));
  }
  return absl::OkStatus();
}

Status OnlyValues(const json::object& o, const char* key, const char* values, std::string_view where) {
  const json::value* v = o.if_contains(key);
  if (v == nullptr || IsEmpty(*v)) return absl::OkStatus();
  const json::value list = json::parse(values);
  if (IsOneOf(*v, list.get_array())) return absl::OkStatus();
  return Unimplemented("{}.{} is {}, known is {}", where, key, Shown(*v), ShownList(list.get_array()));
}

std::optional<bool> IsPermuted(std::string_view gguf_name) {
  std::optional<bool> permuted;
  for (const HfModelType& t : kTypes) {
    if (gguf_name == t.name) permuted = permuted.value_or(false) || t.permuted;
  }
  return permuted;
}

bool IsMeaningless(std::string_view key) { return IsListed(kMeaningless, key); }

const HfModelType* FindModelType(std::string_view model_type) {
  for (const HfModelType& t : kTypes) {
    if (model_type == t.model_type) return &t;
  }
  return nullptr;
}

std::string KnownModelTypes() {
  std::string known;
  for (const HfModelType& t : kTypes) known += std::string(" ") + t.model_type;
  return known;
}

const ConfigKey* FindKey(const HfModelType& type, std::string_view key) {
  for (std::span<const ConfigKey> keys : type.keys) {
    for (const ConfigKey& k : keys) {
      if (key == k.name) return &k;
    }
  }
  return nullptr;
}

Status CheckKeys(const HfModelType& type, const json::object& config) {
  for (const auto& item : config) {
    const std::string_view name(item.key().data(), item.key().size());
    const json::value& v = item.value();
    if (v.is_null()) continue;
    const ConfigKey* key = FindKey(type, name);
    if (key == nullptr) {
      if (IsMeaningless(name)) continue;
      return Unimplemented("{} is {}: the key is not known for the model_type {}, and may change what it computes",
                           Printable(name), Shown(v), type.model_type);
    }
    GYRE_RETURN_IF_ERROR(CheckKind(*key, v));
    if (key->only == nullptr) continue;
    const json::value only = json::parse(key->only);
    if (IsOneOf(v, only.get_array())) continue;
    const std::string known = ShownList(only.get_array());
    return Unimplemented("{} is {}, known for the model_type {} is {}", key->name, Shown(v), type.model_type,
                         known.empty() ? "null" : known);
  }
  return absl::OkStatus();
}

}  // namespace gyre
