// GPU attention over pages, and what it stores there, against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "tests/testing/gpu_kernel_test.h"

namespace gyre {
namespace {

using testing::GpuVector;
using testing::Random;

constexpr KvType kKvTypes[] = {KvType::kF32,  KvType::kF16,       KvType::kBf16,
                               KvType::kQ8_0, KvType::kQ4_0Plain, KvType::kQ4_0};

// One sequence's pages, on the host with the reference's contents, and on the device.
class CudaAttention : public testing::GpuKernelTest {
 protected:
  struct Cache {
    std::vector<std::byte> k, v;
    KvView view;  // of the host
    std::vector<BlockId> table;
    std::vector<KvRow> rows;  // of all positions
  };
  // Pages of NaN, in a mixed order.
  static Cache Make(const KvView& form, uint32_t positions) {
    Cache c;
    c.view = form;
    const auto block = static_cast<uint32_t>(form.block_size), blocks = (positions + block - 1) / block;
    c.k.assign((blocks + 2) * form.PageBytes(), std::byte{0xFF});
    c.v.assign((blocks + 2) * form.ValuePageBytes(), std::byte{0xFF});
    c.view.k = c.k.data();
    c.view.v = c.v.data();
    for (uint32_t b = 0; b < blocks; ++b) c.table.push_back(blocks - b);
    for (uint32_t p = 0; p < positions; ++p) c.rows.push_back({c.table.data(), p});
    return c;
  }
  void Fill(Cache* c) {
    const auto heads = static_cast<size_t>(c->view.kv_heads);
    const auto k = Random(c->rows.size() * heads * static_cast<size_t>(c->view.head_dim), 1);
    const auto v = Random(c->rows.size() * heads * c->view.ValueDim(), 2);
    ref_->StoreKv(k.data(), v.data(), c->rows, c->view);
  }
  struct OnDevice {
    GpuVector<std::byte> k, v;
    GpuVector<BlockId> table;
    KvView view;
    std::vector<KvRow> Rows(const std::vector<KvRow>& host) const {
      std::vector<KvRow> rows = host;
      for (KvRow& row : rows) row.table = table.data();
      return rows;
    }
  };
  static OnDevice Up(const Cache& c) {
    OnDevice d{GpuVector<std::byte>(c.k), GpuVector<std::byte>(c.v), GpuVector<BlockId>(c.table), c.view};
    d.view.k = d.k.data();
    d.view.v = c.view.values_in_keys ? nullptr : d.v.data();
    return d;
  }
  // sinks: the host's.
  static std::vector<float> Attend(const OnDevice& d, const std::vector<float>& q, const std::vector<KvRow>& host_rows,
                                   AttentionParams params) {
    const GpuVector<float> on_q(q);
    const GpuVector<KvRow> rows(d.Rows(host_rows));
    const auto heads = static_cast<size_t>(params.heads);
    const GpuVector<float> sinks(params.sinks == nullptr ? std::vector<float>(1)
                                                         : std::vector<float>(params.sinks, params.sinks + heads));
    if (params.sinks != nullptr) params.sinks = sinks.data();
    size_t splits = 1;
    for (const KvRow& row : host_rows) splits = std::max(splits, 1 + row.position / cuda::kSplit);
    GpuVector<float> scratch(cuda::AttentionScratch(rows.size(), params.heads, splits, d.view)),
        out(rows.size() * heads * d.view.ValueDim());
    cuda::Attention(nullptr, on_q.data(), rows.data(), rows.size(), d.view, params, splits, scratch.data(), out.data());
    return out.host();
  }
  void Compare(const Cache& c, const std::vector<uint32_t>& positions, const AttentionParams& params,
               const std::string& what) {
    std::vector<KvRow> rows;
    for (const uint32_t p : positions) rows.push_back(c.rows[p]);
    const auto heads = static_cast<size_t>(params.heads), width = heads * static_cast<size_t>(c.view.head_dim),
               out_width = heads * c.view.ValueDim();
    const auto q = Random(rows.size() * width, 3);
    std::vector<float> expected(rows.size() * out_width);
    ref_->Attention(q.data(), rows, c.view, params, expected.data());
    const OnDevice d = Up(c);
    const auto got = Attend(d, q, rows, params);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-5) << what << ", " << i;
    simt::SetOrder(simt::Order::kRandom, rows.size());
    for (size_t r = 0; r < rows.size(); r += 2) {
      const auto alone = Attend(d, {&q[r * width], &q[r * width] + width}, {rows[r]}, params);
      ASSERT_EQ(std::memcmp(alone.data(), &got[r * out_width], out_width * sizeof(float)), 0) << what << ", row " << r;
    }
    simt::SetOrder(simt::Order::kRising);
  }
};

TEST_F(CudaAttention, StoresTheBytesOfTheReference) {
  std::vector<float> numbers = {0.0f,   -0.0f,        INFINITY,         -INFINITY,   65504,          65519,  65520,
                                -1e30f, 6e-8f,        2.9e-8f,          3.1e-8f,     -6.1e-5f,       1e-40f, 2049,
                                2051,   1 + 0x1p-11f, 1 + 3 * 0x1p-11f, 1 + 0x1p-8f, 1 + 3 * 0x1p-8f};
  const size_t special = numbers.size();
  for (const float f : Random(4096, 3)) numbers.push_back(f);
  for (const KvType type : kKvTypes) {
    for (const int head_dim : {20, 64, 96}) {
      if (KvHasScales(type) && head_dim % 32 != 0) continue;
      for (const int block : {8, 16, 5}) {
        Cache c = Make({.type = type,
                        .block_size = block,
                        .kv_heads = 2,
                        .head_dim = head_dim,
                        .value_dim = head_dim == 96 ? 32 : 0},
                       11);
        const size_t width = 2 * static_cast<size_t>(head_dim), values = 2 * c.view.ValueDim();
        // A scale takes in no infinity.
        const auto number = [&](size_t i) {
          return KvHasScales(type) ? numbers[special + i % 4096] : numbers[i % numbers.size()];
        };
        std::vector<float> k(c.rows.size() * width), v(c.rows.size() * values);
        for (size_t i = 0; i < k.size(); ++i) k[i] = number(i);
        for (size_t i = 0; i < v.size(); ++i) v[i] = number(i + 7);
        std::fill_n(k.begin(), 32, 0.0f);  // a block of zeros
        OnDevice d = Up(c);
        ref_->StoreKv(k.data(), v.data(), c.rows, c.view);
        const GpuVector<float> on_k(k), on_v(v);
        const GpuVector<KvRow> rows(d.Rows(c.rows));
        cuda::StoreKv(nullptr, on_k.data(), on_v.data(), rows.data(), rows.size(), d.view);
        EXPECT_EQ(d.k.host(), c.k) << KvTypeName(type) << ", heads of " << head_dim << ", pages of " << block;
        EXPECT_EQ(d.v.host(), c.v) << KvTypeName(type) << ", heads of " << head_dim << ", pages of " << block;
      }
    }
  }
}

TEST_F(CudaAttention, MatchesTheReferenceAndTheRowAlone) {
  const float sinks[] = {-50, 3, 0.5f, 200};  // far below the scores, among them, far above
  for (const KvType type : kKvTypes) {
    for (const int window : {0, 5, 300}) {
      const int head_dim = KvHasScales(type) ? 32 : window == 5 ? 20 : 16;
      Cache c = Make({.type = type, .kv_heads = 2, .head_dim = head_dim}, 600);
      Fill(&c);
      const AttentionParams params{.heads = 4,
                                   .scale = 0.3f,
                                   .softcap = window == 5 ? 20.0f : 0.0f,
                                   .window = window,
                                   .chunk = window == 0 ? 0 : 100,
                                   .sinks = window == 300 ? sinks : nullptr};
      Compare(c, {0, 1, 15, 16, 255, 256, 257, 599}, params,
              std::string(KvTypeName(type)) + ", window " + std::to_string(window));
    }
  }
}

// Pages of any size, values narrower than keys, and values that are the first part of the keys.
TEST_F(CudaAttention, PagesAndHeadsOfAnyForm) {
  struct Form {
    KvView view;
    int heads;
  };
  for (const KvType type : {KvType::kF16, KvType::kQ8_0, KvType::kQ4_0}) {
    for (const Form& form :
         {Form{{.block_size = 10, .kv_heads = 2, .head_dim = 32}, 6},
          Form{{.block_size = 1, .kv_heads = 1, .head_dim = 64}, 1},
          Form{{.block_size = 300, .kv_heads = 2, .head_dim = 96, .value_dim = 32}, 2},
          Form{{.block_size = 16, .kv_heads = 1, .head_dim = 160}, 3},
          Form{{.block_size = 16, .kv_heads = 2, .head_dim = 64, .value_dim = 32}, 14},
          Form{{.block_size = 16, .kv_heads = 3, .head_dim = 96}, 3},
          Form{{.block_size = 16, .kv_heads = 1, .head_dim = 96, .value_dim = 64, .values_in_keys = true}, 5}}) {
      KvView view = form.view;
      view.type = type;
      Cache c = Make(view, 290);
      Fill(&c);
      Compare(c, {3, 270, 289}, {.heads = form.heads, .scale = 0.1f},
              std::string(KvTypeName(type)) + ", pages of " + std::to_string(view.block_size));
    }
  }
}

TEST_F(CudaAttention, AUsualPageCostsFewSectorsTooMany) {
  if (!simt::kChecked) GTEST_SKIP() << "accesses are seen only where they are checked";
  for (const KvType type : kKvTypes) {
    for (const int heads : {1, 4}) {
      Cache c = Make({.type = type, .kv_heads = 1, .head_dim = 128}, 256);
      Fill(&c);
      const OnDevice d = Up(c);
      const simt::Count count;
      Attend(d, Random(128 * static_cast<size_t>(heads), 3), {c.rows.back()}, {.heads = heads, .scale = 0.1f});
      const simt::Counts counts = count.counts();
      EXPECT_LE(counts.loads.excess(), 1.1) << KvTypeName(type) << heads << "\n" << count.Worst(5);
      EXPECT_LE(counts.shared.excess(), 1.2) << KvTypeName(type) << heads << "\n" << count.Worst(5);
      EXPECT_LE(counts.stores.excess(), 1.1) << KvTypeName(type) << heads << "\n" << count.Worst(5);
    }
  }
}

// Two sequences whose pages lie between each other.
class CudaAttentionTiles : public CudaAttention {
 protected:
  static constexpr uint32_t kPositions = 230;
  static constexpr int kHeads = 4;
  struct Two {
    std::vector<std::byte> k, v;
    std::vector<BlockId> tables;  // of the first, then of the second
    KvView view;
    size_t blocks = 0;
  };
  Two MakeTwo(KvType type, int head_dim) {
    Two two;
    two.view = {.type = type, .kv_heads = 2, .head_dim = head_dim};
    two.blocks = (kPositions + 15) / 16;
    two.k.assign(2 * two.blocks * two.view.PageBytes(), std::byte{0});
    two.v.assign(2 * two.blocks * two.view.ValuePageBytes(), std::byte{0});
    two.view.k = two.k.data();
    two.view.v = two.v.data();
    for (const uint32_t odd : {1u, 0u}) {
      for (size_t b = 0; b < two.blocks; ++b) two.tables.push_back(static_cast<uint32_t>(2 * b) + odd);
    }
    std::vector<KvRow> all;
    for (uint32_t p = 0; p < 2 * kPositions; ++p) all.push_back(RowOf(two, two.tables.data(), p));
    const size_t n = all.size() * 2 * static_cast<size_t>(head_dim);
    ref_->StoreKv(Random(n, 1).data(), Random(n, 2).data(), all, two.view);
    return two;
  }
  // p: of the first sequence, or kPositions + p of the second.
  static KvRow RowOf(const Two& two, const BlockId* tables, uint32_t p) {
    return p < kPositions ? KvRow{tables, p} : KvRow{tables + two.blocks, p - kPositions};
  }
  static std::vector<float> Attend(const Two& two, const std::vector<float>& q, const std::vector<uint32_t>& at,
                                   AttentionParams params) {
    const GpuVector<std::byte> k(two.k), v(two.v);
    const GpuVector<BlockId> tables(two.tables);
    std::vector<KvRow> host;
    for (const uint32_t p : at) host.push_back(RowOf(two, tables.data(), p));
    const GpuVector<KvRow> rows(host);
    const GpuVector<float> on_q(q);
    const GpuVector<float> sinks(params.sinks == nullptr ? std::vector<float>(1)
                                                         : std::vector<float>(params.sinks, params.sinks + kHeads));
    if (params.sinks != nullptr) params.sinks = sinks.data();
    KvView view = two.view;
    view.k = const_cast<std::byte*>(k.data());
    view.v = const_cast<std::byte*>(v.data());
    EXPECT_TRUE(cuda::CanAttendTiles(view, params));
    GpuVector<float> out(q.size());
    cuda::AttendTiles(nullptr, on_q.data(), rows.data(), rows.size(), view, params, out.data());
    return out.host();
  }
};

TEST_F(CudaAttentionTiles, MatchTheReferenceAndTheRowAlone) {
  const float sinks[] = {-50, 3, 0.5f, 200};
  for (const KvType type : {KvType::kF16, KvType::kBf16}) {
    for (const int head_dim : {64, 128}) {
      if (type == KvType::kBf16 && head_dim == 128) continue;
      const Two two = MakeTwo(type, head_dim);
      std::vector<uint32_t> at;
      for (uint32_t p = 100; p < 170; ++p) at.push_back(p);
      for (uint32_t p = 0; p < 5; ++p) at.push_back(kPositions + p);
      for (uint32_t p = 200; p < 230; ++p) at.push_back(kPositions + p);
      for (uint32_t p = 170; p < 175; ++p) at.push_back(p);
      std::vector<KvRow> host;
      for (const uint32_t p : at) host.push_back(RowOf(two, two.tables.data(), p));
      const size_t width = kHeads * static_cast<size_t>(head_dim);
      const auto q = Random(at.size() * width, 3);
      for (const int window : {0, 40}) {
        const AttentionParams params{.heads = kHeads,
                                     .scale = 0.1f,
                                     .softcap = window == 0 ? 0.0f : 5.0f,
                                     .window = window,
                                     .sinks = window == 0 ? nullptr : sinks,
                                     .end = 256,
                                     .arithmetic = Arithmetic::kPrefill};
        std::vector<float> expected(q.size());
        ref_->Attention(q.data(), host, two.view, params, expected.data());
        const auto got = Attend(two, q, at, params);
        EXPECT_LT(testing::Distance(got, expected), type == KvType::kF16 ? 1e-3 : 8e-3) << head_dim << window;
        simt::SetOrder(simt::Order::kRandom, 7);
        // Chunks of one row, of 16 rows and of two sequences have the bits of all together.
        for (const auto& [from, rows] :
             std::vector<std::pair<size_t, size_t>>{{0, 1}, {72, 1}, {109, 1}, {30, 16}, {68, 20}}) {
          const std::vector<uint32_t> some(at.begin() + static_cast<std::ptrdiff_t>(from),
                                           at.begin() + static_cast<std::ptrdiff_t>(from + rows));
          const auto part = Attend(two, {&q[from * width], &q[from * width] + rows * width}, some, params);
          EXPECT_EQ(std::memcmp(part.data(), &got[from * width], part.size() * sizeof(float)), 0)
              << head_dim << window << ": " << rows << " rows from " << from;
        }
        simt::SetOrder(simt::Order::kRising);
      }
    }
  }
}

TEST_F(CudaAttentionTiles, ReadSideBySide) {
  if (!simt::kChecked) GTEST_SKIP() << "accesses are seen only where they are checked";
  for (const int head_dim : {64, 128}) {
    const Two two = MakeTwo(KvType::kF16, head_dim);
    std::vector<uint32_t> at;
    for (uint32_t p = 64; p < 128; ++p) at.push_back(p);
    const simt::Count count;
    Attend(two, Random(at.size() * kHeads * static_cast<size_t>(head_dim), 3), at,
           {.heads = kHeads, .scale = 0.1f, .arithmetic = Arithmetic::kPrefill});
    const simt::Counts counts = count.counts();
    EXPECT_LE(counts.loads.excess(), 1.1) << head_dim << "\n" << count.Worst(5);
    EXPECT_LE(counts.shared.excess(), 1.2) << head_dim << "\n" << count.Worst(5);
    EXPECT_LE(counts.stores.excess(), 1.1) << head_dim << "\n" << count.Worst(5);
  }
}

}  // namespace
}  // namespace gyre
