#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "kernels/cpu/attention/attention_split.h"
#include "kernels/cpu/products/expert_products.h"
#include "kernels/cpu/products/joint_products.h"
#include "kernels/cpu/products/packed.h"
#include "kernels/cpu/products/product_kernel.h"
#include "kernels/cpu/products/quantized_rows.h"
#include "kernels/cpu/attention/paged_attention.h"
#include "kernels/cpu/state/recurrence.h"
#include "kernels/cpu/top_k.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/products/tile_product.h"
#include "kernels/hadamard.h"
#include "kernels/host_backend.h"
#include "kernels/observe.h"

namespace gyre::cpu {
namespace {

constexpr double kExpandedPerNs = 3;  // elements of one core

class CpuBackend : public HostBackend {
 public:
  CpuBackend(std::shared_ptr<Device> device, const IsaOps& ops, int threads, std::vector<int> cpus)
      : HostBackend(std::move(device)),
        ops_(ops),
        team_(threads, std::move(cpus)),
        experts_(ops, team_),
        attention_(ops, team_),
        recurrence_(ops, team_) {
    if (ops.tiles != nullptr) tile_product_.emplace(ops, team_);
  }

  int threads() const override { return team_.threads(); }

  std::shared_ptr<const PackedWeight> Pack(const WeightView& w, const std::function<void(size_t)>& progress) override {
    return PackWeight(w, device(), team_, progress);
  }

  void MatMul(const float* x, size_t rows, std::span<const Product> products, Arithmetic arithmetic) override {
    quantized_.Clear();
    rows_packed_ = false;
    if (const ProductObserver& observe = TheProductObserver()) {
      for (const Product& p : products) observe(static_cast<const CpuWeight&>(p.w).source, x, rows);
    }
    if (Joins(rows, products, arithmetic)) return MatMulTogether(x, rows, products);
    bool tiled = false;
    for (const Product& p : products) {
      const auto& w = static_cast<const CpuWeight&>(p.w);
      const ProductKernel kernel = ChooseProduct(ops_, w, rows, arithmetic);
      if (kernel != ProductKernel::kTiles) {
        float* out = p.add ? reinterpret_cast<float*>(sums_.EnsureCapacity(rows * w.n * sizeof(float))) : p.out;
        MatMulOne(x, rows, w, kernel, out);
        if (p.add) AddInPlace(p.out, out, rows * w.n);
        continue;
      }
      if (!tiled) tile_product_->SetRows(x, rows, w.k);
      tiled = true;
      tile_product_->Multiply(w, p.out, p.add);
    }
  }

  void MatMulHeads(std::span<const std::shared_ptr<const PackedWeight>> heads, const float* x, size_t x_stride,
                   size_t rows, Arithmetic arithmetic, float* out, size_t out_stride) override {
    const size_t count = heads.size(), n = heads[0]->n, k = heads[0]->k;
    const auto of = [&](size_t h) -> const CpuWeight& { return static_cast<const CpuWeight&>(*heads[h]); };
    const ProductKernel kernel = ChooseProduct(ops_, of(0), rows, arithmetic);
    if (kernel == ProductKernel::kPanels) {
      quantized_.Clear();
      for (size_t h = 0; h < count; ++h) quantized_.Add(ops_, of(h), rows);
      quantized_.Allocate();
      team_.For(rows * count, 1, Elems(rows * count * k) / 4, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) quantized_.Quantize(ops_, i % count, i / count, x + i * x_stride);
      });
      together_.Clear();
      for (size_t h = 0; h < count; ++h)
        together_.Add(of(h), quantized_.View(h), rows, out + h * out_stride, count * out_stride);
      return together_.Run(ops_, team_);
    }
    if (kernel != ProductKernel::kFloatRows)
      return HostBackend::MatMulHeads(heads, x, x_stride, rows, arithmetic, out, out_stride);
    const double ns = static_cast<double>(count * of(0).bytes) / kBytesPerNs;
    team_.For(count, 1, ns, [&](size_t begin, size_t end) {
      for (size_t h = begin; h < end; ++h) {
        for (size_t r = 0; r < rows; ++r) {
          const size_t i = r * count + h;
          ops_.dot(x + i * x_stride, 1, of(h).source.data, *FloatTypeOf(of(h)), n, k, out + i * out_stride, n);
        }
      }
    });
  }

