// The reference backend: every op as plain loops with sums in double. Always built; tests compare the fast backends
// with it.
#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/hadamard.h"
#include "kernels/host_backend.h"
#include "kernels/ref/ref_backend.h"

namespace gyre {
namespace {

struct RefWeight : PackedWeight {
  WeightView source;
};

bool Allowed(size_t id, std::span<const uint64_t> mask) {
  return mask.empty() || (id / 64 < mask.size() && (mask[id / 64] >> (id % 64) & 1) != 0);
}

// Calls f(id) for each id that is allowed and not skipped, in rising order.
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

// Where element d of a key or value is: the part of the page that belongs to the head, and the indices of the element
// (nibbles: of its byte) and its scale in it.
struct Element {
  std::byte* head;
  size_t at, scale;
  int shift;   // nibbles: its bits in the byte
  size_t dim;  // elements of the key or value
};
// The index of element d among the bytes of nibbles, or among the elements of other types.
size_t IndexOf(const KvView& kv, size_t d) { return KvHasNibbles(kv.type) ? KvNibbleByte(d) : d; }
Element KeyAt(const KvView& kv, const KvRow& row, size_t position, int head, size_t d) {
  const auto block = static_cast<size_t>(kv.block_size);
  std::byte* page = kv.k + row.table[position / block] * kv.PageBytes();
  return {page + static_cast<size_t>(head) * kv.HeadBytes(), IndexOf(kv, d) * block + position % block,
          d / kKvBlock * block + position % block, KvNibbleShift(d), static_cast<size_t>(kv.head_dim)};
}
Element ValueAt(const KvView& kv, const KvRow& row, size_t position, int head, size_t d) {
  if (kv.values_in_keys) return KeyAt(kv, row, position, head, d);
  const auto block = static_cast<size_t>(kv.block_size), dim = kv.ValueDim();
  std::byte* page = kv.v + row.table[position / block] * kv.ValuePageBytes();
  return {page + static_cast<size_t>(head) * kv.ValueHeadBytes(), IndexOf(kv, position % block * dim + d),
          position % block * (dim / kKvBlock) + d / kKvBlock, KvNibbleShift(d), dim};
}
std::byte* ScaleOf(const KvView& kv, const Element& e) {
  return e.head + KvCodeBytes(kv.type, static_cast<size_t>(kv.block_size) * e.dim) + 2 * e.scale;
}

float LoadStored(const KvView& kv, const Element& e) {
  uint16_t h;
  float f;
  switch (kv.type) {
    case KvType::kF32: std::memcpy(&f, e.head + 4 * e.at, 4); return f;
    case KvType::kF16: std::memcpy(&h, e.head + 2 * e.at, 2); return HalfToFloat(h);
    case KvType::kBf16: std::memcpy(&h, e.head + 2 * e.at, 2); return Bf16ToFloat(h);
    case KvType::kQ8_0:
    case KvType::kQ4_0Plain:
    case KvType::kQ4_0: break;
  }
  std::memcpy(&h, ScaleOf(kv, e), 2);
  const int code = kv.type == KvType::kQ8_0 ? static_cast<int8_t>(e.head[e.at])
                                            : std::to_integer<int>(e.head[e.at] >> e.shift & std::byte{15}) - 8;
  return HalfToFloat(h) * static_cast<float>(code);
}

// out = H x / sqrt(32) for each block of x, in place, as kernels/hadamard.h defines it.
void RotateByDefinition(std::span<double> x) {
  for (size_t block = 0; block < x.size(); block += kKvBlock) {
    double sums[kKvBlock] = {};
    for (size_t i = 0; i < kKvBlock; ++i) {
      for (size_t j = 0; j < kKvBlock; ++j) sums[i] += std::popcount(i & j) % 2 == 0 ? x[block + j] : -x[block + j];
    }
    for (size_t i = 0; i < kKvBlock; ++i) x[block + i] = sums[i] / std::sqrt(static_cast<double>(kKvBlock));
  }
}

// Where: a function from d to the Element that stores it.
template <typename Where>
void LoadKv(const KvView& kv, std::span<double> out, const Where& where) {
  for (size_t d = 0; d < out.size(); ++d) out[d] = static_cast<double>(LoadStored(kv, where(d)));
  if (KvIsRotated(kv.type)) RotateByDefinition(out);
}

template <typename Where>
void SaveKv(const KvView& kv, const float* from, size_t dim, const Where& where) {
  for (size_t d = 0; d < dim; ++d) {
    const Element e = where(d);
    const uint16_t h = kv.type == KvType::kBf16 ? FloatToBf16(from[d]) : FloatToHalf(from[d]);
    if (kv.type == KvType::kF32) {
      std::memcpy(e.head + 4 * e.at, from + d, 4);
    } else if (!KvHasScales(kv.type)) {
      std::memcpy(e.head + 2 * e.at, &h, 2);
    } else {
      const bool nibbles = KvHasNibbles(kv.type);
      const float* elements = from + d / kKvBlock * kKvBlock;
      float rotated[kKvBlock];
      if (KvIsRotated(kv.type)) {
        RotateKvBlocks(elements, kKvBlock, rotated);
        elements = rotated;
      }
      std::byte block[34];
      Quantize(nibbles ? DType::kQ4_0 : DType::kQ8_0, elements, block, kKvBlock);
      std::memcpy(ScaleOf(kv, e), block, 2);
      e.head[e.at] = block[2 + d % (nibbles ? kKvBlock / 2 : kKvBlock)];
    }
  }
}

class RefBackend : public HostBackend {
 public:
  using HostBackend::HostBackend;

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

