// Families that combine known parts, against a forward pass in double that is written from their authors' definitions,
// on small random models of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/gguf.h"
#include "model/weights.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/one_stage.h"
#include "tests/testing/prompt_logits.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/scalar_math.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using testing::Matrix;
using testing::Rows;
using testing::Vector;

enum class Act { kSilu, kGeluTanh, kReluSquared };

// What a family does otherwise than Llama as its authors publish it: RMS norms, rotated halves, a gated block.
struct Definition {
  const char* arch = "";
  bool neighbours = false;  // pairs of the rotation
  int rotated = 16;         // elements of a head; 0 = none
  bool layer_norms = false;
  bool qkv_bias = false, output_bias = false, ffn_bias = false;
  bool gated = true;
  Act act = Act::kSilu;
  bool parallel = false;
  bool positions = false;  // learned vectors
  bool qk_norm = false, norm_first = true;
  bool encoder = false;     // rows see all rows, and the hidden states are what it makes
  bool scaled = false;      // embeddings, by sqrt(dim)
  bool post_norms = false;  // RMS norms of what is added to the row
  int window = 0;           // of the layers but each third: an encoder's rows see half of it to each side
  // How the file holds it.
  bool one_qkv = false, one_gate_up = false, tied = false;
  bool counts_gate = false;  // in the feed-forward length
};

constexpr Definition kFamilies[] = {
    {.arch = "xverse", .neighbours = true},
    {.arch = "baichuan", .neighbours = true},  // of 7B; that of 13B has no rotation
    {.arch = "orion", .layer_norms = true},
    {.arch = "openelm", .qk_norm = true, .one_qkv = true, .tied = true},
    {.arch = "starcoder",
     .rotated = 0,
     .layer_norms = true,
     .qkv_bias = true,
     .output_bias = true,
     .ffn_bias = true,
     .gated = false,
     .act = Act::kGeluTanh,
     .positions = true,
     .one_qkv = true},
    {.arch = "codeshell",
     .layer_norms = true,
     .qkv_bias = true,
     .output_bias = true,
     .ffn_bias = true,
     .gated = false,
     .act = Act::kGeluTanh,
     .one_qkv = true},
    {.arch = "plamo", .parallel = true},
    {.arch = "chatglm", .neighbours = true, .rotated = 8, .qkv_bias = true, .one_qkv = true, .one_gate_up = true},
    {.arch = "qwen2vl", .qkv_bias = true},
    {.arch = "qwen", .qkv_bias = true, .one_qkv = true, .counts_gate = true},
    {.arch = "pangu-embedded", .qkv_bias = true, .output_bias = true},
    {.arch = "jais2",
     .layer_norms = true,
     .qkv_bias = true,
     .output_bias = true,
     .ffn_bias = true,
     .gated = false,
     .act = Act::kReluSquared},
    {.arch = "maincoder", .qk_norm = true, .norm_first = false},
    {.arch = "eurobert", .encoder = true},
    {.arch = "llama-embed", .neighbours = true, .encoder = true},
    {.arch = "gemma-embedding",
     .act = Act::kGeluTanh,
     .qk_norm = true,
     .encoder = true,
     .scaled = true,
     .post_norms = true,
     .window = 12},
};

constexpr size_t kRowDim = 64, kQueryHeads = 4, kTinyKeyHeads = 2, kTinyHeadDim = 16, kTinyInner = 96, kWords = 96,
                 kTinyBlocks = 3, kPlaces = 64;

