// Each kernel alone: products of rows with a quantized or float matrix, for every type, number of rows and instruction
// set, next to the processor's peak, which is measured between the runs. Prints medians and the best run as a table or
// JSON.
//
//   kernel_bench [--types Q8_0,Q4_K] [--rows 1,16,512] [--isa LEVEL] [--threads N] [--n 2048 --k 2048] [--json]
//
// With --types all it prints the table of docs/performance.md instead: for each type how much of the read bandwidth one
// row uses, with more weights than a cache holds, and how much of the peak 16 and 512 rows reach. --types
// all=IQ2_XS,TQ1_0 prints the table's rows of these types.
//
// With --depths instead: attention of one decode row, or of --rows rows of one prefill, after so many positions, in the
// shape of a 1B Llama (16 layers, 32 query heads, 8 key-value heads, 64 elements), next to the memory bandwidth.
//
//   kernel_bench --depths 1024,8192 [--rows 256] [--kv-types f16,q8_0] [--isa LEVEL] [--threads N] [--runs N]
//
// With --vocab instead: what choosing tokens costs for --rows rows of logits, next to the product that makes these
// logits, with a Q8_0 matrix of --k inputs. Logits are normal numbers with a deviation of 3.
//
//   kernel_bench --vocab 151936 [--rows 64] [--k 896] [--isa LEVEL] [--threads N] [--runs N]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/aligned.h"
#include "base/cpus.h"
#include "base/status.h"
#include "coordinator/engine/sampler.h"
#include "fmt/core.h"
#include "kernels/ops.h"
#include "limits/machine_limits.h"
#include "runtime/measure.h"
#include "worker/layer.h"

namespace gyre {
namespace {

struct Flags {
  std::vector<std::string> types = {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K",
                                    "Q5_K", "Q6_K", "F16",  "BF16", "F32"};
  std::vector<size_t> rows = {1, 4, 16, 128, 512};
  std::string isa;
  int threads = DefaultThreads();
  size_t n = 2048, k = 2048;
  size_t vocab = 0;
  std::vector<uint32_t> depths;
  std::vector<std::string> kv_types = {"f16"};
  int runs = 7;
  bool json = false;
};

// Quantizes 64 random rows and repeats them up to n: speed does not depend on the values.
std::vector<std::byte> RandomWeights(DType type, size_t n, size_t k) {
  const DTypeInfo& info = Info(type);
  const size_t row = k / info.block_elems * info.block_bytes, distinct = std::min<size_t>(n, 64);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> values(distinct * k);
  for (float& v : values) v = normal(random);
  std::vector<std::byte> bytes(n * row);
  if (!Quantize(type, values.data(), bytes.data(), distinct * k)) {
    // There is no quantizer for this type: any bytes do, except those that make a scale infinite.
    for (size_t i = 0; i < distinct * row; ++i) bytes[i] = static_cast<std::byte>(random() & 0x3F);
  }
  for (size_t r = distinct; r < n; ++r)
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(r % distinct * row), row,
                bytes.begin() + static_cast<std::ptrdiff_t>(r * row));
  return bytes;
}

// Seconds per call, over as many calls as take about 20 ms.
template <typename Fn>
double Time(const Fn& f) {
  int calls = 1;
  for (;;) {
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) f();
    const double seconds = bench::Seconds(Clock::now() - start);
    if (seconds > 0.02) return seconds / calls;
    calls = std::max(calls + 1, static_cast<int>(calls * 0.025 / std::max(seconds, 1e-6)));
  }
}

// The KV cache of one layer with its pages in order, as a single sequence gets them.
struct LayerCache {
  std::unique_ptr<PagePool> pool;
  std::vector<BlockId> table;
};
LayerCache MakeCache(KvType type, uint32_t positions, Device& device) {
  const LayerSpec spec{.mixer = AttentionSpec{.heads = 8, .kv_heads = 8, .head_dim = 64}};
  LayerCache cache{.pool = nullptr, .table = std::vector<BlockId>((positions + 15) / 16)};
  auto pool = PagePool::Make(spec, static_cast<uint32_t>(cache.table.size()), 16, type, device);
  if (!pool.ok()) {
    fmt::print(stderr, "kernel_bench: {}\n", Message(pool.status()));
    std::exit(1);
  }
  cache.pool = *std::move(pool);
  std::iota(cache.table.begin(), cache.table.end(), BlockId{0});
  // Fills it with f16 values of about a thousandth: no denormal numbers, no infinities.
  const KvView& v = cache.pool->view();
  std::memset(v.k, 0x14, cache.table.size() * v.PageBytes());
  std::memset(v.v, 0x14, cache.table.size() * v.PageBytes());
  return cache;
}

