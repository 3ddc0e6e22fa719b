// A model of any spec with seeded random weights, held in memory. What the file formats can't say can be said here.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/tensor_table.h"
#include "model/weights.h"

namespace gyre::testing {

// A matrix [n][k] as the kernels get it, and the same values in floats.
struct TestMatrix {
  WeightView view;
  std::vector<std::byte> bytes;
  std::vector<float> values;
};

struct TestLayer {
  LayerWeights vectors;
  TestMatrix q, k, v, o, gate, up, down;
};

class MemoryModel : public Model {
 public:
  MemoryModel(ModelSpec spec, uint32_t seed, DType type = DType::kF32) : spec_(std::move(spec)), random_(seed) {
    const auto dim = static_cast<size_t>(spec_.dim), vocab = static_cast<size_t>(spec_.vocab);
    Fill(embedding_, vocab, dim, type, 1);
    if (!spec_.tied_head) Fill(output_, vocab, dim, type, 1);
    final_norm_ = Norm(dim);
    layers_.reserve(spec_.layers.size());  // views point into the matrices
    for (const LayerSpec& l : spec_.layers) {
      TestLayer& layer = layers_.emplace_back();
      const auto head_dim = static_cast<size_t>(l.head_dim), ffn = static_cast<size_t>(l.ffn);
      const size_t q = static_cast<size_t>(l.heads) * head_dim, kv = static_cast<size_t>(l.kv_heads) * head_dim;
      LayerWeights& w = layer.vectors;
      w.attn_norm = Norm(dim);
      w.ffn_norm = Norm(dim);
      if (l.post_norms) w.attn_post_norm = Norm(dim), w.ffn_post_norm = Norm(dim);
      if (l.qk_norm) w.q_norm = Norm(head_dim), w.k_norm = Norm(head_dim);
      if (l.qkv_bias) w.q_bias = Normal(q, 0.3f, 0), w.k_bias = Normal(kv, 0.3f, 0), w.v_bias = Normal(kv, 0.3f, 0);
      Fill(layer.q, q, dim, type, 1);
      Fill(layer.k, kv, dim, type, 1);
      Fill(layer.v, kv, dim, type, 1);
      Fill(layer.o, dim, q, type, 1);
      Fill(layer.gate, ffn, dim, type, 1);
      Fill(layer.up, ffn, dim, type, 1);
      Fill(layer.down, dim, ffn, type, 1);
      w.q = layer.q.view, w.k = layer.k.view, w.v = layer.v.view, w.o = layer.o.view;
      w.gate = layer.gate.view, w.up = layer.up.view, w.down = layer.down.view;
    }
  }

  const ModelSpec& spec() const override { return spec_; }
  const std::string& path() const override { return text_; }
  uint64_t content_hash() const override { return 1; }
  StatusOr<LayerWeights> Layer(int layer) const override { return layers_[static_cast<size_t>(layer)].vectors; }
  StatusOr<WeightView> Embedding() const override { return embedding_.view; }
  StatusOr<HeadWeights> Head() const override { return HeadWeights{.final_norm = final_norm_, .output = head().view}; }
  const Tokenizer* tokenizer() const override { return nullptr; }
  const std::string& tokenizer_note() const override { return text_; }
  const TensorTable& tensors() const override { return table_; }
  std::vector<std::pair<std::string, std::string>> DescribeMetadata() const override { return {}; }
  bool float_weights() const override { return true; }

  const TestLayer& layer(size_t i) const { return layers_[i]; }
  const TestMatrix& embedding() const { return embedding_; }
  const TestMatrix& head() const { return spec_.tied_head ? embedding_ : output_; }
  const std::vector<float>& final_norm() const { return final_norm_; }

 private:
  std::vector<float> Normal(size_t n, float scale, float offset) {
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> values(n);
    for (float& v : values) v = normal(random_) * scale + offset;
    return values;
  }
  std::vector<float> Norm(size_t n) { return Normal(n, 0.2f, 1); }

  void Fill(TestMatrix& m, size_t n, size_t k, DType type, float scale) {
    const std::vector<float> values = Normal(n * k, scale / __builtin_sqrtf(static_cast<float>(k)), 0);
    const DTypeInfo& info = Info(type);
    m.bytes.resize(n * k / info.block_elems * info.block_bytes);
    Quantize(type, values.data(), m.bytes.data(), values.size());
    m.values.resize(n * k);
    Dequantize(type, m.bytes.data(), m.values.data(), n * k);
    m.view = {.type = type, .n = n, .k = k, .data = m.bytes.data()};
  }

  const ModelSpec spec_;
  std::mt19937 random_;
  TestMatrix embedding_, output_;
  std::vector<float> final_norm_;
  std::vector<TestLayer> layers_;
  const std::string text_ = "in memory";
  const TensorTable table_;
};

struct TinySpec {
  int dim = 32, layers = 4, heads = 4, kv_heads = 2, head_dim = 8, ffn = 64, vocab = 97;
};

// A plain llama; what a test is about is changed afterwards.
inline ModelSpec MakeSpec(const TinySpec& t = {}) {
  ModelSpec spec;
  spec.architecture = "llama";
  spec.dim = t.dim;
  spec.vocab = t.vocab;
  spec.context = 4096;
  spec.final_norm_eps = 1e-5f;
  LayerSpec layer;
  layer.heads = t.heads;
  layer.kv_heads = t.kv_heads;
  layer.head_dim = t.head_dim;
  layer.ffn = t.ffn;
  layer.norm_eps = 1e-5f;
  layer.attention_scale = 1 / __builtin_sqrtf(static_cast<float>(t.head_dim));
  layer.rope.dims = t.head_dim;
  spec.layers.assign(static_cast<size_t>(t.layers), layer);
  return spec;
}

// One of everything that a spec can say, in layers that differ.
inline ModelSpec MakeRichSpec() {
  ModelSpec spec =
      MakeSpec({.dim = 32, .layers = 5, .heads = 4, .kv_heads = 2, .head_dim = 16, .ffn = 96, .vocab = 101});
  spec.embedding_scale = 5.5f;
  spec.final_softcap = 3.0f;
  spec.tied_head = true;
  spec.kv_groups = 2;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& l = spec.layers[i];
    l.post_norms = true;
    l.qk_norm = i != 1;
    l.qkv_bias = i % 2 == 0;
    l.attention_softcap = i == 2 ? 4.0f : 0.0f;
    l.activation = i == 3 ? Activation::kSilu : Activation::kGeluTanh;
    l.rope.pairing = i == 4 ? RopePairing::kInterleaved : RopePairing::kHalves;
    if (i % 2 == 1) {  // a sliding window, a rotary base and a table of its own
      l.window = 5;
      l.kv_group = 1;
      l.rope.base = 500;
      l.rope.dims = 8;
    } else {
      l.rope.frequency_factors = {1, 1, 1.5f, 2, 3, 4, 8, 8};
    }
  }
  return spec;
}

}  // namespace gyre::testing
