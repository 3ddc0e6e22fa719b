#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/buffer.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/top_k.h"

namespace gyre {
namespace {

const KernelTable& KernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kAvx512Vnni:
      return Avx512VnniKernels();
    case Isa::kAvx512:
      return Avx512Kernels();
    default:
      return Avx2Kernels();
  }
}

// Columns handed out at a time: four panels, so that a row in flight reads four streams.
constexpr size_t kPanelChunk = 4 * kPanelColumns;
// Elements of a tile of expanded weights: 256 KiB, within a second-level cache.
constexpr size_t kTileElems = size_t{1} << 16;
// From this many rows on, half-precision weights are widened once for all of them.
constexpr size_t kWidenRows = 8;
// Elements handed out at a time by the ops without a matrix.
constexpr size_t kRun = 4096;

class CpuBackend : public Backend {
 public:
  CpuBackend(Isa isa, int threads) : isa_(isa), kernels_(KernelsOf(isa)), team_(threads), attender_(kernels_, team_) {
    tiles_.resize(static_cast<size_t>(threads));
  }

  Isa isa() const override { return isa_; }
  int threads() const override { return team_.threads(); }

  std::shared_ptr<const PackedWeight> Pack(const WeightView& w, const std::function<void(size_t)>& progress) override {
    assert(Info(w.type).dequantizes && w.k % Info(w.type).block_elems == 0);
    return PackWeight(w, kernels_, team_, progress);
  }

  void MatMul(const float* x, size_t rows, const PackedWeight& weight, float* out, bool exact) override {
    const auto& w = static_cast<const CpuWeight&>(weight);
    if (w.dot != nullptr && !exact) {
      MatMulPanels(x, rows, w, out);
    } else {
      MatMulFloat(x, rows, w, out);
    }
  }

  void Embed(const TokenId* ids, size_t rows, const PackedWeight& weight, float* out) override {
    const auto& w = static_cast<const CpuWeight&>(weight);
    team_.For(rows, static_cast<double>(w.k), [&](size_t r, int) {
      assert(ids[r] >= 0 && static_cast<size_t>(ids[r]) < w.n);
      kernels_.dequantize(w.type, w.source + static_cast<size_t>(ids[r]) * w.row_bytes, out + r * w.k, w.k);
    });
  }

  void RmsNorm(const float* x, size_t rows, size_t dim, const float* w, float eps, float* out) override {
    team_.For(rows, static_cast<double>(dim) * 0.3,
              [&](size_t r, int) { kernels_.rms_norm(x + r * dim, dim, w, eps, out + r * dim); });
  }

  void Rope(float* x, size_t rows, int heads, int head_dim, const float* cos, const float* sin, int half,
            RopePairing pairing) override {
    assert(2 * half <= head_dim);
    const size_t row = static_cast<size_t>(heads) * static_cast<size_t>(head_dim), angles = static_cast<size_t>(half);
    team_.For(rows, static_cast<double>(row) * 0.5, [&](size_t r, int) {
      kernels_.rope(x + r * row, heads, head_dim, cos + r * angles, sin + r * angles, half, pairing);
    });
  }

  void StoreKv(const float* k, const float* v, std::span<const KvRow> rows, const KvView& kv) override {
    const auto heads = static_cast<size_t>(kv.kv_heads), dim = static_cast<size_t>(kv.head_dim);
    const auto block_size = static_cast<size_t>(kv.block_size);
    team_.For(rows.size(), static_cast<double>(heads * dim) * 0.5, [&](size_t r, int) {
      const size_t position = rows[r].position, page = rows[r].table[position / block_size];
      for (size_t head = 0; head < heads; ++head) {
        const size_t from = (r * heads + head) * dim;
        const size_t to = page * kv.PageElems() + (head * block_size + position % block_size) * dim;
        Save(k + from, kv.k, to, dim, kv.half);
        Save(v + from, kv.v, to, dim, kv.half);
      }
    });
  }

  void Attention(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& params,
                 float* out) override {
    assert(params.heads % kv.kv_heads == 0);
    attender_.Run(q, rows, kv, params, out);
  }

  void GatedActivation(const float* gate, const float* up, size_t n, Activation act, float* out) override {
    EachRun(n, 1.0, [&](size_t i, size_t count) { kernels_.gated(gate + i, up + i, count, act, out + i); });
  }
  void AddInPlace(float* x, const float* y, size_t n) override {
    EachRun(n, 0.3, [&](size_t i, size_t count) {
      for (size_t j = i; j < i + count; ++j) x[j] += y[j];
    });
  }
  void AddBias(float* x, size_t rows, size_t dim, const float* bias) override {
    team_.For(rows, static_cast<double>(dim) * 0.3, [&](size_t r, int) {
      for (size_t i = 0; i < dim; ++i) x[r * dim + i] += bias[i];
    });
  }
  void Scale(float* x, size_t n, float by) override {
    EachRun(n, 0.2, [&](size_t i, size_t count) {
      for (size_t j = i; j < i + count; ++j) x[j] *= by;
    });
  }
  void SoftcapInPlace(float* x, size_t n, float cap) override {
    EachRun(n, 1.0, [&](size_t i, size_t count) { kernels_.softcap(x + i, count, cap); });
  }