int Attention(const Flags& flags, const std::vector<Isa>& levels) {
  constexpr size_t kLayers = 16, kHeads = 32;
  fmt::print("{:12} {:6} {:>7} {:>5} {:>9} {:>9} {:>8} {:>8} {:>13}\n", "isa", "kv", "depth", "rows", "ms", "best",
             "GFLOP/s", "GB/s", "of bandwidth");
  for (const std::string& name : flags.kv_types) {
    const auto type = ParseKvType(name);
    if (!type) {
      fmt::print(stderr, "kernel_bench: {} is no type of a KV cache\n", name);
      return 1;
    }
    for (uint32_t depth : flags.depths) {
      for (const size_t rows : flags.rows) {
        const auto device = MakeCpuDevice(levels.front(), flags.threads);
        std::vector<LayerCache> layers;
        for (size_t i = 0; i < kLayers; ++i)
          layers.push_back(MakeCache(*type, depth + static_cast<uint32_t>(rows), *device));
        const KvView& view = layers.front().pool->view();
        AlignedVector<float> q(rows * kHeads * 64), out(q.size());
        for (size_t i = 0; i < q.size(); ++i) q[i] = std::sin(static_cast<float>(i));
        const Arithmetic arithmetic = rows > 1 ? Arithmetic::kPrefill : Arithmetic::kDecode;
        for (Isa isa : levels) {
          auto backend = MakeBackend(isa, flags.threads);
          std::vector<double> seconds, bandwidths;
          for (int run = 0; run < flags.runs; ++run) {
            seconds.push_back(Time([&] {
              for (const LayerCache& layer : layers) {
                std::vector<KvRow> at;
                for (uint32_t r = 0; r < rows; ++r) at.push_back({layer.table.data(), depth + r});
                backend->Attention(q.data(), at, layer.pool->view(),
                                   {.heads = kHeads, .scale = 0.125f, .arithmetic = arithmetic}, out.data());
              }
            }));
            bandwidths.push_back(bench::ReadBandwidth(flags.threads));
          }
          std::sort(seconds.begin(), seconds.end());
          const double seen = static_cast<double>(rows) * (depth + static_cast<double>(rows + 1) / 2),
                       ops = seen * kLayers * kHeads * 64 * 4;
          const double bytes = static_cast<double>(kLayers * 2) * static_cast<double>(view.PageBytes()) *
                               static_cast<double>(depth + rows) / 16;
          const double median = bench::Median(seconds);
          fmt::print("{:12} {:6} {:7} {:5} {:9.2f} {:9.2f} {:8.1f} {:8.2f} {:12.0f}%\n", IsaName(isa), name, depth,
                     rows, median * 1e3, seconds.front() * 1e3, ops / median / 1e9, bytes / median / 1e9,
                     100 * bytes / median / bench::Median(bandwidths));
          std::fflush(stdout);
        }
      }
    }
  }
  return 0;
}

