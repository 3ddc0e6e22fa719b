#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/codes.h"
#include "kernels/cpu/packed.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/team.h"

namespace gyre::cpu {
namespace {

// Positions of a context that are summed before they are merged: fixed, so that a row's bits depend on its context only.
constexpr size_t kSplit = 256;
// What a core does in a nanosecond, to decide whether a parallel region pays.
constexpr double kMacsPerNs = 16, kBytesPerNs = 10, kElemsPerNs = 0.3;

size_t Size(int v) { return static_cast<size_t>(v); }

class CpuBackend : public Backend {
 public:
  CpuBackend(Isa isa, const IsaOps& ops, int threads) : isa_(isa), ops_(ops), team_(threads) {}

  Isa isa() const override { return isa_; }
  int threads() const override { return team_.threads(); }

  std::shared_ptr<const PackedWeight> Pack(const WeightView& w, const std::function<void(size_t)>& progress) override {
    return PackWeight(w, team_, progress);
  }

  void MatMul(const float* x, size_t rows, const PackedWeight& weight, float* out, bool exact) override {
    const auto& w = static_cast<const CpuWeight&>(weight);
    const double macs = static_cast<double>(rows) * static_cast<double>(w.n) * static_cast<double>(w.k);
    const double ns = std::max(macs / kMacsPerNs, static_cast<double>(w.bytes) / kBytesPerNs);
    if (w.panels != nullptr && !exact) {
      MatMulPanels(x, rows, w, ns, out);
    } else if (const auto type = PlainType(w); type) {
      team_.For(w.n, 8, ns, [&](size_t begin, size_t end) {
        // Columns in slices that stay in the cache while all rows pass over them.
        const size_t slice = rows > 4 ? 64 : w.n;
        for (size_t c = begin; c < end; c += slice) {
          const std::byte* at = w.source.data + c * w.source.row_bytes();
          ops_.dot(x, rows, at, *type, std::min(slice, end - c), w.k, out + c, w.n);
        }
      });
    } else {
      MatMulExpanded(x, rows, w, ns, out);
    }
  }

  void Embed(const TokenId* ids, size_t rows, const PackedWeight& weight, float* out) override {
    const auto& w = static_cast<const CpuWeight&>(weight);
    for (size_t r = 0; r < rows; ++r) DequantizeRow(w.source, static_cast<size_t>(ids[r]), out + r * w.k);
  }

  void RmsNorm(const float* x, size_t rows, size_t dim, const float* w, float eps, float* out) override {
    team_.For(rows, 1, Elems(rows * dim), [=](size_t begin, size_t end) {
      for (size_t r = begin; r < end; ++r) {
        const float* in = x + r * dim;
        double sums[4] = {};
        size_t i = 0;
        for (; i + 4 <= dim; i += 4) {
          for (size_t j = 0; j < 4; ++j) sums[j] += static_cast<double>(in[i + j]) * static_cast<double>(in[i + j]);
        }
        for (; i < dim; ++i) sums[0] += static_cast<double>(in[i]) * static_cast<double>(in[i]);
        const double mean = ((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<double>(dim);
        const auto by = static_cast<float>(1 / std::sqrt(mean + static_cast<double>(eps)));
        float* to = out + r * dim;
        for (size_t j = 0; j < dim; ++j) to[j] = w != nullptr ? in[j] * by * w[j] : in[j] * by;
      }
    });
  }

  void Rope(float* x, size_t rows, int heads, int head_dim, const float* cos, const float* sin, int half,
            RopePairing pairing) override {
    const size_t h = Size(half), width = Size(heads) * Size(head_dim);
    const bool interleaved = pairing == RopePairing::kInterleaved;
    team_.For(rows, 1, Elems(rows * width), [=](size_t begin, size_t end) {
      for (size_t r = begin; r < end; ++r) {
        for (size_t head = 0; head < Size(heads); ++head) {
          float* v = x + r * width + head * Size(head_dim);
          for (size_t i = 0; i < h; ++i) {
            float& a = interleaved ? v[2 * i] : v[i];
            float& b = interleaved ? v[2 * i + 1] : v[i + h];
            const float c = cos[r * h + i], s = sin[r * h + i], x0 = a, x1 = b;
            a = x0 * c - x1 * s;
            b = x0 * s + x1 * c;
          }
        }
      }
    });
  }

  void StoreKv(const float* k, const float* v, std::span<const KvRow> rows, const KvView& kv) override {
    const size_t dim = Size(kv.head_dim), heads = Size(kv.kv_heads);
    team_.For(rows.size(), 1, Elems(rows.size() * heads * dim * 2), [&](size_t begin, size_t end) {
      for (size_t r = begin; r < end; ++r) {
        for (size_t head = 0; head < heads; ++head) {
          const size_t from = (r * heads + head) * dim, to = PageIndex(kv, rows[r], rows[r].position, head);
          StoreElems(k + from, dim, kv.half, kv.k, to);
          StoreElems(v + from, dim, kv.half, kv.v, to);
        }
      }
    });
  }

  void Attention(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& p,
                 float* out) override {
    const size_t dim = Size(kv.head_dim), heads = Size(p.heads);
    double work = 0;
    for (const KvRow& row : rows) work += static_cast<double>(row.position + 1) * static_cast<double>(heads * dim) * 2;
    team_.For(rows.size() * heads, 1, work / 4, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        const size_t row = i / heads, head = i % heads;
        AttendHead(q + i * dim, rows[row], kv, p, head / (heads / Size(kv.kv_heads)), out + i * dim);
      }
    });
  }

