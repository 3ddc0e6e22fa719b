#include "bench/gpu_ops.h"

#include <cmath>
#include <deque>
#include <memory>
#include <random>
#include <span>

#include "fmt/core.h"
#include "kernels/wire_rows.h"
#include "tests/testing/products.h"

namespace gyre::bench {
namespace {

using testing::MakeWeights;
using testing::Random;
using testing::Weights;

// Tensors of one op on the device of a queue.
class Tensors {
 public:
  explicit Tensors(Backend& queue) : queue_(queue) {}

  template <typename T>
  T* Up(const std::vector<T>& host) {
    DeviceMemory& memory = memory_.emplace_back(queue_.device().Allocate(host.size() * sizeof(T)));
    queue_.CopyIn(host.data(), memory.data(), host.size() * sizeof(T));
    queue_.Finish();
    return reinterpret_cast<T*>(memory.data());
  }
  template <typename T>
  T* Room(size_t n) {
    return reinterpret_cast<T*>(memory_.emplace_back(queue_.device().Allocate(n * sizeof(T))).data());
  }
  template <typename T>
  std::vector<std::byte> Down(const T* from, size_t n) {
    std::vector<std::byte> bytes(n * sizeof(T));
    queue_.CopyOut(from, bytes.data(), bytes.size());
    queue_.Finish();
    return bytes;
  }
  std::shared_ptr<const PackedWeight> Pack(const Weights& w) { return weights_.emplace_back(queue_.Pack(w.view)); }