std::vector<std::byte> WriteFamily(const Definition& d, uint32_t layers = kTinyBlocks) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  testing::GgufWriter w;
  const auto key = [&](const char* name) { return std::string(d.arch) + "." + name; };
  w.String("general.architecture", d.arch);
  w.Uint(key("block_count"), layers);
  w.Uint(key("embedding_length"), kRowDim);
  w.Uint(key("feed_forward_length"), d.counts_gate ? 2 * kTinyInner : kTinyInner);
  w.Uint(key("attention.head_count"), kQueryHeads);
  w.Uint(key("attention.head_count_kv"), kTinyKeyHeads);
  w.Uint(key("context_length"), kPlaces);
  w.Float(key(d.layer_norms ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"), 1e-5f);
  if (d.rotated > 0 && d.rotated < static_cast<int>(kTinyHeadDim))
    w.Uint(key("rope.dimension_count"), static_cast<uint32_t>(d.rotated));
  w.String("tokenizer.ggml.model", "none");
  if (d.encoder) w.Bool(key("attention.causal"), false);
  if (d.encoder) w.Uint(key("pooling_type"), 1);
  if (d.window > 0) {
    w.Uint(key("attention.sliding_window"), static_cast<uint32_t>(d.window));
    w.Uint(key("attention.sliding_window_pattern"), 3);
    w.Float(key("rope.freq_base"), 1e6f);
  }
  const auto tensor = [&](const std::string& name, std::vector<uint64_t> dims, float scale, float offset) {
    size_t n = 1;
    for (const uint64_t v : dims) n *= v;
    std::vector<float> values(n);
    for (float& v : values) v = normal(random) * scale + offset;
    w.Tensor(name, DType::kF32, dims, values);
  };
  const auto matrix = [&](const std::string& name, uint64_t n, uint64_t k) {
    tensor(name, {k, n}, 1 / std::sqrt(static_cast<float>(k)), 0);
  };
  const auto norm = [&](const std::string& name, uint64_t n, bool bias) {
    tensor(name + ".weight", {n}, 0.1f, 1);
    if (bias) tensor(name + ".bias", {n}, 0.2f, 0);
  };
  const auto bias = [&](const std::string& name, uint64_t n, bool has) {
    if (has) tensor(name + ".bias", {n}, 0.2f, 0);
  };
  tensor("token_embd.weight", {kRowDim, kWords}, 1, 0);
  if (d.positions) tensor("position_embd.weight", {kRowDim, kPlaces}, 0.5f, 0);
  norm("output_norm", kRowDim, d.layer_norms);
  if (!d.tied && !d.encoder) matrix("output.weight", kWords, kRowDim);
  const uint64_t q = kQueryHeads * kTinyHeadDim, kv = kTinyKeyHeads * kTinyHeadDim;
  for (size_t i = 0; i < kTinyBlocks; ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    norm(b + "attn_norm", kRowDim, d.layer_norms);
    if (d.one_qkv) {
      matrix(b + "attn_qkv.weight", q + 2 * kv, kRowDim);
      bias(b + "attn_qkv", q + 2 * kv, d.qkv_bias);
    } else {
      for (const auto& [name, n] : {std::pair{"attn_q", q}, {"attn_k", kv}, {"attn_v", kv}}) {
        matrix(b + name + ".weight", n, kRowDim);
        bias(b + name, n, d.qkv_bias);
      }
    }
    if (d.qk_norm) norm(b + "attn_q_norm", kTinyHeadDim, false), norm(b + "attn_k_norm", kTinyHeadDim, false);
    matrix(b + "attn_output.weight", kRowDim, q);
    bias(b + "attn_output", kRowDim, d.output_bias);
    if (!d.parallel) norm(b + "ffn_norm", kRowDim, d.layer_norms);
    if (d.gated && !d.one_gate_up) matrix(b + "ffn_gate.weight", kTinyInner, kRowDim);
    matrix(b + "ffn_up.weight", d.one_gate_up ? 2 * kTinyInner : kTinyInner, kRowDim);
    bias(b + "ffn_up", kTinyInner, d.ffn_bias);
    matrix(b + "ffn_down.weight", kRowDim, kTinyInner);
    bias(b + "ffn_down", kRowDim, d.ffn_bias);
    if (d.post_norms) norm(b + "post_attention_norm", kRowDim, false), norm(b + "post_ffw_norm", kRowDim, false);
  }
  return w.Finish();
}

class ScalarFamily {
 public:
  ScalarFamily(const std::vector<std::byte>& file, const Definition& d) : gguf_(*Gguf::Parse(file)), d_(d) {}

  // Of an encoder the hidden states.
  Rows Logits(const std::vector<TokenId>& ids) const {
    const Matrix embedding = Tensor("token_embd.weight"),
                 output = d_.tied || d_.encoder ? embedding : Tensor("output.weight");
    Rows x;
    for (size_t p = 0; p < ids.size(); ++p) {
      x.push_back(RowOf(embedding, static_cast<size_t>(ids[p])));
      for (double& v : x.back()) v *= d_.scaled ? std::sqrt(static_cast<double>(kRowDim)) : 1;
      if (d_.positions) testing::AddTo(RowOf(Tensor("position_embd.weight"), p), &x.back());
    }
    for (size_t i = 0; i < kTinyBlocks; ++i) Layer("blk." + std::to_string(i) + ".", (i + 1) % 3 != 0, &x);
    for (Vector& row : x) {
      row = Norm(row, "output_norm");
      if (!d_.encoder) row = output.Times(row);
    }
    return x;
  }

 private:
  Matrix Tensor(const std::string& name) const { return testing::ScalarTensor(gguf_, name); }
  static Vector RowOf(const Matrix& m, size_t row) { return m.Part(row, 1).values; }

  // RMSNorm (Zhang and Sennrich 2019), or LayerNorm (Ba et al. 2016).
  Vector Norm(Vector x, const std::string& name) const {
    const Vector weight = Tensor(name + ".weight").values;
    if (!d_.layer_norms) return testing::RmsNorm(x, weight);
    double mean = 0;
    for (const double v : x) mean += v / static_cast<double>(x.size());
    for (double& v : x) v -= mean;
    x = testing::RmsNorm(x, weight);
    testing::AddTo(Tensor(name + ".bias").values, &x);
    return x;
  }
  // The rows [first, first + n) of a matrix, with their biases.
  Vector Linear(const std::string& name, size_t first, size_t n, bool bias, const Vector& x) const {
    Vector out = Tensor(name + ".weight").Part(first, n).Times(x);
    if (!bias) return out;
    const Vector all = Tensor(name + ".bias").values;
    for (size_t i = 0; i < n; ++i) out[i] += all[first + i];
    return out;
  }
  double Activated(double x) const {
    switch (d_.act) {
      case Act::kSilu: return testing::Silu(x);
      case Act::kGeluTanh: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
      case Act::kReluSquared: return x > 0 ? x * x : 0;
    }
    return 0;
  }
  // Norm and rotation of one head of a query or key.
  void Place(const std::string& norm, size_t position, double base, double* head) const {
    const auto normed = [&] {
      const Vector v = testing::RmsNorm({head, head + kTinyHeadDim}, Tensor(norm + ".weight").values);
      std::copy(v.begin(), v.end(), head);
    };
    if (d_.qk_norm && d_.norm_first) normed();
    const size_t half = static_cast<size_t>(d_.rotated) / 2;
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * std::pow(base, -2.0 * static_cast<double>(i) / d_.rotated);
      double &a = head[d_.neighbours ? 2 * i : i], &b = head[d_.neighbours ? 2 * i + 1 : i + half];
      a = std::exchange(b, a * std::sin(angle) + b * std::cos(angle)) * -std::sin(angle) + a * std::cos(angle);
    }
    if (d_.qk_norm && !d_.norm_first) normed();
  }

  // Adds what a part of the layer made.
  void Add(Vector made, const std::string& post_norm, Vector* row) const {
    testing::AddTo(d_.post_norms ? testing::RmsNorm(made, Tensor(post_norm + ".weight").values) : made, row);
  }
  bool Sees(size_t row, size_t other, bool local) const {
    if (!d_.encoder) return other <= row;
    const size_t apart = row > other ? row - other : other - row;
    return d_.window == 0 || !local || apart <= static_cast<size_t>(d_.window) / 2;
  }

  void Layer(const std::string& b, bool local, Rows* x) const {
    const double base = d_.window > 0 && !local ? 1e6 : 10000;
    Rows seen, q, k, v;
    const size_t q_rows = kQueryHeads * kTinyHeadDim, kv_rows = kTinyKeyHeads * kTinyHeadDim;
    for (size_t p = 0; p < x->size(); ++p) {
      seen.push_back(Norm((*x)[p], b + "attn_norm"));
      const auto part = [&](const char* name, size_t first, size_t n) {
        return Linear(b + (d_.one_qkv ? "attn_qkv" : name), d_.one_qkv ? first : 0, n, d_.qkv_bias, seen[p]);
      };
      q.push_back(part("attn_q", 0, q_rows));
      k.push_back(part("attn_k", q_rows, kv_rows));
      v.push_back(part("attn_v", q_rows + kv_rows, kv_rows));
      for (size_t h = 0; h < kQueryHeads; ++h) Place(b + "attn_q_norm", p, base, &q[p][h * kTinyHeadDim]);
      for (size_t h = 0; h < kTinyKeyHeads; ++h) Place(b + "attn_k_norm", p, base, &k[p][h * kTinyHeadDim]);
    }
    for (size_t p = 0; p < x->size(); ++p) {
      Vector attended(q_rows);
      for (size_t h = 0; h < kQueryHeads; ++h) {
        const size_t of = h / (kQueryHeads / kTinyKeyHeads) * kTinyHeadDim;
        Vector weights;
        double sum = 0;
        for (size_t s = 0; s < x->size(); ++s) {
          weights.push_back(0);
          if (!Sees(p, s, local)) continue;
          double dot = 0;
          for (size_t i = 0; i < kTinyHeadDim; ++i) dot += q[p][h * kTinyHeadDim + i] * k[s][of + i];
          weights.back() = std::exp(dot / std::sqrt(static_cast<double>(kTinyHeadDim)));
          sum += weights.back();
        }
        for (size_t s = 0; s < x->size(); ++s) {
          for (size_t i = 0; i < kTinyHeadDim; ++i) attended[h * kTinyHeadDim + i] += weights[s] / sum * v[s][of + i];
        }
      }
      Add(Linear(b + "attn_output", 0, kRowDim, d_.output_bias, attended), b + "post_attention_norm", &(*x)[p]);
      const Vector in = d_.parallel ? seen[p] : Norm((*x)[p], b + "ffn_norm");
      Vector up = Linear(b + "ffn_up", d_.one_gate_up ? kTinyInner : 0, kTinyInner, d_.ffn_bias, in), inner = up;
      if (d_.gated) inner = Linear(b + (d_.one_gate_up ? "ffn_up" : "ffn_gate"), 0, kTinyInner, false, in);
      for (size_t i = 0; i < kTinyInner; ++i) inner[i] = Activated(inner[i]) * (d_.gated ? up[i] : 1);
      Add(Linear(b + "ffn_down", 0, kRowDim, d_.ffn_bias, inner), b + "post_ffw_norm", &(*x)[p]);
    }
  }

  const Gguf gguf_;
  const Definition d_;
};

