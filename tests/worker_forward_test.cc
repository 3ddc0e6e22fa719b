// The forward pass against an independent one in doubles, and against itself: a row's bits hang on its own inputs only.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/testing/memory_model.h"
#include "tests/testing/scalar_forward.h"
#include "tests/testing/stage_chain.h"

namespace gyre {
namespace {

using testing::ChainLogits;
using testing::ChainOptions;
using testing::LogitRows;
using testing::MakeIds;
using testing::MakeRichSpec;
using testing::MakeRows;
using testing::MakeSpec;
using testing::MakeTable;
using testing::MemoryModel;
using testing::ScalarForward;
using testing::StageChain;

std::string IsaTestName(const ::testing::TestParamInfo<Isa>& info) {
  return IsaName(info.param);
}

class ForwardTest : public ::testing::TestWithParam<Isa> {
 protected:
  ChainOptions Options(int stages = 1, int threads = 1) const {
    return {.stages = stages, .isa = GetParam(), .threads = threads};
  }
  // The largest distance to the doubles, over all rows.
  static double WorstError(const MemoryModel& model, const std::vector<TokenId>& ids, const LogitRows& logits) {
    const ScalarForward::Rows truth = ScalarForward(model).Logits(ids);
    double worst = 0;
    for (size_t r = 0; r < truth.size(); ++r) {
      for (size_t i = 0; i < truth[r].size(); ++i) {
        const double error = std::abs(truth[r][i] - static_cast<double>(logits[r][i]));
        if (!(error <= worst)) worst = error;  // NaN counts
      }
    }
    return worst;
  }
};

TEST_P(ForwardTest, EqualsTheScalarPassInDoubles) {
  struct Case {
    const char* name;
    ModelSpec spec;
  };
  std::vector<Case> cases = {{"plain", MakeSpec()}, {"rich", MakeRichSpec()}};
  cases.push_back({"bias", MakeSpec()});
  for (LayerSpec& l : cases.back().spec.layers) l.qkv_bias = true, l.rope.pairing = RopePairing::kHalves;
  cases.push_back({"one kv head", MakeSpec({.heads = 4, .kv_heads = 1})});
  cases.push_back({"softcap", MakeSpec()});
  for (LayerSpec& l : cases.back().spec.layers) l.attention_softcap = 2.0f;
  for (const Case& c : cases) {
    const auto model = std::make_shared<MemoryModel>(c.spec, 11);
    StageChain chain(model, Options());
    const auto ids = MakeIds(40, c.spec.vocab, 5);
    const LogitRows logits = ChainLogits(chain, ids, 40, MakeTable(chain.options().kv, 40));
    EXPECT_LT(WorstError(*model, ids, logits), 3e-5) << c.name;
  }
}

TEST_P(ForwardTest, QuantizedWeightsWithExactActivationsEqualTheScalarPass) {
  for (const DType type : {DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ5_1}) {
    const ModelSpec spec = MakeSpec({.dim = 64, .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 16, .ffn = 128});
    const auto model = std::make_shared<MemoryModel>(spec, 3, type);
    ChainOptions options = Options();
    options.exact = true;
    StageChain chain(model, options);
    const auto ids = MakeIds(24, spec.vocab, 6);
    const LogitRows logits = ChainLogits(chain, ids, 24, MakeTable(chain.options().kv, 24));
    EXPECT_LT(WorstError(*model, ids, logits), 1e-4) << Info(type).name;
  }
}

TEST_P(ForwardTest, HalfPrecisionPagesStayNear) {
  const auto model = std::make_shared<MemoryModel>(MakeRichSpec(), 12);
  ChainOptions options = Options();
  options.kv.type = KvType::kF16;
  StageChain chain(model, options);
  const auto ids = MakeIds(40, model->spec().vocab, 5);
  const double worst = WorstError(*model, ids, ChainLogits(chain, ids, 40, MakeTable(options.kv, 40)));
  EXPECT_LT(worst, 1e-2);
  EXPECT_GT(worst, 1e-6) << "the pages are said to be f16";
}

TEST_P(ForwardTest, StagesGiveTheSameBits) {
  for (const ModelSpec& spec : {MakeSpec(), MakeRichSpec()}) {
    const auto model = std::make_shared<MemoryModel>(spec, 21);
    const auto ids = MakeIds(50, spec.vocab, 7);
    StageChain one(model, Options(1));
    const LogitRows expected = ChainLogits(one, ids, 50, MakeTable(one.options().kv, 50));
    for (const int stages : {2, 3}) {
      StageChain chain(model, Options(stages));
      EXPECT_EQ(ChainLogits(chain, ids, 50, MakeTable(chain.options().kv, 50)), expected) << stages << " stages";
    }
  }
}

TEST_P(ForwardTest, ChunksBlockOrderAndThreadsGiveTheSameBits) {
  const auto model = std::make_shared<MemoryModel>(MakeRichSpec(), 22);
  const auto ids = MakeIds(90, model->spec().vocab, 8);
  ChainOptions options = Options(2);
  StageChain whole(model, options);
  const LogitRows expected = ChainLogits(whole, ids, 90, MakeTable(options.kv, 90));
  for (const size_t chunk : {1u, 3u, 17u, 64u}) {
    StageChain chain(model, options);
    chain.Poison();
    const auto table = MakeTable(options.kv, 90, 3, static_cast<uint32_t>(chunk));
    EXPECT_EQ(ChainLogits(chain, ids, chunk, table), expected) << "chunks of " << chunk;
  }
  StageChain threads(model, Options(2, 3));
  EXPECT_EQ(ChainLogits(threads, ids, 33, MakeTable(options.kv, 90)), expected) << "three threads";
}

TEST_P(ForwardTest, BlockSizesGiveTheSameBits) {
  const auto model = std::make_shared<MemoryModel>(MakeRichSpec(), 23);
  const auto ids = MakeIds(60, model->spec().vocab, 9);
  LogitRows expected;
  for (const int block_size : {16, 1, 3, 32}) {
    ChainOptions options = Options();
    options.kv = {.type = KvType::kF16, .block_size = block_size, .num_blocks = 64};
    StageChain chain(model, options);
    LogitRows got = ChainLogits(chain, ids, 20, MakeTable(options.kv, 60, 1));
    if (expected.empty()) expected = got;
    EXPECT_EQ(got, expected) << "blocks of " << block_size;
  }
}

// Sequences that share steps, each at another position and in another chunk, against each of them alone.
TEST_P(ForwardTest, ABatchGivesTheSameBitsAsEachAlone) {
  const auto model = std::make_shared<MemoryModel>(MakeRichSpec(), 24);
  const size_t groups = static_cast<size_t>(model->spec().kv_groups);
  ChainOptions options = Options(2);
  StageChain together(model, options);
  together.Poison();
  struct Seq {
    std::vector<TokenId> ids;
    std::vector<BlockId> table;
    size_t at = 0, chunk = 1;
    LogitRows got;
  };
  std::vector<Seq> seqs;
  for (uint32_t i = 0; i < 5; ++i) {
    const size_t length = 10 + 9 * i;
    seqs.push_back({.ids = MakeIds(length, model->spec().vocab, 30 + i),
                    .table = MakeTable(options.kv, length, 12 * i, 99),
                    .chunk = 1 + (i * 5) % 7,
                    .got = {}});
  }
  for (bool more = true; more;) {
    more = false;
    StepBatch batch;
    std::vector<TokenId> ids;
    for (size_t i = 0; i < seqs.size(); ++i) {
      Seq& s = seqs[i];
      const size_t n = std::min(s.chunk, s.ids.size() - s.at);
      if (n == 0) continue;
      batch.seqs.push_back(MakeRows(i, static_cast<uint32_t>(s.at), static_cast<uint32_t>(n), s.table, groups));
      ids.insert(ids.end(), s.ids.begin() + static_cast<long>(s.at), s.ids.begin() + static_cast<long>(s.at + n));
      s.at += n;
      more = true;
    }
    if (!more) break;
    const StepAnswer answer = together.Run(batch, ids).value();
    for (const RowAnswer& row : answer.rows) seqs[static_cast<size_t>(row.seq)].got.push_back(row.values);
  }
  for (size_t i = 0; i < seqs.size(); ++i) {
    StageChain alone(model, options);
    EXPECT_EQ(seqs[i].got, ChainLogits(alone, seqs[i].ids, 1000, MakeTable(options.kv, seqs[i].ids.size())))
        << "sequence " << i;
  }
}

// The last stage leaves out what nobody asked for; what is asked for stays the same. More rows than go at once.
TEST_P(ForwardTest, RowsThatNobodyAskedForChangeNothing) {
  const auto model = std::make_shared<MemoryModel>(MakeSpec({.layers = 2}), 25);
  ChainOptions options = Options();
  options.kv = {.type = KvType::kF32, .block_size = 64, .num_blocks = 40};
  constexpr uint32_t kRows = 1100;
  const auto ids = MakeIds(kRows, model->spec().vocab, 10);
  const auto table = MakeTable(options.kv, kRows + 1);
  StageChain all(model, options);
  const LogitRows expected = ChainLogits(all, ids, kRows, table);
  StageChain few(model, options);
  StepBatch batch;
  batch.seqs.push_back(MakeRows(1, 0, kRows, table, 1));
  batch.seqs[0].requests.clear();
  for (const uint32_t row : {0u, 5u, 511u, 512u, 700u, 1023u, 1099u}) {
    RowRequest r;
    r.first = row;
    r.mode = RowMode::kFullLogits;
    batch.seqs[0].requests.push_back(r);
  }
  const StepAnswer answer = few.Run(batch, ids).value();
  ASSERT_EQ(answer.rows.size(), 7u);
  for (const RowAnswer& row : answer.rows) EXPECT_EQ(row.values, expected[row.position]) << row.position;
  // And the keys and values of all of them are there for the next row.
  auto next = [&](StageChain& chain) {
    StepBatch one;
    one.seqs.push_back(MakeRows(1, kRows, 1, table, 1));
    return chain.Run(one, {3}).value().rows.at(0).values;
  };
  EXPECT_EQ(next(few), next(all));
}

// A window's older blocks may be gone, and even be somebody else's now.
TEST_P(ForwardTest, BlocksBehindAWindowAreNeverRead) {
  ModelSpec spec = MakeSpec();
  for (LayerSpec& l : spec.layers) l.window = 6;
  const auto model = std::make_shared<MemoryModel>(spec, 26);
  const ChainOptions options = Options();
  const auto ids = MakeIds(40, spec.vocab, 11);
  StageChain kept(model, options);
  const LogitRows expected = ChainLogits(kept, ids, 1, MakeTable(options.kv, 40));
  StageChain dropped(model, options);
  dropped.Poison();
  std::vector<BlockId> table = MakeTable(options.kv, 40, 7);
  LogitRows got;
  for (uint32_t p = 0; p < 40; ++p) {
    for (uint32_t b = 0; (b + 1) * 4 + 5 <= p; ++b) table[b] = kNoBlock;
    StepBatch batch;
    batch.seqs.push_back(MakeRows(1, p, 1, table, 1));
    const StatusOr<StepAnswer> answer = dropped.Run(batch, {ids[p]});
    ASSERT_TRUE(answer.ok()) << answer.status();
    got.push_back(answer->rows.at(0).values);
  }
  EXPECT_EQ(got, expected);
}

INSTANTIATE_TEST_SUITE_P(Isas, ForwardTest, ::testing::ValuesIn(testing::AvailableIsas()), IsaTestName);

}  // namespace
}  // namespace gyre
