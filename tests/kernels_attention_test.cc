// Attention of every instruction set against the reference; and that a row keeps its bits however the work is divided.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/hadamard.h"
#include "kernels/ops.h"
#include "tests/testing/kernel_test.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using testing::Random;

class Attention : public testing::KernelTest {};

struct Cache {
  std::vector<std::byte> k, v;
  KvView view;
  std::vector<BlockId> table;
};
Cache MakeCache(KvType type, int kv_heads, int head_dim, int block, uint32_t positions) {
  Cache c;
  c.view = {.type = type, .k = nullptr, .v = nullptr, .block_size = block, .kv_heads = kv_heads, .head_dim = head_dim};
  const uint32_t blocks = (positions + static_cast<uint32_t>(block) - 1) / static_cast<uint32_t>(block);
  // NaN in everything that is not written, so that a stray read shows.
  c.k.assign((blocks + 2) * c.view.PageBytes(), std::byte{0xFF});
  c.v = c.k;
  c.view.k = c.k.data();
  c.view.v = c.v.data();
  for (uint32_t b = 0; b < blocks; ++b) c.table.push_back(blocks - b);  // any order
  return c;
}

// A score is one chain of up to 64 additions of size 10: an error of about 1e-6, which the weights pass on. For keys
// with scales some instruction sets round a query's elements to 16 bits, to 1.6e-5 of the largest, of size 3: 64 of
// them give a score times 0.3 an error of 8e-5 as a root mean square.
float ErrorOf(KvType type) { return KvHasScales(type) ? 3e-4f : 1e-5f; }

TEST_P(Attention, MatchesTheReferenceAndTheRowAlone) {
  const auto one = MakeBackend(GetParam(), 1), eight = MakeBackend(GetParam(), 8);
  for (const KvType type :
       testing::Grid({KvType::kF16, KvType::kF32, KvType::kBf16, KvType::kQ8_0, KvType::kQ4_0Plain, KvType::kQ4_0})) {
    for (int head_dim : {8, 16, 20, 64}) {
      if (KvHasScales(type) && head_dim % 32 != 0) continue;
      if (testing::kSanitized && (head_dim == 64) != KvHasScales(type)) continue;
      for (int window : {0, 5, 300}) {
        if (testing::kSanitized && window == 0) continue;
        const int heads = 4, kv_heads = 2, block = 16;
        const uint32_t positions = 700;
        Cache cache = MakeCache(type, kv_heads, head_dim, block, positions);
        const auto dim = static_cast<size_t>(head_dim);
        std::vector<KvRow> rows;
        for (uint32_t p = 0; p < positions; ++p) rows.push_back({cache.table.data(), p});
        const auto k = Random(positions * 2 * dim, 1), v = Random(positions * 2 * dim, 2);
        const auto q = Random(positions * 4 * dim, 3);
        fast_->StoreKv(k.data(), v.data(), rows, cache.view);
        const float sinks[] = {-50, 3, 0.5f, 200};  // far below the scores, among them, far above
        const AttentionParams params{.heads = heads,
                                     .scale = 0.3f,
                                     .softcap = window == 5 ? 20.0f : 0.0f,
                                     .window = window,
                                     .chunk = head_dim == 20 ? 96 : 0,
                                     .sinks = window == 300 || head_dim == 16 ? sinks : nullptr};
        std::vector<float> expected(q.size()), got(q.size(), NAN), alone(4 * dim);
        fast_->Attention(q.data(), rows, cache.view, params, got.data());
        for (const auto& [from, n] : {std::pair<size_t, size_t>{0, 24}, {248, 16}, {504, 16}, {690, 10}}) {
          ref_->Attention(&q[from * 4 * dim], std::span(rows).subspan(from, n), cache.view, params,
                          &expected[from * 4 * dim]);
          for (size_t i = from * 4 * dim; i < (from + n) * 4 * dim; ++i)
            ASSERT_NEAR(got[i], expected[i], ErrorOf(type)) << i << " of " << KvTypeName(type);
        }
        // A single row has too few heads for two or eight threads, so these divide its splits.
        for (Backend* backend : {fast_.get(), one.get(), eight.get()}) {
          for (uint32_t p : {0u, 1u, 15u, 16u, 255u, 256u, 257u, 699u}) {
            backend->Attention(&q[p * 4 * dim], std::span(rows).subspan(p, 1), cache.view, params, alone.data());
            EXPECT_EQ(std::memcmp(alone.data(), &got[p * 4 * dim], alone.size() * 4), 0)
                << p << ", " << backend->threads() << " threads";
          }
        }
      }
    }
  }
}

