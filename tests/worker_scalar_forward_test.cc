// The forward pass against one written from the papers, in double and without a thought for speed: RMSNorm (Zhang and
// Sennrich 2019), rotary embeddings (Su et al. 2021) with YaRN (Peng et al. 2023), grouped queries (Ainslie et al.
// 2023) in a sliding window (Beltagy et al. 2020, as Mistral has it), SwiGLU (Shazeer 2020).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <numbers>
#include <optional>
#include <random>

#include "model/gguf.h"
#include "runtime/runtime.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/scalar_math.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using testing::Matrix;
using testing::RmsNorm;
using testing::Rows;
using testing::Vector;
using testing::WorstRow;

// The tested differences; everything else is the same in all of these models.
struct ForwardVariant {
  size_t window = 0;            // positions that a row sees, itself among them; 0 = all before it
  double factor = 1;            // YaRN's s: by how much the context is stretched
  double original = 0;          // YaRN's L
  double alpha = 1, beta = 32;  // rotations within L between which the ramp lies
  bool attention_factor = true;
};

class ScalarModel {
 public:
  ScalarModel(const std::string& path, const testing::TinyOptions& o, ForwardVariant variant)
      : o_(o), variant_(std::move(variant)) {
    std::ifstream in(path, std::ios::binary);
    file_.assign(std::istreambuf_iterator<char>(in), {});
    gguf_.emplace(*Gguf::Parse(std::as_bytes(std::span(file_))));
  }

  // [position][token]
  Rows Logits(const std::vector<TokenId>& ids) const {
    const Matrix output = Tensor("output.weight");
    Rows x = Hidden(ids);
    for (Vector& row : x) row = output.Times(row);
    return x;
  }
  // [position][dim], after the final norm.
  Rows Hidden(const std::vector<TokenId>& ids) const {
    const Matrix embedding = Tensor("token_embd.weight");
    Rows x;
    for (TokenId id : ids) {
      const auto row = embedding.values.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(id) * o_.dim);
      x.emplace_back(row, row + o_.dim);
    }
    for (size_t layer = 0; layer < o_.layers; ++layer) {
      const std::string b = "blk." + std::to_string(layer) + ".";
      AddAttention(b, &x);
      const Matrix norm = Tensor(b + "ffn_norm.weight"), gate = Tensor(b + "ffn_gate.weight"),
                   up = Tensor(b + "ffn_up.weight"), down = Tensor(b + "ffn_down.weight");
      for (Vector& row : x) {
        const Vector h = RmsNorm(row, norm.values), g = gate.Times(h), u = up.Times(h);
        Vector swiglu(g.size());
        for (size_t i = 0; i < g.size(); ++i) swiglu[i] = testing::Silu(g[i]) * u[i];
        testing::AddTo(down.Times(swiglu), &row);
      }
    }
    const Matrix norm = Tensor("output_norm.weight");
    for (Vector& row : x) row = RmsNorm(row, norm.values);
    return x;
  }

 private:
  Matrix Tensor(const std::string& name) const { return testing::ScalarTensor(*gguf_, name); }

  size_t head_dim() const { return o_.dim / o_.heads; }

  // Radians a position turns pair i by.
  double Frequency(size_t i) const {
    const double d = static_cast<double>(head_dim()), theta = std::pow(10000.0, -2 * static_cast<double>(i) / d);
    if (variant_.factor == 1) return theta;
    // "NTK-by-parts": pairs that turn often within L stay, those that do not turn once are interpolated. The paper
    // draws its ramp over the rotations; its authors' code, by which models were trained, over the pairs, from the one
    // with beta rotations to the one with alpha, rounded outwards.
    auto pair = [&](double rotations) {
      return d * std::log(variant_.original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(10000.0));
    };
    const double low = std::max(std::floor(pair(variant_.beta)), 0.0);
    const double high = std::min(std::ceil(pair(variant_.alpha)), d - 1);
    const double interpolated = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    return interpolated * theta / variant_.factor + (1 - interpolated) * theta;
  }

  // Every head of a row, elements 2i and 2i + 1 as a pair.
  void Rotate(size_t position, Vector* heads) const {
    const bool stretched = variant_.factor != 1 && variant_.attention_factor;
    const double magnitude = stretched ? 0.1 * std::log(variant_.factor) + 1 : 1;
    for (size_t at = 0; at < heads->size(); at += 2) {
      const double angle = static_cast<double>(position) * Frequency(at % head_dim() / 2);
      const double a = (*heads)[at], b = (*heads)[at + 1];
      (*heads)[at] = magnitude * (a * std::cos(angle) - b * std::sin(angle));
      (*heads)[at + 1] = magnitude * (a * std::sin(angle) + b * std::cos(angle));
    }
  }

  void AddAttention(const std::string& b, Rows* x) const {
    const Matrix norm = Tensor(b + "attn_norm.weight"), wq = Tensor(b + "attn_q.weight"),
                 wk = Tensor(b + "attn_k.weight"), wv = Tensor(b + "attn_v.weight"),
                 wo = Tensor(b + "attn_output.weight");
    Rows q, k, v;
    for (size_t p = 0; p < x->size(); ++p) {
      const Vector h = RmsNorm((*x)[p], norm.values);
      q.push_back(wq.Times(h));
      k.push_back(wk.Times(h));
      v.push_back(wv.Times(h));
      Rotate(p, &q.back());
      Rotate(p, &k.back());
    }
    const size_t n = head_dim(), shared = o_.heads / o_.kv_heads;
    for (size_t p = 0; p < x->size(); ++p) {
      const size_t first = variant_.window > 0 && p + 1 > variant_.window ? p + 1 - variant_.window : 0;
      Vector all(o_.dim);
      for (size_t head = 0; head < o_.heads; ++head) {
        const size_t kv = head / shared;
        Vector weights;
        double sum = 0;
        for (size_t s = first; s <= p; ++s) {
          double dot = 0;
          for (size_t i = 0; i < n; ++i) dot += q[p][head * n + i] * k[s][kv * n + i];
          weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(n))));
          sum += weights.back();
        }
        for (size_t s = first; s <= p; ++s) {
          for (size_t i = 0; i < n; ++i) all[head * n + i] += weights[s - first] / sum * v[s][kv * n + i];
        }
      }
      testing::AddTo(wo.Times(all), &(*x)[p]);
    }
  }

  const testing::TinyOptions o_;
  const ForwardVariant variant_;
  std::string file_;
  std::optional<Gguf> gguf_;
};