  void GatedActivation(const float* gate, const float* up, size_t n, Activation act, float* out) override {
    team_.For(n, 1024, Elems(n) * 2, [=](size_t begin, size_t end) {
      if (act == Activation::kSilu) {
        for (size_t i = begin; i < end; ++i) out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
        return;
      }
      for (size_t i = begin; i < end; ++i) {
        const float g = gate[i];
        out[i] = 0.5f * g * (1.0f + std::tanh(0.7978845608f * (g + 0.044715f * g * g * g))) * up[i];
      }
    });
  }

  void AddInPlace(float* x, const float* y, size_t n) override {
    for (size_t i = 0; i < n; ++i) x[i] += y[i];
  }
  void AddBias(float* x, size_t rows, size_t dim, const float* bias) override {
    for (size_t r = 0; r < rows; ++r) AddInPlace(x + r * dim, bias, dim);
  }
  void Scale(float* x, size_t n, float by) override {
    for (size_t i = 0; i < n; ++i) x[i] *= by;
  }
  void SoftcapInPlace(float* x, size_t n, float cap) override {
    for (size_t i = 0; i < n; ++i) x[i] = cap * std::tanh(x[i] / cap);
  }

  void TopK(const float* logits, size_t vocab, uint32_t k, std::span<const TokenId> skip,
            std::span<const uint64_t> mask, std::vector<TokenId>* ids) override {
    SelectTop(logits, vocab, k, skip, mask, ids);
  }
  double LogSumExp(const float* logits, size_t vocab, double inv_temperature, std::span<const TokenId> skip,
                   std::span<const uint64_t> mask) override {
    return SumExp(logits, vocab, inv_temperature, skip, mask, team_);
  }

 private:
  static double Elems(size_t n) { return static_cast<double>(n) / kElemsPerNs; }

  static size_t PageIndex(const KvView& kv, const KvRow& row, size_t position, size_t head) {
    const size_t block = Size(kv.block_size);
    return row.table[position / block] * kv.PageElems() + (head * block + position % block) * Size(kv.head_dim);
  }

  static void StoreElems(const float* from, size_t n, bool half, std::byte* pool, size_t at) {
    if (!half) {
      std::memcpy(pool + at * 4, from, n * 4);
      return;
    }
    for (size_t i = 0; i < n; ++i) {
      const uint16_t h = FloatToHalf(from[i]);
      std::memcpy(pool + (at + i) * 2, &h, 2);
    }
  }

  void MatMulPanels(const float* x, size_t rows, const CpuWeight& w, double ns, float* out) {
    const Quantized quantized = QuantizeRows(x, rows, w);
    const size_t panels = (w.n + kPanel - 1) / kPanel;
    team_.For(panels, 4, ns, [&](size_t begin, size_t end) {
      const size_t columns = std::min(w.n - begin * kPanel, (end - begin) * kPanel);
      ops_.dot_panels(quantized, rows, w.panel_type, w.panels.get() + begin * w.panel_bytes, end - begin, columns, out + begin * kPanel, w.n);
    });
  }

