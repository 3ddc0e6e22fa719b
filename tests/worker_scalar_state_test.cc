// Latent attention and recurrent state against passes written from the papers, in double, row after row: multi-head
// latent attention (DeepSeek-V2, 2024), the gated delta rule (Yang et al. 2024, as Qwen3-Next has it), Mamba-2 (Dao and
// Gu 2024), LFM2's short convolutions, and the experts of these families.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "runtime/runtime.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/scalar_math.h"
#include "tests/testing/tiny_hybrid.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using testing::AddTo;
using testing::Matrix;
using testing::RmsNorm;
using testing::Rows;
using testing::Sigmoid;
using testing::Silu;
using testing::Vector;
using testing::WorstRow;

// One thing that is done otherwise, so that the test can be seen to notice it.
enum class Slip {
  kNone,
  kGateBeforeNorm,   // of a state's output; Mamba-2 does so, the delta net does not
  kNoDecay,          // the state keeps all
  kNoOutputGate,     // of attention
  kSharedKeyNormed,  // of latent attention: the key that heads share has no norm
  kBiasInWeights,    // what is added to the experts' scores for the choice stays in their weights
  kConvolutionLate,  // the convolution's kept inputs are shifted by one
};

// The shapes of BuildTinyHybrid.
constexpr size_t kDim = 32, kLayers = 6, kHeads = 4, kKvHeads = 2, kHeadDim = 8;

Vector Slice(const Vector& v, size_t first, size_t count) {
  return {v.begin() + static_cast<ptrdiff_t>(first), v.begin() + static_cast<ptrdiff_t>(first + count)};
}

class ScalarHybrid {
 public:
  ScalarHybrid(std::span<const std::byte> bytes, std::string arch, Slip slip)
      : arch_(std::move(arch)), slip_(slip), gguf_(*Gguf::Parse(bytes)) {}

  // [position][token]
  Rows Logits(const std::vector<TokenId>& ids) const {
    const Matrix embedding = Get("token_embd.weight"), output = Get("output.weight");
    Rows x;
    for (TokenId id : ids) x.push_back(Slice(embedding.values, static_cast<size_t>(id) * kDim, kDim));
    for (size_t i = 0; i < kLayers; ++i) {
      b_ = "blk." + std::to_string(i) + ".";
      const bool alone = arch_.rfind("nemotron_h", 0) == 0;  // a mixer or a feed-forward block
      if (!alone || !Has("ffn_up.weight", "ffn_up_exps.weight")) Mix(&x);
      if (alone && !Has("ffn_up.weight", "ffn_up_exps.weight")) continue;
      const char* norm = alone ? "attn_norm.weight" : delta() ? "post_attention_norm.weight" : "ffn_norm.weight";
      const Vector weight = Of(norm).values;
      for (Vector& row : x) AddTo(FeedForward(RmsNorm(row, weight)), &row);
    }
    const Vector norm = Get(arch_ == "lfm2" ? "token_embd_norm.weight" : "output_norm.weight").values;
    for (Vector& row : x) row = output.Times(RmsNorm(row, norm));
    return x;
  }

 private:
  Matrix Get(const std::string& name) const { return testing::ScalarTensor(gguf_, name); }
  Matrix Of(const std::string& name) const { return Get(b_ + name); }  // of the layer
  bool Has(const char* name, const char* other = "-") const {
    return gguf_.tensors().Has(b_ + name) || gguf_.tensors().Has(b_ + other);
  }
  bool delta() const { return arch_.rfind("qwen3", 0) == 0; }

