// A small model with a layer for drafts (nextn), whose guesses come true as often as is wanted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/testing/gguf_writer.h"

namespace gyre::testing {

// With `loud` = 0 no layer adds anything, so that a token follows from the one before it alone, and the layer for
// drafts, which passes the embedding of its token on, guesses rightly. What the model's layers add makes its guesses
// wrong at times; with `own` the layer for drafts is one of random weights.
struct TinyMtpOptions {
  uint32_t seed = 1, dim = 64, layers = 4, heads = 4, kv_heads = 2, ffn = 96, vocab = 96, context = 512;
  float loud = 0;
  bool own = false;
  bool own_head = false;  // shared_head_head and embed_tokens, of the same values as the model's
  float wrong = 0;        // the share of the tokens that the layer for drafts takes for others; with own_head
  DType type = DType::kF32;
  std::string without;  // a tensor left out
  std::string extra;    // a tensor [dim] more
};

// A dense model of the family glm4moe, with one layer for drafts behind `layers`.
inline std::vector<std::byte> BuildTinyMtp(const TinyMtpOptions& o) {
  std::mt19937 random(o.seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  GgufWriter w;
  const auto key = [](const char* name) { return std::string("glm4moe.") + name; };
  w.String("general.architecture", "glm4moe");
  w.Uint(key("block_count"), o.layers + 1);
  w.Uint(key("nextn_predict_layers"), 1);
  w.Uint(key("embedding_length"), o.dim);
  w.Uint(key("feed_forward_length"), o.ffn);
  w.Uint(key("attention.head_count"), o.heads);
  w.Uint(key("attention.head_count_kv"), o.kv_heads);
  w.Uint(key("context_length"), o.context);
  w.Float(key("attention.layer_norm_rms_epsilon"), 1e-5f);
  w.Float(key("rope.freq_base"), 10000.0f);
  w.String("tokenizer.ggml.model", "none");
  const auto put = [&](const std::string& name, const std::vector<uint64_t>& dims, DType type,
                       const std::vector<float>& values) {
    if (name != o.without) w.Tensor(name, type, dims, values);
  };
  const auto values = [&](uint64_t n, float scale, float offset = 0) {
    std::vector<float> out(n);
    for (float& v : out) v = normal(random) * scale + offset;
    return out;
  };
  const auto matrix = [&](const std::string& name, uint64_t n, uint64_t k, float scale = 1) {
    put(name, {k, n}, o.type, values(n * k, scale / __builtin_sqrtf(static_cast<float>(k))));
  };
  const auto norm = [&](const std::string& name, float spread) {
    put(name, {o.dim}, DType::kF32, values(o.dim, spread, 1));
  };
  const std::vector<float> embedding = values(uint64_t{o.vocab} * o.dim, 1),
                           output = values(uint64_t{o.vocab} * o.dim, 1 / __builtin_sqrtf(static_cast<float>(o.dim)));
  put("token_embd.weight", {o.dim, o.vocab}, o.type, embedding);
  norm("output_norm.weight", 0);
  put("output.weight", {o.dim, o.vocab}, o.type, output);
  const uint32_t kv = o.dim / o.heads * o.kv_heads;
  for (uint32_t i = 0; i <= o.layers; ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    const float loud = i < o.layers ? o.loud : o.own ? 1 : 0;
    norm(b + "attn_norm.weight", 0.1f);
    norm(b + "post_attention_norm.weight", 0.1f);
    matrix(b + "attn_q.weight", o.dim, o.dim);
    matrix(b + "attn_k.weight", kv, o.dim);
    matrix(b + "attn_v.weight", kv, o.dim);
    matrix(b + "attn_output.weight", o.dim, o.dim, loud);
    matrix(b + "ffn_gate.weight", o.ffn, o.dim);
    matrix(b + "ffn_up.weight", o.ffn, o.dim);
    matrix(b + "ffn_down.weight", o.dim, o.ffn, loud);
  }
  const std::string n = "blk." + std::to_string(o.layers) + ".nextn.";
  std::vector<float> join = values(uint64_t{2} * o.dim * o.dim, o.own ? 1 / __builtin_sqrtf(2.0f * o.dim) : 0);
  for (uint32_t i = 0; !o.own && i < o.dim; ++i) join[uint64_t{i} * 2 * o.dim + i] = 1;
  put(n + "eh_proj.weight", {uint64_t{2} * o.dim, o.dim}, o.type, join);
  norm(n + "enorm.weight", o.own ? 0.1f : 0);
  norm(n + "hnorm.weight", o.own ? 0.1f : 0);
  norm(n + "shared_head_norm.weight", o.own ? 0.1f : 0);
  if (o.own_head) {
    std::vector<float> mistaken = embedding;
    for (uint32_t t = 0; t < o.vocab; ++t) {
      if (static_cast<float>(random() % 1000) >= 1000 * o.wrong) continue;
      const uint32_t other = random() % o.vocab;
      std::copy_n(embedding.begin() + static_cast<std::ptrdiff_t>(uint64_t{other} * o.dim), o.dim,
                  mistaken.begin() + static_cast<std::ptrdiff_t>(uint64_t{t} * o.dim));
    }
    put(n + "embed_tokens.weight", {o.dim, o.vocab}, o.type, mistaken);
    put(n + "shared_head_head.weight", {o.dim, o.vocab}, o.type, output);
  }
  if (!o.extra.empty()) put(o.extra, {o.dim}, DType::kF32, values(o.dim, 1));
  return w.Finish();
}

}  // namespace gyre::testing