// Rows of different sequences: if they are fewer than the threads need, each becomes items of some heads, not always
// equally many.
TEST_P(Attention, SharesOutTheHeadsOfAFewRows) {
  const int heads = 10, kv_heads = 5, head_dim = 32;
  Cache cache = MakeCache(KvType::kF16, kv_heads, head_dim, 16, 400);
  std::vector<KvRow> stored;
  for (uint32_t p = 0; p < 400; ++p) stored.push_back({cache.table.data(), p});
  fast_->StoreKv(Random(400 * 160, 1).data(), Random(400 * 160, 2).data(), stored, cache.view);
  const AttentionParams params{.heads = heads, .scale = 0.3f};
  const auto q = Random(3 * 320, 3);
  std::vector<std::vector<BlockId>> tables(3, cache.table);  // one per sequence
  for (size_t count : {1u, 2u, 3u}) {
    for (uint32_t last : {30u, 399u}) {
      std::vector<KvRow> rows;
      for (uint32_t r = 0; r < count; ++r) rows.push_back({tables[r].data(), last - r});
      std::vector<float> expected(count * 320), got(count * 320);
      ref_->Attention(q.data(), rows, cache.view, params, expected.data());
      for (int threads : {1, 2, 3, 8}) {
        std::fill(got.begin(), got.end(), NAN);
        MakeBackend(GetParam(), threads)->Attention(q.data(), rows, cache.view, params, got.data());
        for (size_t i = 0; i < got.size(); ++i)
          ASSERT_NEAR(got[i], expected[i], 1e-5) << i << " of " << count << " rows, " << threads << " threads";
      }
    }
  }
}

// Pages of other sizes, and heads so wide that the scales of a page are converted in parts.
TEST_P(Attention, PagesOfAnySize) {
  for (const auto& [block, head_dim] :
       {std::pair<int, int>{64, 256}, {32, 64}, {10, 32}, {1, 64}, {300, 96}, {16, 96}, {16, 128}, {16, 256}}) {
    for (const KvType type : {KvType::kF16, KvType::kQ8_0, KvType::kQ4_0Plain, KvType::kQ4_0}) {
      const uint32_t positions = 420;
      Cache cache = MakeCache(type, 2, head_dim, block, positions);
      const auto dim = static_cast<size_t>(head_dim), width = 6 * dim;
      std::vector<KvRow> rows;
      for (uint32_t p = 0; p < positions; ++p) rows.push_back({cache.table.data(), p});
      fast_->StoreKv(Random(positions * 2 * dim, 1).data(), Random(positions * 2 * dim, 2).data(), rows, cache.view);
      const auto q = Random(8 * width, 3);
      const AttentionParams params{.heads = 6, .scale = 0.1f};
      std::vector<float> expected(q.size()), together(q.size(), NAN), alone(width);
      const auto last = std::span(rows).subspan(positions - 8);
      ref_->Attention(q.data(), last, cache.view, params, expected.data());
      fast_->Attention(q.data(), last, cache.view, params, together.data());
      for (size_t i = 0; i < q.size(); ++i)
        ASSERT_NEAR(together[i], expected[i], ErrorOf(type)) << block << " positions, heads of " << dim;
      for (size_t r = 0; r < 8; ++r) {
        fast_->Attention(&q[r * width], last.subspan(r, 1), cache.view, params, alone.data());
        EXPECT_EQ(std::memcmp(alone.data(), &together[r * width], alone.size() * 4), 0)
            << block << " positions, heads of " << dim;
      }
    }
  }
}

