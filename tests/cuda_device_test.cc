// The backend of GPUs as a device, on the emulated GPU: ops that are several launches against the reference, whole
// stages of small models, and the faults of a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "kernels/wire_rows.h"
#include "tests/testing/cuda_emulated.h"
#include "tests/testing/gpu_kernel_test.h"
#include "tests/testing/one_stage.h"
#include "tests/testing/products.h"
#include "tests/testing/tiny_hybrid.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;
using testing::Random;

class CudaDeviceTest : public ::testing::Test {
 protected:
  CudaDeviceTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  template <typename T>
  T* Up(const std::vector<T>& host) {
    auto& memory = memory_.emplace_back(device_->Allocate(host.size() * sizeof(T)));
    gpu_->CopyIn(host.data(), memory.data(), host.size() * sizeof(T));
    gpu_->Finish();
    return reinterpret_cast<T*>(memory.data());
  }
  template <typename T>
  T* Room(size_t n) {
    return reinterpret_cast<T*>(memory_.emplace_back(device_->Allocate(n * sizeof(T))).data());
  }
  template <typename T>
  std::vector<T> Down(const T* from, size_t n) {
    const auto values = gpu_->Download(from, n);
    gpu_->Finish();
    return {values.begin(), values.end()};
  }

  const std::shared_ptr<testing::EmulatedFaults> faults_ = std::make_shared<testing::EmulatedFaults>();
  const std::shared_ptr<Device> device_ = testing::MakeEmulatedCudaDevice(faults_);
  const std::unique_ptr<Backend> gpu_ = device_->NewBackend(), ref_ = MakeBackend(Isa::kRef, 1);
  std::deque<DeviceMemory> memory_;
};

TEST_F(CudaDeviceTest, CopiesAndOpsRunInTheirOrder) {
  float* x = Room<float>(4);
  EXPECT_EQ(Down(x, 4), std::vector<float>(4)) << "fresh memory";
  const std::vector<float> host{1, 2, 3, 4};
  std::vector<float> back(4, 7.0f);
  gpu_->CopyIn(host.data(), x, 16);
  gpu_->Scale(x, 3, 2);
  gpu_->AddInPlace(x, gpu_->Upload(std::span(host)).data(), 4);
  gpu_->CopyOut(x, back.data(), 16);
  EXPECT_NE(back, (std::vector<float>{3, 6, 9, 8})) << "it is not done";
  gpu_->Finish();
  EXPECT_EQ(back, (std::vector<float>{3, 6, 9, 8}));
  float* y = Room<float>(4);
  gpu_->Copy(x, y, 16);
  gpu_->Zero(x, 8);
  EXPECT_EQ(Down(x, 4), (std::vector<float>{0, 0, 9, 8}));
  EXPECT_EQ(Down(y, 4), back);
  gpu_->Recycle();
  EXPECT_DEATH(std::printf("%f\n", static_cast<double>(*static_cast<volatile float*>(x))), "");
}

TEST_F(CudaDeviceTest, FeedForwardBlocksMatchTheReference) {
  const size_t dim = 96, width = 64, rows = 5;
  std::vector<testing::Weights> files;
  for (size_t i = 0; i < 2; ++i)
    files.push_back(testing::MakeWeights(DType::kQ8_0, width, dim, 1 + static_cast<uint32_t>(i)));
  files.push_back(testing::MakeWeights(DType::kQ4_0, dim, width, 3));
  std::vector<std::shared_ptr<const PackedWeight>> near, far;
  for (const auto& f : files) near.push_back(ref_->Pack(f.view)), far.push_back(gpu_->Pack(f.view));
  const auto x = Random(rows * dim, 4), bias = Random(2 * width + dim, 5), before = Random(rows * dim, 6);
  float *on_x = Up(x), *on_bias = Up(bias);
  for (const bool gated : {true, false}) {
    for (const bool biased : {true, false}) {
      for (const bool add : {true, false}) {
        if (biased && add) continue;
        const auto ffn = [&](const auto& w, const float* b) {
          Backend::Ffn all{*w[gated ? 0 : 1], *w[1], *w[2]};
          if (biased) all.gate_bias = b, all.up_bias = b + width, all.down_bias = b + 2 * width;
          return all;
        };
        auto expected = before;
        ref_->FeedForward(x.data(), rows, ffn(near, bias.data()), Activation::kSilu, Arithmetic::kExact,
                          expected.data(), add);
        float* out = Up(before);
        gpu_->FeedForward(on_x, rows, ffn(far, on_bias), Activation::kSilu, Arithmetic::kExact, out, add);
        EXPECT_LT(testing::Distance(Down(out, rows * dim), expected), 1e-6) << gated << biased << add;
      }
    }
  }
}