  void CopyColumns(const float* from, size_t rows, size_t from_stride, size_t width, float* to,
                   size_t to_stride) override {
    team_.For(rows, 1, Elems(rows * width) / 4, [=, this](size_t begin, size_t end) {
      HostBackend::CopyColumns(from + begin * from_stride, end - begin, from_stride, width, to + begin * to_stride,
                               to_stride);
    });
  }

  void GatedFeedForward(const float* x, size_t rows, const Ffn& w, Activation act, Arithmetic arithmetic, float* out,
                        bool add) override {
    const auto &gate = static_cast<const CpuWeight&>(w.gate), &up = static_cast<const CpuWeight&>(w.up),
               &down = static_cast<const CpuWeight&>(w.down);
    const auto by_tiles = [&](const CpuWeight& one) {
      return ChooseProduct(ops_, one, rows, arithmetic) == ProductKernel::kTiles;
    };
    if (!TheProductObserver() && by_tiles(gate) && by_tiles(up) && by_tiles(down)) {
      tile_product_->SetRows(x, rows, gate.k);
      tile_product_->GatedLinearUnit(gate, up, act);
      return tile_product_->Multiply(down, out, add);
    }
    const size_t n = rows * gate.n;
    auto* gates = reinterpret_cast<float*>(gated_.EnsureCapacity(2 * n * sizeof(float)));
    const Product both[] = {{gate, gates}, {up, gates + n}}, last[] = {{down, out, add}};
    MatMul(x, rows, both, arithmetic);
    GatedActivation(gates, gates + n, n, act, gates);
    MatMul(gates, rows, last, arithmetic);
  }

  void LimitProducts(float* gate, float* up, size_t n, const Ffn& w) override {
    if (w.gate_limit == 0 && w.up_limit == 0) return;
    team_.For(n, 1024, Elems(n) / 2,
              [&](size_t begin, size_t end) { Limit(gate + begin, up + begin, end - begin, w); });
  }

  void MixExperts(const float* x, std::span<const RowRun> runs, const Mixture& mixture, float* out) override {
    if (TheProductObserver() || !ExpertProducts::Supports(ops_, runs, mixture))
      return HostBackend::MixExperts(x, runs, mixture, out);
    size_t rows = 0;
    for (const RowRun& run : runs) rows += run.rows;
    experts_.Run(x, rows, mixture, out);
  }

  void Embed(const TokenId* ids, size_t rows, const PackedWeight& weight, float* out) override {
    const auto& w = static_cast<const CpuWeight&>(weight);
    for (size_t r = 0; r < rows; ++r) DequantizeRow(w.source, static_cast<size_t>(ids[r]), out + r * w.k);
  }

  void RmsNorm(const float* x, size_t rows, size_t dim, const float* w, float eps, float* out) override {
    team_.For(rows, 1, Elems(rows * dim), [=, this](size_t begin, size_t end) {
      for (size_t r = begin; r < end; ++r) ops_.rms_norm(x + r * dim, dim, w, eps, out + r * dim);
    });
  }

  void Center(const float* x, size_t rows, size_t dim, float* out) override {
    team_.For(rows, 1, Elems(rows * dim), [=, this](size_t begin, size_t end) {
      HostBackend::Center(x + begin * dim, end - begin, dim, out + begin * dim);
    });
  }
  void Xielu(float* x, size_t n, const XieluParams& params) override {
    team_.For(n, 1024, Elems(n) * 4,
              [&, x](size_t begin, size_t end) { HostBackend::Xielu(x + begin, end - begin, params); });
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
    const size_t dim = Size(kv.head_dim), value_dim = kv.ValueDim(), heads = Size(kv.kv_heads),
                 block = Size(kv.block_size);
    team_.For(rows.size(), 1, Elems(rows.size() * heads * (dim + value_dim)), [&](size_t begin, size_t end) {
      for (size_t r = begin; r < end; ++r) {
        const size_t page = rows[r].table[rows[r].position / block], in_page = rows[r].position % block;
        for (size_t head = 0; head < heads; ++head) {
          StoreElems(k + (r * heads + head) * dim, kv, dim, kv.k + page * kv.PageBytes() + head * kv.HeadBytes(),
                     in_page, block);
          if (kv.values_in_keys) continue;
          StoreElems(v + (r * heads + head) * value_dim, kv, value_dim,
                     kv.v + page * kv.ValuePageBytes() + head * kv.ValueHeadBytes(), in_page * value_dim, 1);
        }
      }
    });
  }

