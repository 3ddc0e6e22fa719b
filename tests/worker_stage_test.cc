// Steps that a stage refuses before it computes, and its answers to questions about rows that it has computed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/testing/gguf_writer.h"
#include "tests/testing/one_stage.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;
using testing::OneStage;

using testing::kVocab;

// The model reads from its bytes, which live as long as it does.
std::shared_ptr<const Model> Tiny(const testing::TinyOptions& options) {
  const auto file = std::make_shared<const std::vector<std::byte>>(testing::BuildTinyModel(options));
  auto model = OpenModelFromBytes(*file);
  EXPECT_TRUE(model.ok()) << model.status();
  const Model* opened = model->get();
  return {opened, [file, model = *std::move(model)](const Model*) {}};
}

class StageRefuses : public ::testing::Test {
 protected:
  // The answer to a step of three rows after a change.
  template <typename Change>
  std::string After(Change change, size_t bytes = 3 * sizeof(TokenId)) {
    StepBatch batch;
    batch.seqs.push_back({.seq = SeqId{7}, .first_position = 14, .row_count = 3, .blocks = {{5, 23}}});
    batch.seqs[0].requests.push_back({.first = 2, .mode = RowMode::kTopK, .k = 4, .biased = {1, kVocab - 1}});
    batch.seqs[0].requests[0].mask.assign((kVocab + 63) / 64, ~uint64_t{0});
    std::vector<TokenId> ids{1, 2, static_cast<TokenId>(kVocab) - 1};
    change(batch.seqs[0], ids);
    StepAnswer answer;
    const auto rows = std::as_bytes(std::span(ids)).first(std::min(bytes, ids.size() * sizeof(TokenId)));
    const uint64_t step = ++step_;
    const Status status = stage_.stage().Run(batch, rows, step, &answer);
    if (status.ok()) return answer.rows.size() == 1 ? "" : "rows";
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(answer.rows.empty());
    for (BlockId b = 0; b < testing::kPages; ++b) EXPECT_NE(stage_.layer(0).pages->written(b), step) << "page " << b;
    return Message(status);
  }

  OneStage stage_{Tiny({.layers = 2, .vocab = kVocab}), Isa::kRef};
  uint64_t step_ = 0;
};

TEST_F(StageRefuses, WhatLiesOutOfItsBounds) {
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(After([](SeqRows&, Ids&) {}), "") << "everything is at its last allowed value";
  EXPECT_THAT(After([](SeqRows& s, Ids&) { s.model = 1; }), HasSubstr("model 1, this stage runs 0"));
  EXPECT_THAT(After([](SeqRows& s, Ids&) { s.adapter = 1; }), HasSubstr("adapter 1"));
  EXPECT_THAT(After([](SeqRows& s, Ids&) { s.blocks.push_back({5, 23}); }), HasSubstr("2 block tables, expected 1"));
  EXPECT_THAT(After([](SeqRows& s, Ids&) { s.blocks[0] = {5}; }), HasSubstr("1 blocks for 17 positions, expected 2"));
  EXPECT_THAT(After([](SeqRows& s, Ids&) { s.blocks[0] = {}; }), HasSubstr("0 blocks for 17 positions, expected 2"));
  EXPECT_THAT(After([](SeqRows& s, Ids&) { s.blocks[0][1] = 24; }), HasSubstr("block 24, this stage has 0-23"));
  EXPECT_THAT(After([](SeqRows& s, Ids&) { s.blocks[0][0] = kNoBlock; }), HasSubstr("this stage has 0-23"));
  EXPECT_THAT(After([](SeqRows& s, Ids&) { s.requests[0].biased = {1, kVocab}; }), HasSubstr("biased id 96"));
  EXPECT_THAT(After([](SeqRows& s, Ids&) { s.requests[0].mask.pop_back(); }),
              HasSubstr("a mask of 1 words, expected 2"));
  EXPECT_THAT(After([](SeqRows& s, Ids&) { s.requests[0].mask.push_back(1); }), HasSubstr("a mask of 3 words"));
  EXPECT_THAT(After([](SeqRows&, Ids& ids) { ids[1] = kVocab; }), HasSubstr("token id 96, the vocabulary has 0-95"));
  EXPECT_THAT(After([](SeqRows&, Ids& ids) { ids[0] = -1; }), HasSubstr("token id -1"));
  EXPECT_THAT(After([](SeqRows&, Ids&) {}, 11), HasSubstr("11 bytes for 3 rows of 4"));
  EXPECT_THAT(After([](SeqRows&, Ids&) {}, 8), HasSubstr("8 bytes for 3 rows of 4"));
}