// The error of rounding to int8 is that of the CPU's fastest instruction set.
TEST_F(CudaDeviceTest, QuantizedProductsAreAsGoodAsTheCpus) {
  const size_t n = 48, k = 512, rows = 9;
  const auto cpu = MakeBackend(DetectIsa(), 1);
  for (const DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ6_K, DType::kIQ4_XS}) {
    const auto file = testing::MakeWeights(type, n, k, 1);
    const auto x = Random(rows * k, 4);
    std::vector<float> expected(rows * n), of_cpu(rows * n);
    ref_->MatMul(x.data(), rows, *ref_->Pack(file.view), expected.data(), Arithmetic::kExact);
    cpu->MatMul(x.data(), rows, *cpu->Pack(file.view), of_cpu.data(), Arithmetic::kDecode);
    float* out = Room<float>(rows * n);
    const auto packed = gpu_->Pack(file.view);
    gpu_->MatMul(Up(x), rows, *packed, out, Arithmetic::kDecode);
    const auto got = Down(out, rows * n);
    EXPECT_LT(testing::Distance(got, expected), 1.1 * testing::Distance(of_cpu, expected)) << Info(type).name;
    // As a part of several products, which share the rounded rows, and added to what is there.
    float* sum = Up(std::vector<float>(rows * n, 1.0f));
    const Backend::Product both[] = {{*packed, out}, {*packed, sum, true}};
    gpu_->MatMul(Up(x), rows, both, Arithmetic::kDecode);
    const auto added = Down(sum, rows * n);
    EXPECT_EQ(Down(out, rows * n), got);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(added[i], got[i] + 1.0f);
    gpu_->MatMul(Up(x), rows, *packed, out, Arithmetic::kPrefill);
    EXPECT_LT(testing::Distance(Down(out, rows * n), expected), 0.01) << Info(type).name;
    gpu_->MatMul(Up(x), rows, *packed, out, Arithmetic::kExact);
    EXPECT_LT(testing::Distance(Down(out, rows * n), expected), 1e-6) << Info(type).name;
  }
}

// int8 and E4M3 whose scales lie beside them: packed, and where the scales cut the tiles' blocks as in the file.
TEST_F(CudaDeviceTest, TypesWithScalesOfTheirOwn) {
  for (const testing::ScaledWeights& m :
       {testing::MakeScaled(DType::kI8, 20, 128, 32, 0), testing::MakeScaled(DType::kI8, 20, 128, 16, 0),
        testing::MakeScaled(DType::kF8E4M3, 20, 128, 64, 30), testing::MakeScaled(DType::kF8E4M3, 20, 100, 12, 3)}) {
    const auto x = Random(3 * m.view.k, 4);
    std::vector<float> expected(3 * m.view.n);
    ref_->MatMul(x.data(), 3, *ref_->Pack(m.view), expected.data(), Arithmetic::kExact);
    const auto packed = gpu_->Pack(m.view);
    float* out = Room<float>(expected.size());
    for (const Arithmetic arithmetic : testing::kArithmetics) {
      gpu_->MatMul(Up(x), 3, *packed, out, arithmetic);
      const double most = arithmetic == Arithmetic::kExact ? 1e-6 : 0.02;
      EXPECT_LT(testing::Distance(Down(out, expected.size()), expected), most)
          << Info(m.view.type).name << m.view.group;
    }
  }
}