// Latent attention: one head of keys for many queries, and values that are the first part of the keys. Also values that
// are narrower than keys, in pages of their own.
TEST_P(Attention, ValuesOfAnotherWidthAndInKeys) {
  const auto one = MakeBackend(GetParam(), 1), eight = MakeBackend(GetParam(), 8);
  struct Shape {
    int heads, kv_heads, key, value;
  };
  for (const Shape& s : {Shape{4, 1, 40, 32}, Shape{20, 1, 96, 64}, Shape{6, 2, 64, 32},
                         Shape{70, 1, 32, 32}}) {  // more queries than share a read
    for (const bool in_keys : {true, false}) {
      for (const int block : testing::Grid({16, 5, 300})) {
        for (const KvType type : testing::Grid(
                 {KvType::kF16, KvType::kF32, KvType::kBf16, KvType::kQ8_0, KvType::kQ4_0Plain, KvType::kQ4_0})) {
          if (KvHasScales(type) && s.key % 32 != 0) continue;
          if (block != 16 && type != KvType::kF16 && !KvHasNibbles(type)) continue;
          if (testing::kSanitized && block == 300) continue;
          const uint32_t positions = 290;
          Cache cache = MakeCache(type, s.kv_heads, s.key, block, positions);
          cache.view.value_dim = s.value;
          cache.view.values_in_keys = in_keys;
          if (in_keys) cache.view.v = nullptr;
          const auto key_width = static_cast<size_t>(s.kv_heads * s.key),
                     value_width = static_cast<size_t>(s.kv_heads * s.value),
                     q_width = static_cast<size_t>(s.heads * s.key), width = static_cast<size_t>(s.heads * s.value);
          std::vector<KvRow> rows;
          for (uint32_t p = 0; p < positions; ++p) rows.push_back({cache.table.data(), p});
          const auto v = Random(positions * value_width, 2);
          fast_->StoreKv(Random(positions * key_width, 1).data(), in_keys ? nullptr : v.data(), rows, cache.view);
          const size_t count = 5;
          const auto q = Random(count * q_width, 3);
          const AttentionParams params{.heads = s.heads, .scale = 0.1f};
          std::vector<float> expected(count * width), together(expected.size(), NAN), alone(width);
          const auto last = std::span(rows).subspan(positions - count);
          ref_->Attention(q.data(), last, cache.view, params, expected.data());
          fast_->Attention(q.data(), last, cache.view, params, together.data());
          for (size_t i = 0; i < expected.size(); ++i)
            ASSERT_NEAR(together[i], expected[i], ErrorOf(type))
                << KvTypeName(type) << ", pages of " << block << ", in keys " << in_keys;
          for (Backend* backend : {fast_.get(), one.get(), eight.get()}) {
            for (size_t r = 0; r < count; ++r) {
              backend->Attention(&q[r * q_width], last.subspan(r, 1), cache.view, params, alone.data());
              ASSERT_EQ(std::memcmp(alone.data(), &together[r * width], alone.size() * 4), 0)
                  << KvTypeName(type) << ", pages of " << block << ", in keys " << in_keys;
            }
          }
        }
      }
    }
  }
}

// Many splits are combined in pairs by the thread that finishes second. The bits are the same for a row alone and in a
// batch, for every number of threads and every order of arrival.
TEST_P(Attention, SplitsAreAddedInOneOrder) {
  const uint32_t positions = 2600;  // 11 splits
  const size_t dim = 32, width = 4 * dim;
  Cache cache = MakeCache(KvType::kF16, 2, static_cast<int>(dim), 16, positions);
  std::vector<KvRow> rows;
  for (uint32_t p = 0; p < positions; ++p) rows.push_back({cache.table.data(), p});
  fast_->StoreKv(Random(positions * 2 * dim, 1).data(), Random(positions * 2 * dim, 2).data(), rows, cache.view);
  const auto q = Random(8 * width, 3);
  const int turns = testing::kSanitized ? 3 : 20;
  for (const int window : {0, 700, 1900}) {
    const AttentionParams params{.heads = 4, .scale = 0.3f, .window = window};
    for (const uint32_t end : {1024u, 2309u, 2600u}) {
      const auto last = std::span(rows).subspan(end - 8, 8);
      std::vector<float> expected(q.size()), together(q.size(), NAN), again(q.size()), alone(width);
      ref_->Attention(q.data(), last, cache.view, params, expected.data());
      MakeBackend(GetParam(), 1)->Attention(q.data(), last, cache.view, params, together.data());
      for (size_t i = 0; i < q.size(); ++i) ASSERT_NEAR(together[i], expected[i], 1e-5) << i;
      for (int threads = 1; threads <= 8; ++threads) {
        const auto backend = MakeBackend(GetParam(), threads);
        for (int turn = 0; turn < turns; ++turn) {
          std::fill(again.begin(), again.end(), NAN);
          backend->Attention(q.data(), last, cache.view, params, again.data());
          ASSERT_EQ(std::memcmp(again.data(), together.data(), q.size() * 4), 0)
              << threads << " threads, " << end << " positions";
          const size_t r = static_cast<size_t>(turn) % 8;
          std::fill(alone.begin(), alone.end(), NAN);
          backend->Attention(&q[r * width], last.subspan(r, 1), cache.view, params, alone.data());
          ASSERT_EQ(std::memcmp(alone.data(), &together[r * width], width * 4), 0)
              << threads << " threads, " << end << " positions";
        }
      }
    }
  }
}