// One type in the table: shares of the bandwidth with one row, and of the peak with 16 and 512 rows.
struct Shares {
  double file_bits, packed_bits;  // a weight
  double one, gb_per_s, sixteen, prompt;
};
Shares Measure(Isa isa, DType type, const Flags& flags) {
  constexpr size_t kN = 8192, kK = 8192, kBytes = size_t{512} << 20;
  const std::vector<std::byte> bytes = RandomWeights(type, kN, kK);
  const WeightView view{.type = type, .n = kN, .k = kK, .data = bytes.data()};
  auto backend = MakeBackend(isa, flags.threads);
  std::vector<std::shared_ptr<const PackedWeight>> copies = {backend->Pack(view)};
  while (copies.size() * copies[0]->bytes < kBytes && !copies[0]->in_place) copies.push_back(backend->Pack(view));
  AlignedVector<float> x(512 * kK), out(512 * kN);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  const bool is_float = Info(type).block_elems == 1;
  const auto share_of_peak = [&](size_t rows, Arithmetic arithmetic) {
    std::vector<double> seconds, peaks;
    for (int run = 0; run < flags.runs; ++run) {
      seconds.push_back(Time([&] { backend->MatMul(x.data(), rows, *copies[0], out.data(), arithmetic); }));
      peaks.push_back(bench::PeakOps(isa, bench::UnitOf(isa, arithmetic, is_float), flags.threads));
    }
    return 2.0 * static_cast<double>(rows * kN * kK) / bench::Median(seconds) / bench::Median(peaks);
  };
  Shares s{};
  s.file_bits = 8.0 * Info(type).block_bytes / Info(type).block_elems;
  s.packed_bits = 8.0 * static_cast<double>(copies[0]->bytes) / static_cast<double>(kN * kK);
  std::vector<double> rates, bandwidths;
  size_t next = 0;
  for (int run = 0; run < flags.runs; ++run) {
    const double seconds =
        Time([&] { backend->MatMul(x.data(), 1, *copies[next++ % copies.size()], out.data(), Arithmetic::kDecode); });
    rates.push_back(static_cast<double>(copies[0]->bytes) / seconds);
    bandwidths.push_back(bench::ReadBandwidth(flags.threads));
  }
  s.gb_per_s = bench::Median(rates) / 1e9;
  s.one = bench::Median(rates) / bench::Median(bandwidths);
  s.sixteen = share_of_peak(16, Arithmetic::kDecode);
  s.prompt = share_of_peak(512, Arithmetic::kPrefill);
  return s;
}

// In markdown, as the page has it.
int Table(const Flags& flags, const std::vector<Isa>& levels, const std::vector<DType>& types) {
  fmt::print(
      "| type | bits a weight, in the file | packed | instruction set | 1 row: of the bandwidth | GB/s | 16 rows: of "
      "the peak | 512 rows |\n|---|---|---|---|---|---|---|---|\n");
  for (const DType type : types) {
    for (const Isa isa : levels) {
      const Shares s = Measure(isa, type, flags);
      fmt::print("| {} | {:.2f} | {:.2f} | {} | {:.2f} | {:.1f} | {:.2f} | {:.2f} |\n", Info(type).name, s.file_bits,
                 s.packed_bits, IsaName(isa), s.one, s.gb_per_s, s.sixteen, s.prompt);
      std::fflush(stdout);
    }
  }
  return 0;
}

// Each line has the time for all rows; the coordinator's part runs on one thread.
int Choosing(const Flags& flags, const std::vector<Isa>& levels) {
  const size_t vocab = flags.vocab;
  const std::vector<std::byte> bytes = RandomWeights(DType::kQ8_0, vocab, flags.k);
  const WeightView view{.type = DType::kQ8_0, .n = vocab, .k = flags.k, .data = bytes.data()};
  fmt::print("{:12} {:>5} {:36} {:>9} {:>9} {:>15}\n", "isa", "rows", "what", "ms", "best", "of the product");
  for (const Isa isa : levels) {
    auto backend = MakeBackend(isa, flags.threads);
    const auto head = backend->Pack(view);
    for (const size_t rows : flags.rows) {
      AlignedVector<float> x(rows * flags.k), out(rows * vocab), logits(rows * vocab);
      for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
      std::mt19937 random(1);
      std::normal_distribution<float> normal(0, 3);
      for (float& v : logits) v = normal(random);
      double product = 0;
      const auto line = [&](const char* what, const auto& f) {
        std::vector<double> seconds;
        for (int run = 0; run < flags.runs; ++run) seconds.push_back(Time(f));
        const double least = *std::min_element(seconds.begin(), seconds.end());
        if (product == 0) product = least;
        fmt::print("{:12} {:5} {:36} {:9.3f} {:9.3f} {:14.1f}%\n", IsaName(isa), rows, what,
                   bench::Median(seconds) * 1e3, least * 1e3, 100 * least / product);
        std::fflush(stdout);
      };
      line("the product", [&] { backend->MatMul(x.data(), rows, *head, out.data(), Arithmetic::kDecode); });
      constexpr uint32_t kMost = 64;
      std::vector<TokenId> ids(rows * kMost);
      std::vector<float> best(rows * kMost);
      std::vector<double> sums(rows);
      const auto top = [&](uint32_t k) {
        std::vector<TopKRow> of;
        for (size_t r = 0; r < rows; ++r) {
          of.push_back({.logits = &logits[r * vocab],
                        .k = k,
                        .skip = {},
                        .mask = {},
                        .ids = &ids[r * kMost],
                        .best = &best[r * kMost]});
        }
        backend->TopK(of, vocab);
        backend->Finish();
      };
      line("the best id", [&] { top(1); });
      line("the best 40", [&] { top(40); });
      line("the log-sum-exp at one temperature", [&] {
        std::vector<LogSumExpRow> of;
        for (size_t r = 0; r < rows; ++r) {
          of.push_back(
              {.logits = &logits[r * vocab], .inv_temperature = 1.25, .skip = {}, .mask = {}, .out = &sums[r]});
        }
        backend->LogSumExp(of, vocab);
        backend->Finish();
      });
      top(40);
      const SamplingParams params;  // as `gyre run` has them: temperature 0.8, the best 40, top-p, min-p
      const RowRequest request = MakeRowRequest(params, {}, {}, kMost);
      std::vector<RowAnswer> answers(rows);
      for (size_t r = 0; r < rows; ++r) {
        answers[r].mode = request.mode;
        for (size_t i = 0; i < 40; ++i)
          answers[r].top.push_back({.id = ids[r * kMost + i], .logit = best[r * kMost + i]});
      }
      line("filters and draw (coordinator)", [&] {
        for (const RowAnswer& answer : answers) {
          if (!SampleCandidates(params, {}, request, answer, static_cast<int>(vocab), 0).ok()) std::abort();
        }
      });
    }
  }
  return 0;
}

