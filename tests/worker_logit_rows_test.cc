// The last layer goes on with the logit rows only, those of which an answer is asked: these and all later rows have the
// same bits as if every row were one.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/testing/gguf_writer.h"
#include "tests/testing/kernel_test.h"
#include "tests/testing/one_stage.h"

namespace gyre {
namespace {

using testing::OneStage;

using testing::kVocab;

RowRequest Logits(uint32_t first, uint32_t count) {
  return {.first = first, .count = count, .mode = RowMode::kFullLogits};
}

std::vector<TokenId> Ids(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % kVocab);
  return ids;
}

bool Equal(const std::vector<float>& a, const std::vector<float>& b) {
  return !a.empty() && a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class LogitRows : public ::testing::TestWithParam<Isa> {};

TEST_P(LogitRows, AreAsIfAllRowsWereLogitRows) {
  if (!IsaMissing(GetParam()).empty()) GTEST_SKIP() << IsaMissing(GetParam());
  // Post-norms and windows; biases, experts and a shared one; norms of heads; one matrix for queries, keys and values.
  for (const char* arch : {"llama", "gemma3", "qwen2moe", "qwen3", "phi3"}) {
    for (DType type : {DType::kF16, DType::kQ8_0}) {
      SCOPED_TRACE(std::string(arch) + " " + Info(type).name);
      const std::vector<std::byte> file =
          testing::BuildTinyModel({.arch = arch, .layers = 3, .vocab = kVocab, .type = type});
      const auto model = OpenModelFromBytes(file);
      ASSERT_TRUE(model.ok()) << model.status();
      const std::vector<TokenId> prompt = Ids(40, 1), other = Ids(9, 2), next = {7};
      using Step = std::vector<OneStage::Part>;
      // A prompt beside another one that is not at its end, then both go on.
      auto steps = [&](std::vector<RowRequest> of_prompt, std::vector<RowRequest> of_other) {
        return std::vector<Step>{
            {{0, 0, RowClass::kPrompt, prompt, std::move(of_prompt)},
             {1, 0, RowClass::kPrompt, other, std::move(of_other)}},
            {{0, 40, RowClass::kGenerated, next, {Logits(0, 1)}}, {1, 9, RowClass::kPrompt, other, {Logits(8, 1)}}},
            {{0, 41, RowClass::kGenerated, next, {Logits(0, 1)}}, {1, 18, RowClass::kGenerated, next, {Logits(0, 1)}}}};
      };
      auto run = [&](const std::vector<Step>& all) {
        OneStage stage(*model, GetParam());
        std::vector<std::vector<float>> logits;
        for (const Step& step : all) {
          for (auto& row : stage.Run(step)) logits.push_back(std::move(row));
        }
        return logits;
      };
      const auto all = run(steps({Logits(0, 40)}, {Logits(0, 9)}));
      ASSERT_EQ(all.size(), 40u + 9 + 4);
      ASSERT_FALSE(Equal(all[0], all[39]));
      // `rows`: the logit rows of the first step, of both sequences.
      auto check = [&](const std::vector<Step>& some, std::vector<size_t> rows) {
        const auto got = run(some);
        for (size_t i = 49; i < all.size(); ++i) rows.push_back(i);
        ASSERT_EQ(got.size(), rows.size());
        for (size_t i = 0; i < rows.size(); ++i)
          EXPECT_TRUE(Equal(got[i], all[rows[i]])) << "row " << rows[i] << " of " << rows.size();
      };
      check(steps({}, {}), {});
      check(steps({Logits(39, 1)}, {}), {39});
      check(steps({}, {Logits(0, 1)}), {40});
      check(steps({Logits(3, 2), Logits(17, 1), Logits(38, 2)}, {Logits(5, 1), Logits(8, 1)}),
            {3, 4, 17, 38, 39, 45, 48});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, LogitRows, ::testing::ValuesIn(testing::IsasWithTiles()), testing::IsaTestName);

}  // namespace
}  // namespace gyre