// Of all rows of an encoder.
std::vector<std::vector<float>> HiddenStates(const std::string& path, const std::vector<TokenId>& ids) {
  testing::OneStage stage(*OpenModel(path), testing::TestDevice(DetectIsa(), 2), true, KvType::kF32, false, true);
  const RowRequest all{.first = 0, .count = static_cast<uint32_t>(ids.size()), .mode = RowMode::kHidden};
  return stage.Run({{1, 0, RowClass::kPrompt, ids, {all}}});
}

TEST(ScalarFamilies, ComputeWhatTheirAuthorsDefine) {
  std::mt19937 random(1);
  std::vector<TokenId> ids;
  for (size_t i = 0; i < 40; ++i) ids.push_back(static_cast<TokenId>(random() % kWords));
  for (const Definition& d : kFamilies) {
    SCOPED_TRACE(d.arch);
    const std::vector<std::byte> bytes = WriteFamily(d);
    const testing::TinyModelFile file(bytes);
    RuntimeOptions o;
    o.model = file.path();
    o.stages = 2;
    o.threads = 2;
    o.ctx = kPlaces;
    o.kv_type = "f32";
    o.exact = true;
    o.quiet = true;
    o.chunk = 17;
    const auto got = d.encoder ? HiddenStates(file.path(), ids) : testing::PromptLogits(o, ids);
    ASSERT_EQ(got.size(), ids.size());
    EXPECT_LE(testing::WorstRow(got, ScalarFamily(bytes, d).Logits(ids)), 2e-5);
    // The distance is that of another model where a fact is another.
    Definition other = d;
    if (d.rotated > 0)
      other.neighbours = !d.neighbours;
    else
      other.act = Act::kSilu;
    EXPECT_GE(testing::WorstRow(got, ScalarFamily(bytes, other).Logits(ids)), 1e-2);
  }
}

// What Gyre can't compute of such a family is refused.
TEST(ScalarFamilies, ABaichuanWithLinearBiasesIsRefused) {
  constexpr Definition kModel{.arch = "baichuan", .neighbours = true};
  const auto model = OpenModelFromBytes(WriteFamily(kModel, 40));
  EXPECT_EQ(
      Message(model.status()),
      "baichuan.block_count is 40: such a model of baichuan has linear biases (ALiBi) in place of a rotation, which "
      "are not computed");
}

// A text can't be longer than the table of its positions.
TEST(ScalarFamilies, PositionsEndWithTheirTable) {
  constexpr Definition kModel{.arch = "starcoder",
                              .rotated = 0,
                              .layer_norms = true,
                              .qkv_bias = true,
                              .output_bias = true,
                              .ffn_bias = true,
                              .gated = false,
                              .positions = true};
  const std::vector<std::byte> bytes = WriteFamily(kModel);
  EXPECT_EQ(Message(OpenModelFromBytes(bytes, {.context = 65}).status()),
            "a context of 65 positions: this model has vectors for 64");
  const auto model = OpenModelFromBytes(bytes);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->spec().context, 64);
}

}  // namespace
}  // namespace gyre
