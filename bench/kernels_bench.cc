// What the kernels reach: products for one row as a share of the memory bandwidth measured in the same run, products
// for many rows in GFLOP/s, and the ops of one token of a tiny model in microseconds. Medians and best of alternating
// passes: on a shared host the quiet moments are the best ones.
//
//   kernels_bench [--json] [--isa NAME] [--threads N] [--n N] [--k K]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bench/machine.h"
#include "fmt/core.h"
#include "kernels/ops.h"

namespace gyre {
namespace {

struct Flags {
  bool json = false;
  Isa isa = DetectIsa();
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  size_t n = 8192;  // a gate or up projection of a 1B Llama
  size_t k = 2048;
};

struct Times {
  double median = 0;
  double best = 0;
};

// Seconds of fn(pass), over at least `passes` and 0.3 s.
Times Measure(int passes, const std::function<void(int)>& fn) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  fn(0);
  double total = 0;
  for (int pass = 1; pass <= passes || total < 0.3; ++pass) {
    const auto start = Clock::now();
    fn(pass);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    total += seconds.back();
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds.front()};
}

std::vector<float> Random(size_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> v(n);
  for (float& x : v) x = normal(random);
  return v;
}

// Enough matrices that none is still cached when its turn comes again.
struct Layers {
  std::vector<std::byte> bytes;
  std::vector<std::shared_ptr<const PackedWeight>> packed;
};

Layers MakeLayers(Backend& backend, DType type, const Flags& flags, size_t total_bytes) {
  const DTypeInfo& info = Info(type);
  const size_t bytes = flags.n * flags.k / info.block_elems * info.block_bytes;
  Layers layers;
  const size_t count = std::max<size_t>(1, total_bytes / bytes);
  layers.bytes.resize(count * bytes);
  std::mt19937_64 random(2);
  for (size_t i = 0; i + 8 <= layers.bytes.size(); i += 8) {
    // 0x3C is neither a huge exponent of any float type nor a subnormal one.
    const uint64_t v = (random() & 0x1F1F1F1F1F1F1F1Full) | 0x2020202020202020ull;
    std::memcpy(layers.bytes.data() + i, &v, 8);
  }
  for (size_t i = 0; i < count; ++i) {
    layers.packed.push_back(backend.Pack({type, flags.n, flags.k, layers.bytes.data() + i * bytes}));
  }
  return layers;
}

class Report {
 public:
  explicit Report(bool json) : json_(json) {}
  void Add(const std::string& name, const std::string& unit, double median, double best, double share = -1) {
    if (json_) {
      rows_ += fmt::format(R"({}{{"name": "{}", "unit": "{}", "median": {:.4g}, "best": {:.4g})",
                           rows_.empty() ? "" : ",\n  ", name, unit, median, best);
      if (share >= 0) rows_ += fmt::format(R"(, "share_of_bandwidth": {:.3f})", share);
      rows_ += "}";
      return;
    }
    fmt::print("{:<24} {:>9.4g} {} (best {:.4g})", name, median, unit, best);
    if (share >= 0) fmt::print(", {:.0f}% of the bandwidth", 100 * share);
    fmt::print("\n");
    std::fflush(stdout);
  }
  void Finish() const {
    if (json_) fmt::print("{{\"machine\": {},\n \"results\": [\n  {}]}}\n", bench::DescribeMachine(), rows_);
  }

