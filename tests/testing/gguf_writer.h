// Writes GGUF v3 into memory, for tests, also files that no sane writer would make.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/coding.h"
#include "kernels/quant.h"

namespace gyre::testing {

class GgufWriter {
 public:
  void Uint(std::string_view key, uint32_t v) { Value(key, 4, v); }
  void Float(std::string_view key, float v) { Value(key, 6, v); }
  void Bool(std::string_view key, bool v) { Value(key, 7, static_cast<uint8_t>(v)); }
  void String(std::string_view key, std::string_view v) {
    Key(key, 8);
    Text(meta_, v);
  }
  void Strings(std::string_view key, const std::vector<std::string>& values) {
    Array(key, 8, values.size());
    for (const auto& v : values) Text(meta_, v);
  }
  template <typename T>
  void Numbers(std::string_view key, uint32_t type, const std::vector<T>& values) {
    Array(key, type, values.size());
    meta_.PutBytes(values.data(), values.size() * sizeof(T));
  }
  // dims[0] is the fastest. The values are quantized to the type.
  void Tensor(std::string_view name, DType type, const std::vector<uint64_t>& dims, const std::vector<float>& values) {
    const DTypeInfo& info = Info(type);
    std::vector<std::byte> bytes(values.size() / info.block_elems * info.block_bytes);
    Quantize(type, values.data(), bytes.data(), values.size());
    Describe(name, type, dims, data_.size());
    data_.PutBytes(bytes.data(), bytes.size());
    data_.PadTo(32);
  }
  // A tensor whose bytes are those of a hole in the file: zeros. No tensor with values may follow. HoleBytes() of them
  // lie behind what Finish returns.
  void Hole(std::string_view name, DType type, const std::vector<uint64_t>& dims) {
    const DTypeInfo& info = Info(type);
    uint64_t bytes = info.block_bytes;
    for (uint64_t d : dims) bytes *= d;
    Describe(name, type, dims, data_.size() + holes_);
    holes_ += (bytes / info.block_elems + 31) / 32 * 32;
  }
  uint64_t HoleBytes() const { return holes_; }
  std::vector<std::byte> Finish(size_t* header_bytes = nullptr) const {
    Encoder out;
    out.PutBytes("GGUF", 4);
    out.Put(uint32_t{3});
    out.Put(n_tensors_);
    out.Put(n_values_);
    out.PutBytes(meta_.bytes().data(), meta_.size());
    out.PutBytes(tensors_.bytes().data(), tensors_.size());
    if (header_bytes != nullptr) *header_bytes = out.size();
    out.PadTo(32);
    out.PutBytes(data_.bytes().data(), data_.size());
    return {out.bytes().begin(), out.bytes().end()};
  }

 private:
  void Describe(std::string_view name, DType type, const std::vector<uint64_t>& dims, uint64_t offset) {
    ++n_tensors_;
    Text(tensors_, name);
    tensors_.Put(static_cast<uint32_t>(dims.size()));
    for (uint64_t d : dims) tensors_.Put(d);
    tensors_.Put(type);
    tensors_.Put(offset);
  }
  static void Text(Encoder& out, std::string_view s) {
    out.Put(static_cast<uint64_t>(s.size()));
    out.PutBytes(s.data(), s.size());
  }
  void Key(std::string_view key, uint32_t type) {
    ++n_values_;
    Text(meta_, key);
    meta_.Put(type);
  }
  template <typename T>
  void Value(std::string_view key, uint32_t type, T v) {
    Key(key, type);
    meta_.Put(v);
  }
  void Array(std::string_view key, uint32_t element, size_t n) {
    Key(key, 9);
    meta_.Put(element);
    meta_.Put(static_cast<uint64_t>(n));
  }