int Main(const Flags& flags) {
  std::vector<Isa> levels;
  for (Isa isa : BuiltIsas()) {
    if (isa != Isa::kRef && IsaMissing(isa).empty() && (flags.isa.empty() || flags.isa == IsaName(isa)))
      levels.push_back(isa);
  }
  if (levels.empty()) {
    fmt::print(stderr, "kernel_bench: this processor has no level {}\n", flags.isa);
    return 1;
  }
  if (!flags.depths.empty()) return Attention(flags, levels);
  if (flags.vocab > 0) return Choosing(flags, levels);
  constexpr std::string_view kAll = "all";
  if (flags.types[0] == kAll) {
    std::vector<DType> types;
    for (const DTypeInfo& info : DTypes()) {
      if (info.dequantizes) types.push_back(info.type);
    }
    return Table(flags, levels, types);
  }
  if (flags.types[0].starts_with("all=")) {
    std::vector<DType> types;
    for (std::string name : flags.types) {
      if (name.starts_with("all=")) name = name.substr(kAll.size() + 1);
      const DTypeInfo* info = FindDType(name);
      if (info == nullptr || !info->dequantizes) {
        fmt::print(stderr, "kernel_bench: {} is no type that can be made here\n", name);
        return 1;
      }
      types.push_back(info->type);
    }
    return Table(flags, levels, types);
  }
  std::string json;
  if (!flags.json)
    fmt::print("{:12} {:8} {:>5} {:>12} {:>9} {:>9} {:>8}\n", "isa", "type", "rows", "GOP/s median", "best", "of peak",
               "GB/s");
  for (Isa isa : levels) {
    auto backend = MakeBackend(isa, flags.threads);
    for (const std::string& name : flags.types) {
      const DTypeInfo* type = name == Info(DType::kF8E4M3).name ? &Info(DType::kF8E4M3) : FindDType(name);
      const bool fits =
          type != nullptr && (type->dequantizes || type->type == DType::kF8E4M3) && flags.k % type->block_elems == 0;
      const std::vector<std::byte> bytes =
          fits ? RandomWeights(type->type, flags.n, flags.k) : std::vector<std::byte>();
      if (bytes.empty()) {
        fmt::print(stderr, "kernel_bench: {} is no type that can be made here with k = {}\n", name, flags.k);
        return 1;
      }
      WeightView view{.type = type->type, .n = flags.n, .k = flags.k, .data = bytes.data()};
      constexpr size_t kGroup = 128;  // of 8-bit floats; a scale for each block
      const std::vector<float> scales((flags.n + kGroup - 1) / kGroup * ((flags.k + kGroup - 1) / kGroup), 0.01f);
      if (type->type == DType::kF8E4M3) {
        view.scales = reinterpret_cast<const std::byte*>(scales.data());
        view.group = kGroup;
      }
      const auto w = backend->Pack(view);
      for (const Arithmetic arithmetic : {Arithmetic::kDecode, Arithmetic::kPrefill}) {
        if (arithmetic == Arithmetic::kPrefill && backend->prefill_matches_decode()) continue;
        const std::string label = std::string(IsaName(isa)) + (arithmetic == Arithmetic::kPrefill ? ", prompt" : "");
        const bench::Unit unit = bench::UnitOf(isa, arithmetic, type->block_elems == 1);
        for (size_t rows : flags.rows) {
          AlignedVector<float> x(rows * flags.k), out(rows * flags.n);
          for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
          std::vector<double> seconds, peaks;
          backend->MatMul(x.data(), rows, *w, out.data(), arithmetic);
          for (int run = 0; run < flags.runs; ++run) {
            seconds.push_back(Time([&] { backend->MatMul(x.data(), rows, *w, out.data(), arithmetic); }));
            peaks.push_back(bench::PeakOps(isa, unit, flags.threads));
          }
          std::sort(seconds.begin(), seconds.end());
          const double ops =
              2.0 * static_cast<double>(rows) * static_cast<double>(flags.n) * static_cast<double>(flags.k);
          const double median = bench::Median(seconds), peak = bench::Median(peaks);
          const double gbs = static_cast<double>(w->bytes) / median / 1e9;
          if (flags.json) {
            json += fmt::format(
                "{}{{\"isa\": \"{}\", \"type\": \"{}\", \"rows\": {}, \"gops\": {:.1f}, \"best_gops\": {:.1f}, "
                "\"peak_gops\": {:.1f}, \"gb_per_s\": {:.2f}}}",
                json.empty() ? "" : ", ", label, name, rows, ops / median / 1e9, ops / seconds.front() / 1e9,
                peak / 1e9, gbs);
          } else {
            fmt::print("{:12} {:8} {:5} {:12.1f} {:9.1f} {:8.0f}% {:8.2f}\n", label, name, rows, ops / median / 1e9,
                       ops / seconds.front() / 1e9, 100 * ops / median / peak, gbs);
            std::fflush(stdout);
          }
        }
      }
    }
  }
  if (flags.json)
    fmt::print("{{\"machine\": {}, \"n\": {}, \"k\": {}, \"threads\": {}, \"runs\": {}, \"matmul\": [{}]}}\n",
               bench::DescribeMachine(), flags.n, flags.k, flags.threads, flags.runs, json);
  return 0;
}

}  // namespace
}  // namespace gyre

