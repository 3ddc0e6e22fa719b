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
// Queries that share keys and values in one tile of attention, about.
constexpr size_t kTileQueries = 8;
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
          const size_t from = (r * heads + head) * dim, position = rows[r].position;
          StoreElems(k + from, dim, kv.half, kv.k, KeyIndex(kv, rows[r], position, head), Size(kv.block_size));
          StoreElems(v + from, dim, kv.half, kv.v, ValueIndex(kv, rows[r], position, head), 1);
        }
      }
    });
  }

  void Attention(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& p,
                 float* out) override {
    const size_t dim = Size(kv.head_dim), heads = Size(p.heads), kv_heads = Size(kv.kv_heads);
    // Neighbours in one sequence read the same keys and values.
    const size_t most = std::max<size_t>(1, kTileQueries / (heads / kv_heads));
    tiles_.clear();
    double work = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      work += static_cast<double>(rows[r].position + 1) * static_cast<double>(heads * dim) * 2;
      const bool joins = !tiles_.empty() && tiles_.back().count < most && rows[r].table == rows[r - 1].table && rows[r].position == rows[r - 1].position + 1;
      if (joins) ++tiles_.back().count;
      else tiles_.push_back({r, 1});
    }
    const size_t items = tiles_.size() * kv_heads;
    team_.For(items, 1, work / 16, [&](size_t begin, size_t end) {
      std::vector<float> scratch;
      for (size_t i = begin; i < end; ++i) {
        // A prompt's last rows cost most: one from the front, one from the back, so that every part gets both.
        const size_t item = i % 2 == 0 ? i / 2 : items - 1 - i / 2;
        AttendTile(q, rows, tiles_[item / kv_heads], kv, p, item % kv_heads, &scratch, out);
      }
    });
  }

  void GatedActivation(const float* gate, const float* up, size_t n, Activation act, float* out) override {
    team_.For(n, 1024, Elems(n) * 2, [=, this](size_t begin, size_t end) {
      if (act == Activation::kSilu) {
        return ops_.silu_times(gate + begin, up + begin, end - begin, out + begin);
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

  // Where a head's keys or values of a position begin: keys of head_dim rows of block_size, values of block_size rows of head_dim.
  static size_t KeyIndex(const KvView& kv, const KvRow& row, size_t position, size_t head) {
    const size_t block = Size(kv.block_size);
    return row.table[position / block] * kv.PageElems() + head * block * Size(kv.head_dim) + position % block;
  }
  static size_t ValueIndex(const KvView& kv, const KvRow& row, size_t position, size_t head) {
    const size_t block = Size(kv.block_size);
    return row.table[position / block] * kv.PageElems() + (head * block + position % block) * Size(kv.head_dim);
  }

  static void StoreElems(const float* from, size_t n, bool half, std::byte* pool, size_t at, size_t step) {
    for (size_t i = 0; i < n; ++i, at += step) {
      if (half) {
        const uint16_t h = FloatToHalf(from[i]);
        std::memcpy(pool + at * 2, &h, 2);
      } else {
        std::memcpy(pool + at * 4, from + i, 4);
      }
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

  struct AttentionTile {
    size_t row, count;
  };
  // One query's way through the splits.
  struct Query {
    size_t begin, end;  // the positions it sees
    float max = -std::numeric_limits<float>::infinity();
    double total = 0;
    size_t from = 0, to = 0;  // those of this split
  };

  // The heads of one key-value head, for rows that follow each other in one sequence. Each query goes through its positions in rising
  // order, split by split, whatever else is in the tile.
  void AttendTile(const float* q, std::span<const KvRow> rows, const AttentionTile& tile, const KvView& kv, const AttentionParams& p,
                  size_t kv_head, std::vector<float>* scratch, float* out) const {
    const size_t dim = Size(kv.head_dim), group = Size(p.heads) / Size(kv.kv_heads), n = tile.count * group, window = Size(p.window);
    const KvRow& row = rows[tile.row];  // all have this table
    scratch->assign(n * (2 * dim + kSplit), 0.0f);
    float* queries = scratch->data();
    float* sums = queries + n * dim;
    float* scores = sums + n * dim;
    std::vector<Query> state(n);
    auto place = [&](size_t i) { return ((tile.row + i / group) * Size(p.heads) + kv_head * group + i % group) * dim; };
    for (size_t i = 0; i < n; ++i) {
      std::memcpy(queries + i * dim, q + place(i), dim * sizeof(float));
      state[i].end = size_t{rows[tile.row + i / group].position} + 1;
      state[i].begin = p.window > 0 && state[i].end > window ? state[i].end - window : 0;
    }
    const size_t last = state.back().end;
    for (size_t split = state[0].begin / kSplit * kSplit; split < last; split += kSplit) {
      size_t any_from = last, any_to = 0, all_from = 0, all_to = last;
      for (Query& s : state) {
        s.from = std::clamp(s.begin, split, split + kSplit);
        s.to = std::clamp(s.end, s.from, split + kSplit);
        if (s.from < s.to) {
          any_from = std::min(any_from, s.from);
          any_to = std::max(any_to, s.to);
        }
        all_from = std::max(all_from, s.from);
        all_to = std::min(all_to, s.to);
      }
      all_to = std::max(all_from, all_to);
      ForPages(kv, any_from, any_to, [&](size_t pos, size_t count) {
        ops_.scores(queries, n, kv.k + KeyIndex(kv, row, pos, kv_head) * Elem(kv), kv.half, Size(kv.block_size), count, dim,
                    scores + (pos - split), kSplit);
      });
      for (size_t i = 0; i < n; ++i) Soften(p, split, scores + i * kSplit, sums + i * dim, dim, &state[i]);
      // What all see, together; before and after it each query its own.
      auto add = [&](size_t from, size_t to, size_t first, size_t how_many) {
        ForPages(kv, from, to, [&](size_t pos, size_t count) {
          ops_.weighted_sum(scores + first * kSplit + (pos - split), kSplit, how_many, kv.v + ValueIndex(kv, row, pos, kv_head) * Elem(kv), kv.half, count,
                            dim, sums + first * dim);
        });
      };
      for (size_t i = 0; i < n; ++i) add(state[i].from, std::min(all_from, state[i].to), i, 1);
      add(all_from, all_to, 0, n);
      for (size_t i = 0; i < n; ++i) add(std::max(all_to, state[i].from), state[i].to, i, 1);
    }
    for (size_t i = 0; i < n; ++i) {
      const auto by = static_cast<float>(1 / state[i].total);
      for (size_t d = 0; d < dim; ++d) out[place(i) + d] = sums[i * dim + d] * by;
    }
  }

  static size_t Elem(const KvView& kv) { return kv.half ? 2 : 4; }

  // f(position, count) for the runs of [from, to) that lie in one page.
  template <typename Fn>
  static void ForPages(const KvView& kv, size_t from, size_t to, const Fn& f) {
    const size_t block = Size(kv.block_size);
    for (size_t pos = from; pos < to;) {
      const size_t count = std::min(block - pos % block, to - pos);
      f(pos, count);
      pos += count;
    }
  }

  // A split's scores become weights, and what was summed before shrinks to the new maximum.
  void Soften(const AttentionParams& p, size_t split, float* scores, float* sums, size_t dim, Query* s) const {
    if (s->from >= s->to) return;
    const size_t from = s->from - split, to = s->to - split;
    float max = ops_.scale_max(scores, from, to, p.scale);
    if (p.softcap > 0) {
      max = -std::numeric_limits<float>::infinity();
      for (size_t i = from; i < to; ++i) {
        scores[i] = p.softcap * std::tanh(scores[i] / p.softcap);
        max = std::max(max, scores[i]);
      }
    }
    const float new_max = std::max(s->max, max);
    if (s->total > 0) {
      const float shrink = std::exp(s->max - new_max);
      s->total *= static_cast<double>(shrink);
      for (size_t i = 0; i < dim; ++i) sums[i] *= shrink;
    }
    s->max = new_max;
    s->total += static_cast<double>(ops_.exp_sum(scores, from, to, new_max));
  }

  const Isa isa_;
  const IsaOps& ops_;
  const Team team_;
  std::vector<int8_t> q_;
  std::vector<AttentionTile> tiles_;
  // Activations as MatMul quantizes them.
  std::vector<float> scale_, sum_;
  std::vector<int32_t> offset_;
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(Isa isa, const IsaOps& ops, int threads) {
  return std::make_unique<CpuBackend>(isa, ops, threads);
}

}  // namespace gyre::cpu