 private:
  Backend& queue_;
  std::deque<DeviceMemory> memory_;
  std::deque<std::shared_ptr<const PackedWeight>> weights_;
};

void Append(std::vector<std::byte>* to, const std::vector<std::byte>& more) {
  to->insert(to->end(), more.begin(), more.end());
}

const char* NameOf(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kExact: return "exact";
    case Arithmetic::kDecode: return "generated";
    case Arithmetic::kPrefill: return "prompt";
  }
  return "";
}

GoldenOp ProductOf(DType type, Arithmetic arithmetic) {
  return {fmt::format("product {} {}", Info(type).name, NameOf(arithmetic)), [=](Backend& queue) {
            const size_t n = 48, k = 512, rows = 5;
            Tensors t(queue);
            const auto w = t.Pack(MakeWeights(type, n, k, 1));
            float* out = t.Room<float>(rows * n);
            queue.MatMul(t.Up(Random(rows * k, 2)), rows, *w, out, arithmetic);
            return t.Down(out, rows * n);
          }};
}

// A cache with `positions` positions of one sequence, and queries at its end.
struct Attended {
  KvView view;
  std::vector<KvRow> all;
  size_t heads = 4;
};
Attended MakeCache(Tensors* t, Backend& queue, KvType type, int kv_heads, int head_dim, int value_dim,
                   uint32_t positions) {
  Attended a;
  a.view = {.type = type, .block_size = 16, .kv_heads = kv_heads, .head_dim = head_dim, .value_dim = value_dim};
  a.view.values_in_keys = value_dim != 0 && value_dim != head_dim;
  const uint32_t blocks = (positions + 15) / 16;
  std::vector<BlockId> table;
  for (uint32_t b = 0; b < blocks; ++b) table.push_back(blocks - 1 - b);
  a.view.k = t->Room<std::byte>(blocks * a.view.PageBytes());
  if (!a.view.values_in_keys) a.view.v = t->Room<std::byte>(blocks * a.view.ValuePageBytes());
  const BlockId* on_device = t->Up(table);
  for (uint32_t p = 0; p < positions; ++p) a.all.push_back({on_device, p});
  const size_t width = static_cast<size_t>(kv_heads) * static_cast<size_t>(head_dim);
  const std::span<const KvRow> rows(t->Up(a.all), a.all.size());
  const float* k = t->Up(Random(positions * width, 3));
  const float* v =
      a.view.values_in_keys ? nullptr : t->Up(Random(positions * static_cast<size_t>(kv_heads) * a.view.ValueDim(), 4));
  queue.StoreKv(k, v, rows, a.view);
  return a;
}

GoldenOp AttentionOf(KvType type, bool latent, Arithmetic arithmetic) {
  return {fmt::format("attention {}{} {}", KvTypeName(type), latent ? " latent" : "", NameOf(arithmetic)),
          [=](Backend& queue) {
            Tensors t(queue);
            const uint32_t positions = 300;
            const Attended a = MakeCache(&t, queue, type, latent ? 1 : 2, 64, latent ? 32 : 64, positions);
            const size_t rows = 3;
            const std::vector<KvRow> last(a.all.end() - rows, a.all.end());
            float* out = t.Room<float>(rows * a.heads * a.view.ValueDim());
            const float* q = t.Up(Random(rows * a.heads * 64, 5));
            std::vector<std::byte> bytes;
            for (const int window : {0, 100}) {
              AttentionParams params{.heads = static_cast<int>(a.heads), .scale = 0.125f, .window = window};
              params.softcap = window > 0 ? 30.0f : 0;
              params.sinks = window > 0 ? t.Up(Random(a.heads, 6)) : nullptr;
              params.end = positions;
              params.arithmetic = arithmetic;
              queue.Attention(q, {t.Up(last), rows}, a.view, params, out);
              Append(&bytes, t.Down(out, rows * a.heads * a.view.ValueDim()));
            }
            return bytes;
          }};
}

GoldenOp Elementwise(Activation act, const char* name) {
  return {fmt::format("activation {}", name), [=](Backend& queue) {
            const size_t n = 1000;
            Tensors t(queue);
            float* out = t.Room<float>(n);
            const float *x = t.Up(Random(n, 1, 4.0f)), *y = t.Up(Random(n, 2));
            queue.GatedActivation(x, y, n, act, out);
            return t.Down(out, n);
          }};
}

void AddRowGoldens(std::vector<GoldenOp>* out) {
  out->push_back({"norms", [](Backend& queue) {
                    std::vector<std::byte> bytes;
                    for (const size_t dim : {64u, 300u, 4096u}) {
                      const size_t rows = 3;
                      Tensors t(queue);
                      float* made = t.Room<float>(rows * dim);
                      queue.RmsNorm(t.Up(Random(rows * dim, 1)), rows, dim, t.Up(Random(dim, 2)), 1e-5f, made);
                      Append(&bytes, t.Down(made, rows * dim));
                    }
                    return bytes;
                  }});
  out->push_back({"rotary positions", [](Backend& queue) {
                    const size_t rows = 4, half = 32;
                    Tensors t(queue);
                    std::vector<double> frequencies;
                    for (size_t i = 0; i < half; ++i) frequencies.push_back(std::pow(10000.0, -2.0 * double(i) / 64));
                    std::vector<KvRow> places;
                    for (const uint32_t p : {0u, 1u, 1000u, 100000u}) places.push_back({nullptr, p});
                    float *cos = t.Room<float>(rows * half), *sin = t.Room<float>(rows * half);
                    queue.RotaryTable({t.Up(places), rows}, t.Up(frequencies), half, 1.0f, cos, sin);
                    float* x = t.Up(Random(rows * 2 * 64, 1));
                    queue.Rope(x, rows, 2, 64, cos, sin, half, RopePairing::kHalves);
                    return t.Down(x, rows * 2 * 64);
                  }});
  out->push_back({"softcap and sigmoid", [](Backend& queue) {
                    const size_t rows = 5, dim = 200;
                    Tensors t(queue);
                    float *x = t.Up(Random(rows * dim, 1, 50.0f)), *made = t.Room<float>(rows);
                    queue.SoftcapInPlace(x, rows * dim, 30);
                    queue.SigmoidDot(x, rows, dim, t.Up(Random(dim, 2, 0.1f)), made);
                    std::vector<std::byte> bytes = t.Down(x, rows * dim);
                    Append(&bytes, t.Down(made, rows));
                    return bytes;
                  }});
  for (const DType type : {DType::kF16, DType::kQ8_0}) {
    out->push_back({fmt::format("rows on the wire {}", Info(type).name), [type](Backend& queue) {
                      const size_t rows = 3, dim = 320, size = rows * WireRowBytes(type, dim);
                      Tensors t(queue);
                      std::byte* made = t.Room<std::byte>(size);
                      queue.EncodeRows(type, t.Up(Random(rows * dim, 1, 100)), rows, dim, made, t.Room<uint64_t>(1));
                      return t.Down(made, size);
                    }});
  }
  out->push_back(
      {"best ids and sums", [](Backend& queue) {
         const size_t vocab = 10000;
         Tensors t(queue);
         const float* logits = t.Up(Random(vocab, 1, 5));
         TokenId* ids = t.Room<TokenId>(40);
         float* best = t.Room<float>(40);
         double* sum = t.Room<double>(1);
         const TopKRow top[] = {{.logits = logits, .k = 40, .skip = {}, .mask = {}, .ids = ids, .best = best}};
         const LogSumExpRow sums[] = {{.logits = logits, .inv_temperature = 1.25, .skip = {}, .mask = {}, .out = sum}};
         queue.TopK(top, vocab);
         queue.LogSumExp(sums, vocab);
         std::vector<std::byte> bytes = t.Down(ids, 40);
         Append(&bytes, t.Down(best, 40));
         Append(&bytes, t.Down(sum, 1));
         return bytes;
       }});
}

void AddMixerGoldens(std::vector<GoldenOp>* out) {
  out->push_back({"choice of experts", [](Backend& queue) {
                    const size_t rows = 9, count = 32;
                    Tensors t(queue);
                    std::vector<std::byte> bytes;
                    for (const bool sigmoid : {false, true}) {
                      const RouterParams p{.count = count, .used = 4, .sigmoid = sigmoid, .normalize = true};
                      uint32_t* experts = t.Room<uint32_t>(rows * 4);
                      float* weights = t.Room<float>(rows * 4);
                      queue.ChooseExperts(t.Up(Random(rows * count, 1)), rows, p, nullptr, experts, weights);
                      Append(&bytes, t.Down(experts, rows * 4));
                      Append(&bytes, t.Down(weights, rows * 4));
                    }
                    return bytes;
                  }});
  out->push_back({"recurrent state", [](Backend& queue) {
                    const size_t rows = 11, heads = 4, keys = 2, key_dim = 32, value_dim = 32;
                    const size_t wide = 2 * keys * key_dim + heads * value_dim, size = heads * key_dim * value_dim;
                    Tensors t(queue);
                    std::vector<std::byte> bytes;
                    for (const bool delta : {false, true}) {
                      const StateScanParams p{.key_heads = keys,
                                              .value_heads = heads,
                                              .key_dim = key_dim,
                                              .value_dim = value_dim,
                                              .delta = delta,
                                              .key_norm_eps = 1e-6f,
                                              .scale = 0.2f};
                      const float* u = t.Up(Random(rows * wide, 1));
                      float *state = t.Up(Random(size, 3)), *made = t.Room<float>(rows * heads * value_dim);
                      const float *decay = t.Up(Random(rows * heads, 2, 0.3f)),
                                  *beta = t.Up(Random(rows * heads, 4, 0.3f));
                      const StateRun run[] = {{state, 0, rows}};
                      queue.ScanState({u, u + keys * key_dim, u + 2 * keys * key_dim, wide, decay, beta}, run, p, made);
                      Append(&bytes, t.Down(made, rows * heads * value_dim));
                      Append(&bytes, t.Down(state, size));
                    }
                    return bytes;
                  }});
}

}  // namespace