// Scores of a thousand that differ by little: the weights depend on the differences, which are exact.
TEST_P(Attention, WeightsOfLargeScores) {
  const uint32_t positions = 300, dim = 32;
  Cache cache = MakeCache(KvType::kF32, 1, dim, 16, positions);
  std::vector<KvRow> rows;
  for (uint32_t p = 0; p < positions; ++p) rows.push_back({cache.table.data(), p});
  std::vector<float> k(positions * dim), v = Random(positions * dim, 2), q(dim);
  for (uint32_t p = 0; p < positions; ++p) k[p * dim] = 32, k[p * dim + 1] = static_cast<float>(p * 37 % 256) / 64;
  q[0] = 32, q[1] = 1;
  fast_->StoreKv(k.data(), v.data(), rows, cache.view);
  std::vector<float> expected(dim), got(dim, NAN);
  const auto last = std::span(rows).last(1);
  ref_->Attention(q.data(), last, cache.view, {.heads = 1, .scale = 1}, expected.data());
  fast_->Attention(q.data(), last, cache.view, {.heads = 1, .scale = 1}, got.data());
  for (size_t i = 0; i < dim; ++i) EXPECT_NEAR(got[i], expected[i], 5e-7) << i;
}

// The elements as the cache keeps them, rotated where the type is.
std::vector<float> Kept(KvType type, std::vector<float> v) {
  std::vector<float> out(v.size());
  if (KvIsRotated(type)) RotateKvBlocks(v.data(), v.size(), v.data());
  const DType as = type == KvType::kF16    ? DType::kF16
                   : type == KvType::kBf16 ? DType::kBF16
                   : type == KvType::kQ8_0 ? DType::kQ8_0
                   : KvHasNibbles(type)    ? DType::kQ4_0
                                           : DType::kF32;
  std::vector<std::byte> bytes(v.size() / Info(as).block_elems * Info(as).block_bytes);
  EXPECT_TRUE(Quantize(as, v.data(), bytes.data(), v.size()));
  Dequantize(as, bytes.data(), out.data(), v.size());
  return out;
}

class PrefillAttention : public testing::KernelTest {
 protected:
  static constexpr size_t kHeads = 6, kKvHeads = 2;
  // One query in plain code, with the rounding of tiles: the query to bf16, and the weights to bf16 relative to the
  // largest of their 256 positions.
  static std::vector<double> Attend(const float* q, const float* k, const float* v, size_t dim, size_t p,
                                    const AttentionParams& params) {
    const size_t from = params.window > 0 && p + 1 > static_cast<size_t>(params.window)
                            ? p + 1 - static_cast<size_t>(params.window)
                            : 0;
    std::vector<double> scores, out(dim);
    double top = -1e30, total = 0;
    for (size_t j = from; j <= p; ++j) {
      double s = 0;
      for (size_t d = 0; d < dim; ++d)
        s += static_cast<double>(Bf16ToFloat(FloatToBf16(q[d]))) * static_cast<double>(k[j * kKvHeads * dim + d]);
      s *= static_cast<double>(params.scale);
      if (params.softcap > 0)
        s = static_cast<double>(params.softcap) * std::tanh(s / static_cast<double>(params.softcap));
      scores.push_back(s);
      top = std::max(top, s);
    }
    for (size_t begin = from; begin <= p; begin = (begin / 256 + 1) * 256) {
      const size_t end = std::min(p + 1, (begin / 256 + 1) * 256);
      const double max = *std::max_element(&scores[begin - from], &scores[end - 1 - from] + 1),
                   by = std::exp(max - top);
      for (size_t j = begin; j < end; ++j) {
        const auto weight = static_cast<float>(std::exp(scores[j - from] - max));
        total += by * static_cast<double>(weight);
        for (size_t d = 0; d < dim; ++d)
          out[d] += by * static_cast<double>(Bf16ToFloat(FloatToBf16(weight))) *
                    static_cast<double>(v[j * kKvHeads * dim + d]);
      }
    }
    for (double& o : out) o /= total;
    return out;
  }
};