  void Mix(Rows* x) const {
    const Vector norm = Of("attn_norm.weight").values;
    Rows h, out;
    for (const Vector& row : *x) h.push_back(RmsNorm(row, norm));
    const char* last = "attn_output.weight";
    if (Has("attn_kv_a_mqa.weight")) {
      out = Latent(h);
    } else if (Has("attn_k.weight")) {
      out = Attention(h);
    } else if (Has("shortconv.conv.weight")) {
      out = ShortConvolution(h);
      last = "shortconv.out_proj.weight";
    } else {
      out = delta() ? DeltaNet(h) : Mamba(h);
      last = "ssm_out.weight";
    }
    const Matrix back = Of(last);
    for (size_t p = 0; p < x->size(); ++p) AddTo(back.Times(out[p]), &(*x)[p]);
  }

  // Turns pairs of elements of [first, first + n): neighbours, or one of each half.
  static void Rotate(size_t position, size_t first, size_t n, bool halves, Vector* v) {
    for (size_t i = 0; i < n / 2; ++i) {
      const double angle =
          static_cast<double>(position) * std::pow(10000.0, -2 * static_cast<double>(i) / static_cast<double>(n));
      double &a = (*v)[first + (halves ? i : 2 * i)], &b = (*v)[first + (halves ? i + n / 2 : 2 * i + 1)];
      const double was = a;
      a = was * std::cos(angle) - b * std::sin(angle);
      b = was * std::sin(angle) + b * std::cos(angle);
    }
  }
  // The mean of values [0, p] by the softmax of scores.
  template <typename Score, typename Value>
  static Vector Attend(size_t p, const Score& score, const Value& value) {
    Vector weights, out;
    for (size_t s = 0; s <= p; ++s) weights.push_back(score(s));
    const double most = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& w : weights) sum += w = std::exp(w - most);
    for (size_t s = 0; s <= p; ++s) {
      const Vector v = value(s);
      out.resize(v.size());
      for (size_t i = 0; i < v.size(); ++i) out[i] += weights[s] / sum * v[i];
    }
    return out;
  }
  static double Dot(const Vector& a, const Vector& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

  Rows Attention(const Rows& h) const {
    const Matrix wq = Of("attn_q.weight"), wk = Of("attn_k.weight"), wv = Of("attn_v.weight");
    const bool gated = delta(), normed = Has("attn_q_norm.weight");
    const bool rotates = arch_.rfind("nemotron_h", 0) != 0, halves = arch_ != "granitehybrid";
    std::vector<Rows> q(kHeads), k(kKvHeads), v(kKvHeads), gates(kHeads);
    auto finish = [&](Vector head, size_t position, const char* norm) {
      if (normed) head = RmsNorm(head, Of(norm).values);
      if (rotates) Rotate(position, 0, kHeadDim, halves, &head);
      return head;
    };
    for (size_t p = 0; p < h.size(); ++p) {
      const Vector qs = wq.Times(h[p]), ks = wk.Times(h[p]), vs = wv.Times(h[p]);
      const size_t stride = gated ? 2 * kHeadDim : kHeadDim;
      for (size_t i = 0; i < kHeads; ++i) {
        q[i].push_back(finish(Slice(qs, i * stride, kHeadDim), p, "attn_q_norm.weight"));
        if (gated) gates[i].push_back(Slice(qs, i * stride + kHeadDim, kHeadDim));
      }
      for (size_t i = 0; i < kKvHeads; ++i) {
        k[i].push_back(finish(Slice(ks, i * kHeadDim, kHeadDim), p, "attn_k_norm.weight"));
        v[i].push_back(Slice(vs, i * kHeadDim, kHeadDim));
      }
    }
    Rows out(h.size());
    for (size_t p = 0; p < h.size(); ++p) {
      for (size_t i = 0; i < kHeads; ++i) {
        const size_t kv = i / (kHeads / kKvHeads);
        Vector head = Attend(
            p, [&](size_t s) { return Dot(q[i][p], k[kv][s]) / std::sqrt(static_cast<double>(kHeadDim)); },
            [&](size_t s) { return v[kv][s]; });
        for (size_t e = 0; gated && slip_ != Slip::kNoOutputGate && e < kHeadDim; ++e)
          head[e] *= Sigmoid(gates[i][p][e]);
        out[p].insert(out[p].end(), head.begin(), head.end());
      }
    }
    return out;
  }

  // Keys and values of each head are made, as the paper defines them.
  Rows Latent(const Rows& h) const {
    constexpr size_t kRank = 16, kKey = 8, kTurned = 4, kValue = 8, kQuery = kKey + kTurned;
    const Matrix to_low = Of("attn_q_a.weight"), to_q = Of("attn_q_b.weight"), to_latent = Of("attn_kv_a_mqa.weight"),
                 to_key = Of("attn_k_b.weight"), to_value = Of("attn_v_b.weight");
    const Vector q_norm = Of("attn_q_a_norm.weight").values, norm = Of("attn_kv_a_norm.weight").values;
    std::vector<Rows> q(kHeads), k(kHeads), v(kHeads);
    for (size_t p = 0; p < h.size(); ++p) {
      const Vector qs = to_q.Times(RmsNorm(to_low.Times(h[p]), q_norm)), both = to_latent.Times(h[p]);
      const Vector latent = RmsNorm(Slice(both, 0, kRank), norm);
      Vector turned = Slice(both, kRank, kTurned);
      if (slip_ == Slip::kSharedKeyNormed) turned = RmsNorm(turned, Vector(kTurned, 1));
      Rotate(p, 0, kTurned, false, &turned);
      for (size_t i = 0; i < kHeads; ++i) {
        q[i].push_back(Slice(qs, i * kQuery, kQuery));
        Rotate(p, kKey, kTurned, false, &q[i].back());
        // attn_k_b has a row for each latent element.
        Vector key(kKey);
        for (size_t e = 0; e < kKey; ++e) {
          for (size_t r = 0; r < kRank; ++r) key[e] += to_key.values[(i * kRank + r) * kKey + e] * latent[r];
        }
        key.insert(key.end(), turned.begin(), turned.end());
        k[i].push_back(key);
        v[i].push_back(to_value.Part(i * kValue, kValue).Times(latent));
      }
    }
    Rows out(h.size());
    for (size_t p = 0; p < h.size(); ++p) {
      for (size_t i = 0; i < kHeads; ++i) {
        const Vector head = Attend(
            p, [&](size_t s) { return Dot(q[i][p], k[i][s]) / std::sqrt(static_cast<double>(kQuery)); },
            [&](size_t s) { return v[i][s]; });
        out[p].insert(out[p].end(), head.begin(), head.end());
      }
    }
    return out;
  }

  // Each channel's sum over its last inputs.
  Rows Convolve(const Rows& in, const Matrix& kernel, const Vector& bias) const {
    const size_t late = slip_ == Slip::kConvolutionLate ? 1 : 0;
    Rows out;
    for (size_t p = 0; p < in.size(); ++p) {
      Vector row(kernel.rows);
      for (size_t c = 0; c < kernel.rows; ++c) {
        row[c] = bias.empty() ? 0 : bias[c];
        for (size_t t = 0; t < kernel.columns; ++t) {
          const size_t back = kernel.columns - 1 - t + late;
          if (back <= p) row[c] += kernel.values[c * kernel.columns + t] * in[p - back][c];
        }
      }
      out.push_back(row);
    }
    return out;
  }

  Rows ShortConvolution(const Rows& h) const {
    const Matrix in = Of("shortconv.in_proj.weight");
    Rows gated, gates, out;
    for (const Vector& row : h) {
      const Vector all = in.Times(row);
      gated.push_back(Slice(all, 0, kDim));
      for (size_t i = 0; i < kDim; ++i) gated.back()[i] *= all[2 * kDim + i];
      gates.push_back(Slice(all, kDim, kDim));
    }
    out = Convolve(gated, Of("shortconv.conv.weight"), {});
    for (size_t p = 0; p < out.size(); ++p) {
      for (size_t i = 0; i < kDim; ++i) out[p][i] *= gates[p][i];
    }
    return out;
  }

  static Vector Unit(Vector v) {
    double sum = 1e-6;
    for (double e : v) sum += e * e;
    for (double& e : v) e /= std::sqrt(sum);
    return v;
  }
  static double Softplus(double x) { return std::log1p(std::exp(x)); }

  Rows DeltaNet(const Rows& h) const {
    constexpr size_t kKeyHeads = 2, kValueHeads = 4, kWidth = 8, kKeys = kKeyHeads * kWidth;
    const bool joint = arch_ == "qwen3next";
    const Matrix in = Of("attn_qkv.weight"), z = Of("attn_gate.weight");
    const Vector a = Of("ssm_a").values, dt = Of("ssm_dt.bias").values, norm = Of("ssm_norm.weight").values;
    Rows u, out;
    for (const Vector& row : h) u.push_back(in.Times(row));
    u = Convolve(u, Of("ssm_conv1d.weight"), {});
    std::vector<std::vector<Vector>> state(kValueHeads, std::vector<Vector>(kWidth, Vector(kWidth)));
    for (size_t p = 0; p < h.size(); ++p) {
      for (double& e : u[p]) e = Silu(e);
      const Vector gate = z.Times(h[p]);
      Vector betas, alphas;
      if (joint) {
        // For each key head the betas of its value heads, then their alphas.
        const Vector both = Of("ssm_ba.weight").Times(h[p]);
        for (size_t j = 0; j < kValueHeads; ++j) {
          betas.push_back(both[j / 2 * 4 + j % 2]);
          alphas.push_back(both[j / 2 * 4 + 2 + j % 2]);
        }
      } else {
        betas = Of("ssm_beta.weight").Times(h[p]);
        alphas = Of("ssm_alpha.weight").Times(h[p]);
      }
      Vector all;
      for (size_t j = 0; j < kValueHeads; ++j) {
        const size_t key = joint ? j / 2 : j % kKeyHeads;
        const Vector q = Unit(Slice(u[p], key * kWidth, kWidth)), k = Unit(Slice(u[p], kKeys + key * kWidth, kWidth)),
                     v = Slice(u[p], 2 * kKeys + j * kWidth, kWidth);
        const double beta = Sigmoid(betas[j]),
                     decay = slip_ == Slip::kNoDecay ? 1 : std::exp(a[j] * Softplus(alphas[j] + dt[j]));
        Vector read(kWidth), o(kWidth);
        for (size_t r = 0; r < kWidth; ++r) {
          for (size_t c = 0; c < kWidth; ++c) read[c] += (state[j][r][c] *= decay) * k[r];
        }
        for (size_t r = 0; r < kWidth; ++r) {
          for (size_t c = 0; c < kWidth; ++c) {
            state[j][r][c] += k[r] * beta * (v[c] - read[c]);
            o[c] += state[j][r][c] * q[r] / std::sqrt(static_cast<double>(kWidth));
          }
        }
        const bool early = slip_ == Slip::kGateBeforeNorm;
        for (size_t e = 0; early && e < kWidth; ++e) o[e] *= Silu(gate[j * kWidth + e]);
        o = RmsNorm(o, norm);
        for (size_t e = 0; !early && e < kWidth; ++e) o[e] *= Silu(gate[j * kWidth + e]);
        all.insert(all.end(), o.begin(), o.end());
      }
      out.push_back(all);
    }
    return out;
  }

  Rows Mamba(const Rows& h) const {
    constexpr size_t kInner = 64, kState = 8, kGroups = 2, kScans = 4, kWidth = kInner / kScans,
                     kChannels = kInner + 2 * kGroups * kState;
    const Matrix in = Of("ssm_in.weight");
    const Vector a = Of("ssm_a").values, d = Of("ssm_d").values, dt = Of("ssm_dt.bias").values,
                 norm = Of("ssm_norm.weight").values;
    Rows z, u, steps, out;
    for (const Vector& row : h) {
      const Vector all = in.Times(row);
      z.push_back(Slice(all, 0, kInner));
      u.push_back(Slice(all, kInner, kChannels));
      steps.push_back(Slice(all, kInner + kChannels, kScans));
    }
    u = Convolve(u, Of("ssm_conv1d.weight"), Of("ssm_conv1d.bias").values);
    std::vector<Rows> state(kScans, Rows(kWidth, Vector(kState)));
    for (size_t p = 0; p < h.size(); ++p) {
      for (double& e : u[p]) e = Silu(e);
      Vector y(kInner);
      for (size_t j = 0; j < kScans; ++j) {
        const size_t group = j / (kScans / kGroups);
        const double step = Softplus(steps[p][j] + dt[j]), decay = slip_ == Slip::kNoDecay ? 1 : std::exp(step * a[j]);
        for (size_t i = 0; i < kWidth; ++i) {
          const double x = u[p][j * kWidth + i];
          double& to = y[j * kWidth + i];
          for (size_t n = 0; n < kState; ++n) {
            double& s = state[j][i][n];
            s = s * decay + step * x * u[p][kInner + group * kState + n];
            to += s * u[p][kInner + (kGroups + group) * kState + n];
          }
          to += d[j] * x;
        }
      }
      const bool late = slip_ == Slip::kGateBeforeNorm;  // the other way round than it should be
      for (size_t i = 0; !late && i < kInner; ++i) y[i] *= Silu(z[p][i]);
      Vector normed;
      for (size_t g = 0; g < kGroups; ++g) {
        const size_t width = kInner / kGroups;
        const Vector part = RmsNorm(Slice(y, g * width, width), Slice(norm, g * width, width));
        normed.insert(normed.end(), part.begin(), part.end());
      }
      for (size_t i = 0; late && i < kInner; ++i) normed[i] *= Silu(z[p][i]);
      out.push_back(normed);
    }
    return out;
  }

  // The output of a block with these matrices; gated by silu, or squared.
  static Vector Block(const Matrix* gate, const Matrix& up, const Matrix& down, const Vector& x) {
    Vector u = up.Times(x);
    const Vector g = gate == nullptr ? Vector() : gate->Times(x);
    for (size_t i = 0; i < u.size(); ++i) {
      const double kept = std::max(0.0, u[i]);
      u[i] = gate == nullptr ? kept * kept : Silu(g[i]) * u[i];
    }
    return down.Times(u);
  }

  Vector FeedForward(const Vector& x) const {
    const bool gated = arch_.rfind("nemotron_h", 0) != 0;
    if (!Has("ffn_up_exps.weight")) {
      const Matrix gate = gated ? Of("ffn_gate.weight") : Matrix();
      return Block(gated ? &gate : nullptr, Of("ffn_up.weight"), Of("ffn_down.weight"), x);
    }
    constexpr size_t kExperts = 4, kUsed = 2, kWidth = 24;
    const bool sigmoid = arch_ == "deepseek2" || !gated, normalized = !sigmoid;
    Vector scores = Of("ffn_gate_inp.weight").Times(x);
    double sum = 0;
    for (double& s : scores) sum += s = sigmoid ? Sigmoid(s) : std::exp(s);
    for (double& s : scores) s /= sigmoid ? 1 : sum;
    Vector choice = scores;
    if (Has("exp_probs_b.bias")) AddTo(Of("exp_probs_b.bias").values, &choice);
    std::vector<size_t> order(kExperts);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return choice[a] > choice[b]; });
    const Vector& weights = slip_ == Slip::kBiasInWeights ? choice : scores;
    double all = 0;
    for (size_t i = 0; i < kUsed; ++i) all += weights[order[i]];
    Vector out(kDim);
    const Matrix gates = gated ? Of("ffn_gate_exps.weight") : Matrix(), ups = Of("ffn_up_exps.weight"),
                 downs = Of("ffn_down_exps.weight");
    for (size_t i = 0; i < kUsed; ++i) {
      const size_t e = order[i];
      const Matrix gate = gated ? gates.Part(e * kWidth, kWidth) : Matrix();
      Vector one = Block(gated ? &gate : nullptr, ups.Part(e * kWidth, kWidth), downs.Part(e * kDim, kDim), x);
      for (double& v : one) v *= weights[e] / (normalized ? all : 1);
      AddTo(one, &out);
    }
    const Matrix gate = gated ? Of("ffn_gate_shexp.weight") : Matrix();
    Vector shared = Block(gated ? &gate : nullptr, Of("ffn_up_shexp.weight"), Of("ffn_down_shexp.weight"), x);
    const double by = delta() ? Sigmoid(Dot(Of("ffn_gate_inp_shexp.weight").values, x)) : 1;
    for (double& v : shared) v *= by;
    AddTo(shared, &out);
    return out;
  }

  const std::string arch_;
  const Slip slip_;
  const Gguf gguf_;
  mutable std::string b_;
};