  Encoder meta_, tensors_, data_;
  uint64_t n_values_ = 0, n_tensors_ = 0, holes_ = 0;
};

struct TinyOptions {
  std::string arch = "llama";
  uint32_t seed = 1, dim = 32, layers = 5, heads = 4, kv_heads = 2, ffn = 64, vocab = 96, context = 512;
  DType type = DType::kF32;
  bool tied = false;
  uint32_t experts = 4, used = 2;  // of the architectures that have them
  bool side = false;               // gemma4: per-layer embeddings and shared keys and values, in place of experts
  bool heads_per_layer = false;    // head counts as arrays, one value a layer
  bool joint_qkv = false;          // query, key and value in one tensor, and their biases
  std::string without;             // a tensor left out
  void (*tokenizer)(GgufWriter&) = nullptr;  // null: none
  void (*more)(GgufWriter&) = nullptr;
  void (*change)(const std::string& tensor, std::vector<float>* values) = nullptr;  // before they are quantized
};

// The facts of a family that the writer needs.
struct TinyFamily {
  bool window = false, moe = false, gated_shared = false, fused = false, bias = false, post_norms = false;
  int qk_norm = 0;                                      // 1: of each head, 2: of the row
  bool pre_norms = true, norm_after_attention = false;  // the name of the feed-forward block's norm
  bool output_bias = false, sinks = false, expert_biases = false, choice_bias = false, counted_shared = false;
  bool gemma4 = false;
};
inline TinyFamily FamilyOf(const std::string& arch) {
  if (arch == "mistral") return {.window = true};
  if (arch == "qwen2") return {.bias = true};
  if (arch == "qwen2moe") return {.moe = true, .gated_shared = true, .bias = true};
  if (arch == "qwen3") return {.qk_norm = 1};
  if (arch == "qwen3moe") return {.moe = true, .qk_norm = 1};
  if (arch == "gemma2") return {.window = true, .post_norms = true};
  if (arch == "gemma3") return {.window = true, .post_norms = true, .qk_norm = 1};
  if (arch == "phi3") return {.fused = true};
  if (arch == "glm4moe") {
    return {.moe = true,
            .bias = true,
            .qk_norm = 1,
            .norm_after_attention = true,
            .choice_bias = true,
            .counted_shared = true};
  }
  if (arch == "minimax-m2") return {.moe = true, .qk_norm = 2, .choice_bias = true};
  if (arch == "gpt-oss") {
    return {.window = true,
            .moe = true,
            .bias = true,
            .norm_after_attention = true,
            .output_bias = true,
            .sinks = true,
            .expert_biases = true};
  }
  if (arch == "olmo2") return {.window = true, .post_norms = true, .qk_norm = 2, .pre_norms = false};
  if (arch == "seed_oss") return {.bias = true, .norm_after_attention = true};
  if (arch == "gemma4") return {.window = true, .moe = true, .post_norms = true, .qk_norm = 1, .gemma4 = true};
  return {};
}

// Whether BuildTinyModel knows the architecture. Others are in testing/tiny_hybrid.h, or have files of exact logits
// (worker_golden_state_test).
inline bool IsTiny(std::string_view arch) {
  constexpr std::string_view kArchitectures[] = {"llama",    "mistral", "qwen2", "qwen2moe", "qwen3",      "qwen3moe",
                                                 "gemma2",   "gemma3",  "phi3",  "glm4moe",  "minimax-m2", "gpt-oss",
                                                 "mistral3", "smollm3", "olmo2", "granite",  "seed_oss",   "gemma4"};
  for (const std::string_view a : kArchitectures) {
    if (a == arch) return true;
  }
  return false;
}

// A model with seeded random weights, of an architecture for which IsTiny.
inline std::vector<std::byte> BuildTinyModel(const TinyOptions& o, size_t* header_bytes = nullptr) {
  std::mt19937 random(o.seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  GgufWriter w;
  auto key = [&](const char* name) { return o.arch + "." + name; };
  w.String("general.architecture", o.arch);
  w.Uint(key("block_count"), o.layers);
  w.Uint(key("embedding_length"), o.dim);
  w.Uint(key("feed_forward_length"), o.ffn);
  if (o.heads_per_layer) {
    w.Numbers(key("attention.head_count"), 4, std::vector<uint32_t>(o.layers, o.heads));
    w.Numbers(key("attention.head_count_kv"), 4, std::vector<uint32_t>(o.layers, o.kv_heads));
  } else {
    w.Uint(key("attention.head_count"), o.heads);
    w.Uint(key("attention.head_count_kv"), o.kv_heads);
  }
  w.Uint(key("context_length"), o.context);
  w.Float(key("attention.layer_norm_rms_epsilon"), 1e-5f);
  w.Float(key("rope.freq_base"), 10000.0f);
  TinyFamily f = FamilyOf(o.arch);
  if (o.side) f.moe = false;
  if (f.window) w.Uint(key("attention.sliding_window"), 8);
  if (f.moe) {
    w.Uint(key("expert_count"), o.experts);
    w.Uint(key("expert_used_count"), o.used);
    w.Uint(key("expert_feed_forward_length"), o.ffn / 2);
    if (f.gated_shared) w.Uint(key("expert_shared_feed_forward_length"), o.ffn);
    if (f.counted_shared) {
      w.Uint(key("expert_shared_count"), 1);
      w.Uint(key("leading_dense_block_count"), 1);
      w.Float(key("expert_weights_scale"), 1.5f);
    }
    if (f.choice_bias) w.Uint(key("expert_gating_func"), 2);
  }
  if (o.arch == "gpt-oss" || o.arch == "mistral3") {
    w.String(key("rope.scaling.type"), "yarn");
    w.Float(key("rope.scaling.factor"), 4);
    w.Uint(key("rope.scaling.original_context_length"), 16);
  }
  if (o.arch == "mistral3") {
    w.Float(key("rope.scaling.yarn_log_multiplier"), 1);
    w.Float(key("attention.temperature_scale"), 0.5f);
  }
  if (o.arch == "granite") {
    w.Float(key("embedding_scale"), 2);
    w.Float(key("residual_scale"), 0.5f);
    w.Float(key("attention.scale"), 0.25f);
    w.Float(key("logit_scale"), 3);
  }
  // The last layer, or every second one, has no window, and heads twice as large.
  std::vector<uint8_t> local(o.layers, 1);
  local.back() = 0;
  for (uint32_t i = 1; o.side && i < o.layers; i += 2) local[i] = 0;
  const uint32_t side = 8, shared = 2;
  if (o.side) {
    w.Uint(key("embedding_length_per_layer_input"), side);
    w.Uint(key("attention.shared_kv_layers"), shared);
  }
  if (f.gemma4) {
    w.Numbers(key("attention.sliding_window_pattern"), 7, local);
    w.Uint(key("attention.key_length"), 2 * o.dim / o.heads);
    w.Uint(key("attention.key_length_swa"), o.dim / o.heads);
    w.Float(key("final_logit_softcapping"), 20);
  }
  if (o.tokenizer == nullptr) w.String("tokenizer.ggml.model", "none");
  if (o.tokenizer != nullptr) o.tokenizer(w);
  if (o.more != nullptr) o.more(w);
  auto tensor = [&](const std::string& name, std::vector<uint64_t> dims, DType type, float scale, float offset) {
    size_t n = 1;
    for (uint64_t d : dims) n *= d;
    std::vector<float> values(n);
    for (float& v : values) v = normal(random) * scale + offset;
    if (o.change != nullptr) o.change(name, &values);
    if (name != o.without) w.Tensor(name, type, dims, values);
  };
  auto matrix = [&](const std::string& name, uint64_t n, uint64_t k) {
    tensor(name, {k, n}, o.type, 1.0f / __builtin_sqrtf(static_cast<float>(k)), 0);
  };
  auto norm = [&](const std::string& name, uint64_t n) { tensor(name, {n}, DType::kF32, 0.1f, 1); };
  tensor("token_embd.weight", {o.dim, o.vocab}, o.type, 1, 0);
  norm("output_norm.weight", o.dim);
  if (!o.tied) matrix("output.weight", o.vocab, o.dim);
  auto vector = [&](const std::string& name, std::vector<uint64_t> dims) {
    tensor(name, std::move(dims), DType::kF32, 0.2f, 0);
  };
  if (o.side) {
    tensor("per_layer_token_embd.weight", {side * o.layers, o.vocab}, o.type, 1, 0);
    matrix("per_layer_model_proj.weight", side * o.layers, o.dim);
    norm("per_layer_proj_norm.weight", side);
  }
  for (uint32_t i = 0; i < o.layers; ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    const bool wide = f.gemma4 && local[i] == 0;
    const uint32_t head_dim = o.dim / o.heads * (wide ? 2 : 1), q = o.heads * head_dim, kv = o.kv_heads * head_dim;
    const bool own_kv = !o.side || i + shared < o.layers;
    const bool moe = f.moe && !(f.counted_shared && i == 0);
    if (f.pre_norms) norm(b + "attn_norm.weight", o.dim);
    if (f.pre_norms) norm(b + (f.norm_after_attention ? "post_attention_norm.weight" : "ffn_norm.weight"), o.dim);
    if (f.fused || o.joint_qkv) {
      matrix(b + "attn_qkv.weight", q + 2 * kv, o.dim);
    } else {
      matrix(b + "attn_q.weight", q, o.dim);
      if (own_kv) matrix(b + "attn_k.weight", kv, o.dim);
      if (own_kv && !wide) matrix(b + "attn_v.weight", kv, o.dim);
    }
    matrix(b + "attn_output.weight", o.dim, q);
    if (moe) {
      const uint64_t ffn = o.ffn / 2, n = o.experts;
      const float by_dim = 1.0f / __builtin_sqrtf(static_cast<float>(o.dim)),
                  by_ffn = 1.0f / __builtin_sqrtf(static_cast<float>(ffn));
      tensor(b + "ffn_gate_inp.weight", {o.dim, n}, DType::kF32, by_dim, 0);
      if (f.gemma4) {
        tensor(b + "ffn_gate_up_exps.weight", {o.dim, 2 * ffn, n}, o.type, by_dim, 0);
      } else {
        tensor(b + "ffn_gate_exps.weight", {o.dim, ffn, n}, o.type, by_dim, 0);
        tensor(b + "ffn_up_exps.weight", {o.dim, ffn, n}, o.type, by_dim, 0);
      }
      tensor(b + "ffn_down_exps.weight", {ffn, o.dim, n}, o.type, by_ffn, 0);
      if (f.choice_bias) vector(b + "exp_probs_b.bias", {n});
      if (f.expert_biases) {
        vector(b + "ffn_gate_inp.bias", {n});
        vector(b + "ffn_gate_exps.bias", {ffn, n});
        vector(b + "ffn_up_exps.bias", {ffn, n});
        vector(b + "ffn_down_exps.bias", {o.dim, n});
      }
      if (f.gemma4) {
        norm(b + "post_ffw_norm_1.weight", o.dim);
        norm(b + "pre_ffw_norm_2.weight", o.dim);
        norm(b + "post_ffw_norm_2.weight", o.dim);
        norm(b + "ffn_gate_inp.scale", o.dim);
        norm(b + "ffn_down_exps.scale", n);
      }
    }
    if (moe && (f.gated_shared || f.counted_shared)) {
      const uint64_t width = f.counted_shared ? o.ffn / 2 : o.ffn;
      if (f.gated_shared) tensor(b + "ffn_gate_inp_shexp.weight", {o.dim}, DType::kF32, 0.2f, 0);
      matrix(b + "ffn_gate_shexp.weight", width, o.dim);
      matrix(b + "ffn_up_shexp.weight", width, o.dim);
      matrix(b + "ffn_down_shexp.weight", o.dim, width);
    }
    if (o.side) {
      matrix(b + "inp_gate.weight", side, o.dim);
      matrix(b + "proj.weight", o.dim, side);
      norm(b + "post_norm.weight", o.dim);
    }
    if (!moe || f.gemma4) {
      if (!f.fused) matrix(b + "ffn_gate.weight", o.ffn, o.dim);
      matrix(b + "ffn_up.weight", f.fused ? 2 * o.ffn : o.ffn, o.dim);
      matrix(b + "ffn_down.weight", o.dim, o.ffn);
    }
    if (f.bias && o.joint_qkv) {
      tensor(b + "attn_qkv.bias", {q + 2 * kv}, DType::kF32, 0.1f, 0);
    } else if (f.bias) {
      tensor(b + "attn_q.bias", {q}, DType::kF32, 0.1f, 0);
      tensor(b + "attn_k.bias", {kv}, DType::kF32, 0.1f, 0);
      tensor(b + "attn_v.bias", {kv}, DType::kF32, 0.1f, 0);
    }
    if (f.output_bias) vector(b + "attn_output.bias", {o.dim});
    if (f.sinks) vector(b + "attn_sinks.weight", {o.heads});
    if (f.qk_norm != 0) {
      norm(b + "attn_q_norm.weight", f.qk_norm == 2 ? q : head_dim);
      if (own_kv) norm(b + "attn_k_norm.weight", f.qk_norm == 2 ? kv : head_dim);
    }
    if (f.post_norms) {
      norm(b + "post_attention_norm.weight", o.dim);
      norm(b + "post_ffw_norm.weight", o.dim);
    }
    if (f.gemma4) norm(b + "layer_output_scale.weight", 1);
  }
  return w.Finish(header_bytes);
}

}  // namespace gyre::testing