TEST_P(PrefillAttention, RoundsQueriesAndWeightsOnlyAndKeepsARowsBits) {
  for (const KvType type :
       testing::Grid({KvType::kF16, KvType::kF32, KvType::kBf16, KvType::kQ8_0, KvType::kQ4_0Plain, KvType::kQ4_0})) {
    for (int head_dim : {20, 64}) {
      if (KvHasScales(type) && head_dim % 32 != 0) continue;
      if (testing::kSanitized && (head_dim == 64) != KvHasScales(type)) continue;
      for (int window : {0, 5, 300}) {
        if (testing::kSanitized && window == 0) continue;
        const uint32_t positions = 550;
        Cache cache = MakeCache(type, kKvHeads, head_dim, 16, positions);
        const auto dim = static_cast<size_t>(head_dim), width = kHeads * dim;
        std::vector<KvRow> rows;
        for (uint32_t p = 0; p < positions; ++p) rows.push_back({cache.table.data(), p});
        const auto k = Random(positions * kKvHeads * dim, 1), v = Random(positions * kKvHeads * dim, 2),
                   q = Random(positions * width, 3);
        fast_->StoreKv(k.data(), v.data(), rows, cache.view);
        AttentionParams params{.heads = kHeads,
                               .scale = 0.3f,
                               .softcap = window == 5 ? 20.0f : 0.0f,
                               .window = window,
                               .arithmetic = Arithmetic::kPrefill};
        std::vector<float> all(q.size(), NAN), got(q.size());
        fast_->Attention(q.data(), rows, cache.view, params, all.data());
        if (fast_->prefill_matches_decode()) {
          params.arithmetic = Arithmetic::kDecode;
          fast_->Attention(q.data(), rows, cache.view, params, got.data());
          EXPECT_EQ(all, got);
          continue;
        }
        const auto kept_k = Kept(type, k), kept_v = Kept(type, v);
        std::vector<float> asked = q;
        if (KvIsRotated(type)) RotateKvBlocks(asked.data(), asked.size(), asked.data());
        size_t wrong = 0, seen = 0;
        for (uint32_t p : {0u, 1u, 15u, 16u, 31u, 40u, 255u, 256u, 300u, 511u, 549u}) {
          for (size_t head = 0; head < kHeads; ++head, seen += dim) {
            const size_t at = p * width + head * dim, kv = head / (kHeads / kKvHeads) * dim;
            const auto sums = Attend(&asked[at], &kept_k[kv], &kept_v[kv], dim, p, params);
            std::vector<float> expected(sums.begin(), sums.end());
            if (KvIsRotated(type)) RotateKvBlocks(expected.data(), dim, expected.data());
            for (size_t d = 0; d < dim; ++d) {
              const float error = std::fabs(all[at + d] - expected[d]);
              ASSERT_LT(error, 1e-2f) << p << " of " << KvTypeName(type);
              wrong += error > 1e-4f;
            }
          }
        }
        EXPECT_LT(wrong, seen / 40) << KvTypeName(type) << ", heads of " << dim << ", window "
                                    << window;  // weights beside a tie
        for (const auto& [threads, chunk] : {std::pair<int, size_t>{1, 333}, {2, 1}, {2, 64}, {8, 7}}) {
          const auto backend = MakeBackend(GetParam(), threads);
          std::fill(got.begin(), got.end(), NAN);
          const size_t first = chunk == 1 ? 505 : 0;  // one by one, all rows would take long
          for (size_t r = first; r < positions; r += chunk) {
            const size_t n = std::min<size_t>(chunk, positions - r);
            backend->Attention(&q[r * width], std::span(rows).subspan(r, n), cache.view, params, &got[r * width]);
          }
          ASSERT_EQ(std::memcmp(&got[first * width], &all[first * width], (positions - first) * width * 4), 0)
              << threads << " threads, chunks of " << chunk;
        }
        if (window == 0) continue;
        // Blocks that are out of the window are freed.
        std::vector<BlockId> table = cache.table;
        std::vector<KvRow> last(rows.end() - 16, rows.end());
        for (KvRow& row : last) row.table = table.data();
        std::fill_n(table.begin(), (positions - 16 - static_cast<size_t>(window) + 1) / 16, kNoBlock);
        fast_->Attention(&q[(positions - 16) * width], last, cache.view, params, got.data());
        EXPECT_EQ(std::memcmp(got.data(), &all[(positions - 16) * width], 16 * width * 4), 0);
      }
    }
  }
}