TEST_F(CudaDeviceTest, ProductsOfHeadsMatchTheReference) {
  const size_t heads = 3, rows = 4, k = 64, n = 10, x_stride = 70, out_stride = 12;
  std::vector<testing::Weights> files;
  std::vector<std::shared_ptr<const PackedWeight>> near, far;
  for (uint32_t h = 0; h < heads; ++h) files.push_back(testing::MakeWeights(DType::kF16, n, k, h));
  for (const auto& f : files) near.push_back(ref_->Pack(f.view)), far.push_back(gpu_->Pack(f.view));
  const auto x = Random(rows * heads * x_stride, 4);
  std::vector<float> expected(rows * heads * out_stride);
  ref_->MatMulHeads(near, x.data(), x_stride, rows, Arithmetic::kExact, expected.data(), out_stride);
  float* out = Room<float>(expected.size());
  for (const Arithmetic arithmetic : testing::kArithmetics) {
    gpu_->Zero(out, expected.size() * sizeof(float));
    gpu_->MatMulHeads(far, Up(x), x_stride, rows, arithmetic, out, out_stride);
    const double most = arithmetic == Arithmetic::kPrefill ? 5e-3 : 1e-6;
    EXPECT_LT(testing::Distance(Down(out, expected.size()), expected), most) << static_cast<int>(arithmetic);
  }
}

