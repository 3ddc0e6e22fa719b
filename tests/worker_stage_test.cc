// The stage's answers, what it refuses, and how its parts are loaded and shared.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/testing/memory_model.h"
#include "tests/testing/stage_chain.h"

namespace gyre {
namespace {

using testing::ChainLogits;
using testing::ChainOptions;
using ::testing::HasSubstr;
using testing::MakeIds;
using testing::MakeRows;
using testing::MakeSpec;
using testing::MakeTable;
using testing::MemoryModel;
using testing::StageChain;

class AnswersTest : public ::testing::Test {
 protected:
  AnswersTest() {
    StageChain chain(model_, {});
    logits_ = ChainLogits(chain, ids_, ids_.size(), table_);
  }
  // The answer to one request for the last row, from a chain of its own.
  RowAnswer Ask(RowRequest r) {
    StageChain chain(model_, {});
    return AskIn(chain, std::move(r));
  }
  RowAnswer AskIn(StageChain& chain, RowRequest r, uint64_t seq = 5) {
    StepBatch batch;
    batch.seqs.push_back(MakeRows(seq, 0, Count(), table_, 1));
    batch.seqs[0].incarnation = 3;
    r.first = Count() - 1;
    batch.seqs[0].requests = {std::move(r)};
    StepAnswer answer = chain.Run(batch, ids_).value();
    EXPECT_EQ(answer.rows.size(), 1u);
    return answer.rows.at(0);
  }
  static RowRequest Make(RowMode mode, uint32_t k = 0) {
    RowRequest r;
    r.mode = mode;
    r.k = k;
    return r;
  }
  uint32_t Count() const { return static_cast<uint32_t>(ids_.size()); }
  size_t Vocab() const { return static_cast<size_t>(model_->spec().vocab); }
  const std::vector<float>& Last() const { return logits_.back(); }
  // Ids by logit falling, then id rising.
  std::vector<TokenId> Ranked() const {
    std::vector<TokenId> ids(Vocab());
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) { return At(a) > At(b); });
    return ids;
  }
  float At(TokenId id) const { return Last()[static_cast<size_t>(id)]; }
  template <typename Fn>
  double LogSumExp(double temperature, Fn counts) const {
    double sum = 0;
    for (size_t id = 0; id < Vocab(); ++id) {
      if (counts(id)) sum += std::exp(static_cast<double>(Last()[id]) / temperature);
    }
    return std::log(sum);
  }

  const std::shared_ptr<MemoryModel> model_ = std::make_shared<MemoryModel>(MakeSpec(), 31);
  const std::vector<TokenId> ids_ = MakeIds(9, model_->spec().vocab, 2);
  const std::vector<BlockId> table_ = MakeTable(ChainOptions().kv, 32);
  testing::LogitRows logits_;
};

TEST_F(AnswersTest, ArgmaxIsTheBestAllowedId) {
  const std::vector<TokenId> ranked = Ranked();
  const RowAnswer free = Ask(Make(RowMode::kArgmax));
  EXPECT_EQ(free.seq, SeqId{5});
  EXPECT_EQ(free.incarnation, 3u);
  EXPECT_EQ(free.position, Count() - 1);
  ASSERT_EQ(free.top.size(), 1u);
  EXPECT_EQ(free.top[0], (TokenLogit{ranked[0], At(ranked[0])}));
  RowRequest masked = Make(RowMode::kArgmax);
  masked.mask.assign((Vocab() + 63) / 64, ~uint64_t{0});
  masked.mask[static_cast<size_t>(ranked[0]) / 64] &= ~(uint64_t{1} << (ranked[0] % 64));
  EXPECT_EQ(Ask(masked).top.at(0).id, ranked[1]);
  masked.mask.assign(masked.mask.size(), 0);
  EXPECT_TRUE(Ask(masked).top.empty());
}

