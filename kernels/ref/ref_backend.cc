// The oracle: every op in plain loops, sums in double. Always built; what the fast paths are compared with.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/ref/ref_backend.h"

namespace gyre {
namespace {

struct RefWeight : PackedWeight {
  WeightView source;
};

float LoadKv(const std::byte* p, size_t i, bool half) {
  if (half) {
    uint16_t h;
    std::memcpy(&h, p + 2 * i, 2);
    return HalfToFloat(h);
  }
  float f;
  std::memcpy(&f, p + 4 * i, 4);
  return f;
}

void SaveKv(std::byte* p, size_t i, bool half, float value) {
  if (half) {
    const uint16_t h = FloatToHalf(value);
    std::memcpy(p + 2 * i, &h, 2);
  } else {
    std::memcpy(p + 4 * i, &value, 4);
  }
}

bool Allowed(size_t id, std::span<const uint64_t> mask) {
  return mask.empty() || (id / 64 < mask.size() && (mask[id / 64] >> (id % 64) & 1) != 0);
}

// Calls f(id) for each id that is allowed and not skipped, rising.
template <typename Fn>
void ForEachOther(size_t vocab, std::span<const TokenId> skip, std::span<const uint64_t> mask, Fn f) {
  size_t next = 0;
  for (size_t id = 0; id < vocab; ++id) {
    if (next < skip.size() && static_cast<size_t>(skip[next]) == id) {
      ++next;
    } else if (Allowed(id, mask)) {
      f(id);
    }
  }
}

// Indices of element d of a position's key and value in a pool.
size_t KeyIndex(const KvView& kv, const KvRow& row, size_t position, int head, size_t d) {
  const auto block = static_cast<size_t>(kv.block_size), dim = static_cast<size_t>(kv.head_dim);
  return row.table[position / block] * kv.PageElems() + (static_cast<size_t>(head) * dim + d) * block + position % block;
}
size_t ValueIndex(const KvView& kv, const KvRow& row, size_t position, int head, size_t d) {
  const auto block = static_cast<size_t>(kv.block_size), dim = static_cast<size_t>(kv.head_dim);
  return row.table[position / block] * kv.PageElems() + (static_cast<size_t>(head) * block + position % block) * dim + d;
}

class RefBackend : public Backend {
 public:
  Isa isa() const override { return Isa::kRef; }
  int threads() const override { return 1; }

  std::shared_ptr<const PackedWeight> Pack(const WeightView& w, const std::function<void(size_t)>& progress) override {
    auto packed = std::make_shared<RefWeight>();
    packed->n = w.n;
    packed->k = w.k;
    packed->type = w.type;
    packed->bytes = w.bytes();
    packed->source = w;
    if (progress) progress(packed->bytes);
    return packed;
  }

  void MatMul(const float* x, size_t rows, const PackedWeight& weight, float* out, bool) override {
    const auto& w = static_cast<const RefWeight&>(weight);
    std::vector<float> row(w.k);
    for (size_t n = 0; n < w.n; ++n) {
      Row(w, n, row.data());
      for (size_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (size_t k = 0; k < w.k; ++k) sum += static_cast<double>(x[r * w.k + k]) * static_cast<double>(row[k]);
        out[r * w.n + n] = static_cast<float>(sum);
      }
    }
  }

  void Embed(const TokenId* ids, size_t rows, const PackedWeight& weight, float* out) override {
    const auto& w = static_cast<const RefWeight&>(weight);
    for (size_t r = 0; r < rows; ++r) Row(w, static_cast<size_t>(ids[r]), out + r * w.k);
  }

  void RmsNorm(const float* x, size_t rows, size_t dim, const float* w, float eps, float* out) override {
    for (size_t r = 0; r < rows; ++r, x += dim, out += dim) {
      double sum = 0;
      for (size_t i = 0; i < dim; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      const double inverse = 1 / std::sqrt(sum / static_cast<double>(dim) + static_cast<double>(eps));
      for (size_t i = 0; i < dim; ++i) {
        const double weight = w != nullptr ? static_cast<double>(w[i]) : 1.0;
        out[i] = static_cast<float>(static_cast<double>(x[i]) * inverse * weight);
      }
    }
  }

  void Rope(float* x, size_t rows, int heads, int head_dim, const float* cos, const float* sin, int half,
            RopePairing pairing) override {
    const auto h = static_cast<size_t>(half);
    for (size_t r = 0; r < rows; ++r, cos += h, sin += h) {
      for (int head = 0; head < heads; ++head, x += head_dim) {
        for (size_t i = 0; i < h; ++i) {
          float& a = pairing == RopePairing::kInterleaved ? x[2 * i] : x[i];
          float& b = pairing == RopePairing::kInterleaved ? x[2 * i + 1] : x[i + h];
          const double c = static_cast<double>(cos[i]), s = static_cast<double>(sin[i]);
          const double x0 = static_cast<double>(a), x1 = static_cast<double>(b);
          a = static_cast<float>(x0 * c - x1 * s);
          b = static_cast<float>(x0 * s + x1 * c);
        }
      }
    }
  }

  void StoreKv(const float* k, const float* v, std::span<const KvRow> rows, const KvView& kv) override {
    const auto dim = static_cast<size_t>(kv.head_dim);
    for (const KvRow& row : rows) {
      for (int head = 0; head < kv.kv_heads; ++head, k += dim, v += dim) {
        for (size_t i = 0; i < dim; ++i) {
          SaveKv(kv.k, KeyIndex(kv, row, row.position, head, i), kv.half, k[i]);
          SaveKv(kv.v, ValueIndex(kv, row, row.position, head, i), kv.half, v[i]);
        }
      }
    }
  }

  void Attention(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& p,
                 float* out) override {
    const auto dim = static_cast<size_t>(kv.head_dim);
    for (const KvRow& row : rows) {
      for (int head = 0; head < p.heads; ++head, q += dim, out += dim) {
        AttendHead(q, row, kv, p, head / (p.heads / kv.kv_heads), out);
      }
    }
  }

  void GatedActivation(const float* gate, const float* up, size_t n, Activation act, float* out) override {
    for (size_t i = 0; i < n; ++i) {
      const double g = static_cast<double>(gate[i]);
      const double a = act == Activation::kSilu
                           ? g / (1 + std::exp(-g))
                           : 0.5 * g * (1 + std::tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)));
      out[i] = static_cast<float>(a * static_cast<double>(up[i]));
    }
  }

