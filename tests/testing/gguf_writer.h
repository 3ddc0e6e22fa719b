// Writes GGUF v3 into memory, for tests: what is asked for, also what no sane writer would.
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
    ++n_tensors_;
    Text(tensors_, name);
    tensors_.Put(static_cast<uint32_t>(dims.size()));
    for (uint64_t d : dims) tensors_.Put(d);
    tensors_.Put(type);
    tensors_.Put(static_cast<uint64_t>(data_.size()));
    data_.PutBytes(bytes.data(), bytes.size());
    data_.PadTo(32);
  }
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
  uint64_t n_values_ = 0, n_tensors_ = 0;
};

struct TinyOptions {
  std::string arch = "llama";
  uint32_t seed = 1, dim = 32, layers = 5, heads = 4, kv_heads = 2, ffn = 64, vocab = 96, context = 512;
  DType type = DType::kF32;
  bool tied = false;
  uint32_t experts = 4, used = 2;  // of the architectures that have them
  bool heads_per_layer = false;    // head counts as arrays, one value a layer
  std::string without;             // a tensor left out
  void (*more)(GgufWriter&) = nullptr;
};

// A model with seeded random weights and no tokenizer, of any architecture in Gyre's table.
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
  const bool gemma = o.arch == "gemma3" || o.arch == "gemma2";
  const bool moe = o.arch == "qwen2moe" || o.arch == "qwen3moe", shared = o.arch == "qwen2moe";
  const bool fused = o.arch == "phi3";
  if (gemma || o.arch == "mistral") w.Uint(key("attention.sliding_window"), 8);
  if (moe) {
    w.Uint(key("expert_count"), o.experts);
    w.Uint(key("expert_used_count"), o.used);
    w.Uint(key("expert_feed_forward_length"), o.ffn / 2);
    if (shared) w.Uint(key("expert_shared_feed_forward_length"), o.ffn);
  }
  w.String("tokenizer.ggml.model", "none");
  if (o.more != nullptr) o.more(w);
  auto tensor = [&](const std::string& name, std::vector<uint64_t> dims, DType type, float scale, float offset) {
    size_t n = 1;
    for (uint64_t d : dims) n *= d;
    std::vector<float> values(n);
    for (float& v : values) v = normal(random) * scale + offset;
    if (name != o.without) w.Tensor(name, type, dims, values);
  };
  const uint32_t head_dim = o.dim / o.heads, kv = o.kv_heads * head_dim;
  auto matrix = [&](const std::string& name, uint64_t n, uint64_t k) {
    tensor(name, {k, n}, o.type, 1.0f / __builtin_sqrtf(static_cast<float>(k)), 0);
  };
  auto norm = [&](const std::string& name, uint64_t n) { tensor(name, {n}, DType::kF32, 0.1f, 1); };
  tensor("token_embd.weight", {o.dim, o.vocab}, o.type, 1, 0);
  norm("output_norm.weight", o.dim);
  if (!o.tied) matrix("output.weight", o.vocab, o.dim);
  for (uint32_t i = 0; i < o.layers; ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    norm(b + "attn_norm.weight", o.dim);
    norm(b + "ffn_norm.weight", o.dim);
    if (fused) {
      matrix(b + "attn_qkv.weight", o.dim + 2 * kv, o.dim);
    } else {
      matrix(b + "attn_q.weight", o.dim, o.dim);
      matrix(b + "attn_k.weight", kv, o.dim);
      matrix(b + "attn_v.weight", kv, o.dim);
    }
    matrix(b + "attn_output.weight", o.dim, o.dim);
    if (moe) {
      const uint64_t ffn = o.ffn / 2, n = o.experts;
      const float by_dim = 1.0f / __builtin_sqrtf(static_cast<float>(o.dim)),
                  by_ffn = 1.0f / __builtin_sqrtf(static_cast<float>(ffn));
      tensor(b + "ffn_gate_inp.weight", {o.dim, n}, DType::kF32, by_dim, 0);
      tensor(b + "ffn_gate_exps.weight", {o.dim, ffn, n}, o.type, by_dim, 0);
      tensor(b + "ffn_up_exps.weight", {o.dim, ffn, n}, o.type, by_dim, 0);
      tensor(b + "ffn_down_exps.weight", {ffn, o.dim, n}, o.type, by_ffn, 0);
    }
    if (shared) {
      tensor(b + "ffn_gate_inp_shexp.weight", {o.dim}, DType::kF32, 0.2f, 0);
      matrix(b + "ffn_gate_shexp.weight", o.ffn, o.dim);
      matrix(b + "ffn_up_shexp.weight", o.ffn, o.dim);
      matrix(b + "ffn_down_shexp.weight", o.dim, o.ffn);
    }
    if (!moe) {
      if (!fused) matrix(b + "ffn_gate.weight", o.ffn, o.dim);
      matrix(b + "ffn_up.weight", fused ? 2 * o.ffn : o.ffn, o.dim);
      matrix(b + "ffn_down.weight", o.dim, o.ffn);
    }
    if (o.arch == "qwen2" || o.arch == "qwen2moe") {
      tensor(b + "attn_q.bias", {o.dim}, DType::kF32, 0.1f, 0);
      tensor(b + "attn_k.bias", {kv}, DType::kF32, 0.1f, 0);
      tensor(b + "attn_v.bias", {kv}, DType::kF32, 0.1f, 0);
    }
    if (o.arch == "qwen3" || o.arch == "qwen3moe" || o.arch == "gemma3") {
      norm(b + "attn_q_norm.weight", head_dim);
      norm(b + "attn_k_norm.weight", head_dim);
    }
    if (gemma) {
      norm(b + "post_attention_norm.weight", o.dim);
      norm(b + "post_ffw_norm.weight", o.dim);
    }
  }
  return w.Finish(header_bytes);
}

}  // namespace gyre::testing