constexpr size_t kPrompt = 80;

class ScalarForward : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!IsaMissing(GetParam()).empty()) GTEST_SKIP() << IsaMissing(GetParam());
    if (testing::kSanitized && GetParam() != Isa::kRef) GTEST_SKIP() << "sanitized: the reference only";
    if (!PrefillMatchesDecode(GetParam())) GTEST_SKIP() << "it rounds prompts to bf16";
    std::mt19937 random(1);
    for (size_t i = 0; i < kPrompt; ++i) ids_.push_back(static_cast<TokenId>(random() % 96));
  }
  // The engine's results for the prompt, by two stages and chunks that the window reaches across.
  testing::Outcome Engine(const std::string& path, Request request) const {
    RuntimeOptions o;
    o.model = path;
    o.stages = 2;
    o.threads = 2;
    o.ctx = 256;
    o.kv_type = "f32";
    o.isa = IsaName(GetParam());
    o.quiet = true;
    o.chunk = 17;
    auto ring = Runtime::Open(o);
    EXPECT_TRUE(ring.ok()) << ring.status();
    if (!ring.ok()) return {};
    request.prompt = ids_;
    testing::Outcome got = testing::RunOne((*ring)->engine(), std::move(request));
    EXPECT_TRUE(got.status.ok()) << got.status;
    return got;
  }
  // `variant` holds, and each of `others` is another model by far: the test can tell them apart.
  void Check(const testing::TinyOptions& options, const ForwardVariant& variant,
             const std::vector<ForwardVariant>& others) const {
    const testing::TinyModelFile file(options);
    Request rows;
    rows.prompt_logits = true;
    const auto got = Engine(file.path(), rows).logits;
    ASSERT_EQ(got.size(), ids_.size());
    ASSERT_EQ(got[0].size(), options.vocab);
    EXPECT_LE(WorstRow(got, ScalarModel(file.path(), options, variant).Logits(ids_)), 1e-4);
    for (const ForwardVariant& other : others) {
      EXPECT_GE(WorstRow(got, ScalarModel(file.path(), options, other).Logits(ids_)), 1e-2);
    }
  }
  std::vector<TokenId> ids_;
};