// Several sequences and rows that are not consecutive in one call, pages of several sizes, groups that fill tiles in
// part.
TEST_P(PrefillAttention, SequencesPagesAndGroups) {
  struct Case {
    int block, heads, kv_heads, head_dim;
  };
  for (const Case& c : {Case{16, 2, 2, 80}, {32, 7, 1, 64}, {48, 16, 2, 40}, {256, 71, 1, 64}, {10, 6, 2, 32}}) {
    const auto dim = static_cast<size_t>(c.head_dim), width = static_cast<size_t>(c.heads) * dim,
               kv_width = static_cast<size_t>(c.kv_heads) * dim;
    const uint32_t positions = testing::kSanitized ? 260 : 530, block = static_cast<uint32_t>(c.block);
    Cache cache =
        MakeCache(KvType::kF16, c.kv_heads, c.head_dim, c.block, 2 * ((positions + block - 1) / block * block));
    const auto half = static_cast<ptrdiff_t>(cache.table.size() / 2);
    const std::vector<BlockId> tables[2] = {{cache.table.begin(), cache.table.begin() + half},
                                            {cache.table.begin() + half, cache.table.end()}};
    std::vector<KvRow> all;
    for (const auto& table : tables) {
      for (uint32_t p = 0; p < positions; ++p) all.push_back({table.data(), p});
    }
    fast_->StoreKv(Random(all.size() * kv_width, 1).data(), Random(all.size() * kv_width, 2).data(), all, cache.view);
    std::vector<KvRow> rows;  // of one sequence, of the other, and later ones of each
    for (const auto& [sequence, from, n] :
         {std::tuple<size_t, uint32_t, uint32_t>{0, 100, 90}, {1, 0, 75}, {0, 240, 20}, {1, 200, 1}}) {
      for (uint32_t p = from; p < from + n; ++p) rows.push_back({tables[sequence].data(), p});
    }
    const auto q = Random(rows.size() * width, 3);
    const auto sinks = Random(static_cast<size_t>(c.heads), 4);
    const AttentionParams params{
        .heads = c.heads, .scale = 0.2f, .sinks = sinks.data(), .arithmetic = Arithmetic::kPrefill};
    std::vector<float> together(q.size(), NAN), alone(width), expected(q.size());
    fast_->Attention(q.data(), rows, cache.view, params, together.data());
    for (size_t r = 0; r < rows.size(); r += 7) {
      fast_->Attention(&q[r * width], std::span(rows).subspan(r, 1), cache.view, params, alone.data());
      EXPECT_EQ(std::memcmp(alone.data(), &together[r * width], width * 4), 0)
          << "row " << r << ", pages of " << c.block;
      ref_->Attention(&q[r * width], std::span(rows).subspan(r, 1), cache.view, params, &expected[r * width]);
      // Queries are rounded; a read of other pages would give errors of size 1.
      for (size_t i = r * width; i < (r + 1) * width; ++i)
        ASSERT_NEAR(together[i], expected[i], 4e-2) << "row " << r << ", pages of " << c.block;
    }
  }
}

// Blocks of the KV cache may have any size, whatever the arithmetic: a page of 4 positions is less than a tile, and one
// of 24 is no multiple of it.
TEST_P(PrefillAttention, ARowsBitsDoNotDependOnTheSizeOfPages) {
  const uint32_t positions = 300, last = 40;
  const int dim = 64;
  const size_t width = kHeads * dim;
  const auto k = Random(positions * kKvHeads * dim, 1), v = Random(positions * kKvHeads * dim, 2),
             q = Random(last * width, 3);
  for (const KvType type :
       testing::Grid({KvType::kF16, KvType::kF32, KvType::kBf16, KvType::kQ8_0, KvType::kQ4_0Plain, KvType::kQ4_0})) {
    for (const int window : {0, 37}) {
      for (const Arithmetic arithmetic : {Arithmetic::kPrefill, Arithmetic::kDecode}) {
        const AttentionParams params{.heads = kHeads, .scale = 0.3f, .window = window, .arithmetic = arithmetic};
        std::vector<float> expected;
        for (const uint32_t block : {16u, 1u, 4u, 7u, 24u, 256u}) {
          Cache cache = MakeCache(type, kKvHeads, dim, static_cast<int>(block), positions);
          std::vector<KvRow> rows;
          for (uint32_t p = 0; p < positions; ++p) rows.push_back({cache.table.data(), p});
          fast_->StoreKv(k.data(), v.data(), rows, cache.view);
          // Blocks that are out of the window are freed.
          if (window > 0) std::fill_n(cache.table.begin(), (positions - last - window + 1) / block, kNoBlock);
          std::vector<float> got(q.size(), NAN);
          fast_->Attention(q.data(), std::span(rows).last(last), cache.view, params, got.data());
          if (expected.empty()) expected = got;
          ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0)
              << KvTypeName(type) << ", blocks of " << block << ", window " << window;
        }
      }
    }
  }
}