  void AddInPlace(float* x, const float* y, size_t n) override {
    for (size_t i = 0; i < n; ++i) x[i] += y[i];
  }
  void AddBias(float* x, size_t rows, size_t dim, const float* bias) override {
    for (size_t r = 0; r < rows; ++r, x += dim) AddInPlace(x, bias, dim);
  }
  void Scale(float* x, size_t n, float by) override {
    for (size_t i = 0; i < n; ++i) x[i] *= by;
  }
  void SoftcapInPlace(float* x, size_t n, float cap) override {
    const double c = static_cast<double>(cap);
    for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(c * std::tanh(static_cast<double>(x[i]) / c));
  }

  void TopK(const float* logits, size_t vocab, uint32_t k, std::span<const TokenId> skip,
            std::span<const uint64_t> mask, std::vector<TokenId>* ids) override {
    ids->clear();
    ForEachOther(vocab, skip, mask, [&](size_t id) { ids->push_back(static_cast<TokenId>(id)); });
    auto value = [logits](TokenId id) {
      const float v = logits[static_cast<size_t>(id)];
      return std::isnan(v) ? -std::numeric_limits<float>::infinity() : v;
    };
    // NaN below everything, -inf included: compared first.
    auto is_nan = [logits](TokenId id) { return std::isnan(logits[static_cast<size_t>(id)]); };
    std::sort(ids->begin(), ids->end(), [&](TokenId a, TokenId b) {
      if (is_nan(a) != is_nan(b)) return is_nan(b);
      return value(a) != value(b) ? value(a) > value(b) : a < b;
    });
    if (ids->size() > k) ids->resize(k);
  }

  double LogSumExp(const float* logits, size_t vocab, double inv_temperature, std::span<const TokenId> skip,
                   std::span<const uint64_t> mask) override {
    double max = -std::numeric_limits<double>::infinity();
    ForEachOther(vocab, skip, mask, [&](size_t id) { max = std::max(max, static_cast<double>(logits[id])); });
    if (std::isinf(max)) return max;
    double sum = 0;
    ForEachOther(vocab, skip, mask, [&](size_t id) {
      sum += std::exp((static_cast<double>(logits[id]) - max) * inv_temperature);
    });
    return max * inv_temperature + std::log(sum);
  }

 private:
  static void Row(const RefWeight& w, size_t n, float* out) {
    DequantizeRow(w.source, n, out);
  }

  static void AttendHead(const float* q, const KvRow& row, const KvView& kv, const AttentionParams& p, int kv_head,
                         float* out) {
    const auto dim = static_cast<size_t>(kv.head_dim);
    const size_t end = size_t{row.position} + 1;
    const size_t window = static_cast<size_t>(p.window);
    const size_t begin = p.window > 0 && end > window ? end - window : 0;
    std::vector<double> scores, sums(dim, 0.0);
    double max = -std::numeric_limits<double>::infinity();
    for (size_t pos = begin; pos < end; ++pos) {
      double s = 0;
      for (size_t i = 0; i < dim; ++i) {
        s += static_cast<double>(q[i]) * static_cast<double>(LoadKv(kv.k, KeyIndex(kv, row, pos, kv_head, i), kv.half));
      }
      s *= static_cast<double>(p.scale);
      if (p.softcap > 0) s = static_cast<double>(p.softcap) * std::tanh(s / static_cast<double>(p.softcap));
      scores.push_back(s);
      max = std::max(max, s);
    }
    double total = 0;
    for (size_t pos = begin; pos < end; ++pos) {
      const double weight = std::exp(scores[pos - begin] - max);
      total += weight;
      for (size_t i = 0; i < dim; ++i) sums[i] += weight * static_cast<double>(LoadKv(kv.v, ValueIndex(kv, row, pos, kv_head, i), kv.half));
    }
    for (size_t i = 0; i < dim; ++i) out[i] = static_cast<float>(sums[i] / total);
  }
};

}  // namespace

std::unique_ptr<Backend> MakeRefBackend() { return std::make_unique<RefBackend>(); }

}  // namespace gyre