std::vector<GoldenOp> GoldenOps() {
  std::vector<GoldenOp> out;
  for (const DType type : testing::kTypes) {
    for (const Arithmetic a : testing::kArithmetics) out.push_back(ProductOf(type, a));
  }
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kQ8_0, KvType::kQ4_0}) {
    for (const Arithmetic a : {Arithmetic::kDecode, Arithmetic::kPrefill}) {
      out.push_back(AttentionOf(type, false, a));
      out.push_back(AttentionOf(type, true, a));
    }
  }
  const std::pair<Activation, const char*> acts[] = {
      {Activation::kSilu, "silu"}, {Activation::kGeluTanh, "gelu"}, {Activation::kClampedSwiglu, "clamped swiglu"}};
  for (const auto& [act, name] : acts) out.push_back(Elementwise(act, name));
  AddRowGoldens(&out);
  AddMixerGoldens(&out);
  return out;
}

std::vector<RowOp> RowOps(bool small) {
  std::vector<RowOp> out;
  const size_t n = small ? 32 : 256, k = small ? 256 : 1024;
  for (const DType type : testing::kTypes) {
    for (const Arithmetic arithmetic : {Arithmetic::kDecode, Arithmetic::kPrefill}) {
      out.push_back({fmt::format("product {} {}", Info(type).name, NameOf(arithmetic)),
                     [=](Backend& queue, size_t rows, size_t row, bool alone) {
                       Tensors t(queue);
                       const auto w = t.Pack(MakeWeights(type, n, k, 1));
                       const float* x = t.Up(Random(rows * k, 2));
                       float* made = t.Room<float>(rows * n);
                       queue.MatMul(alone ? x + row * k : x, alone ? 1 : rows, *w, made, arithmetic);
                       return t.Down(alone ? made : made + row * n, n);
                     }});
    }
  }
  for (const KvType type : {KvType::kF16, KvType::kQ8_0}) {
    out.push_back(
        {fmt::format("attention {}", KvTypeName(type)), [=](Backend& queue, size_t rows, size_t row, bool alone) {
           Tensors t(queue);
           const auto positions = static_cast<uint32_t>(rows + 270);
           const Attended a = MakeCache(&t, queue, type, 2, 64, 64, positions);
           const std::vector<KvRow> last(a.all.end() - static_cast<std::ptrdiff_t>(rows), a.all.end());
           const size_t wide = a.heads * 64;
           const float* q = t.Up(Random(rows * wide, 5));
           const KvRow* places = t.Up(last);
           float* made = t.Room<float>(rows * wide);
           const AttentionParams params{.heads = static_cast<int>(a.heads), .scale = 0.1f, .end = positions};
           const size_t first = alone ? row : 0;
           queue.Attention(q + first * wide, {places + first, alone ? 1 : rows}, a.view, params, made);
           return t.Down(alone ? made : made + row * wide, wide);
         }});
  }
  return out;
}