struct Hybrid {
  const char* arch;
  std::vector<Slip> slips;  // each of which makes another model of it
};

class ScalarState : public ::testing::TestWithParam<Hybrid> {};

// Two stages, and chunks that the state reaches across.
TEST_P(ScalarState, LogitsAreThoseOfThePaper) {
  const auto bytes = testing::BuildTinyHybrid(GetParam().arch);
  const testing::TinyModelFile file(bytes);
  Request request;
  std::mt19937 random(1);
  for (size_t i = 0; i < 48; ++i) request.prompt.push_back(static_cast<TokenId>(random() % 96));
  const auto ids = request.prompt;
  request.prompt_logits = true;
  for (Isa isa : BuiltIsas()) {
    if (!IsaMissing(isa).empty() || !PrefillMatchesDecode(isa)) continue;
    if (testing::kSanitized && isa != Isa::kRef) continue;
    SCOPED_TRACE(IsaName(isa));
    RuntimeOptions o;
    o.model = file.path();
    o.stages = 2;
    o.threads = 2;
    o.ctx = 128;
    o.kv_type = "f32";
    o.isa = IsaName(isa);
    o.quiet = true;
    o.chunk = 17;
    const auto ring = Runtime::Open(o);
    ASSERT_TRUE(ring.ok()) << ring.status();
    const testing::Outcome got = testing::RunOne((*ring)->engine(), request);
    ASSERT_TRUE(got.status.ok()) << got.status;
    ASSERT_EQ(got.logits.size(), ids.size());
    EXPECT_LE(WorstRow(got.logits, ScalarHybrid(bytes, GetParam().arch, Slip::kNone).Logits(ids)), 1e-4);
    if (isa != Isa::kRef) continue;
    for (const Slip slip : GetParam().slips) {
      EXPECT_GE(WorstRow(got.logits, ScalarHybrid(bytes, GetParam().arch, slip).Logits(ids)), 1e-2)
          << static_cast<int>(slip);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, ScalarState,
    ::testing::Values(Hybrid{"qwen35",
                             {Slip::kGateBeforeNorm, Slip::kNoDecay, Slip::kNoOutputGate, Slip::kConvolutionLate}},
                      Hybrid{"qwen35moe", {Slip::kNoDecay}}, Hybrid{"qwen3next", {Slip::kNoDecay, Slip::kNoOutputGate}},
                      Hybrid{"lfm2", {Slip::kConvolutionLate}},
                      Hybrid{"nemotron_h", {Slip::kGateBeforeNorm, Slip::kNoDecay, Slip::kConvolutionLate}},
                      Hybrid{"nemotron_h_moe", {Slip::kBiasInWeights}}, Hybrid{"granitehybrid", {Slip::kNoDecay}},
                      Hybrid{"deepseek2", {Slip::kSharedKeyNormed, Slip::kBiasInWeights}}),
    [](const auto& info) { return std::string(info.param.arch); });

}  // namespace
}  // namespace gyre