TEST_F(CudaDeviceTest, ExpertsAreChosenAsTheReferenceChoosesThem) {
  const size_t rows = 20, count = 24;
  auto scores = Random(rows * count, 1);
  for (size_t i = 0; i + 5 < scores.size(); i += 5) scores[i] = scores[i + 2];  // ties
  const auto bias = Random(count, 2, 0.1f);
  const float *on_scores = Up(scores), *on_bias = Up(bias);
  {  // SparseMixer
    const RouterParams p{.count = count, .used = 2, .near = 0.2f};
    std::vector<uint32_t> experts(rows * p.used);
    std::vector<float> weights(experts.size());
    ref_->ChooseExperts(scores.data(), rows, p, nullptr, experts.data(), weights.data());
    uint32_t* on_experts = Room<uint32_t>(experts.size());
    float* on_weights = Room<float>(experts.size());
    gpu_->ChooseExperts(on_scores, rows, p, nullptr, on_experts, on_weights);
    EXPECT_EQ(Down(on_experts, experts.size()), experts);
    const auto got = Down(on_weights, weights.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_FLOAT_EQ(got[i], weights[i]);
  }
  for (const bool sigmoid : {false, true}) {
    for (const bool normalize : {false, true}) {
      for (const bool biased : {false, true}) {
        for (const size_t groups : {1u, 4u}) {
          const RouterParams p{.count = count,
                               .used = 5,
                               .sigmoid = sigmoid,
                               .normalize = normalize,
                               .scale = 2.5f,
                               .groups = groups,
                               .used_groups = groups == 1 ? size_t{1} : size_t{2}};
          std::vector<uint32_t> experts(rows * p.used);
          std::vector<float> weights(experts.size());
          ref_->ChooseExperts(scores.data(), rows, p, biased ? bias.data() : nullptr, experts.data(), weights.data());
          uint32_t* on_experts = Room<uint32_t>(experts.size());
          float* on_weights = Room<float>(experts.size());
          gpu_->ChooseExperts(on_scores, rows, p, biased ? on_bias : nullptr, on_experts, on_weights);
          EXPECT_EQ(Down(on_experts, experts.size()), experts) << sigmoid << normalize << biased << groups;
          const auto got = Down(on_weights, weights.size());
          for (size_t i = 0; i < got.size(); ++i) EXPECT_FLOAT_EQ(got[i], weights[i]);
        }
      }
    }
  }
}

TEST_F(CudaDeviceTest, MixturesMatchTheReferenceAndTheRowAlone) {
  const size_t count = 5, used = 2, dim = 64, width = 32, rows = 11;
  std::vector<testing::Weights> files;
  for (uint32_t e = 0; e < count; ++e) {
    files.push_back(testing::MakeWeights(DType::kQ8_0, width, dim, 10 + e));
    files.push_back(testing::MakeWeights(DType::kQ4_1, width, dim, 20 + e));
    files.push_back(testing::MakeWeights(DType::kQ8_0, dim, width, 30 + e));
  }
  std::vector<std::shared_ptr<const PackedWeight>> near, far;
  for (const auto& f : files) near.push_back(ref_->Pack(f.view)), far.push_back(gpu_->Pack(f.view));
  const auto x = Random(rows * dim, 1), weights = Random(rows * used, 2), scales = Random(count, 3),
             bias = Random(2 * width + dim, 4, 0.1f);
  std::vector<uint32_t> chosen;
  std::mt19937 random(7);
  for (size_t r = 0; r < rows; ++r) {
    const auto first = static_cast<uint32_t>(random() % 3);  // the last expert is never chosen
    chosen.push_back(first);
    chosen.push_back(first + 1);
  }
  const float *on_x = Up(x), *on_weights = Up(weights), *on_scales = Up(scales), *on_bias = Up(bias);
  const uint32_t* on_chosen = Up(chosen);
  for (const bool gated : {true, false}) {
    for (const bool biased : {true, false}) {
      const auto experts = [&](const auto& w, const float* b) {
        std::vector<Backend::Ffn> all;
        for (size_t e = 0; e < count; ++e) {
          Backend::Ffn ffn{*w[3 * e + (gated ? 0 : 1)], *w[3 * e + 1], *w[3 * e + 2]};
          if (biased) ffn.gate_bias = b, ffn.up_bias = b + width, ffn.down_bias = b + 2 * width;
          if (biased) ffn.gate_limit = 0.5f, ffn.up_limit = 0.4f;
          all.push_back(ffn);
        }
        return all;
      };
      const auto near_experts = experts(near, bias.data()), far_experts = experts(far, on_bias);
      Backend::Mixture mixture{far_experts, biased ? on_scales : nullptr, Activation::kSilu, on_chosen, on_weights,
                               used};
      float* out = Room<float>(rows * dim);
      std::vector<float> got;
      for (const bool exact : {true, false}) {
        const Arithmetic arithmetic = exact ? Arithmetic::kExact : Arithmetic::kDecode;
        const Backend::RowRun runs[] = {{4, exact ? Arithmetic::kExact : Arithmetic::kPrefill}, {rows - 4, arithmetic}};
        std::vector<float> expected(rows * dim);
        ref_->MixExperts(
            x.data(), runs,
            {near_experts, biased ? scales.data() : nullptr, Activation::kSilu, chosen.data(), weights.data(), used},
            expected.data());
        gpu_->MixExperts(on_x, runs, mixture, out);
        got = Down(out, rows * dim);
        // The reference rounds nothing. Beside the roundings, what the limits leave is small.
        EXPECT_LT(testing::Distance(got, expected), exact ? 1e-6 : biased ? 0.05 : 0.015) << gated << biased << exact;
      }
      const Backend::RowRun one[] = {{1, Arithmetic::kDecode}};
      mixture.chosen += 9 * used;
      mixture.weights += 9 * used;
      gpu_->MixExperts(on_x + 9 * dim, one, mixture, out);
      EXPECT_EQ(std::memcmp(Down(out, dim).data(), &got[9 * dim], dim * sizeof(float)), 0);
    }
  }
}

TEST_F(CudaDeviceTest, RecurrentStateMatchesTheReferenceInAnyChunks) {
  const size_t rows = 23, channels = 70, taps = 4;
  const auto x = Random(rows * channels, 1), w = Random(taps * channels, 2), bias = Random(channels, 3);
  const auto state = Random(2 * (taps - 1) * channels + 5, 4);
  const size_t second = (taps - 1) * channels;
  const float *on_x = Up(x), *on_w = Up(w), *on_bias = Up(bias);
  for (const bool silu : {false, true}) {
    auto states = state;
    std::vector<float> expected(rows * channels);
    ShortConvParams p{.channels = channels,
                      .taps = taps,
                      .w = w.data(),
                      .bias = silu ? bias.data() : nullptr,
                      .silu = silu,
                      .state_at = 5};
    const StateRun host[] = {{states.data(), 0, 9}, {states.data() + second, 9, 14}};
    ref_->ShortConv(x.data(), channels, host, p, expected.data());
    float *on_state = Up(state), *out = Room<float>(rows * channels);
    p.w = on_w;
    p.bias = silu ? on_bias : nullptr;
    gpu_->ShortConv(on_x, channels, std::vector<StateRun>{{on_state, 0, 9}, {on_state + second, 9, 6}}, p, out);
    gpu_->ShortConv(on_x, channels, std::vector<StateRun>{{on_state + second, 15, 8}}, p, out);
    EXPECT_LT(testing::Distance(Down(out, expected.size()), expected), 1e-6);
    EXPECT_EQ(Down(on_state, states.size()), states);
  }
  const size_t heads = 4, keys = 2, key_dim = 20, value_dim = 16, wide = 2 * keys * key_dim + heads * value_dim;
  const auto u = Random(rows * wide, 5), gates = Random((1 + key_dim) * rows * heads, 6, 0.3f), skip = Random(heads, 7);
  const auto before = Random(2 * heads * key_dim * value_dim, 8);
  const auto remove = Random(rows * wide, 9, 0.2f), replace = Random(rows * wide, 10, 0.2f);
  for (const int mode : {0, 1, 2, 3, 4}) {
    const bool delta = mode % 2 == 1, channels = mode >= 2, removal = mode == 4;
    StateScanParams p{.key_heads = keys,
                      .value_heads = heads,
                      .key_dim = key_dim,
                      .value_dim = value_dim,
                      .interleaved = !delta,
                      .channel_decay = channels,
                      .delta = delta,
                      .removal = removal,
                      .key_norm_eps = delta ? 1e-6f : 0,
                      .skip = delta ? nullptr : skip.data(),
                      .scale = 0.4f};
    const size_t half = heads * key_dim * value_dim;
    const auto at = [&](const float* all, const float* of_gates) {
      return StateScanRows{all,  all + keys * key_dim,    all + 2 * keys * key_dim,
                           wide, of_gates + rows * heads, of_gates};
    };
    auto states = before;
    std::vector<float> expected(rows * heads * value_dim);
    StateScanRows on_host = at(u.data(), gates.data());
    if (removal) on_host.beta = nullptr, on_host.remove = remove.data(), on_host.replace = replace.data();
    ref_->ScanState(on_host, std::vector<StateRun>{{states.data(), 0, 9}, {states.data() + half, 9, 14}}, p,
                    expected.data());
    const auto scan = [&](size_t chunk) {
      float *on_state = Up(before), *out = Room<float>(expected.size());
      StateScanParams on_p = p;
      on_p.skip = delta ? nullptr : Up(skip);
      StateScanRows all = at(Up(u), Up(gates));
      if (removal) all.beta = nullptr, all.remove = Up(remove), all.replace = Up(replace);
      gpu_->ScanState(all, std::vector<StateRun>{{on_state, 0, 9}, {on_state + half, 9, chunk}}, on_p, out);
      if (chunk < 14) gpu_->ScanState(all, std::vector<StateRun>{{on_state + half, 9 + chunk, 14 - chunk}}, on_p, out);
      auto got = Down(out, expected.size());
      const auto after = Down(on_state, before.size());
      EXPECT_LT(testing::Distance(after, states), 1e-5);
      got.insert(got.end(), after.begin(), after.end());
      return got;
    };
    const auto got = scan(14);
    EXPECT_LT(testing::Distance(got, expected), 1e-5);
    EXPECT_EQ(scan(5), got) << "in chunks";
  }
  const std::vector<float> a = {-0.5f, -2, -0.01f, -8}, offsets = {0.1f, -60, 30, 0};
  std::vector<float> step(rows * heads), decay(step.size());
  float *on_step = Room<float>(step.size()), *on_decay = Room<float>(step.size());
  for (const DecayStep form : {DecayStep::kSoftplus, DecayStep::kSigmoid}) {
    ref_->DecayGates(u.data(), rows, heads, 1, offsets.data(), a.data(), form, step.data(), decay.data());
    gpu_->DecayGates(Up(u), rows, heads, 1, Up(offsets), Up(a), form, on_step, on_decay);
    const auto got_step = Down(on_step, step.size()), got_decay = Down(on_decay, step.size());
    for (size_t i = 0; i < step.size(); ++i) {
      EXPECT_FLOAT_EQ(got_step[i], step[i]);
      EXPECT_FLOAT_EQ(got_decay[i], decay[i]);
    }
  }
  // Two convolutions of one input.
  const auto pair = Random(2 * taps * channels, 11);
  ShortConvParams two{.channels = channels, .taps = taps, .w = pair.data(), .outputs = 2, .output_step = x.size() + 3};
  auto kept = state;
  std::vector<float> expected(2 * two.output_step);
  ref_->ShortConv(x.data(), channels, std::vector<StateRun>{{kept.data(), 0, rows}}, two, expected.data());
  float *on_kept = Up(state), *out = Up(std::vector<float>(expected.size()));
  two.w = Up(pair);
  gpu_->ShortConv(Up(x), channels, std::vector<StateRun>{{on_kept, 0, rows}}, two, out);
  EXPECT_LT(testing::Distance(Down(out, expected.size()), expected), 1e-6);
  EXPECT_EQ(Down(on_kept, kept.size()), kept);
}

TEST_F(CudaDeviceTest, RowsOnTheWireHaveTheBytesOfTheReference) {
  for (const size_t dim : {32u, 45u, 300u}) {
    const size_t rows = 3;
    auto x = Random(rows * dim, static_cast<uint32_t>(dim), 100);
    x[1] = 1e30f, x[2] = -70000, x[dim] = INFINITY, x[dim + 1] = 9e6f;
    for (const DType type : {DType::kF32, DType::kF16, DType::kQ8_0}) {
      const size_t bytes = rows * WireRowBytes(type, dim);
      std::vector<std::byte> expected(bytes);
      uint64_t cut = 5;
      ref_->EncodeRows(type, x.data(), rows, dim, expected.data(), &cut);
      std::byte* out = Room<std::byte>(bytes);
      uint64_t* on_cut = Up(std::vector<uint64_t>{5});
      gpu_->EncodeRows(type, Up(x), rows, dim, out, on_cut);
      EXPECT_EQ(Down(out, bytes), expected) << Info(type).name << ", rows of " << dim;
      EXPECT_EQ(Down(on_cut, 1)[0], cut);
      std::vector<float> back(rows * dim);
      ref_->DecodeRows(type, expected.data(), rows, dim, back.data());
      float* on_back = Room<float>(back.size());
      gpu_->DecodeRows(type, out, rows, dim, on_back);
      const auto got = Down(on_back, back.size());
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_TRUE(got[i] == back[i] || (std::isnan(got[i]) && std::isnan(back[i]))) << Info(type).name << ", " << i;
    }
  }
}

// So many that the scratch of their splits does not hold all of them at once.
TEST_F(CudaDeviceTest, AttentionOfManyRowsGoesByParts) {
  const size_t rows = 20, key_dim = 8, value_dim = 4096;
  const KvView form{.type = KvType::kF32, .block_size = 16, .kv_heads = 1, .head_dim = key_dim, .value_dim = value_dim};
  const auto k = Random(rows * key_dim, 1), v = Random(rows * value_dim, 2), q = Random(rows * key_dim, 3);
  const std::vector<BlockId> table = {1, 0};
  std::vector<std::byte> keys(2 * form.PageBytes()), values(2 * form.ValuePageBytes());
  KvView near = form, far = form;
  near.k = keys.data(), near.v = values.data(), far.k = Up(keys), far.v = Up(values);
  const BlockId* on_table = Up(table);
  std::vector<KvRow> near_rows, far_rows;
  for (uint32_t p = 0; p < rows; ++p) near_rows.push_back({table.data(), p}), far_rows.push_back({on_table, p});
  const AttentionParams params{.heads = 1, .scale = 0.3f, .end = 65536};
  std::vector<float> expected(rows * value_dim);
  ref_->StoreKv(k.data(), v.data(), near_rows, near);
  ref_->Attention(q.data(), near_rows, near, params, expected.data());
  const std::span<const KvRow> on_rows(Up(far_rows), rows);
  float* out = Room<float>(expected.size());
  gpu_->StoreKv(Up(k), Up(v), on_rows, far);
  gpu_->Attention(Up(q), on_rows, far, params, out);
  EXPECT_LT(testing::Distance(Down(out, expected.size()), expected), 1e-6);
}

TEST_F(CudaDeviceTest, MemoryThatRunsOutSaysWhatWasNeeded) {
  faults_->limit = faults_->used + 100;
  try {
    Room<float>(100);
    FAIL() << "it fits";
  } catch (const std::bad_alloc& e) {
    EXPECT_THAT(e.what(), HasSubstr("100 bytes free, 400 are needed"));
  }
  faults_->limit = SIZE_MAX;
  EXPECT_NE(Room<float>(100), nullptr);
}

// All layers of a small model in one stage, with prompts and generated rows of two sequences.
std::vector<std::vector<float>> RunStage(const std::vector<std::byte>& file, std::shared_ptr<Device> device,
                                         KvType kv) {
  testing::OneStage stage(*OpenModelFromBytes(file), std::move(device), true, kv);
  const RowRequest last{.first = 0, .mode = RowMode::kFullLogits};
  std::vector<std::vector<float>> logits;
  for (const auto& step : std::vector<std::vector<testing::OneStage::Part>>{
           {{0, 0, RowClass::kPrompt, {4, 5, 6, 90, 7}, {{.first = 3, .count = 2, .mode = RowMode::kFullLogits}}}},
           {{0, 5, RowClass::kGenerated, {11}, {last}},
            {1, 0, RowClass::kPrompt, {3, 2, 1}, {{.first = 2, .mode = RowMode::kFullLogits}}}},
           {{1, 3, RowClass::kGenerated, {50}, {last}}, {0, 6, RowClass::kGenerated, {12}, {last}}}}) {
    for (auto& row : stage.Run(step)) logits.push_back(std::move(row));
  }
  return logits;
}

TEST(CudaStageTest, StagesOfEveryKindOfLayerMatchTheReference) {
  std::vector<std::pair<std::string, std::vector<std::byte>>> models;
  models.emplace_back("llama", testing::BuildTinyModel({.layers = 2, .vocab = testing::kVocab}));
  for (const char* arch : {"qwen3next", "lfm2", "nemotron_h_moe", "deepseek2"})
    models.emplace_back(arch, testing::BuildTinyHybrid(arch));
  for (const auto& [name, file] : models) {
    const auto expected = RunStage(file, MakeCpuDevice(Isa::kRef, 1), KvType::kF16),
               got = RunStage(file, testing::MakeEmulatedCudaDevice(), KvType::kF16);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t r = 0; r < got.size(); ++r)
      EXPECT_LT(testing::Distance(got[r], expected[r]), 2e-4) << name << ", row " << r;
  }
}