RowRequest TopK(uint32_t first) { return {.first = first, .mode = RowMode::kTopK, .k = 3}; }
RowRequest Full(uint32_t first) { return {.first = first, .mode = RowMode::kFullLogits}; }

std::vector<float> Question(OneStage& stage, const FullLogitsRequest& question) {
  return stage.stage().Answer(question).logits;
}

// A question about a row is answered as if its full logits had been asked for at once.
// Rows at 30 with a window of 8 read from 23 on, in block 1.
TEST(StageWindows, ATableHasWhatItsRowsRead) {
  OneStage stage(Tiny({.arch = "mistral", .layers = 2, .vocab = kVocab}), Isa::kRef);
  auto said = [&stage, step = uint64_t{0}](std::vector<BlockId> table) mutable {
    StepBatch batch;
    batch.seqs.push_back({.seq = SeqId{7}, .first_position = 30, .row_count = 1, .blocks = {{}, {}, std::move(table)}});
    const std::vector<TokenId> ids{1};
    StepAnswer answer;
    return Message(stage.stage().Run(batch, std::as_bytes(std::span(ids)), ++step, &answer));
  };
  EXPECT_EQ(said({1, 23}), "");
  EXPECT_EQ(said({0, 9, 23}), "");
  EXPECT_THAT(said({2}), HasSubstr("windowed blocks from number 2 on, position 23 is read"));
  EXPECT_THAT(said({1}), HasSubstr("0 blocks for 31 positions, expected 1"));
  EXPECT_THAT(said({1, 24}), HasSubstr("block 24, this stage has 0-23"));
  EXPECT_THAT(said({1, kNoBlock}), HasSubstr("this stage has 0-23"));
  EXPECT_THAT(said({}), HasSubstr("has no windowed blocks"));
}

// Blocks behind a window may belong to another sequence by now: no bit depends on their content.
TEST(StageWindows, BlocksBehindTheWindowAreNotRead) {
  for (const Isa isa : BuiltIsas()) {
    if (!IsaMissing(isa).empty()) continue;
    SCOPED_TRACE(IsaName(isa));
    std::vector<std::vector<std::vector<float>>> got;
    for (const bool spoiled : {false, true}) {
      OneStage stage(Tiny({.arch = "gemma3", .dim = 64, .layers = 6, .vocab = kVocab}), isa);
      std::vector<TokenId> ids;
      for (TokenId i = 0; i < 40; ++i) ids.push_back(i * 7 % 90);
      stage.Run({{.seq = 0, .first = 0, .row_class = RowClass::kPrompt, .ids = ids}});
      // The row at 40 reads from 33 on: blocks 0 and 1 may go.
      for (size_t i = 0; spoiled && i < 6; ++i) {
        PagePool& pool = *stage.layer(i).pages;
        if (stage.layer(i).spec.kv_group != kWindowGroup) continue;
        const std::vector<std::byte> nans(pool.page_bytes(), std::byte{0xFF});
        for (BlockId b = 0; b < 2; ++b) pool.Write(testing::kPages - 1 - 2 * b, nans.data(), stage.queue());
        stage.queue().Finish();
      }
      std::vector<std::vector<float>> logits;
      for (const auto& [first, row_class, count] :
           {std::tuple{40u, RowClass::kPrompt, 17u}, {57u, RowClass::kGenerated, 1u}}) {
        OneStage::Part part{.seq = 0, .first = first, .row_class = row_class};
        for (uint32_t i = 0; i < count; ++i) part.ids.push_back(static_cast<TokenId>(first + i));
        part.requests.push_back({.first = 0, .count = count, .mode = RowMode::kFullLogits});
        for (auto& row : stage.Run({part})) logits.push_back(std::move(row));
      }
      EXPECT_EQ(logits.size(), 18u);
      got.push_back(std::move(logits));
    }
    EXPECT_EQ(got[0], got[1]);
  }
}

