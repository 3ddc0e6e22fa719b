// Tiny models with latent attention or recurrent state, with seeded random weights and no tokenizer.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/gguf_writer.h"

namespace gyre::testing {

// arch: qwen35, lfm2, nemotron_h or deepseek2. Six layers of 32 elements, a vocabulary of 96.
inline std::vector<std::byte> BuildTinyHybrid(const std::string& arch, uint32_t seed = 1) {
  constexpr uint32_t kLayers = 6, kDim = 32, kVocab = 96, kFfn = 48;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  GgufWriter w;
  auto key = [&](const char* name) { return arch + "." + name; };
  auto tensor = [&](const std::string& name, const std::vector<uint64_t>& dims, float scale, float offset = 0) {
    size_t n = 1;
    for (uint64_t d : dims) n *= d;
    std::vector<float> values(n);
    for (float& v : values) v = normal(random) * scale + offset;
    w.Tensor(name, DType::kF32, dims, values);
  };
  auto matrix = [&](const std::string& name, uint64_t n, uint64_t k) {
    tensor(name, {k, n}, 1 / std::sqrt(static_cast<float>(k)));
  };
  auto norm = [&](const std::string& name, uint64_t n) { tensor(name, {n}, 0.1f, 1); };
  const bool delta = arch == "qwen35", conv = arch == "lfm2", mamba = arch == "nemotron_h",
             latent = arch == "deepseek2";
  w.String("general.architecture", arch);
  w.Uint(key("block_count"), kLayers);
  w.Uint(key("embedding_length"), kDim);
  w.Uint(key("context_length"), 512);
  w.Uint(key("attention.head_count"), 4);
  w.Float(key("attention.layer_norm_rms_epsilon"), 1e-5f);
  w.Float(key("rope.freq_base"), 10000.0f);
  w.String("tokenizer.ggml.model", "none");
  // Which layers attend; of nemotron_h the second and the last are feed-forward blocks.
  const std::vector<uint32_t> kv = delta  ? std::vector<uint32_t>{2, 2, 2, 2, 2, 2}
                                   : conv ? std::vector<uint32_t>{0, 2, 0, 0, 2, 0}
                                          : std::vector<uint32_t>{0, 0, 0, 2, 0, 0},
                              ffn = mamba ? std::vector<uint32_t>{0, kFfn, 0, 0, 0, kFfn}
                                          : std::vector<uint32_t>(kLayers, kFfn);
  if (latent)
    w.Uint(key("attention.head_count_kv"), 1);
  else
    w.Numbers(key("attention.head_count_kv"), 4, kv);
  w.Numbers(key("feed_forward_length"), 4, ffn);
  if (delta) w.Uint(key("full_attention_interval"), 3);
  if (delta || mamba) {
    w.Uint(key("ssm.conv_kernel"), 4);
    w.Uint(key("ssm.state_size"), 8);
    w.Uint(key("ssm.group_count"), 2);
    w.Uint(key("ssm.time_step_rank"), 4);
    w.Uint(key("ssm.inner_size"), delta ? 32 : 64);
  }
  if (conv) w.Uint(key("shortconv.l_cache"), 3);
  if (latent) {
    w.Uint(key("attention.q_lora_rank"), 24);
    w.Uint(key("attention.kv_lora_rank"), 16);
    w.Uint(key("attention.key_length"), 20);
    w.Uint(key("attention.value_length"), 16);
    w.Uint(key("attention.key_length_mla"), 12);
    w.Uint(key("attention.value_length_mla"), 8);
    w.Uint(key("rope.dimension_count"), 4);
  }
  tensor("token_embd.weight", {kDim, kVocab}, 1);
  norm(conv ? "token_embd_norm.weight" : "output_norm.weight", kDim);
  matrix("output.weight", kVocab, kDim);
  for (uint32_t i = 0; i < kLayers; ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    norm(b + "attn_norm.weight", kDim);
    const bool attends = !latent && (delta ? (i + 1) % 3 == 0 : kv[i] > 0), feeds = !mamba || ffn[i] > 0;
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
      matrix(b + "ssm_beta.weight", 4, kDim);
      matrix(b + "ssm_alpha.weight", 4, kDim);
      norm(b + "ssm_norm.weight", 8);
      matrix(b + "ssm_out.weight", kDim, 32);
    } else if (conv) {
      matrix(b + "shortconv.in_proj.weight", 3 * kDim, kDim);
      tensor(b + "shortconv.conv.weight", {3, kDim}, 0.5f);
      matrix(b + "shortconv.out_proj.weight", kDim, kDim);
    } else if (!feeds) {
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
    if (!mamba) norm(b + (delta ? "post_attention_norm.weight" : "ffn_norm.weight"), kDim);
    if (!mamba) matrix(b + "ffn_gate.weight", kFfn, kDim);
    matrix(b + "ffn_up.weight", kFfn, kDim);
    matrix(b + "ffn_down.weight", kDim, kFfn);
  }
  return w.Finish();
}

}  // namespace gyre::testing