std::vector<TimedOp> TimedOps(bool small) {
  std::vector<TimedOp> out;
  const size_t n = small ? 64 : 4096, k = small ? 256 : 4096;
  for (const DType type : {DType::kBF16, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K}) {
    for (const size_t rows : small ? std::vector<size_t>{1, 8} : std::vector<size_t>{1, 8, 64, 512}) {
      const bool prompt = rows > 64;
      const double weights = static_cast<double>(n * k) * static_cast<double>(Info(type).block_bytes) /
                             static_cast<double>(Info(type).block_elems);
      out.push_back({.name = fmt::format("product {}", Info(type).name),
                     .shape = fmt::format("{} {} rows, {} x {}", rows, prompt ? "prompt" : "generated", n, k),
                     .bytes = weights + 4.0 * static_cast<double>(rows * (n + k)),
                     .operations = 2.0 * static_cast<double>(rows * n * k),
                     .make = [=](Backend& queue) -> std::function<void()> {
                       auto t = std::make_shared<Tensors>(queue);
                       // Zeros of the right size: the time does not depend on the values.
                       const std::vector<std::byte> zeros(static_cast<size_t>(weights));
                       const Weights w{{}, {.type = type, .n = n, .k = k, .data = zeros.data()}};
                       const auto packed = t->Pack(w);
                       const float* x = t->Room<float>(rows * k);
                       float* made = t->Room<float>(rows * n);
                       const Arithmetic a = prompt ? Arithmetic::kPrefill : Arithmetic::kDecode;
                       return [=, &queue] { queue.MatMul(x, rows, *packed, made, a), static_cast<void>(t); };
                     }});
    }
  }
  const uint32_t positions = small ? 64 : 4096;
  for (const KvType type : {KvType::kF16, KvType::kQ8_0}) {
    const size_t rows = small ? 2 : 64, heads = 32, wide = heads * 128;
    const double bytes = 2.0 * static_cast<double>(KvBytes(type, size_t{positions} * 8 * 128));
    out.push_back({.name = fmt::format("attention {}", KvTypeName(type)),
                   .shape = fmt::format("{} generated rows, {} positions", rows, positions),
                   .bytes = bytes,  // the rows are of one sequence
                   .operations = 4.0 * static_cast<double>(rows * wide) * positions,
                   .make = [=](Backend& queue) -> std::function<void()> {
                     auto t = std::make_shared<Tensors>(queue);
                     const Attended a = MakeCache(t.get(), queue, type, 8, 128, 128, positions);
                     const std::vector<KvRow> last(rows, a.all.back());
                     const KvRow* places = t->Up(last);
                     const float* q = t->Room<float>(rows * wide);
                     float* made = t->Room<float>(rows * wide);
                     const AttentionParams params{.heads = static_cast<int>(heads), .scale = 0.1f, .end = positions};
                     return [=, &queue] {
                       queue.Attention(q, {places, rows}, a.view, params, made), static_cast<void>(t);
                     };
                   }});
  }
  const size_t rows = small ? 2 : 64, dim = small ? 256 : 4096;
  out.push_back({.name = "norm",
                 .shape = fmt::format("{} rows of {}", rows, dim),
                 .bytes = 8.0 * static_cast<double>(rows * dim),
                 .operations = 0,
                 .make = [=](Backend& queue) -> std::function<void()> {
                   auto t = std::make_shared<Tensors>(queue);
                   const float *x = t->Room<float>(rows * dim), *w = t->Room<float>(dim);
                   float* made = t->Room<float>(rows * dim);
                   return [=, &queue] { queue.RmsNorm(x, rows, dim, w, 1e-5f, made), static_cast<void>(t); };
                 }});
  return out;
}

}  // namespace gyre::bench