int main(int argc, char** argv) {
  CLI::App app("each kernel beside what the processor can do");
  gyre::Flags flags;
  app.add_option("--types", flags.types, "types as GGUF names them, or all")->delimiter(',');
  auto* rows =
      app.add_option("--rows", flags.rows, "rows of a product; of one sequence with --depths, one unless it is given")
          ->delimiter(',')
          ->check(CLI::Range(1, 1 << 16));
  app.add_option("--isa", flags.isa, "one instruction set instead of all that this processor has");
  app.add_option("--threads", flags.threads)->check(CLI::PositiveNumber);
  app.add_option("--n", flags.n, "outputs")->check(CLI::PositiveNumber);
  auto* k = app.add_option("--k", flags.k, "inputs")->check(CLI::PositiveNumber);
  app.add_option("--runs", flags.runs)->check(CLI::PositiveNumber);
  app.add_flag("--json", flags.json);
  app.add_option("--depths", flags.depths, "attention behind that many positions instead of products")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 24));
  app.add_option("--vocab", flags.vocab, "choosing tokens among so many ids instead of products")
      ->check(CLI::PositiveNumber);
  app.add_option("--kv-types", flags.kv_types, "of the KV cache")->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  if (!flags.depths.empty() && rows->count() == 0) flags.rows = {1};
  if (flags.vocab > 0 && rows->count() == 0) flags.rows = {64};
  if (flags.vocab > 0 && k->count() == 0) flags.k = 896;
  return gyre::Main(flags);
}