TEST(StageAnswers, AKeptRowHasTheLogitsThatItHad) {
  for (const char* arch : {"llama", "gemma2"}) {  // one caps its logits
    SCOPED_TRACE(arch);
    const auto model = Tiny({.arch = arch, .layers = 2, .vocab = kVocab, .more = [](testing::GgufWriter& w) {
                               w.Float("gemma2.final_logit_softcapping", 0.5f);
                             }});
    const std::vector<TokenId> ids{4, 5, 6, 7};
    OneStage asked_at_once(model, Isa::kRef), asked_later(model, Isa::kRef);
    const auto full = asked_at_once.Run({{0, 0, RowClass::kPrompt, ids, {Full(1), Full(3)}}});
    asked_later.Run({{0, 0, RowClass::kPrompt, ids, {TopK(1), TopK(3)}}});
    EXPECT_EQ(Question(asked_later, {.seq = SeqId{0}, .position = 1}), full[0]);
    EXPECT_EQ(Question(asked_later, {.seq = SeqId{0}, .position = 3}), full[1]);
    EXPECT_NE(full[0], full[1]);
    const float largest = std::abs(
        *std::max_element(full[0].begin(), full[0].end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
    EXPECT_EQ(largest <= 0.5f, std::string(arch) == "gemma2") << largest;
    // Nothing else is kept under another name.
    EXPECT_TRUE(Question(asked_later, {.seq = SeqId{1}, .position = 3}).empty());
    EXPECT_TRUE(Question(asked_later, {.seq = SeqId{0}, .incarnation = 1, .position = 3}).empty());
    EXPECT_TRUE(Question(asked_later, {.seq = SeqId{0}, .model = 1, .position = 3}).empty());
    EXPECT_TRUE(Question(asked_later, {.seq = SeqId{0}, .position = 2}).empty()) << "nobody asked for it";
  }
}

TEST(StageAnswers, TheLast256RowsAreKept) {
  OneStage stage(Tiny({.layers = 1, .vocab = kVocab}), Isa::kRef);
  for (uint32_t position = 0; position < 100; ++position) {
    for (uint64_t seq = 0; seq < 2; ++seq) stage.Run({{seq, position, RowClass::kGenerated, {3}, {TopK(0)}}});
  }
  for (uint32_t position = 100; position < 157; ++position)
    stage.Run({{0, position, RowClass::kGenerated, {3}, {TopK(0)}}});
  EXPECT_TRUE(Question(stage, {.seq = SeqId{0}, .position = 0}).empty()) << "the 257th";
  EXPECT_FALSE(Question(stage, {.seq = SeqId{1}, .position = 0}).empty());
  EXPECT_FALSE(Question(stage, {.seq = SeqId{0}, .position = 156}).empty());
}

RowRequest Hidden(uint32_t first, uint32_t count) { return {.first = first, .count = count, .mode = RowMode::kHidden}; }

// Rows whose hidden state is the answer may stand between others, in any order, and change none of them.
TEST(StageAnswers, HiddenStatesStandBetweenLogits) {
  const auto model = Tiny({.layers = 2, .vocab = kVocab});
  const std::vector<TokenId> ids{4, 5, 6, 7, 8, 9}, other{1, 2};
  OneStage all(model, Isa::kRef), apart(model, Isa::kRef), headless(model, Isa::kRef, false);
  const auto logits = all.Run({{0, 0, RowClass::kPrompt, ids, {{.count = 6, .mode = RowMode::kFullLogits}}},
                               {1, 0, RowClass::kPrompt, other, {Full(1)}}});
  const auto hidden =
      headless.Run({{0, 0, RowClass::kPrompt, ids, {Hidden(0, 6)}}, {1, 0, RowClass::kPrompt, other, {}}});
  ASSERT_EQ(hidden.size(), 6u);
  EXPECT_EQ(hidden[0].size(), 32u);
  EXPECT_NE(hidden[0], hidden[5]);
  const auto mixed = apart.Run({{0, 0, RowClass::kPrompt, ids, {Full(0), Hidden(1, 2), Full(3), Hidden(4, 1), Full(5)}},
                                {1, 0, RowClass::kPrompt, other, {Hidden(0, 1), Full(1)}}});
  ASSERT_EQ(mixed.size(), 8u);
  for (size_t i : {0, 3, 5}) EXPECT_EQ(mixed[i], logits[i]) << i;
  for (size_t i : {1, 2, 4}) EXPECT_EQ(mixed[i], hidden[i]) << i;
  EXPECT_EQ(mixed[7], logits[6]);
}

// Log-probabilities have the same bits however the row is sampled, and they count ids that a mask or bias takes away.
TEST(StageAnswers, LogprobsAreOfAllIds) {
  const auto model = Tiny({.layers = 2, .vocab = kVocab});
  const std::vector<TokenId> ids{4, 5, 6, 7};
  const auto answer = [&](RowRequest request) {
    request.first = 3;
    OneStage stage(model, Isa::kRef);
    return stage.Answers({{0, 0, RowClass::kPrompt, ids, {request}}})[0];
  };
  const RowAnswer full = answer({.mode = RowMode::kFullLogits, .logprobs = 9});
  ASSERT_EQ(full.best.size(), 9u);
  double sum = 0;
  for (float l : full.values) sum += std::exp(static_cast<double>(l));
  EXPECT_NEAR(full.log_sum_exp_all, std::log(sum), 1e-12);
  EXPECT_EQ(full.best[0].logit, *std::max_element(full.values.begin(), full.values.end()));
  const TokenId best = full.best[0].id;
  const std::vector<uint64_t> mask{0xF0, 0};
  const std::vector<RowRequest> requests{{.mode = RowMode::kArgmax, .logprobs = 9},
                                         {.mode = RowMode::kArgmax, .mask = mask, .logprobs = 9},
                                         {.mode = RowMode::kTopK, .k = 20, .logprobs = 9},
                                         {.mode = RowMode::kTopK, .k = 4, .logprobs = 9},
                                         {.mode = RowMode::kTopK, .k = 20, .temperature = 1, .logprobs = 9},
                                         {.mode = RowMode::kTopK, .k = 20, .temperature = 0.5f, .logprobs = 9},
                                         {.mode = RowMode::kTopK, .k = 20, .biased = {best}, .logprobs = 9},
                                         {.mode = RowMode::kTopK, .k = 20, .mask = mask, .logprobs = 9},
                                         {.mode = RowMode::kTargets, .biased = {best, kVocab - 1}, .logprobs = 9}};
  for (size_t i = 0; i < requests.size(); ++i) {
    const RowAnswer row = answer(requests[i]);
    EXPECT_EQ(row.best, full.best) << i;
    EXPECT_EQ(row.log_sum_exp_all, full.log_sum_exp_all) << i;
  }
  for (const uint32_t n : {0u, 1u, kVocab, kVocab + 5}) {
    const RowAnswer row = answer({.mode = RowMode::kTopK, .k = 20, .logprobs = n});
    EXPECT_EQ(row.best.size(), std::min(n, kVocab)) << n;
    EXPECT_EQ(row.log_sum_exp_all, full.log_sum_exp_all) << n;
  }
  const RowAnswer none = answer({.mode = RowMode::kTopK, .k = 20});
  EXPECT_TRUE(none.best.empty());
  EXPECT_EQ(none.log_sum_exp_all, 0);
  // A sum over a row costs more than the search for its best ids, so it is made where it is asked for only.
  EXPECT_EQ(none.log_sum_exp, 0);
  EXPECT_EQ(none.log_sum_exp_t, 0);
  const RowAnswer one = answer({.mode = RowMode::kTopK, .k = 20, .temperature = 1});
  EXPECT_EQ(one.log_sum_exp_t, full.log_sum_exp_all);
  EXPECT_EQ(one.log_sum_exp_all, 0);
}

}  // namespace
}  // namespace gyre
