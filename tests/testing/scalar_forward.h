// The forward pass once more, written for nobody's speed: one sequence, doubles, no cache. It shares no code with
// worker/ and kernels/.
#pragma once

#include <cmath>
#include <vector>

#include "tests/testing/memory_model.h"

namespace gyre::testing {

class ScalarForward {
 public:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;

  explicit ScalarForward(const MemoryModel& model) : model_(model), spec_(model.spec()) {}

  // Logits after each id.
  Rows Logits(const std::vector<TokenId>& ids) const {
    Rows x;
    for (const TokenId id : ids) {
      Row row;
      for (int i = 0; i < spec_.dim; ++i) {
        row.push_back(static_cast<double>(model_.embedding().values[static_cast<size_t>(id * spec_.dim + i)]) *
                      static_cast<double>(spec_.embedding_scale));
      }
      x.push_back(row);
    }
    for (size_t l = 0; l < spec_.layers.size(); ++l) RunLayer(spec_.layers[l], model_.layer(l), x);
    Rows out;
    for (const Row& row : x) {
      Row logits = Times(model_.head(), Norm(row, model_.final_norm(), spec_.final_norm_eps));
      const double cap = static_cast<double>(spec_.final_softcap);
      for (double& v : logits) v = cap > 0 ? cap * std::tanh(v / cap) : v;
      out.push_back(logits);
    }
    return out;
  }

 private:
  static Row Norm(const Row& x, const std::vector<float>& w, float eps) {
    double sum = 0;
    for (const double v : x) sum += v * v;
    const double scale = 1 / std::sqrt(sum / static_cast<double>(x.size()) + static_cast<double>(eps));
    Row out;
    for (size_t i = 0; i < x.size(); ++i) out.push_back(x[i] * scale * static_cast<double>(w[i]));
    return out;
  }
  static Row Times(const TestMatrix& m, const Row& x) {
    Row out(m.view.n, 0);
    for (size_t n = 0; n < m.view.n; ++n) {
      for (size_t k = 0; k < m.view.k; ++k) out[n] += static_cast<double>(m.values[n * m.view.k + k]) * x[k];
    }
    return out;
  }
  static void Add(Row& x, const Row& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  static void AddBias(Row& x, const std::vector<float>& bias) {
    for (size_t i = 0; i < bias.size(); ++i) x[i] += static_cast<double>(bias[i]);
  }

  // One head of one position.
  static Row Rotated(const Row& head, const RopeSpec& rope, size_t position) {
    Row out = head;
    const auto half = static_cast<size_t>(rope.dims) / 2;
    for (size_t i = 0; i < half; ++i) {
      double angle = static_cast<double>(position) / std::pow(rope.base, 2.0 * static_cast<double>(i) / rope.dims);
      if (!rope.frequency_factors.empty()) angle /= static_cast<double>(rope.frequency_factors[i]);
      const size_t a = rope.pairing == RopePairing::kInterleaved ? 2 * i : i;
      const size_t b = rope.pairing == RopePairing::kInterleaved ? 2 * i + 1 : i + half;
      out[a] = head[a] * std::cos(angle) - head[b] * std::sin(angle);
      out[b] = head[a] * std::sin(angle) + head[b] * std::cos(angle);
    }
    return out;
  }

  static std::vector<Row> Heads(const LayerSpec& l, Row all, const std::vector<float>& bias,
                                const std::vector<float>& norm, bool rotate, size_t position) {
    AddBias(all, bias);
    std::vector<Row> heads;
    for (size_t at = 0; at < all.size(); at += static_cast<size_t>(l.head_dim)) {
      Row head(all.begin() + static_cast<long>(at), all.begin() + static_cast<long>(at) + l.head_dim);
      if (!norm.empty()) head = Norm(head, norm, l.norm_eps);
      heads.push_back(rotate ? Rotated(head, l.rope, position) : head);
    }
    return heads;
  }

  static void RunLayer(const LayerSpec& l, const TestLayer& w, Rows& x) {
    std::vector<std::vector<Row>> q, k, v;  // [position][head]
    for (size_t p = 0; p < x.size(); ++p) {
      const Row h = Norm(x[p], w.vectors.attn_norm, l.norm_eps);
      q.push_back(Heads(l, Times(w.q, h), w.vectors.q_bias, w.vectors.q_norm, true, p));
      k.push_back(Heads(l, Times(w.k, h), w.vectors.k_bias, w.vectors.k_norm, true, p));
      v.push_back(Heads(l, Times(w.v, h), w.vectors.v_bias, {}, false, p));
    }
    for (size_t p = 0; p < x.size(); ++p) {
      Row attended;
      for (size_t head = 0; head < q[p].size(); ++head) {
        const size_t kv_head = head / static_cast<size_t>(l.heads / l.kv_heads);
        const Row out = Attend(l, q[p][head], k, v, kv_head, p);
        attended.insert(attended.end(), out.begin(), out.end());
      }
      Row out = Times(w.o, attended);
      if (l.post_norms) out = Norm(out, w.vectors.attn_post_norm, l.norm_eps);
      Add(x[p], out);
      const Row h = Norm(x[p], w.vectors.ffn_norm, l.norm_eps);
      Row gate = Times(w.gate, h);
      const Row up = Times(w.up, h);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = Activate(l.activation, gate[i]) * up[i];
      out = Times(w.down, gate);
      if (l.post_norms) out = Norm(out, w.vectors.ffn_post_norm, l.norm_eps);
      Add(x[p], out);
    }
  }

  static double Activate(Activation a, double g) {
    if (a == Activation::kSilu) return g / (1 + std::exp(-g));
    return 0.5 * g * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g)));
  }

  static Row Attend(const LayerSpec& l, const Row& q, const std::vector<std::vector<Row>>& k,
                    const std::vector<std::vector<Row>>& v, size_t kv_head, size_t p) {
    Row out(q.size(), 0);
    double total = 0;
    for (size_t j = 0; j <= p; ++j) {
      if (l.window > 0 && p - j >= static_cast<size_t>(l.window)) continue;
      double s = 0;
      for (size_t i = 0; i < q.size(); ++i) s += q[i] * k[j][kv_head][i];
      s *= static_cast<double>(l.attention_scale);
      const double cap = static_cast<double>(l.attention_softcap);
      if (cap > 0) s = cap * std::tanh(s / cap);
      const double weight = std::exp(s);
      total += weight;
      for (size_t i = 0; i < q.size(); ++i) out[i] += weight * v[j][kv_head][i];
    }
    for (double& value : out) value /= total;
    return out;
  }

  const MemoryModel& model_;
  const ModelSpec& spec_;
};

}  // namespace gyre::testing