  void Attention(const float* q, std::span<const KvRow> rows, const KvView& kv, const AttentionParams& p,
                 float* out) override {
    attention_.Run(q, rows, kv, p, out);
  }

  void GatedActivation(const float* gate, const float* up, size_t n, Activation act, float* out) override {
    const auto times = ops_.TimesOf(act);
    team_.For(n, 1024, Elems(n) * 2,
              [=](size_t begin, size_t end) { times(gate + begin, up + begin, end - begin, out + begin); });
  }
  void Activate(const float* x, size_t n, Activation act, float* out) override {
    const auto times = ops_.TimesOf(act);
    team_.For(n, 1024, Elems(n) * 2,
              [=](size_t begin, size_t end) { times(x + begin, nullptr, end - begin, out + begin); });
  }
  void MultiplyInPlace(float* x, const float* y, size_t n) override {
    team_.For(n, 1024, Elems(n) / 4, [=](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) x[i] *= y[i];
    });
  }

  void ShortConv(const float* x, size_t stride, std::span<const StateRun> runs, const ShortConvParams& params,
                 float* out) override {
    recurrence_.ShortConv(x, stride, runs, params, out);
  }
  void ScanState(const StateScanRows& rows, std::span<const StateRun> runs, const StateScanParams& params,
                 float* out) override {
    recurrence_.ScanState(rows, runs, params, out);
  }
  void DecayGates(const float* x, size_t rows, size_t heads, size_t width, const float* bias, const float* a,
                  DecayStep form, float* step, float* decay) override {
    team_.For(rows * heads, 64, Elems(rows * heads * (width + 1)) * 4, [=](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        const double in = static_cast<double>(x[i]) + static_cast<double>(bias[i % heads]);
        const double made = form == DecayStep::kSigmoid ? 1 / (1 + std::exp(-in))
                            : in > 40                   ? in
                                                        : std::log1p(std::exp(in));
        if (step != nullptr) step[i] = static_cast<float>(made);
        for (size_t j = 0; j < width; ++j) {
          const auto by = static_cast<double>(a[i % heads * width + j]);
          decay[i * width + j] = static_cast<float>(std::exp(by * made));
        }
      }
    });
  }
  void GroupRmsNorm(const float* x, size_t rows, size_t groups, size_t dim, const float* w, float eps,
                    float* out) override {
    team_.For(rows * groups, 1, Elems(rows * groups * dim), [=, this](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) ops_.rms_norm(x + i * dim, dim, w + i % groups * dim, eps, out + i * dim);
    });
  }

  void AddInPlace(float* x, const float* y, size_t n) override {
    team_.For(n, 1024, Elems(n) / 4, [=](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) x[i] += y[i];
    });
  }
  void AddBias(float* x, size_t rows, size_t dim, const float* bias) override {
    for (size_t r = 0; r < rows; ++r) AddInPlace(x + r * dim, bias, dim);
  }
  void ScaleColumns(float* x, size_t rows, size_t dim, const float* by) override {
    for (size_t r = 0; r < rows; ++r) MultiplyInPlace(x + r * dim, by, dim);
  }
  void Scale(float* x, size_t n, float by) override {
    for (size_t i = 0; i < n; ++i) x[i] *= by;
  }
  void SoftcapInPlace(float* x, size_t n, float cap) override {
    team_.For(n, 1024, Elems(n), [=, this](size_t begin, size_t end) { ops_.softcap(x + begin, end - begin, 1, cap); });
  }

  void TopK(std::span<const TopKRow> rows, size_t vocab) override {
    // Room for all before, because nothing may throw inside a parallel region.
    if (tops_.size() < rows.size()) tops_.resize(rows.size());
    for (size_t r = 0; r < rows.size(); ++r) tops_[r].reserve(std::min<size_t>(rows[r].k, vocab));
    team_.For(rows.size(), 1, 0.2 * static_cast<double>(rows.size() * vocab), [&](size_t begin, size_t end) {
      for (size_t r = begin; r < end; ++r) {
        SelectTop(rows[r], vocab, &tops_[r]);
        SaveTop(rows[r], tops_[r]);
      }
    });
  }
  void LogSumExp(std::span<const LogSumExpRow> rows, size_t vocab) override {
    SumExponentials(ops_, rows, vocab, team_);
  }

 private:
  static double Elems(size_t n) { return static_cast<double>(n) / kElemsPerNs; }

  // Writes the `dim` elements of one position to head[at], head[at + step], ...; successive elements of a key, and its
  // scales, are block_size apart.
  void StoreElems(const float* from, const KvView& kv, size_t dim, std::byte* head, size_t at, size_t step) const {
    if (KvHasScales(kv.type)) {
      std::byte block[2 + kKvBlock];
      float rotated[kKvBlock];
      std::byte* scales = head + KvCodeBytes(kv.type, Size(kv.block_size) * dim);
      const size_t first = step == 1 ? at / kKvBlock : at, bytes = KvCodeBytes(kv.type, kKvBlock);
      std::byte* to = head + (step == 1 ? KvCodeBytes(kv.type, at) : at);
      for (size_t b = 0; b < dim / kKvBlock; ++b) {
        const float* elements = from + b * kKvBlock;
        if (KvIsRotated(kv.type)) {
          RotateKvBlocks(elements, kKvBlock, rotated);
          elements = rotated;
        }
        Quantize(KvHasNibbles(kv.type) ? DType::kQ4_0 : DType::kQ8_0, elements, block, kKvBlock);
        std::memcpy(scales + (first + b * step) * 2, block, 2);
        for (size_t i = 0; i < bytes; ++i) to[(b * bytes + i) * step] = block[2 + i];
      }
      return;
    }
    if (kv.type == KvType::kF32) {
      for (size_t i = 0; i < dim; ++i, at += step) std::memcpy(head + at * 4, from + i, 4);
      return;
    }
    uint16_t some[128];
    for (size_t first = 0; first < dim; first += std::size(some)) {
      const size_t n = std::min(std::size(some), dim - first);
      if (kv.type == KvType::kF16)
        ops_.to_half(from + first, n, some);
      else
        std::transform(from + first, from + first + n, some, FloatToBf16);
      for (size_t i = 0; i < n; ++i, at += step) std::memcpy(head + at * 2, some + i, 2);
    }
  }

  void MatMulOne(const float* x, size_t rows, const CpuWeight& w, ProductKernel kernel, float* out) {
    const double macs = static_cast<double>(rows) * static_cast<double>(w.n) * static_cast<double>(w.k);
    const double ns = std::max(macs / kMacsPerNs, static_cast<double>(w.bytes) / kBytesPerNs);
    switch (kernel) {
      case ProductKernel::kTiles: return;  // by TileProduct
      case ProductKernel::kPanels: return MatMulPanels(x, rows, w, ns, out);
      case ProductKernel::kFloatPanels: return MatMulFloatPanels(x, rows, w, ns, out);
      case ProductKernel::kFloatRows: return MatMulFloatRows(x, rows, w, ns, out);
      case ProductKernel::kFp8Rows: return MatMulFp8Rows(x, rows, w, ns, out);
      case ProductKernel::kExpandedPanels: return MatMulExpanded(x, rows, w, true, ns, out);
      case ProductKernel::kExpandedRows: return MatMulExpanded(x, rows, w, false, ns, out);
    }
  }

  void MatMulFloatPanels(const float* x, size_t rows, const CpuWeight& w, double ns, float* out) {
    PackRows(x, rows, w.k);
    float* scratch = GemmScratch();
    team_.For(w.n, ops_.float_gemm.columns, ns, [&](size_t begin, size_t end, size_t thread) {
      ops_.float_gemm.dot(row_panels(), rows, w.source.data + begin * w.source.row_bytes(), *FloatTypeOf(w),
                          end - begin, w.k, scratch + ops_.float_gemm.scratch * thread, out + begin, w.n);
    });
  }

  // Calls f(column, columns) for columns in slices that stay in the second-level cache while all rows pass over them.
  template <typename Fn>
  void ForSlices(size_t rows, const CpuWeight& w, double ns, const Fn& f) {
    team_.For(w.n, 8, ns, [&](size_t begin, size_t end) {
      const size_t slice = rows > 1 ? std::max<size_t>(8, (size_t{256} << 10) / w.source.row_bytes() / 8 * 8) : w.n;
      for (size_t c = begin; c < end; c += slice) f(c, std::min(slice, end - c));
    });
  }

  void MatMulFloatRows(const float* x, size_t rows, const CpuWeight& w, double ns, float* out) {
    ForSlices(rows, w, ns, [&](size_t c, size_t n) {
      ops_.dot(x, rows, w.source.data + c * w.source.row_bytes(), *FloatTypeOf(w), n, w.k, out + c, w.n);
    });
  }

  void MatMulFp8Rows(const float* x, size_t rows, const CpuWeight& w, double ns, float* out) {
    ForSlices(rows, w, ns, [&](size_t c, size_t n) {
      const WeightView columns = RowsOf(w.source, c, n);
      const size_t across = (w.k + columns.group - 1) / columns.group;
      ops_.dot_fp8(x, rows, {columns.data, columns.scales, across, columns.group, columns.first_row}, n, w.k, out + c,
                   w.n);
    });
  }

  void MatMulPanels(const float* x, size_t rows, const CpuWeight& w, double ns, float* out) {
    const Quantized quantized = QuantizeRows(x, rows, w);
    const size_t panels = PanelCount(w.n);
    team_.For(panels, kPanelGrain, ns,
              [&](size_t begin, size_t end) { MultiplyPanels(ops_, quantized, rows, w, begin, end, out, w.n); });
  }

  // Whether it pays to compute products in one region: some are so small that the threads' meeting counts.
  bool Joins(size_t rows, std::span<const Product> products, Arithmetic arithmetic) const {
    constexpr double kSmall = 200000;  // nanoseconds
    double least = kSmall;
    for (const Product& p : products) {
      const auto& w = static_cast<const CpuWeight&>(p.w);
      if (p.add || ChooseProduct(ops_, w, rows, arithmetic) != ProductKernel::kPanels) return false;
      least = std::min(least, static_cast<double>(rows * w.n * w.k) / kMacsPerNs);
    }
    return products.size() > 1 && least < kSmall;
  }

  // In one region, with x quantized once for each layout that they need.
  void MatMulTogether(const float* x, size_t rows, std::span<const Product> products) {
    const auto of = [](const Product& p) -> const CpuWeight& { return static_cast<const CpuWeight&>(p.w); };
    for (const Product& p : products) {
      if (quantized_.Find(ops_, of(p), rows) == quantized_.size()) quantized_.Add(ops_, of(p), rows);
    }
    quantized_.Allocate();
    const size_t layouts = quantized_.size(), k = of(products[0]).k;
    team_.For(rows * layouts, 1, Elems(rows * layouts * k) / 4, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) quantized_.Quantize(ops_, i % layouts, i / layouts, x + i / layouts * k);
    });
    together_.Clear();
    for (const Product& p : products)
      together_.Add(of(p), quantized_.View(quantized_.Find(ops_, of(p), rows)), rows, p.out, of(p).n);
    together_.Run(ops_, team_);
  }

  // Quantizes the rows of x as the panels of w need them; valid until the next call. Products of one MatMul that need
  // the same layout share the result.
  Quantized QuantizeRows(const float* x, size_t rows, const CpuWeight& w) {
    if (quantized_.size() == 0 || quantized_.Find(ops_, w, rows) != 0) {
      quantized_.Clear();
      quantized_.Add(ops_, w, rows);
      quantized_.Allocate();
      team_.For(rows, 1, Elems(rows * w.k) / 4, [&](size_t begin, size_t end) {
        for (size_t r = begin; r < end; ++r) quantized_.Quantize(ops_, 0, r, x + r * w.k);
      });
    }
    return quantized_.View(0);
  }

  // Weights of any type, dequantized to f32 some columns at a time; all rows use them while they are in the cache.
  void MatMulExpanded(const float* x, size_t rows, const CpuWeight& w, bool many, double ns, float* out) {
    const size_t columns = many ? ops_.float_gemm.columns : 8, each = columns * w.k;
    auto* expanded_all = reinterpret_cast<float*>(expanded_.EnsureCapacity(
        each * Size(threads()) * sizeof(float)));  // here, as nothing may throw in a parallel region
    float* scratch = many ? GemmScratch() : nullptr;
    if (many) PackRows(x, rows, w.k);
    const double expand = w.type == DType::kF8E4M3 ? static_cast<double>(w.n * w.k) / kExpandedPerNs : ns * 7;
    team_.For(w.n, columns, ns + expand, [&](size_t begin, size_t end, size_t thread) {
      float* expanded = expanded_all + each * thread;
      for (size_t c = begin; c < end; c += columns) {
        const size_t n = std::min(columns, end - c);
        if (w.type == DType::kF8E4M3)
          ExpandFp8Rows(ops_, w.source, c, n, 0, w.k, expanded);
        else
          for (size_t i = 0; i < n; ++i) DequantizeRow(w.source, c + i, expanded + i * w.k);
        if (many)
          ops_.float_gemm.dot(row_panels(), rows, expanded, FloatType::kF32, n, w.k,
                              scratch + ops_.float_gemm.scratch * thread, out + c, w.n);
        else
          ops_.dot(x, rows, expanded, FloatType::kF32, n, w.k, out + c, w.n);
      }
    });
  }

  // Packs x into row_panels(), once for all products of one MatMul; valid until the next call.
  void PackRows(const float* x, size_t rows, size_t k) {
    if (rows_packed_) return;
    rows_packed_ = true;
    const FloatGemm& s = ops_.float_gemm;
    const size_t count = (rows + s.rows - 1) / s.rows;
    row_panels_.EnsureCapacity(count * s.Floats(k) * sizeof(float));
    team_.For(count, 1, Elems(rows * k) / 4, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i)
        s.pack_rows(x + i * s.rows * k, std::min(s.rows, rows - i * s.rows), k, row_panels() + i * s.Floats(k));
    });
  }
  float* row_panels() { return reinterpret_cast<float*>(row_panels_.data()); }
  float* GemmScratch() {
    return reinterpret_cast<float*>(
        gemm_scratch_.EnsureCapacity(ops_.float_gemm.scratch * Size(threads()) * sizeof(float)));
  }

  const IsaOps& ops_;
  const Team team_;
  QuantizedRows quantized_;  // x of this MatMul, or nothing
  JointProducts together_;
  Buffer gated_;                            // outputs of gate and up
  Buffer sums_;                             // a product that is then added to the output
  Buffer expanded_;                         // dequantized columns, per thread
  Buffer row_panels_, gemm_scratch_;        // x packed for FloatGemm; scratch per thread
  bool rows_packed_ = false;                // in this MatMul
  std::vector<std::vector<TokenId>> tops_;  // of each row
  std::optional<TileProduct> tile_product_;
  ExpertProducts experts_;
  PagedAttention attention_;
  Recurrence recurrence_;
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(std::shared_ptr<Device> device, const IsaOps& ops, int threads,
                                        std::vector<int> cpus) {
  return std::make_unique<CpuBackend>(std::move(device), ops, threads, std::move(cpus));
}

}  // namespace gyre::cpu