 private:
  bool json_;
  std::string rows_;
};

void BenchProducts(Backend& backend, DType type, const Flags& flags, Report& report) {
  const std::string name = Info(type).name;
  const Layers layers = MakeLayers(backend, type, flags, size_t{256} << 20);
  const auto x = Random(512 * flags.k);
  std::vector<float> out(512 * flags.n);
  auto pass = [&](size_t rows, int i) {
    backend.MatMul(x.data(), rows, *layers.packed[static_cast<size_t>(i) % layers.packed.size()], out.data());
  };
  // The limit is measured beside it: a neighbour may have taken half of it meanwhile.
  const double limit = bench::ReadBandwidth(flags.threads);
  const auto bytes = static_cast<double>(layers.packed.front()->bytes);
  const Times one = Measure(20, [&](int i) { pass(1, i); });
  const double top = std::max(limit, bench::ReadBandwidth(flags.threads));
  report.Add(name + " 1 row", "GB/s", bytes / one.median * 1e-9, bytes / one.best * 1e-9, bytes / one.median / top);
  const double flop = 2 * static_cast<double>(flags.n * flags.k);
  for (size_t rows : {4u, 16u, 512u}) {
    const Times many = Measure(rows > 100 ? 2 : 10, [&](int i) { pass(rows, i); });
    const double work = flop * static_cast<double>(rows) * 1e-9;
    report.Add(fmt::format("{} {} rows", name, rows), "GFLOP/s", work / many.median, work / many.best);
  }
}

void BenchAttention(Backend& backend, bool half, size_t rows, uint32_t context, Report& report) {
  constexpr int kHeads = 32, kKvHeads = 8, kDim = 64, kBlock = 16;
  const size_t pages = context / kBlock + 1;
  std::vector<BlockId> table(pages);
  for (size_t i = 0; i < pages; ++i) table[i] = static_cast<BlockId>(i * 7 % pages);
  std::vector<std::byte> k(pages * kBlock * kKvHeads * kDim * (half ? 2 : 4)), v(k.size());
  KvView kv{.half = half, .k = k.data(), .v = v.data(), .block_size = kBlock, .kv_heads = kKvHeads, .head_dim = kDim};
  const auto fresh = Random(kKvHeads * kDim);
  std::vector<KvRow> at;
  for (uint32_t p = 0; p < context; ++p) {
    const KvRow row{table.data(), p};
    backend.StoreKv(fresh.data(), fresh.data(), {&row, 1}, kv);
    if (p + rows >= context) at.push_back(row);
  }
  const auto q = Random(rows * kHeads * kDim);
  std::vector<float> out(q.size());
  const Times t = Measure(10, [&](int) {
    backend.Attention(q.data(), at, kv, {.heads = kHeads, .scale = 0.125f, .softcap = 0, .window = 0}, out.data());
  });
  const double work = 4.0 * kHeads * kDim * static_cast<double>(rows * context) * 1e-9;
  report.Add(fmt::format("attention {} {}x{}", half ? "f16" : "f32", rows, context), "GFLOP/s", work / t.median,
             work / t.best);
}

void BenchLogits(Backend& backend, Report& report) {
  constexpr size_t kVocab = 128256;
  const auto logits = Random(kVocab);
  std::vector<TokenId> ids;
  const Times top = Measure(20, [&](int) { backend.TopK(logits.data(), kVocab, 64, {}, {}, &ids); });
  report.Add("top 64 of 128k", "us", top.median * 1e6, top.best * 1e6);
  double sum = 0;
  const Times lse = Measure(20, [&](int) { sum += backend.LogSumExp(logits.data(), kVocab, 1.25, {}, {}); });
  report.Add(sum > 0 ? "log-sum-exp of 128k" : "", "us", lse.median * 1e6, lse.best * 1e6);
}

// Every op of one generated token: 5 layers, dim 64, hidden 172, vocabulary 512, position 200, f32.
void BenchTiny(Backend& backend, Report& report) {
  constexpr size_t kDim = 64, kHidden = 172, kVocab = 512;
  const auto data = Random(kVocab * kDim);
  auto weight = [&](size_t n, size_t k) {
    return backend.Pack({DType::kF32, n, k, reinterpret_cast<const std::byte*>(data.data())});
  };
  const auto square = weight(kDim, kDim), up = weight(kHidden, kDim), down = weight(kDim, kHidden);
  const auto head = weight(kVocab, kDim);
  std::vector<float> x(kDim), y(kHidden), z(kHidden), q(kDim), k(kDim), v(kDim), logits(kVocab), angle(4, 0.5f);
  std::vector<float> pool(2 * 16 * kDim * 16);
  std::vector<BlockId> table(16);
  for (size_t i = 0; i < 16; ++i) table[i] = static_cast<BlockId>(i);
  KvView kv{.half = false,
            .k = reinterpret_cast<std::byte*>(pool.data()),
            .v = reinterpret_cast<std::byte*>(pool.data() + 16 * kDim * 16),
            .block_size = 16,
            .kv_heads = 4,
            .head_dim = 8};
  const KvRow row{table.data(), 200};
  std::vector<TokenId> ids;
  auto token = [&](int) {
    const TokenId id = 7;
    backend.Embed(&id, 1, *head, x.data());
    for (int layer = 0; layer < 5; ++layer) {
      backend.RmsNorm(x.data(), 1, kDim, data.data(), 1e-5f, y.data());
      backend.MatMul(y.data(), 1, *square, q.data());
      backend.MatMul(y.data(), 1, *square, k.data());
      backend.MatMul(y.data(), 1, *square, v.data());
      backend.Rope(q.data(), 1, 8, 8, angle.data(), angle.data(), 4, RopePairing::kInterleaved);
      backend.Rope(k.data(), 1, 8, 8, angle.data(), angle.data(), 4, RopePairing::kInterleaved);
      backend.StoreKv(k.data(), v.data(), {&row, 1}, kv);
      backend.Attention(q.data(), {&row, 1}, kv, {.heads = 8, .scale = 0.35f, .softcap = 0, .window = 0}, y.data());
      backend.MatMul(y.data(), 1, *square, z.data());
      backend.AddInPlace(x.data(), z.data(), kDim);
      backend.RmsNorm(x.data(), 1, kDim, data.data(), 1e-5f, y.data());
      backend.MatMul(y.data(), 1, *up, z.data());
      backend.MatMul(y.data(), 1, *up, y.data());
      backend.GatedActivation(z.data(), y.data(), kHidden, Activation::kSilu, z.data());
      backend.MatMul(z.data(), 1, *down, y.data());
      backend.AddInPlace(x.data(), y.data(), kDim);
    }
    backend.RmsNorm(x.data(), 1, kDim, data.data(), 1e-5f, y.data());
    backend.MatMul(y.data(), 1, *head, logits.data());
    backend.TopK(logits.data(), kVocab, 64, {}, {}, &ids);
    backend.LogSumExp(logits.data(), kVocab, 1, {}, {});
  };
  const Times t = Measure(200, token);
  report.Add("token of a tiny model", "us", t.median * 1e6, t.best * 1e6);
}

bool Parse(int argc, char** argv, Flags* flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--json") {
      flags->json = true;
      continue;
    }
    if (i + 1 == argc) return false;
    const std::string value = argv[++i];
    if (flag == "--isa") {
      bool found = false;
      for (Isa isa : {Isa::kRef, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni}) {
        if (value == IsaName(isa) && IsaMissing(isa).empty()) flags->isa = isa, found = true;
      }
      if (!found) return false;
    } else if (flag == "--threads") {
      flags->threads = std::max(1, std::atoi(value.c_str()));
    } else if (flag == "--n") {
      flags->n = static_cast<size_t>(std::max(16, std::atoi(value.c_str())));
    } else if (flag == "--k") {
      flags->k = static_cast<size_t>(std::max(1, std::atoi(value.c_str()) / 256)) * 256;
    } else {
      return false;
    }
  }
  return true;
}

int Main(int argc, char** argv) {
  Flags flags;
  if (!Parse(argc, argv, &flags)) {
    fmt::print(stderr, "usage: kernels_bench [--json] [--isa avx2|avx512|avx512vnni] [--threads N] [--n N] [--k K]\n");
    return 2;
  }
  auto backend = MakeBackend(flags.isa, flags.threads);
  Report report(flags.json);
  const double limit = bench::ReadBandwidth(flags.threads) * 1e-9;
  report.Add("memory read", "GB/s", limit, limit);
  for (DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ6_K, DType::kF16, DType::kBF16, DType::kF32,
                     DType::kQ5_K, DType::kQ5_0}) {
    BenchProducts(*backend, type, flags, report);
  }
  for (const bool half : {true, false}) {
    BenchAttention(*backend, half, 1, 4096, report);
    BenchAttention(*backend, half, 128, 2048, report);
  }
  BenchLogits(*backend, report);
  BenchTiny(*backend, report);
  report.Finish();
  return 0;
}

}  // namespace
}  // namespace gyre

int main(int argc, char** argv) {
  return gyre::Main(argc, argv);
}