  void MatMul(const float* x, size_t rows, std::span<const Product> products, Arithmetic) override {
    for (const Product& p : products) MatMulOne(x, rows, static_cast<const RefWeight&>(p.w), p.out, p.add);
  }

  void MatMulOne(const float* x, size_t rows, const RefWeight& w, float* out, bool add) {
    std::vector<float> row(w.k);
    for (size_t n = 0; n < w.n; ++n) {
      Row(w, n, row.data());
      for (size_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (size_t k = 0; k < w.k; ++k) sum += static_cast<double>(x[r * w.k + k]) * static_cast<double>(row[k]);
        float& to = out[r * w.n + n];
        to = static_cast<float>(sum) + (add ? to : 0.0f);
      }
    }
  }

  void GatedFeedForward(const float* x, size_t rows, const Ffn& w, Activation act, Arithmetic arithmetic, float* out,
                        bool add) override {
    std::vector<float> gate(rows * w.gate.n), up(gate.size());
    const Product products[] = {{w.gate, gate.data()}, {w.up, up.data()}};
    MatMul(x, rows, products, arithmetic);
    GatedActivation(gate.data(), up.data(), gate.size(), act, gate.data());
    const Product down[] = {{w.down, out, add}};
    MatMul(gate.data(), rows, down, arithmetic);
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
      for (int head = 0; head < kv.kv_heads; ++head, k += dim) {
        SaveKv(kv, k, dim, [&](size_t d) { return KeyAt(kv, row, row.position, head, d); });
        if (kv.values_in_keys) continue;
        SaveKv(kv, v, kv.ValueDim(), [&](size_t d) { return ValueAt(kv, row, row.position, head, d); });
        v += kv.ValueDim();
      }
    }
  }

  void Attention(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& p,
                 float* out) override {
    const auto dim = static_cast<size_t>(kv.head_dim);
    for (const KvRow& row : rows) {
      for (int head = 0; head < p.heads; ++head, q += dim, out += kv.ValueDim()) {
        AttendHead(q, row, kv, p, head, out);
      }
    }
  }

  void GatedActivation(const float* gate, const float* up, size_t n, Activation act, float* out) override {
    for (size_t i = 0; i < n; ++i) {
      const double g = static_cast<double>(gate[i]), u = static_cast<double>(up[i]);
      out[i] = static_cast<float>(Gated(g, u, act));
    }
  }
  void Activate(const float* x, size_t n, Activation act, float* out) override {
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(Activated(static_cast<double>(x[i]), act));
  }
  void MultiplyInPlace(float* x, const float* y, size_t n) override {
    for (size_t i = 0; i < n; ++i) x[i] *= y[i];
  }

  void ShortConv(const float* x, size_t stride, std::span<const StateRun> runs, const ShortConvParams& p,
                 float* out) override {
    for (const StateRun& run : runs) {
      float* state = run.state + p.state_at;
      for (size_t r = run.first; r < run.first + run.count; ++r) {
        for (size_t c = 0; c < p.channels; ++c) {
          const float now = x[r * stride + c];
          for (size_t o = 0; o < p.outputs; ++o) {
            const float* w = p.w + o * p.taps * p.channels + c;
            double sum = static_cast<double>(now) * static_cast<double>(w[(p.taps - 1) * p.channels]);
            for (size_t t = 0; t + 1 < p.taps; ++t)
              sum += static_cast<double>(state[t * p.channels + c]) * static_cast<double>(w[t * p.channels]);
            if (p.bias != nullptr) sum += static_cast<double>(p.bias[c]);
            out[o * p.output_step + r * p.channels + c] =
                static_cast<float>(p.silu ? Activated(sum, Activation::kSilu) : sum);
          }
          for (size_t t = 0; t + 1 < p.taps; ++t)
            state[t * p.channels + c] = t + 2 < p.taps ? state[(t + 1) * p.channels + c] : now;
        }
      }
    }
  }