TEST_F(AnswersTest, TopKLeavesOutTouchedAndMaskedIds) {
  const std::vector<TokenId> ranked = Ranked();
  RowRequest r = Make(RowMode::kTopK, 5);
  r.temperature = 0.7f;
  r.touched = {ranked[1], ranked[4], ranked[50]};
  std::sort(r.touched.begin(), r.touched.end());
  const TokenId masked = ranked[2];
  r.mask.assign((Vocab() + 63) / 64, ~uint64_t{0});
  r.mask[static_cast<size_t>(masked) / 64] &= ~(uint64_t{1} << (masked % 64));
  const RowAnswer a = Ask(r);
  std::vector<TokenId> top;
  for (const TokenLogit& t : a.top) {
    top.push_back(t.id);
    EXPECT_EQ(t.logit, At(t.id));
  }
  EXPECT_EQ(top, (std::vector<TokenId>{ranked[0], ranked[3], ranked[5], ranked[6], ranked[7]}));
  ASSERT_EQ(a.touched.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(a.touched[i], (TokenLogit{r.touched[i], At(r.touched[i])}));
  auto counts = [&](size_t id) {
    const auto t = static_cast<TokenId>(id);
    return t != masked && !std::binary_search(r.touched.begin(), r.touched.end(), t);
  };
  EXPECT_NEAR(a.log_sum_exp, LogSumExp(1, counts), 1e-9);
  EXPECT_NEAR(a.log_sum_exp_t, LogSumExp(static_cast<double>(0.7f), counts), 1e-9);
  r.temperature = 0;
  EXPECT_EQ(Ask(r).log_sum_exp_t, 0);
  r.k = kMaxTopK;
  EXPECT_EQ(Ask(r).top.size(), Vocab() - 4) << "fewer if fewer are left";
}

TEST_F(AnswersTest, TargetsComeWithTheSumOfAll) {
  RowRequest r = Make(RowMode::kTargets);
  r.touched = {0, 7, static_cast<TokenId>(Vocab()) - 1};
  const RowAnswer a = Ask(r);
  ASSERT_EQ(a.touched.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(a.touched[i], (TokenLogit{r.touched[i], At(r.touched[i])}));
  EXPECT_NEAR(a.log_sum_exp, LogSumExp(1, [](size_t) { return true; }), 1e-9);
  EXPECT_TRUE(a.top.empty());
}

TEST_F(AnswersTest, TheHiddenStateIsTheNormedOne) {
  const RowAnswer a = Ask(Make(RowMode::kHidden));
  ASSERT_EQ(a.values.size(), static_cast<size_t>(model_->spec().dim));
  // Times the head it gives the logits.
  for (size_t n = 0; n < Vocab(); ++n) {
    double sum = 0;
    for (size_t k = 0; k < a.values.size(); ++k) {
      sum += static_cast<double>(a.values[k]) * static_cast<double>(model_->head().values[n * a.values.size() + k]);
    }
    EXPECT_NEAR(sum, static_cast<double>(Last()[n]), 1e-5);
  }
}

TEST_F(AnswersTest, ManyRequestsComeInTheOrderOfTheRows) {
  StageChain chain(model_, {});
  StepBatch batch;
  batch.seqs.push_back(MakeRows(1, 0, 150, MakeTable(chain.options().kv, 150), 1));
  batch.seqs.push_back(MakeRows(2, 0, 4, MakeTable(chain.options().kv, 4, 40), 1));
  batch.seqs[1].requests[0].first = 2;
  batch.seqs[1].requests[0].count = 2;
  const StepAnswer answer = chain.Run(batch, MakeIds(154, model_->spec().vocab, 3)).value();
  ASSERT_EQ(answer.rows.size(), 152u);
  for (uint32_t i = 0; i < 150; ++i) EXPECT_EQ(answer.rows[i].position, i);
  EXPECT_EQ(answer.rows[150].seq, SeqId{2});
  EXPECT_EQ(answer.rows[150].position, 2u);
  EXPECT_EQ(answer.rows[151].position, 3u);
}

TEST_F(AnswersTest, AQuestionGetsTheFullLogitsWhileTheRowIsKept) {
  StageChain chain(model_, {.stages = 2});
  AskIn(chain, Make(RowMode::kTopK, 1));
  LogitsQuestion q{.seq = SeqId{5}, .incarnation = 3, .model = 0, .position = Count() - 1};
  const LogitsAnswer a = chain.last().Answer(q);
  EXPECT_EQ(a.question, q);
  EXPECT_EQ(a.logits, Last());
  for (const auto& change : std::vector<std::function<void(LogitsQuestion&)>>{
           [](auto& w) { w.seq = SeqId{6}; }, [](auto& w) { w.incarnation = 2; }, [](auto& w) { w.model = 1; },
           [](auto& w) { w.position = 0; }}) {
    LogitsQuestion wrong = q;
    change(wrong);
    EXPECT_TRUE(chain.last().Answer(wrong).logits.empty());
  }
  for (uint64_t i = 0; i < Answers::kKeptRows - 1; ++i) AskIn(chain, Make(RowMode::kTopK, 1), 100 + i);
  EXPECT_EQ(chain.last().Answer(q).logits, Last());
  AskIn(chain, Make(RowMode::kTopK, 1), 99);
  EXPECT_TRUE(chain.last().Answer(q).logits.empty()) << "the ring is bounded";
}

struct Refusal {
  const char* what;
  std::function<void(StepBatch&, std::vector<TokenId>&)> spoil;
};

TEST(StageTest, RefusesWhatItCanNotRunWithASentence) {
  const auto model = std::make_shared<MemoryModel>(MakeSpec(), 1);
  StageChain chain(model, {.kv = {.type = KvType::kF32, .block_size = 4, .num_blocks = 8}});
  auto request = [](StepBatch& b) -> RowRequest& { return b.seqs[0].requests[0]; };
  const Refusal refusals[] = {
      {"model 1", [](auto& b, auto&) { b.seqs[0].model = 1; }},
      {"adapter 2", [](auto& b, auto&) { b.seqs[0].adapter = 2; }},
      {"block tables", [](auto& b, auto&) { b.seqs[0].blocks.clear(); }},
      {"block tables", [](auto& b, auto&) { b.seqs[0].blocks.resize(3); }},
      {"2 blocks in group 0 for 9 positions, expected 3", [](auto& b, auto&) { b.seqs[0].blocks[0].resize(2); }},
      {"block 8 in group 0, this stage has 0-7", [](auto& b, auto&) { b.seqs[0].blocks[0][1] = 8; }},
      {"block 77", [](auto& b, auto&) { b.seqs[0].blocks[0].push_back(77); }},
      {"no block for the positions from 0", [](auto& b, auto&) { b.seqs[0].blocks[0][0] = kNoBlock; }},
      {"no block for the positions from 8", [](auto& b, auto&) { b.seqs[0].blocks[0][2] = kNoBlock; }},
      {"from position", [](auto& b, auto&) { b.seqs[0].first_position = 0x7FFFFFFF; }},
      {"positions, expected", [](auto& b, auto&) { b.seqs[0].first_position = 1000; }},
      {"0 rows", [](auto& b, auto&) { b.seqs[0].row_count = 0; }},
      {"without rows", [](auto& b, auto&) { b.seqs.clear(); }},
      {"bytes for 9 rows", [](auto&, auto& ids) { ids.pop_back(); }},
      {"token id -1", [](auto&, auto& ids) { ids[3] = -1; }},
      {"token id 97, the vocabulary has 0-96", [](auto&, auto& ids) { ids[8] = 97; }},
      {"request for rows", [=](auto& b, auto&) { request(b).count = 10; }},
      {"request for rows", [=](auto& b, auto&) { request(b).first = 0xFFFFFFFF; }},
      {"request for rows", [=](auto& b, auto&) { b.seqs[0].requests.push_back(request(b)); }},
      {"mode 9", [=](auto& b, auto&) { request(b).mode = RowMode{9}; }},
      {"expected 1-1024",
       [=](auto& b, auto&) {
         request(b).mode = RowMode::kTopK;
         request(b).k = 1025;
       }},
      {"temperature", [=](auto& b, auto&) { request(b).temperature = std::numeric_limits<float>::quiet_NaN(); }},
      {"mask of 1 words", [=](auto& b, auto&) { request(b).mask = {~uint64_t{0}}; }},
      {"rising ids",
       [=](auto& b, auto&) {
         request(b).touched = {4, 4};
       }},
      {"rising ids", [=](auto& b, auto&) { request(b).touched = {97}; }},
      {"rising ids", [=](auto& b, auto&) { request(b).touched = {-3}; }},
  };
  const auto good_ids = MakeIds(9, model->spec().vocab, 4);
  StepBatch good;
  good.seqs.push_back(MakeRows(1, 0, 9, MakeTable(chain.options().kv, 9), 1));
  for (const Refusal& r : refusals) {
    StepBatch batch = good;
    std::vector<TokenId> ids = good_ids;
    r.spoil(batch, ids);
    const Status status = chain.Run(batch, ids).status();
    EXPECT_FALSE(status.ok()) << r.what;
    EXPECT_THAT(Message(status), HasSubstr(r.what));
  }
  EXPECT_TRUE(chain.Run(good, good_ids).ok());
}

TEST(StageTest, RefusesResultsThatNoFrameHolds) {
  const auto model = std::make_shared<MemoryModel>(MakeSpec({.dim = 64, .layers = 1, .vocab = 50000}), 1);
  StageChain chain(model, {.stages = 1, .kv = {.type = KvType::kF16, .block_size = 64, .num_blocks = 100}});
  StepBatch batch;
  batch.seqs.push_back(MakeRows(1, 0, 5000, MakeTable(chain.options().kv, 5000), 1));
  const Status status = chain.Run(batch, MakeIds(5000, 50000, 1)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST(KvPagesTest, ABigPoolCostsNothingAndAHugeOneIsRefused) {
  auto pages = KvPages::Make({.type = KvType::kF16, .block_size = 16, .num_blocks = 1u << 20}, 8, 128);
  ASSERT_TRUE(pages.ok()) << pages.status();
  EXPECT_EQ((*pages)->bytes(), (size_t{1} << 20) * 16 * 8 * 128 * 2 * 2);
  (*pages)->view().k[0] = std::byte{1};
  (*pages)->view().v[(*pages)->bytes() / 2 - 1] = std::byte{1};
  const KvShape huge{.type = KvType::kF32, .block_size = 1 << 30, .num_blocks = kNoBlock - 1};
  for (const int head_dim : {1, 4096}) {
    const Status status = KvPages::Make(huge, 128, head_dim).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(Message(status), HasSubstr("4294967294 KV blocks of 1073741824 positions"));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(KvPages::Make({.block_size = 16, .num_blocks = 0}, 1, 8).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(KvPages::Make({.block_size = 0, .num_blocks = 1}, 1, 8).status()));
}

class LoadTest : public ::testing::Test {
 protected:
  LoadOptions Options(int begin, int end) const {
    LoadOptions o;
    o.range = {.begin = begin, .end = end};
    o.first = begin == 0;
    o.last = end == 4;
    o.kv = {.type = KvType::kF32, .block_size = 4, .num_blocks = 8};
    return o;
  }
  std::shared_ptr<MemoryModel> Model(bool tied) const {
    ModelSpec spec = MakeSpec();
    spec.tied_head = tied;
    return std::make_shared<MemoryModel>(spec, 41);
  }
  const std::unique_ptr<Backend> backend_ = MakeBackend(Isa::kRef, 1);
};

TEST_F(LoadTest, LayersAreSharedWherePlansOverlap) {
  const auto model = Model(false);
  const StageParts old = LoadStageParts(model, Options(0, 3), *backend_).value();
  LoadOptions o = Options(1, 4);
  o.reuse = &old;
  const StageParts next = LoadStageParts(model, o, *backend_).value();
  ASSERT_EQ(next.layers.size(), 3u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(next.layers[i]->params, old.layers[i + 1]->params);
    EXPECT_EQ(next.layers[i]->pages, old.layers[i + 1]->pages);
  }
  EXPECT_NE(next.layers[2]->pages, nullptr);
  // Weights alone, where the pool is another one.
  o.kv.num_blocks = 9;
  const StageParts bigger = LoadStageParts(model, o, *backend_).value();
  EXPECT_EQ(bigger.layers[0]->params, old.layers[1]->params);
  EXPECT_NE(bigger.layers[0]->pages, old.layers[1]->pages);
  o.kv.num_blocks = 8;
  o.share_kv = false;
  const StageParts fresh = LoadStageParts(model, o, *backend_).value();
  EXPECT_EQ(fresh.layers[0]->params, old.layers[1]->params);
  EXPECT_NE(fresh.layers[0]->pages, old.layers[1]->pages);
}

TEST_F(LoadTest, ATiedHeadAndEmbeddingArePackedOnce) {
  const auto tied = Model(true), apart = Model(false);
  const StageParts one = LoadStageParts(tied, Options(0, 4), *backend_).value();
  EXPECT_EQ(one.ends.embedding, one.ends.output);
  const StageParts two = LoadStageParts(apart, Options(0, 4), *backend_).value();
  EXPECT_NE(two.ends.embedding, two.ends.output);
  // The embedding of a running first stage serves as the head of a prepared last one.
  const StageParts first = LoadStageParts(tied, Options(0, 2), *backend_).value();
  LoadOptions o = Options(2, 4);
  o.reuse = &first;
  EXPECT_EQ(LoadStageParts(tied, o, *backend_).value().ends.output, first.ends.embedding);
  EXPECT_EQ(one.weight_bytes(), two.weight_bytes());
}

TEST_F(LoadTest, ProgressRisesToTheTotalAndLoadingCanBeCancelled) {
  const auto model = Model(false);
  LoadOptions o = Options(0, 4);
  std::vector<uint64_t> done;
  uint64_t total = 0;
  o.progress = [&](uint64_t d, uint64_t t) {
    done.push_back(d);
    total = t;
  };
  const StageParts parts = LoadStageParts(model, o, *backend_).value();
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.front(), 0u);
  EXPECT_EQ(done.back(), total);
  EXPECT_EQ(total, parts.weight_bytes() + parts.ends.embedding->bytes);
  int asked = 0;
  o.cancelled = [&] { return ++asked > 5; };
  EXPECT_TRUE(absl::IsCancelled(LoadStageParts(model, o, *backend_).status()));
  o.kv.num_blocks = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(LoadStageParts(model, o, *backend_).status()));
}

}  // namespace
}  // namespace gyre