class CudaStageFaults : public ::testing::Test {
 protected:
  Status Step() {
    StepAnswer answer;
    return stage_.Try({{0, 0, RowClass::kPrompt, {4, 5, 6}, {{.first = 2, .mode = RowMode::kFullLogits}}}}, &answer);
  }
  const std::vector<std::byte> file_ = testing::BuildTinyModel({.layers = 2, .vocab = testing::kVocab});
  const std::shared_ptr<testing::EmulatedFaults> faults_ = std::make_shared<testing::EmulatedFaults>();
  testing::OneStage stage_{*OpenModelFromBytes(file_), testing::MakeEmulatedCudaDevice(faults_)};
};

TEST_F(CudaStageFaults, AnOpThatFailsFailsTheStepAndTheNextOneIsComputed) {
  EXPECT_TRUE(Step().ok());
  faults_->refuses = true;
  try {
    static_cast<void>(Step());
    FAIL() << "a refused launch";
  } catch (const DeviceFailed& e) {
    EXPECT_THAT(e.what(), HasSubstr("could not be launched"));
  }
  stage_.queue().Finish();
  faults_->fails = true;
  EXPECT_THROW(static_cast<void>(Step()), DeviceFailed);
  EXPECT_TRUE(Step().ok());
  faults_->lost = true;
  EXPECT_THROW(static_cast<void>(Step()), DeviceLost);
}

}  // namespace
}  // namespace gyre