  void ScanState(const StateScanRows& rows, std::span<const StateRun> runs, const StateScanParams& p,
                 float* out) override {
    for (const StateRun& run : runs) {
      for (size_t r = run.first; r < run.first + run.count; ++r) {
        for (size_t head = 0; head < p.value_heads; ++head) {
          const size_t key_head = p.interleaved ? head % p.key_heads : head / (p.value_heads / p.key_heads);
          const size_t at = r * rows.stride + key_head * p.key_dim, gate = r * p.value_heads + head;
          ScanHead(Normalized(rows.q + at, p), Normalized(rows.k + at, p),
                   rows.v + r * rows.stride + head * p.value_dim, rows.decay + gate * p.Decays(),
                   p.removal ? 1 : static_cast<double>(rows.beta[gate]), p.removal ? rows.remove + at : nullptr,
                   p.removal ? rows.replace + at : nullptr, p.skip == nullptr ? 0 : static_cast<double>(p.skip[head]),
                   p, run.state + p.state_at + head * p.key_dim * p.value_dim, out + gate * p.value_dim);
        }
      }
    }
  }

  void DecayGates(const float* x, size_t rows, size_t heads, size_t width, const float* bias, const float* a,
                  DecayStep form, float* step, float* decay) override {
    for (size_t i = 0; i < rows * heads; ++i) {
      const double in = static_cast<double>(x[i]) + static_cast<double>(bias[i % heads]);
      // log(1 + e^x) without an infinite e^x
      const double made = form == DecayStep::kSigmoid ? 1 / (1 + std::exp(-in))
                                                      : std::max(in, 0.0) + std::log1p(std::exp(-std::fabs(in)));
      if (step != nullptr) step[i] = static_cast<float>(made);
      for (size_t j = 0; j < width; ++j) {
        const auto by = static_cast<double>(a[i % heads * width + j]);
        decay[i * width + j] = static_cast<float>(std::exp(by * made));
      }
    }
  }
  void GroupRmsNorm(const float* x, size_t rows, size_t groups, size_t dim, const float* w, float eps,
                    float* out) override {
    for (size_t i = 0; i < rows * groups; ++i) RmsNorm(x + i * dim, 1, dim, w + i % groups * dim, eps, out + i * dim);
  }

  void AddInPlace(float* x, const float* y, size_t n) override {
    for (size_t i = 0; i < n; ++i) x[i] += y[i];
  }
  void AddBias(float* x, size_t rows, size_t dim, const float* bias) override {
    for (size_t r = 0; r < rows; ++r, x += dim) AddInPlace(x, bias, dim);
  }
  void ScaleColumns(float* x, size_t rows, size_t dim, const float* by) override {
    for (size_t r = 0; r < rows; ++r, x += dim) MultiplyInPlace(x, by, dim);
  }
  void Scale(float* x, size_t n, float by) override {
    for (size_t i = 0; i < n; ++i) x[i] *= by;
  }
  void SoftcapInPlace(float* x, size_t n, float cap) override {
    const double c = static_cast<double>(cap);
    for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(c * std::tanh(static_cast<double>(x[i]) / c));
  }

  void TopK(std::span<const TopKRow> rows, size_t vocab) override {
    for (const TopKRow& row : rows) SaveTop(row, Best(row, vocab));
  }
  void LogSumExp(std::span<const LogSumExpRow> rows, size_t vocab) override {
    for (const LogSumExpRow& row : rows) *row.out = SumExp(row, vocab);
  }