testing::TinyOptions Tiny(const std::string& arch) {
  testing::TinyOptions o;
  o.arch = arch;
  o.dim = 64;  // heads of 16: eight pairs to rotate
  o.layers = 3;
  return o;
}

TEST_P(ScalarForward, Llama) { Check(Tiny("llama"), {}, {{.window = 40}}); }

// An embedding is the mean of the final hidden states, or the last of them; nothing near it is.
TEST_P(ScalarForward, HiddenStatesOfAPromptArePooled) {
  const testing::TinyOptions o = Tiny("llama");
  const testing::TinyModelFile file(o);
  const auto got = [&](Pooling pooling) {
    Request r;
    r.embedding = pooling;
    return std::vector<std::vector<float>>{Engine(file.path(), r).embedding};
  };
  const Rows hidden = ScalarModel(file.path(), o, {}).Hidden(ids_);
  const auto mean = [&](size_t first, size_t end) {
    Rows sum{Vector(o.dim)};
    for (size_t p = first; p < end; ++p) {
      for (size_t i = 0; i < o.dim; ++i) sum[0][i] += hidden[p][i] / static_cast<double>(end - first);
    }
    return sum;
  };
  for (const Pooling pooling : {Pooling::kMean, Pooling::kLast}) {
    const auto embedding = got(pooling);
    ASSERT_EQ(embedding[0].size(), o.dim);
    const size_t first = pooling == Pooling::kMean ? 0 : kPrompt - 1;
    EXPECT_LE(WorstRow(embedding, mean(first, kPrompt)), 1e-4);
    EXPECT_GE(WorstRow(embedding, mean(first == 0 ? 1 : first - 1, kPrompt)), 1e-3);
    EXPECT_GE(WorstRow(embedding, mean(first == 0 ? 0 : first - 1, kPrompt - 1)), 1e-3);
  }
}

// The writer gives mistral a window of 8.
TEST_P(ScalarForward, SlidingWindowShorterThanThePrompt) {
  Check(Tiny("mistral"), {.window = 8}, {{.window = 0}, {.window = 7}, {.window = 9}});
}

TEST_P(ScalarForward, YarnStretchesTheContext) {
  testing::TinyOptions o = Tiny("llama");
  o.more = [](testing::GgufWriter& w) {
    w.String("llama.rope.scaling.type", "yarn");
    w.Float("llama.rope.scaling.factor", 4);
    w.Uint("llama.rope.scaling.original_context_length", 64);
  };
  const ForwardVariant yarn{.factor = 4, .original = 64};
  ForwardVariant plain_attention = yarn, narrow = yarn;
  plain_attention.attention_factor = false;
  narrow.beta = 2;
  Check(o, yarn, {{}, plain_attention, narrow, {.factor = 2, .original = 64}});
  // Other ends of the ramp, as files may state them.
  o.more = [](testing::GgufWriter& w) {
    w.String("llama.rope.scaling.type", "yarn");
    w.Float("llama.rope.scaling.factor", 4);
    w.Uint("llama.rope.scaling.original_context_length", 64);
    w.Float("llama.rope.scaling.yarn_beta_fast", 2);
  };
  Check(o, narrow, {yarn});
}

TEST_P(ScalarForward, YarnInAWindow) {
  testing::TinyOptions o = Tiny("mistral");
  o.more = [](testing::GgufWriter& w) {
    w.String("mistral.rope.scaling.type", "yarn");
    w.Float("mistral.rope.scaling.factor", 8);
    w.Uint("mistral.rope.scaling.original_context_length", 32);
  };
  Check(o, {.window = 8, .factor = 8, .original = 32}, {{.window = 8}, {.window = 9, .factor = 8, .original = 32}});
}

INSTANTIATE_TEST_SUITE_P(Isa, ScalarForward,
                         ::testing::ValuesIn(std::vector<Isa>(BuiltIsas().begin(), BuiltIsas().end())),
                         [](const auto& info) { return std::string(IsaName(info.param)); });

}  // namespace
}  // namespace gyre