  // The rows of x as the panels of w want them; valid until the next call.
  Quantized QuantizeRows(const float* x, size_t rows, const CpuWeight& w) {
    const size_t group = std::min(rows, kRowGroup), used = w.k / kBlock;
    const size_t slots = (rows + group - 1) / group * group * w.blocks;
    if (scale_.size() < slots) {
      q_.resize(slots * kBlock);
      scale_.resize(slots);
      sum_.resize(slots);
      offset_.resize(slots * 2);
    }
    const Quantized out{q_.data(), scale_.data(), sum_.data(), offset_.data(), w.blocks, group, slots};
    const bool halves = w.panel_type == PanelType::kQ6K;
    const int zero = CodeZero(w.type);
    team_.For(rows, 1, Elems(rows * w.k) / 4, [&](size_t begin, size_t end) {
      for (size_t r = begin; r < end; ++r) {
        for (size_t b = 0; b < w.blocks; ++b) {
          const size_t at = out.At(r, b);
          int32_t sums[2] = {0, 0};
          if (b < used) {
            ops_.quantize(x + r * w.k + b * kBlock, &q_[at * kBlock], &scale_[at], sums);
          } else {  // what fills the last unit
            std::memset(&q_[at * kBlock], 0, kBlock);
            scale_[at] = 0;
          }
          sum_[at] = scale_[at] * static_cast<float>(sums[0] + sums[1]);
          offset_[at] = -zero * (halves ? sums[0] : sums[0] + sums[1]);
          if (halves) offset_[slots + at] = -zero * sums[1];
        }
      }
    });
    return out;
  }

  // Weights of any type, expanded to f32 some columns at a time; all rows use them while they are in the cache.
  void MatMulExpanded(const float* x, size_t rows, const CpuWeight& w, double ns, float* out) {
    constexpr size_t kColumns = 8;
    team_.For(w.n, kColumns, ns * 8, [&](size_t begin, size_t end) {
      std::vector<float> expanded(kColumns * w.k);
      for (size_t c = begin; c < end; c += kColumns) {
        const size_t n = std::min(kColumns, end - c);
        for (size_t i = 0; i < n; ++i) DequantizeRow(w.source, c + i, expanded.data() + i * w.k);
        ops_.dot(x, rows, expanded.data(), FloatType::kF32, n, w.k, out + c, w.n);
      }
    });
  }

  void AttendHead(const float* q, const KvRow& row, const KvView& kv, const AttentionParams& p, size_t kv_head,
                  float* out) const {
    const size_t dim = Size(kv.head_dim), block = Size(kv.block_size), end = size_t{row.position} + 1;
    const size_t window = Size(p.window);
    const size_t begin = p.window > 0 && end > window ? end - window : 0;
    const size_t elem = kv.half ? 2 : 4;
    float max = -std::numeric_limits<float>::infinity();
    double total = 0;
    std::fill(out, out + dim, 0.0f);
    float scores[kSplit];
    for (size_t split = begin / kSplit * kSplit; split < end; split += kSplit) {
      const size_t from = std::max(split, begin), to = std::min(split + kSplit, end);
      float split_max = -std::numeric_limits<float>::infinity();
      for (size_t pos = from; pos < to;) {
        const size_t n = std::min(block - pos % block, to - pos);
        ops_.scores(q, kv.k + PageIndex(kv, row, pos, kv_head) * elem, kv.half, n, dim, scores + (pos - from));
        pos += n;
      }
      for (size_t i = 0; i < to - from; ++i) {
        scores[i] *= p.scale;
        if (p.softcap > 0) scores[i] = p.softcap * std::tanh(scores[i] / p.softcap);
        split_max = std::max(split_max, scores[i]);
      }
      const float new_max = std::max(max, split_max);
      if (total > 0) {
        const float shrink = std::exp(max - new_max);
        total *= static_cast<double>(shrink);
        for (size_t i = 0; i < dim; ++i) out[i] *= shrink;
      }
      max = new_max;
      for (size_t i = 0; i < to - from; ++i) {
        scores[i] = std::exp(scores[i] - max);
        total += static_cast<double>(scores[i]);
      }
      for (size_t pos = from; pos < to;) {
        const size_t n = std::min(block - pos % block, to - pos);
        ops_.weighted_sum(scores + (pos - from), kv.v + PageIndex(kv, row, pos, kv_head) * elem, kv.half, n, dim, out);
        pos += n;
      }
    }
    const auto by = static_cast<float>(1 / total);
    for (size_t i = 0; i < dim; ++i) out[i] *= by;
  }

  const Isa isa_;
  const IsaOps& ops_;
  const Team team_;
  std::vector<int8_t> q_;
  // Activations as MatMul quantizes them.
  std::vector<float> scale_, sum_;
  std::vector<int32_t> offset_;
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(Isa isa, const IsaOps& ops, int threads) {
  return std::make_unique<CpuBackend>(isa, ops, threads);
}

}  // namespace gyre::cpu
