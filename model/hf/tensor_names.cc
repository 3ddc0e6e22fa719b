#include "model/hf/tensor_names.h"

#include "fmt/core.h"

namespace gyre {
namespace {

struct Rename {
  const char* hf;
  const char* gguf;
  const char* after_attention = nullptr;  // the name in families that have norms after attention, if it differs
};
constexpr Rename kEnds[] = {{"embed_tokens.weight", "token_embd.weight"},
                            {"norm.weight", "output_norm.weight"},
                            {"lm_head.weight", "output.weight"},
                            {"embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
                            {"per_layer_model_projection.weight", "per_layer_model_proj.weight"},
                            {"per_layer_projection_norm.weight", "per_layer_proj_norm.weight"}};
constexpr Rename kLayer[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight", "post_attention_norm.weight"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.qkv_proj.weight", "attn_qkv.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_proj.bias", "attn_q.bias"},
    {"self_attn.k_proj.bias", "attn_k.bias"},
    {"self_attn.v_proj.bias", "attn_v.bias"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.gate_up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"mlp.gate.weight", "ffn_gate_inp.weight"},
    {"block_sparse_moe.gate.weight", "ffn_gate_inp.weight"},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias"},
    {"mlp.router.weight", "ffn_gate_inp.weight"},
    {"mlp.router.bias", "ffn_gate_inp.bias"},
    {"self_attn.o_proj.bias", "attn_output.bias"},
    {"self_attn.sinks", "attn_sinks.weight"},
    {"mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"},
    {"eh_proj.weight", "nextn.eh_proj.weight"},
    {"enorm.weight", "nextn.enorm.weight"},
    {"hnorm.weight", "nextn.hnorm.weight"},
    {"embed_tokens.weight", "nextn.embed_tokens.weight"},
    {"shared_head.norm.weight", "nextn.shared_head_norm.weight"},
    {"shared_head.head.weight", "nextn.shared_head_head.weight"},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"},
    // These hold all experts of a layer in one tensor.
    {"mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
    {"experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"experts.down_proj", "ffn_down_exps.weight"},
    // Gemma 4.
    {"layer_scalar", "layer_output_scale.weight"},
    {"per_layer_input_gate.weight", "inp_gate.weight"},
    {"per_layer_projection.weight", "proj.weight"},
    {"post_per_layer_input_norm.weight", "post_norm.weight"},
    {"router.proj.weight", "ffn_gate_inp.weight"},
    {"router.scale", "ffn_gate_inp.scale"},
    {"router.per_expert_scale", "ffn_down_exps.scale"},
    {"post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"},
    {"pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"},
    {"post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"},
    // Gated delta nets.
    {"linear_attn.in_proj_qkv.weight", "attn_qkv.weight"},
    {"linear_attn.in_proj_z.weight", "attn_gate.weight"},
    {"linear_attn.in_proj_b.weight", "ssm_beta.weight"},
    {"linear_attn.in_proj_a.weight", "ssm_alpha.weight"},
    {"linear_attn.in_proj_qkvz.weight", "attn_qkvz.weight"},  // becomes attn_qkv and attn_gate
    {"linear_attn.in_proj_ba.weight", "ssm_ba.weight"},
    {"linear_attn.conv1d.weight", "ssm_conv1d.weight"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
    {"linear_attn.A_log", "ssm_a"},
    {"linear_attn.norm.weight", "ssm_norm.weight"},
    {"linear_attn.out_proj.weight", "ssm_out.weight"},
    // Latent attention.
    {"self_attn.q_a_proj.weight", "attn_q_a.weight"},
    {"self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight"},
    {"self_attn.q_b_proj.weight", "attn_q_b.weight"},
    {"self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"},
    {"self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"},
    {"self_attn.kv_b_proj.weight", "attn_kv_b.weight"},  // becomes attn_k_b and attn_v_b
};
// The matrices of one expert, after "experts.3."; GGUF's older names have one tensor for each expert.
constexpr Rename kExpert[] = {{"gate_proj.weight", "ffn_gate"}, {"up_proj.weight", "ffn_up"},
                              {"down_proj.weight", "ffn_down"}, {"w1.weight", "ffn_gate"},
                              {"w3.weight", "ffn_up"},          {"w2.weight", "ffn_down"}};

bool Eat(std::string_view* s, std::string_view prefix) {
  if (s->substr(0, prefix.size()) != prefix) return false;
  s->remove_prefix(prefix.size());
  return true;
}
std::optional<int> EatNumber(std::string_view* s) {
  size_t n = 0;
  int v = 0;
  while (n < s->size() && n < 6 && (*s)[n] >= '0' && (*s)[n] <= '9') v = 10 * v + ((*s)[n++] - '0');
  if (n == 0 || n >= s->size() || (*s)[n] != '.') return std::nullopt;
  s->remove_prefix(n + 1);
  return v;
}

}  // namespace

bool IsDraftName(std::string_view name) {
  Eat(&name, "model.");
  return name.substr(0, 4) == "mtp.";
}

std::optional<std::string> GgufName(std::string_view name, bool after_attention) {
  if (IsDraftName(name)) return "";
  std::string_view part = name;
  Eat(&part, "model.");
  for (std::string_view skip :
       {"vision_tower.", "multi_modal_projector.", "visual.", "embed_vision.", "audio_tower.", "embed_audio."}) {
    if (part.substr(0, skip.size()) == skip) return "";
  }
  if (name.find("rotary_emb.inv_freq") != std::string_view::npos) return "";
  Eat(&name, "language_model.");
  if (Eat(&name, "model.")) Eat(&name, "language_model.");
  for (const Rename& r : kEnds) {
    if (name == r.hf) return r.gguf;
  }
  if (!Eat(&name, "layers.")) return std::nullopt;
  const auto layer = EatNumber(&name);
  if (!layer) return std::nullopt;
  const std::string prefix = fmt::format("blk.{}.", *layer);
  for (const Rename& r : kLayer) {
    if (name == r.hf) return prefix + (after_attention && r.after_attention != nullptr ? r.after_attention : r.gguf);
  }
  if (Eat(&name, "mlp.experts.") || Eat(&name, "block_sparse_moe.experts.")) {
    const auto expert = EatNumber(&name);
    for (const Rename& r : kExpert) {
      if (expert && name == r.hf) return fmt::format("{}{}.{}.weight", prefix, r.gguf, *expert);
    }
  }
  return std::nullopt;
}

std::optional<ExpertTensor> ParseExpertName(std::string_view gguf_name) {
  std::string_view rest(gguf_name);
  if (!Eat(&rest, "blk.") || !EatNumber(&rest)) return std::nullopt;
  const std::string_view layer = gguf_name.substr(0, gguf_name.size() - rest.size());
  for (std::string_view part : {"ffn_gate", "ffn_up", "ffn_down"}) {
    std::string_view tail = rest;
    if (!Eat(&tail, part) || !Eat(&tail, ".")) continue;
    if (const auto expert = EatNumber(&tail)) {
      return ExpertTensor{.all = fmt::format("{}{}_exps.weight", layer, part), .expert = *expert};
    }
  }
  return std::nullopt;
}

}  // namespace gyre