 private:
  static std::vector<TokenId> Best(const TopKRow& row, size_t vocab) {
    const float* logits = row.logits;
    std::vector<TokenId> ids;
    ForEachOther(vocab, row.skip, row.mask, [&](size_t id) { ids.push_back(static_cast<TokenId>(id)); });
    auto value = [logits](TokenId id) {
      const float v = logits[static_cast<size_t>(id)];
      return std::isnan(v) ? -std::numeric_limits<float>::infinity() : v;
    };
    // NaN ranks below everything, including -inf, so it is compared first.
    auto is_nan = [logits](TokenId id) { return std::isnan(logits[static_cast<size_t>(id)]); };
    std::sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) {
      if (is_nan(a) != is_nan(b)) return is_nan(b);
      return value(a) != value(b) ? value(a) > value(b) : a < b;
    });
    if (ids.size() > row.k) ids.resize(row.k);
    return ids;
  }

  static double SumExp(const LogSumExpRow& row, size_t vocab) {
    const float* logits = row.logits;
    const double inv_temperature = row.inv_temperature;
    double max = -std::numeric_limits<double>::infinity();
    ForEachOther(vocab, row.skip, row.mask, [&](size_t id) { max = std::max(max, static_cast<double>(logits[id])); });
    if (std::isinf(max)) return max;
    double sum = 0;
    ForEachOther(vocab, row.skip, row.mask,
                 [&](size_t id) { sum += std::exp((static_cast<double>(logits[id]) - max) * inv_temperature); });
    return max * inv_temperature + std::log(sum);
  }

  static double Gated(double g, double u, Activation act) {
    if (act != Activation::kClampedSwiglu) return Activated(g, act) * u;
    const double low = std::min(7.0, g);
    return low / (1 + std::exp(-1.702 * low)) * (std::clamp(u, -7.0, 7.0) + 1);
  }
  static double Activated(double x, Activation act) {
    switch (act) {
      case Activation::kClampedSwiglu: break;  // it has two arguments
      case Activation::kSilu: return x / (1 + std::exp(-x));
      case Activation::kGeluTanh: return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
      case Activation::kSigmoid: return 1 / (1 + std::exp(-x));
      case Activation::kReluSquared: return x < 0 ? 0 : x * x;
      case Activation::kGelu: return 0.5 * x * std::erfc(-x * 0.70710678118654752);
      case Activation::kRelu: return x < 0 ? 0 : x;
    }
    return x;
  }

  static std::vector<double> Normalized(const float* x, const StateScanParams& p) {
    std::vector<double> out(x, x + p.key_dim);
    if (p.key_norm_eps == 0) return out;
    double sum = static_cast<double>(p.key_norm_eps);
    for (double v : out) sum += v * v;
    for (double& v : out) v /= std::sqrt(sum);
    return out;
  }
  static void ScanHead(const std::vector<double>& q, const std::vector<double>& k, const float* v, const float* decays,
                       double beta, const float* remove, const float* replace, double skip, const StateScanParams& p,
                       float* state, float* out) {
    const auto decay = [&](size_t i) { return static_cast<double>(decays[p.channel_decay ? i : 0]); };
    for (size_t j = 0; j < p.value_dim; ++j) {
      double read = 0, result = 0, removed = 0;
      for (size_t i = 0; i < p.key_dim; ++i) {
        const auto s = static_cast<double>(state[i * p.value_dim + j]);
        read += decay(i) * s * k[i];
        if (p.removal) removed += s * static_cast<double>(remove[i]);
      }
      const double value = static_cast<double>(v[j]), written = beta * (p.delta ? value - read : value);
      for (size_t i = 0; i < p.key_dim; ++i) {
        float& s = state[i * p.value_dim + j];
        double now = decay(i) * static_cast<double>(s) + k[i] * written;
        if (p.removal) now -= static_cast<double>(replace[i]) * removed;
        result += now * q[i];
        s = static_cast<float>(now);
      }
      out[j] = static_cast<float>(result * static_cast<double>(p.scale) + skip * value);
    }
  }

  static void Row(const RefWeight& w, size_t n, float* out) { DequantizeRow(w.source, n, out); }

  static void AttendHead(const float* q, const KvRow& row, const KvView& kv, const AttentionParams& p, int head,
                         float* out) {
    const int kv_head = head / (p.heads / kv.kv_heads);
    const auto dim = static_cast<size_t>(kv.head_dim);
    const size_t end = size_t{row.position} + 1;
    const size_t window = static_cast<size_t>(p.window);
    size_t begin = p.window > 0 && end > window ? end - window : 0;
    if (p.chunk > 0)
      begin = std::max(begin, row.position / static_cast<size_t>(p.chunk) * static_cast<size_t>(p.chunk));
    std::vector<double> scores, sums(kv.ValueDim(), 0.0), key(dim), value(kv.ValueDim());
    double max = -std::numeric_limits<double>::infinity();
    for (size_t pos = begin; pos < end; ++pos) {
      double s = 0;
      LoadKv(kv, key, [&](size_t d) { return KeyAt(kv, row, pos, kv_head, d); });
      for (size_t i = 0; i < dim; ++i) s += static_cast<double>(q[i]) * key[i];
      s *= static_cast<double>(p.scale);
      if (p.softcap > 0) s = static_cast<double>(p.softcap) * std::tanh(s / static_cast<double>(p.softcap));
      scores.push_back(s);
      max = std::max(max, s);
    }
    double total = 0;
    if (p.sinks != nullptr) {
      const auto sink = static_cast<double>(p.sinks[head]);
      max = std::max(max, sink);
      total = std::exp(sink - max);
    }
    for (size_t pos = begin; pos < end; ++pos) {
      const double weight = std::exp(scores[pos - begin] - max);
      total += weight;
      LoadKv(kv, value, [&](size_t d) { return ValueAt(kv, row, pos, kv_head, d); });
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += weight * value[i];
    }
    for (size_t i = 0; i < sums.size(); ++i) out[i] = static_cast<float>(sums[i] / total);
  }
};

}  // namespace

std::unique_ptr<Backend> MakeRefBackend(std::shared_ptr<Device> device) {
  return std::make_unique<RefBackend>(std::move(device));
}

}  // namespace gyre