// NaN stays visible, and scores of any size leave valid weights.
TEST_P(PrefillAttention, ScoresOfAnySize) {
  const uint32_t positions = 300;
  Cache cache = MakeCache(KvType::kF32, 1, 32, 16, positions);
  std::vector<KvRow> rows;
  for (uint32_t p = 0; p < positions; ++p) rows.push_back({cache.table.data(), p});
  const auto k = Random(positions * 32, 1), v = Random(positions * 32, 2);
  fast_->StoreKv(k.data(), v.data(), rows, cache.view);
  auto q = Random(positions * 32, 3);
  for (size_t i = 0; i < 32; ++i) {
    q[290 * 32 + i] = NAN;
    q[299 * 32 + i] *= 1e12f;
  }
  const AttentionParams params{.heads = 1, .scale = 1, .arithmetic = Arithmetic::kPrefill};
  std::vector<float> got(q.size(), NAN);
  fast_->Attention(q.data(), rows, cache.view, params, got.data());
  for (size_t r = 0; r < positions; ++r) {
    for (size_t i = r * 32; i < (r + 1) * 32; ++i) ASSERT_EQ(std::isnan(got[i]), r == 290) << "row " << r;
  }
  // One position has all the weight.
  const auto most = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
  for (size_t i = 299 * 32; i < 300 * 32; ++i)
    EXPECT_LE(std::fabs(got[i]), std::fabs(*std::max_element(v.begin(), v.end(), most)) * 1.01f);
}

// A query has the weight 0 for positions it does not attend to, and 0 times infinity is NaN.
TEST_P(PrefillAttention, AnInfiniteValueReachesOnlyRowsThatSeeIt) {
  const uint32_t positions = 40;
  for (const KvType type :
       testing::Grid({KvType::kF16, KvType::kF32, KvType::kQ8_0, KvType::kQ4_0Plain, KvType::kQ4_0})) {
    Cache cache = MakeCache(type, kKvHeads, 32, 16, positions);
    const size_t width = kHeads * 32;
    std::vector<KvRow> rows;
    for (uint32_t p = 0; p < positions; ++p) rows.push_back({cache.table.data(), p});
    const auto k = Random(positions * kKvHeads * 32, 1), q = Random(positions * width, 3);
    auto v = Random(positions * kKvHeads * 32, 2);
    v[20 * kKvHeads * 32 + 5] = INFINITY;
    v[21 * kKvHeads * 32 + 6] = NAN;
    fast_->StoreKv(k.data(), v.data(), rows, cache.view);
    const AttentionParams params{.heads = kHeads, .scale = 0.3f, .window = 4, .arithmetic = Arithmetic::kPrefill};
    std::vector<float> together(q.size()), alone(width);
    fast_->Attention(q.data(), rows, cache.view, params, together.data());
    for (size_t p = 0; p < positions; ++p) {
      if (p >= 20 && p < 25) continue;
      fast_->Attention(&q[p * width], std::span(rows).subspan(p, 1), cache.view, params, alone.data());
      EXPECT_EQ(std::memcmp(alone.data(), &together[p * width], width * 4), 0) << p << " of " << KvTypeName(type);
      for (size_t i = 0; i < width; ++i) ASSERT_LT(std::fabs(alone[i]), 10) << p << " of " << KvTypeName(type);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, Attention, ::testing::ValuesIn(testing::FastIsas()), testing::IsaTestName);
INSTANTIATE_TEST_SUITE_P(Isa, PrefillAttention, ::testing::ValuesIn(testing::IsasWithTiles()), testing::IsaTestName);

}  // namespace
}  // namespace gyre
