// Tiny models with latent attention or recurrent state, with seeded random weights.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/gguf_writer.h"

namespace gyre::testing {

inline bool IsTinyHybrid(const std::string& arch) {
  for (const char* known :
       {"qwen35", "qwen35moe", "qwen3next", "lfm2", "nemotron_h", "nemotron_h_moe", "granitehybrid", "deepseek2"}) {
    if (arch == known) return true;
  }
  return false;
}

// A vocabulary and a context in place of the small ones.
struct TinyText {
  uint32_t vocab = 96, context = 512;
  void (*tokenizer)(GgufWriter&) = nullptr;  // null: none
};

// Six layers of 32 elements. `without`: a tensor or a key that is left out. `old`: deepseek2 and qwen3next in older
// tensors, with the same values.
inline std::vector<std::byte> BuildTinyHybrid(const std::string& arch, const std::string& without = {},
                                              uint32_t seed = 1, bool old = false, const TinyText& text = {}) {
  constexpr uint32_t kLayers = 6, kDim = 32, kFfn = 48;
  const uint32_t vocab = text.vocab;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  GgufWriter w;
  std::vector<float> held;  // old: the first part of a tensor
  auto key = [&](const char* name) { return arch + "." + name; };
  auto tensor = [&](const std::string& name, const std::vector<uint64_t>& dims, float scale, float offset = 0) {
    size_t n = 1;
    for (uint64_t d : dims) n *= d;
    std::vector<float> values(n);
    for (float& v : values) v = normal(random) * scale + offset;
    const bool first = name.ends_with("attn_k_b.weight") || (arch == "qwen3next" && name.ends_with("attn_qkv.weight")),
               second =
                   name.ends_with("attn_v_b.weight") || (arch == "qwen3next" && name.ends_with("attn_gate.weight"));
    if (old && first) {
      held = values;
      return;
    }
    if (old && second) {
      const std::string layer = name.substr(0, name.find("attn_"));
      std::vector<float> whole;
      const auto rows = [&](const std::vector<float>& from, size_t at, size_t count, size_t width) {
        whole.insert(whole.end(), from.begin() + static_cast<ptrdiff_t>(at * width),
                     from.begin() + static_cast<ptrdiff_t>((at + count) * width));
      };
      if (arch == "deepseek2") {  // of each head the keys [8][16], which stand transposed today, and the values [8][16]
        for (size_t h = 0; h < 4; ++h) {
          for (size_t k = 0; k < 8; ++k) {
            for (size_t r = 0; r < 16; ++r) whole.push_back(held[(h * 16 + r) * 8 + k]);
          }
          rows(values, h * 8, 8, 16);
        }
        return w.Tensor(layer + "attn_kv_b.weight", DType::kF32, {16, 64}, whole);
      }
      for (size_t h = 0; h < 2; ++h) {  // of each key head its query, key, values and gates
        rows(held, h * 8, 8, kDim);
        rows(held, 16 + h * 8, 8, kDim);
        rows(held, 32 + h * 16, 16, kDim);
        rows(values, h * 16, 16, kDim);
      }
      return w.Tensor(layer + "ssm_in.weight", DType::kF32, {kDim, 96}, whole);
    }
    if (name != without) w.Tensor(name, DType::kF32, dims, values);
  };
  auto number = [&](const char* name, uint32_t value) {
    if (without != name) w.Uint(key(name), value);
  };
  auto matrix = [&](const std::string& name, uint64_t n, uint64_t k) {
    tensor(name, {k, n}, 1 / std::sqrt(static_cast<float>(k)));
  };
  auto norm = [&](const std::string& name, uint64_t n) { tensor(name, {n}, 0.1f, 1); };
  const bool moe = arch == "qwen35moe" || arch == "qwen3next" || arch == "nemotron_h_moe" || arch == "granitehybrid" ||
                   arch == "deepseek2",
             joint = arch == "qwen3next", delta = arch == "qwen35" || arch == "qwen35moe" || joint,
             conv = arch == "lfm2", latent = arch == "deepseek2",
             parts = arch == "nemotron_h" || arch == "nemotron_h_moe", mamba = parts || arch == "granitehybrid";
  w.String("general.architecture", arch);
  w.Uint(key("block_count"), kLayers);
  w.Uint(key("embedding_length"), kDim);
  w.Uint(key("context_length"), text.context);
  w.Uint(key("attention.head_count"), 4);
  w.Float(key("attention.layer_norm_rms_epsilon"), 1e-5f);
  w.Float(key("rope.freq_base"), 10000.0f);
  if (text.tokenizer == nullptr) w.String("tokenizer.ggml.model", "none");
  if (text.tokenizer != nullptr) text.tokenizer(w);
  // The layers with attention; in nemotron_h the second and the last are feed-forward blocks, the last one always
  // dense.
  const std::vector<uint32_t> kv = delta  ? std::vector<uint32_t>{2, 2, 2, 2, 2, 2}
                                   : conv ? std::vector<uint32_t>{0, 2, 0, 0, 2, 0}
                                          : std::vector<uint32_t>{0, 0, 0, 2, 0, 0},
                              ffn = parts ? std::vector<uint32_t>{0, kFfn, 0, 0, 0, kFfn}
                                          : std::vector<uint32_t>(kLayers, kFfn);
  if (latent)
    w.Uint(key("attention.head_count_kv"), 1);
  else
    w.Numbers(key("attention.head_count_kv"), 4, kv);
  w.Numbers(key("feed_forward_length"), 4, ffn);
  if (delta) number("full_attention_interval", 3);
  if (delta || mamba) {
    number("ssm.conv_kernel", 4);
    number("ssm.state_size", 8);
    number("ssm.group_count", 2);
    number("ssm.time_step_rank", 4);
    number("ssm.inner_size", delta ? 32 : 64);
  }
  if (conv) number("shortconv.l_cache", 3);
  if (latent) {
    number("attention.q_lora_rank", 24);
    number("attention.kv_lora_rank", 16);
    number("attention.key_length", old ? 12 : 20);
    number("attention.value_length", old ? 8 : 16);
    if (!old) number("attention.key_length_mla", 12);
    if (!old) number("attention.value_length_mla", 8);
    number("rope.dimension_count", 4);
  }
  if (moe) {
    number("expert_count", 4);
    number("expert_used_count", 2);
    number("expert_feed_forward_length", 24);
    if (latent) {
      number("expert_shared_count", 2);
      number("leading_dense_block_count", 1);
      number("expert_gating_func", 2);
    } else {
      number("expert_shared_feed_forward_length", 40);
    }
  }
  tensor("token_embd.weight", {kDim, vocab}, 1);
  norm(conv ? "token_embd_norm.weight" : "output_norm.weight", kDim);
  matrix("output.weight", vocab, kDim);
  for (uint32_t i = 0; i < kLayers; ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    norm(b + "attn_norm.weight", kDim);
    const bool attends = !latent && (delta ? (i + 1) % 3 == 0 : kv[i] > 0), feeds = !parts || ffn[i] > 0;
    if (latent) {
      matrix(b + "attn_q_a.weight", 24, kDim);
      norm(b + "attn_q_a_norm.weight", 24);
      matrix(b + "attn_q_b.weight", 4 * 12, 24);
      matrix(b + "attn_kv_a_mqa.weight", 20, kDim);
      norm(b + "attn_kv_a_norm.weight", 16);
      tensor(b + "attn_k_b.weight", {8, 16, 4}, 0.3f);
      tensor(b + "attn_v_b.weight", {16, 8, 4}, 0.3f);
      matrix(b + "attn_output.weight", kDim, 32);
    } else if (attends) {
      matrix(b + "attn_q.weight", delta ? 2 * kDim : kDim, kDim);
      matrix(b + "attn_k.weight", 16, kDim);
      matrix(b + "attn_v.weight", 16, kDim);
      if (!mamba) norm(b + "attn_q_norm.weight", 8);
      if (!mamba) norm(b + "attn_k_norm.weight", 8);
      matrix(b + "attn_output.weight", kDim, kDim);
    } else if (delta) {
      matrix(b + "attn_qkv.weight", 64, kDim);
      matrix(b + "attn_gate.weight", 32, kDim);
      tensor(b + "ssm_conv1d.weight", {4, 64}, 0.5f);
      tensor(b + "ssm_dt.bias", {4}, 0.5f);
      tensor(b + "ssm_a", {4}, 0.1f, -0.5f);
      if (joint) {
        matrix(b + "ssm_ba.weight", 8, kDim);
      } else {
        matrix(b + "ssm_beta.weight", 4, kDim);
        matrix(b + "ssm_alpha.weight", 4, kDim);
      }
      norm(b + "ssm_norm.weight", 8);
      matrix(b + "ssm_out.weight", kDim, 32);
    } else if (conv) {
      matrix(b + "shortconv.in_proj.weight", 3 * kDim, kDim);
      tensor(b + "shortconv.conv.weight", {3, kDim}, 0.5f);
      matrix(b + "shortconv.out_proj.weight", kDim, kDim);
    } else if (mamba && (!parts || !feeds)) {
      matrix(b + "ssm_in.weight", 64 + 64 + 2 * 2 * 8 + 4, kDim);
      tensor(b + "ssm_conv1d.weight", {4, 64 + 2 * 2 * 8}, 0.5f);
      tensor(b + "ssm_conv1d.bias", {64 + 2 * 2 * 8}, 0.1f);
      tensor(b + "ssm_dt.bias", {4}, 0.5f);
      tensor(b + "ssm_a", {1, 4}, 0.1f, -0.5f);
      tensor(b + "ssm_d", {1, 4}, 0.3f);
      tensor(b + "ssm_norm.weight", {32, 2}, 0.1f, 1);
      matrix(b + "ssm_out.weight", kDim, 64);
    }
    if (!feeds) continue;
    if (!parts) norm(b + (delta ? "post_attention_norm.weight" : "ffn_norm.weight"), kDim);
    if (moe && !(latent && i == 0) && !(parts && i + 1 == kLayers)) {
      const uint64_t width = 24, shared = latent ? 48 : 40, n = 4;
      tensor(b + "ffn_gate_inp.weight", {kDim, n}, 0.2f);
      if (latent || parts) tensor(b + "exp_probs_b.bias", {n}, 0.1f);
      if (!parts) tensor(b + "ffn_gate_exps.weight", {kDim, width, n}, 0.2f);
      tensor(b + "ffn_up_exps.weight", {kDim, width, n}, 0.2f);
      tensor(b + "ffn_down_exps.weight", {width, kDim, n}, 0.2f);
      if (delta) tensor(b + "ffn_gate_inp_shexp.weight", {kDim}, 0.2f);
      if (!parts) matrix(b + "ffn_gate_shexp.weight", shared, kDim);
      matrix(b + "ffn_up_shexp.weight", shared, kDim);
      matrix(b + "ffn_down_shexp.weight", kDim, shared);
      continue;
    }
    if (!parts) matrix(b + "ffn_gate.weight", kFfn, kDim);
    matrix(b + "ffn_up.weight", kFfn, kDim);
    matrix(b + "ffn_down.weight", kDim, kFfn);
  }
  return w.Finish();
}

}  // namespace gyre::testing
