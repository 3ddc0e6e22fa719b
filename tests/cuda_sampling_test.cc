// GPU ops on rows of logits against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/sampling/sampling.h"
#include "tests/testing/gpu_kernel_test.h"

namespace gyre {
namespace {

using testing::GpuVector;
using testing::Random;

class CudaSampling : public testing::GpuKernelTest {};

// Rows that differ in what they leave out.
struct Rows {
  size_t count, vocab;
  std::vector<float> logits;
  std::vector<TokenId> skip;
  std::vector<uint64_t> mask;
  bool Skips(size_t r) const { return r % 2 == 1; }
  bool Masks(size_t r) const { return r >= 2; }
};
Rows Make(size_t vocab, bool nan) {
  Rows rows{4, vocab, Random(4 * vocab, static_cast<uint32_t>(vocab), 4), {}, std::vector<uint64_t>((vocab + 63) / 64)};
  for (size_t i = 0; i + 7 < rows.logits.size(); i += 7) rows.logits[i] = rows.logits[i + 3];  // ties
  if (vocab > 100)
    rows.logits[17] = nan ? NAN : 1.0f, rows.logits[18] = -INFINITY, rows.logits[19] = -0.0f, rows.logits[20] = 0.0f;
  std::mt19937 random(3);
  for (size_t i = 0; i < vocab; ++i) {
    if (random() % 9 == 0) rows.skip.push_back(static_cast<TokenId>(i));
    if (random() % 2 == 0) rows.mask[i / 64] |= uint64_t{1} << (i % 64);
  }
  return rows;
}

TEST_F(CudaSampling, TheBestIdsAreThoseOfTheReference) {
  // 17,000 ids have five parts, whose best 1,024 are more than a block sorts at once.
  for (const size_t vocab : {1u, 5u, 64u, 1000u, 9001u, 17000u}) {
    for (const uint32_t k : {1u, 40u, 1024u}) {
      if ((vocab < 64 || vocab == 17000) && (k == 1024) != (vocab == 17000)) continue;
      const Rows rows = Make(vocab, true);
      const GpuVector<float> logits(rows.logits);
      const GpuVector<TokenId> skip(rows.skip);
      const GpuVector<uint64_t> mask(rows.mask);
      GpuVector<TokenId> ids(rows.count * k);
      GpuVector<float> best(rows.count * k);
      std::vector<TokenId> expected_ids(rows.count * k, 99999);
      std::vector<float> expected(rows.count * k);
      std::vector<TopKRow> host, device;
      for (size_t r = 0; r < rows.count; ++r) {
        const uint32_t of_row = r == 1 ? 1 : k;
        const size_t skipped = rows.Skips(r) ? rows.skip.size() : 0, masked = rows.Masks(r) ? rows.mask.size() : 0;
        host.push_back({&rows.logits[r * vocab], of_row, std::span(rows.skip).first(skipped),
                        std::span(rows.mask).first(masked), &expected_ids[r * k], &expected[r * k]});
        device.push_back({logits.data() + r * vocab,
                          of_row,
                          {skip.data(), skipped},
                          {mask.data(), masked},
                          ids.data() + r * k,
                          best.data() + r * k});
      }
      ref_->TopK(host, vocab);
      const GpuVector<TopKRow> on_rows(device);
      GpuVector<uint64_t> scratch(cuda::TopKScratch(rows.count, vocab, k));
      simt::SetOrder(simt::Order::kRandom, k);
      cuda::TopK(nullptr, on_rows.data(), rows.count, vocab, k, scratch.data());
      for (size_t r = 0; r < rows.count; ++r) {
        const uint32_t of_row = host[r].k;
        std::vector<TokenId> got(of_row);
        std::vector<float> values(of_row);
        simt::CopyOut(ids.data() + r * k, got.data(), of_row * sizeof(TokenId));
        simt::CopyOut(best.data() + r * k, values.data(), of_row * sizeof(float));
        for (uint32_t i = 0; i < of_row; ++i) {
          ASSERT_EQ(got[i], expected_ids[r * k + i]) << vocab << " ids, row " << r << ", place " << i;
          ASSERT_EQ(std::memcmp(&values[i], &expected[r * k + i], 4), 0);
        }
      }
    }
  }
}

TEST_F(CudaSampling, SumsMatchTheReferenceAndTheRowAlone) {
  for (const size_t vocab : {1u, 5u, 100u, 4096u, 9001u}) {
    const Rows rows = Make(vocab, false);
    const GpuVector<float> logits(rows.logits);
    const GpuVector<TokenId> skip(rows.skip);
    const GpuVector<uint64_t> mask(rows.mask);
    GpuVector<double> out(rows.count), alone(1);
    std::vector<double> expected(rows.count);
    std::vector<LogSumExpRow> host, device;
    for (size_t r = 0; r < rows.count; ++r) {
      const size_t skipped = rows.Skips(r) ? rows.skip.size() : 0, masked = rows.Masks(r) ? rows.mask.size() : 0;
      const double inverse = r == 3 ? 10.0 : r == 2 ? 0.5 : 1.0;
      host.push_back({&rows.logits[r * vocab], inverse, std::span(rows.skip).first(skipped),
                      std::span(rows.mask).first(masked), &expected[r]});
      device.push_back(
          {logits.data() + r * vocab, inverse, {skip.data(), skipped}, {mask.data(), masked}, out.data() + r});
    }
    ref_->LogSumExp(host, vocab);
    GpuVector<double> scratch(cuda::LogSumExpScratch(rows.count, vocab));
    const GpuVector<LogSumExpRow> on_rows(device);
    cuda::LogSumExp(nullptr, on_rows.data(), rows.count, vocab, scratch.data());
    const auto got = out.host();
    for (size_t r = 0; r < rows.count; ++r) {
      if (std::isinf(expected[r]))
        EXPECT_EQ(got[r], expected[r]) << vocab;
      else
        EXPECT_NEAR(got[r], expected[r], 1e-12 * std::max(1.0, std::fabs(expected[r]))) << vocab << ", row " << r;
      device[r].out = alone.data();
      const GpuVector<LogSumExpRow> one(std::vector<LogSumExpRow>{device[r]});
      cuda::LogSumExp(nullptr, one.data(), 1, vocab, scratch.data());
      EXPECT_EQ(alone.host()[0], got[r]);
    }
  }
}

TEST_F(CudaSampling, ARowOfWhichNothingRemains) {
  const GpuVector<float> logits(std::vector<float>{1, 2, INFINITY});
  const GpuVector<uint64_t> none(std::vector<uint64_t>{0}), third(std::vector<uint64_t>{4});
  GpuVector<double> sums(2), scratch(cuda::LogSumExpScratch(2, 3));
  const GpuVector<LogSumExpRow> rows(
      std::vector<LogSumExpRow>{{logits.data(), 1, {}, {none.data(), 1}, sums.data()},
                                {logits.data(), 1, {}, {third.data(), 1}, sums.data() + 1}});
  cuda::LogSumExp(nullptr, rows.data(), 2, 3, scratch.data());
  EXPECT_EQ(sums.host(), (std::vector<double>{-INFINITY, INFINITY}));
  GpuVector<TokenId> ids(2);
  GpuVector<float> best(2);
  GpuVector<uint64_t> keys(cuda::TopKScratch(1, 3, 2));
  const GpuVector<TopKRow> top(
      std::vector<TopKRow>{{logits.data(), 2, {}, {third.data(), 1}, ids.data(), best.data()}});
  cuda::TopK(nullptr, top.data(), 1, 3, 2, keys.data());
  EXPECT_EQ(ids.host(), (std::vector<TokenId>{2, -1}));
  EXPECT_EQ(best.host(), (std::vector<float>{INFINITY, 0}));
}

TEST_F(CudaSampling, PicksLogitsOfIds) {
  const auto x = Random(1000, 1);
  const GpuVector<float> logits(x);
  const std::vector<TokenId> wanted = {999, 0, 17, 17};
  const GpuVector<TokenId> ids(wanted);
  GpuVector<float> out(4);
  const GpuVector<PickRow> rows(std::vector<PickRow>{{logits.data(), {ids.data(), 4}, out.data()}});
  cuda::Pick(nullptr, rows.data(), 1);
  EXPECT_EQ(out.host(), (std::vector<float>{x[999], x[0], x[17], x[17]}));
}

}  // namespace
}  // namespace gyre