  void TopK(const float* logits, size_t vocab, uint32_t k, std::span<const TokenId> skip,
            std::span<const uint64_t> mask, std::vector<TokenId>* ids) override {
    TopKOf(kernels_, {logits, vocab}, k, skip, mask, &heap_, ids);
  }
  double LogSumExp(const float* logits, size_t vocab, double inv_temperature, std::span<const TokenId> skip,
                   std::span<const uint64_t> mask) override {
    return LogSumExpOf(kernels_, {logits, vocab}, inv_temperature, skip, mask);
  }

 private:
  static size_t Chunks(size_t n, size_t chunk) { return (n + chunk - 1) / chunk; }

  template <typename Fn>
  void EachRun(size_t n, double ns_each, const Fn& fn) {
    team_.For(Chunks(n, kRun), static_cast<double>(kRun) * ns_each,
              [&](size_t run, int) { fn(run * kRun, std::min(kRun, n - run * kRun)); });
  }

  void Save(const float* from, std::byte* pool, size_t to, size_t dim, bool half) const {
    if (half) {
      kernels_.to_half(from, reinterpret_cast<uint16_t*>(pool) + to, dim);
    } else {
      std::memcpy(pool + to * sizeof(float), from, dim * sizeof(float));
    }
  }

  // Nanoseconds of a product with `cols` columns that are read once: what memory takes, or what arithmetic takes.
  static double ProductNs(size_t rows, size_t cols, size_t k, double column_bytes, double products_a_ns) {
    const double bytes = static_cast<double>(cols) * column_bytes;
    return std::max(bytes / 10.0, static_cast<double>(rows * cols * k) / products_a_ns);
  }

  void MatMulPanels(const float* x, size_t rows, const CpuWeight& w, float* out) {
    QuantizedRows q;
    q.blocks = w.blocks;
    q.row_bytes = w.blocks * kQuantBlock * kernels_.quantized_bytes;
    q.data = quantized_.Reserve(rows * q.row_bytes);
    q.scale = scales_.Reserve(rows * q.blocks);
    q.sum16 = sums_.Reserve(rows * 2 * q.blocks);
    team_.For(rows, static_cast<double>(w.k) * 0.6, [&](size_t r, int) {
      kernels_.quantize(x + r * w.k, w.k, q.blocks, q.data + r * q.row_bytes, q.scale + r * q.blocks,
                        q.sum16 + r * 2 * q.blocks);
    });
    const double ns = ProductNs(rows, std::min(kPanelChunk, w.n), w.k, static_cast<double>(w.panel_bytes) / 16, 60);
    team_.For(Chunks(w.n, kPanelChunk), ns, [&](size_t chunk, int) {
      const size_t c = chunk * kPanelChunk;
      w.dot(q, 0, rows, w.panels.get() + c / kPanelColumns * w.panel_bytes, w.panel_bytes, out + c, w.n,
            std::min(kPanelChunk, w.n - c));
    });
  }

  void MatMulFloat(const float* x, size_t rows, const CpuWeight& w, float* out) {
    const DotFn direct = DirectDot(w.type, rows);
    // A multiple of 8 columns, whose tile of floats fits the cache.
    const size_t cols = std::clamp(kTileElems / w.k / 8 * 8, size_t{8}, size_t{128});
    const double ns = ProductNs(rows, std::min(cols, w.n), w.k, static_cast<double>(w.row_bytes), 15);
    team_.For(Chunks(w.n, cols), ns, [&](size_t chunk, int thread) {
      const size_t c = chunk * cols, count = std::min(cols, w.n - c);
      const std::byte* source = w.source + c * w.row_bytes;
      if (direct != nullptr) {
        direct(x, w.k, rows, source, w.row_bytes, count, w.k, out + c, w.n);
        return;
      }
      float* tile = tiles_[static_cast<size_t>(thread)].Reserve(cols * w.k);
      // A single row takes eight columns at a time, which stay in the first-level cache.
      const size_t step = rows < kWidenRows ? 8 : count;
      for (size_t i = 0; i < count; i += step) {
        const size_t part = std::min(step, count - i);
        for (size_t j = 0; j < part; ++j) {
          kernels_.dequantize(w.type, source + (i + j) * w.row_bytes, tile + j * w.k, w.k);
        }
        kernels_.dot_f32(x, w.k, rows, reinterpret_cast<const std::byte*>(tile), w.k * sizeof(float), part, w.k,
                         out + c + i, w.n);
      }
    });
  }

  // The kernel that reads weights of this type as they are, or null.
  DotFn DirectDot(DType type, size_t rows) const {
    if (type == DType::kF32) return kernels_.dot_f32;
    if (rows >= kWidenRows) return nullptr;
    if (type == DType::kF16) return kernels_.dot_f16;
    return type == DType::kBF16 ? kernels_.dot_bf16 : nullptr;
  }

  const Isa isa_;
  const KernelTable& kernels_;
  const Team team_;
  Attender attender_;
  // Scratch memory, which grows to the largest call.
  Buffer<std::byte> quantized_;
  Buffer<float> scales_;
  Buffer<int32_t> sums_;
  std::vector<Buffer<float>> tiles_;  // a thread
  std::vector<RankedLogit> heap_;
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(Isa isa, int threads) {
  return std::make_unique<CpuBackend>(isa, threads);
}

}  // namespace gyre
