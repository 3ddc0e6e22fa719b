// The sampler by hand-worked examples, and its draws against the exact distribution.
#include "coordinator/engine/sampler.h"

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/sampling_oracle.h"

namespace gyre {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kInf;
using testing::kNan;
using testing::OracleAnswer;
using testing::OracleDistribution;
using ::testing::Pair;
using testing::Plain;

std::vector<float> LogitsOf(std::vector<float> probabilities) {
  for (float& p : probabilities) p = std::log(p);
  return probabilities;
}

// Every id that comes in many draws, with the probability it was drawn with.
std::map<TokenId, float> Support(const SamplingParams& params, std::span<const float> logits,
                                 const TokenHistory& history = {}, std::span<const uint64_t> mask = {}) {
  std::map<TokenId, float> support;
  for (uint32_t position = 0; position < 3000; ++position) {
    StatusOr<Draw> draw = SampleFull(params, history, mask, logits, position);
    EXPECT_TRUE(draw.ok()) << draw.status();
    if (!draw.ok()) break;
    support[draw->token] = draw->probability;
  }
  return support;
}

TokenId Greedy(SamplingParams params, std::span<const float> logits, const TokenHistory& history = {},
               std::span<const uint64_t> mask = {}) {
  params.temperature = 0;
  StatusOr<Draw> draw = SampleFull(params, history, mask, logits, 0);
  EXPECT_TRUE(draw.ok()) << draw.status();
  return draw.ok() ? draw->token : -1;
}

// The standard deviations of a chi-square statistic above its mean (Wilson and Hilferty): p = 1e-6 is at 4.75.
double ChiSquareZ(const std::map<TokenId, size_t>& counts, const std::map<TokenId, double>& expected, size_t draws) {
  double chi2 = 0;
  for (const auto& [id, p] : expected) {
    const auto found = counts.find(id);
    const double n = found == counts.end() ? 0 : static_cast<double>(found->second);
    const double want = p * static_cast<double>(draws);
    chi2 += (n - want) * (n - want) / want;
  }
  for (const auto& [id, n] : counts) {
    if (!expected.contains(id)) return std::numeric_limits<double>::infinity();
  }
  const double freedom = static_cast<double>(expected.size()) - 1;
  return (std::cbrt(chi2 / freedom) - (1 - 2 / (9 * freedom))) / std::sqrt(2 / (9 * freedom));
}
constexpr double kLimitZ = 4.75;

TEST(Philox, KnownAnswersOfRandom123) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(Philox, UniformIsPinnedToSeedAndPosition) {
  EXPECT_EQ(UniformAt(0, 0), static_cast<double>(0xe169c58d6627e8d5u >> 11) / 9007199254740992.0);
  const auto words = Philox4x32({123456, 0, 0, 0}, {0x9abcdef0, 0x12345678});
  EXPECT_EQ(UniformAt(0x123456789abcdef0, 123456),
            static_cast<double>((uint64_t{words[1]} << 32 | words[0]) >> 11) / 9007199254740992.0);
  std::set<double> seen;
  for (uint32_t position = 0; position < 1000; ++position) {
    const double u = UniformAt(42, position);
    EXPECT_TRUE(u >= 0 && u < 1);
    EXPECT_TRUE(seen.insert(u).second);
  }
}

TEST(SamplerFilters, NoFilterKeepsEverything) {
  EXPECT_THAT(Support(Plain(), LogitsOf({0.1, 0.6, 0.3})),
              ElementsAre(Pair(0, FloatNear(0.1, 1e-6)), Pair(1, FloatNear(0.6, 1e-6)), Pair(2, FloatNear(0.3, 1e-6))));
}

TEST(SamplerFilters, TemperatureSharpensAndFlattens) {
  SamplingParams params = Plain();
  params.temperature = 0.5;  // squares the odds: 16 to 1
  EXPECT_THAT(Support(params, LogitsOf({0.2, 0.8})),
              ElementsAre(Pair(0, FloatNear(1.f / 17, 1e-6)), Pair(1, FloatNear(16.f / 17, 1e-6))));
  params.temperature = 2;  // 2 to 1
  EXPECT_THAT(Support(params, LogitsOf({0.2, 0.8})),
              ElementsAre(Pair(0, FloatNear(1.f / 3, 1e-6)), Pair(1, FloatNear(2.f / 3, 1e-6))));
}

TEST(SamplerFilters, TopKKeepsTheBestTiesByRisingId) {
  SamplingParams params = Plain();
  params.top_k = 2;
  EXPECT_THAT(Support(params, std::vector<float>{1, 3, 1, 0, 1}),
              ElementsAre(Pair(0, FloatNear(0.119203f, 1e-6)), Pair(1, FloatNear(0.880797f, 1e-6))));
  params.top_k = 1;
  EXPECT_THAT(Support(params, std::vector<float>{1, 3, 3}), ElementsAre(Pair(1, 1.0f)));
  params.top_k = 99;  // more than there are
  EXPECT_EQ(Support(params, std::vector<float>{1, 3, 3}).size(), 3u);
}

TEST(SamplerFilters, TopPKeepsTheTokenThatCrosses) {
  SamplingParams params = Plain();
  params.top_p = 0.7f;
  EXPECT_THAT(Support(params, LogitsOf({0.1, 0.5, 0.15, 0.25})),
              ElementsAre(Pair(1, FloatNear(2.f / 3, 1e-6)), Pair(3, FloatNear(1.f / 3, 1e-6))));
  params.top_p = 0.4f;
  EXPECT_THAT(Support(params, LogitsOf({0.1, 0.5, 0.15, 0.25})), ElementsAre(Pair(1, 1.0f)));
  params.top_p = 1e-9f;
  EXPECT_THAT(Support(params, LogitsOf({0.1, 0.5, 0.15, 0.25})), ElementsAre(Pair(1, 1.0f)));
  params.top_p = 0.5f;  // exactly reached by the first of two equals
  EXPECT_THAT(Support(params, std::vector<float>{2, 2}), ElementsAre(Pair(0, 1.0f)));
}

TEST(SamplerFilters, MinPIsRelativeToTheBest) {
  SamplingParams params = Plain();
  params.min_p = 0.25f;
  EXPECT_THAT(Support(params, LogitsOf({0.1, 0.56, 0.14001, 0.19999})),
              ElementsAre(Pair(1, FloatNear(0.56 / 0.9, 1e-5)), Pair(2, FloatNear(0.14 / 0.9, 1e-4)),
                          Pair(3, FloatNear(0.2 / 0.9, 1e-4))));
  params.min_p = 1;
  EXPECT_THAT(Support(params, std::vector<float>{1, 5, 4, 5}), ElementsAre(Pair(1, 0.5f), Pair(3, 0.5f)));
}

TEST(SamplerFilters, TopPIsTakenOverWhatTopKKept) {
  SamplingParams params = Plain();
  params.top_k = 2;  // 0.4 and 0.2 become 2/3 and 1/3
  params.top_p = 0.65f;
  const std::vector<float> logits = LogitsOf({0.4, 0.2, 0.15, 0.15, 0.1});
  EXPECT_THAT(Support(params, logits), ElementsAre(Pair(0, 1.0f)));
  params.top_k = 0;
  EXPECT_EQ(Support(params, logits).size(), 3u);
}

TEST(SamplerFilters, TemperatureComesBeforeTopP) {
  SamplingParams params = Plain();
  params.top_p = 0.7f;
  params.temperature = 0.5f;  // 0.6, 0.3, 0.1 become 36/46, 9/46, 1/46
  EXPECT_THAT(Support(params, LogitsOf({0.6, 0.3, 0.1})), ElementsAre(Pair(0, 1.0f)));
  params.temperature = 1;
  EXPECT_EQ(Support(params, LogitsOf({0.6, 0.3, 0.1})).size(), 2u);
}

TEST(SamplerFilters, BiasIsSummedAndBans) {
  SamplingParams params = Plain();
  params.logit_bias = {{2, 1.5f}, {0, -kInf}, {2, 1.5f}};
  EXPECT_THAT(Support(params, std::vector<float>{9, 3, 0}), ElementsAre(Pair(1, 0.5f), Pair(2, 0.5f)));
  params.logit_bias = {{0, 5.f}, {0, -5.f}};
  EXPECT_THAT(MakeRowRequest(params, {}, {}).biased, IsEmpty());
}

TEST(SamplerFilters, RepetitionPenaltyDividesPositiveAndMultipliesNegative) {
  SamplingParams params = Plain();
  params.repetition_penalty = 2;
  const std::vector<TokenId> tokens = {0, 1};
  EXPECT_EQ(Greedy(params, std::vector<float>{4, -1, 2.5f, -3}, {tokens, 2}), 2);  // 4 -> 2
  EXPECT_EQ(Greedy(params, std::vector<float>{-9, -2, -9, -3}, {tokens, 2}), 3);   // -2 -> -4
}

TEST(SamplerFilters, RepetitionPenaltyReachesLastN) {
  SamplingParams params = Plain();
  params.repetition_penalty = 3;
  const std::vector<TokenId> tokens = {0, 1, 1, 2};
  const std::vector<float> logits = {9, 8, 7, 5};
  params.penalty_last_n = 0;
  EXPECT_EQ(Greedy(params, logits, {tokens, 1}), 0);
  params.penalty_last_n = 3;
  EXPECT_EQ(Greedy(params, logits, {tokens, 1}), 0);
  params.penalty_last_n = 4;
  EXPECT_EQ(Greedy(params, logits, {tokens, 1}), 3);
  params.penalty_last_n = -1;
  EXPECT_EQ(Greedy(params, logits, {tokens, 1}), 3);
}

TEST(SamplerFilters, FrequencyAndPresenceLookAtGeneratedTokensOnly) {
  SamplingParams params = Plain();
  const std::vector<TokenId> tokens = {0, 0, 0, 1, 1, 2};
  params.frequency_penalty = 1;
  // The prompt's three zeros cost nothing; 1 loses two, 2 loses one.
  EXPECT_THAT(MakeRowRequest(params, {tokens, 3}, {}).biased, ElementsAre(1, 2));
  EXPECT_EQ(Greedy(params, std::vector<float>{1, 4.5f, 4, 2.9f}, {tokens, 3}), 2);
  params.frequency_penalty = 0;
  params.presence_penalty = 1.5f;
  EXPECT_EQ(Greedy(params, std::vector<float>{1, 4.5f, 4, 2.9f}, {tokens, 3}), 1);
  params.presence_penalty = -2;
  EXPECT_EQ(Greedy(params, std::vector<float>{5, 4, 2, 5.5f}, {tokens, 3}), 1);
}

TEST(SamplerFilters, BiasComesBeforeThePenalty) {
  SamplingParams params = Plain();
  params.repetition_penalty = 2;
  params.logit_bias = {{0, 4.f}};
  const std::vector<TokenId> tokens = {0};
  // (-2 + 4) / 2 = 1, not -2 * 2 + 4 = 0.
  EXPECT_EQ(Greedy(params, std::vector<float>{-2, 0.5f}, {tokens, 1}), 0);
}

TEST(SamplerFilters, MaskComesFirst) {
  SamplingParams params = Plain();
  std::vector<uint64_t> mask = {0b0110};
  EXPECT_EQ(Greedy(params, std::vector<float>{9, 1, 2, 8}, {}, mask), 2);
  params.top_k = 1;
  EXPECT_THAT(Support(params, std::vector<float>{9, 1, 2, 8}, {}, mask), ElementsAre(Pair(2, 1.0f)));
  params.logit_bias = {{0, 100.f}};  // a bias does not unmask
  EXPECT_EQ(Greedy(params, std::vector<float>{9, 1, 2, 8}, {}, mask), 2);
  mask = {0};
  EXPECT_EQ(SampleFull(params, {}, mask, std::vector<float>{1, 2}, 0).status().code(), absl::StatusCode::kInternal);
}

TEST(SamplerFilters, GreedyTiesGoToTheLowerId) {
  EXPECT_EQ(Greedy(Plain(), std::vector<float>{1, 5, 5, 5}), 1);
  SamplingParams params = Plain();
  params.logit_bias = {{3, 4.f}};
  EXPECT_EQ(Greedy(params, std::vector<float>{1, 1, 5, 1, 0}), 2);
  params.logit_bias = {{0, 4.f}};
  EXPECT_EQ(Greedy(params, std::vector<float>{1, 1, 5, 1, 0}), 0);
}

TEST(SamplerOddLogits, NanAndInfinity) {
  EXPECT_EQ(Greedy(Plain(), std::vector<float>{kNan, 1, 2, kNan}), 2);
  EXPECT_THAT(Support(Plain(), std::vector<float>{kNan, 1, -kInf, 1}), ElementsAre(Pair(1, 0.5f), Pair(3, 0.5f)));
  EXPECT_THAT(Support(Plain(), std::vector<float>{0, kInf, 3, kInf}), ElementsAre(Pair(1, 0.5f), Pair(3, 0.5f)));
  for (const std::vector<float>& logits : {std::vector<float>{kNan, kNan}, {-kInf, -kInf}, {}}) {
    const Status status = SampleFull(Plain(), {}, {}, logits, 3).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(Message(status), HasSubstr("position 3"));
  }
}

TEST(SamplerOddLogits, HugeAndTinyValuesStayFinite) {
  SamplingParams params = Plain();
  params.repetition_penalty = 1e-30f;
  params.temperature = 1e-6f;
  const std::vector<TokenId> tokens = {0, 1};
  const auto support = Support(params, std::vector<float>{3e38f, 1e30f, -3e38f, 7}, {tokens, 2});
  for (const auto& [id, p] : support) EXPECT_TRUE(p > 0 && p <= 1) << id;
  EXPECT_LE(support.rbegin()->first, 1);
}

// Draws follow the distribution that the oracle works out, and the check would notice if they didn't.
TEST(SamplerDistribution, DrawsMatchByChiSquare) {
  constexpr size_t kDraws = 30000;
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> logits(30);
  for (float& logit : logits) logit = normal(random);
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 4, 5};
  const TokenHistory history{tokens, 2};

  std::vector<SamplingParams> cases(5, Plain());
  cases[1].temperature = 1.7f;
  cases[1].top_k = 12;
  cases[2].top_p = 0.8f;
  cases[2].repetition_penalty = 1.3f;
  cases[3].min_p = 0.1f;
  cases[3].frequency_penalty = 0.5f;
  cases[3].presence_penalty = -0.5f;
  cases[4] = {.temperature = 0.9f, .top_k = 20, .top_p = 0.9f, .min_p = 0.05f, .logit_bias = {{7, 2.f}}, .seed = 5};
  for (const SamplingParams& by_sum : std::vector(cases)) {
    cases.push_back(by_sum);
    cases.back().draw = DrawMethod::kGumbel;
  }
  for (const SamplingParams& params : cases) {
    const auto expected = OracleDistribution(params, history, {}, logits);
    const RowRequest request = MakeRowRequest(params, history, {}, 30);
    if (params.draw == DrawMethod::kUniform) EXPECT_EQ(request.mode, RowMode::kTopK);
    std::map<TokenId, size_t> by_position, by_seed, by_candidates, biased;
    for (uint32_t i = 0; i < kDraws; ++i) {
      ++by_position[SampleFull(params, history, {}, logits, i)->token];
      SamplingParams seeded = params;
      seeded.seed = i;
      ++by_seed[SampleFull(seeded, history, {}, logits, 9)->token];
      if (request.mode == RowMode::kTopK) {
        const auto draw = SampleCandidates(params, history, request, OracleAnswer(request, logits, i), 30);
        ASSERT_TRUE(draw.ok() && draw->has_value());
        ++by_candidates[(*draw)->token];
        EXPECT_EQ((*draw)->token, SampleFull(params, history, {}, logits, i)->token);
      }
      // The same inverse, fed with a u that leans down by two percent.
      double left = 0.98 * UniformAt(params.seed, i);
      for (const auto& [id, p] : expected) {
        if ((left -= p) < 0) {
          ++biased[id];
          break;
        }
      }
    }
    EXPECT_LT(ChiSquareZ(by_position, expected, kDraws), kLimitZ);
    EXPECT_LT(ChiSquareZ(by_seed, expected, kDraws), kLimitZ);
    if (!by_candidates.empty()) EXPECT_LT(ChiSquareZ(by_candidates, expected, kDraws), kLimitZ);
    EXPECT_GT(ChiSquareZ(biased, expected, kDraws), kLimitZ);
  }
}

// The same text of two models whose logits differ by a normal error: by Gumbel's numbers nearly as often as is
// possible.
TEST(SamplerDistribution, ModelsThatAreNearlyEqualDrawTheSameMoreOftenByGumbel) {
  constexpr uint32_t kDraws = 1500;
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  SamplingParams params{.temperature = 0.8f};
  double gumbel = 0, uniform = 0, possible = 0;
  for (uint32_t i = 0; i < kDraws; ++i) {
    std::vector<float> target(500), draft(500);
    for (size_t id = 0; id < target.size(); ++id) {
      target[id] = 2 * normal(random);
      draft[id] = target[id] + 0.7f * normal(random);
    }
    for (const DrawMethod method : {DrawMethod::kUniform, DrawMethod::kGumbel}) {
      params.draw = method;
      const bool same = SampleFull(params, {}, {}, target, i)->token == SampleFull(params, {}, {}, draft, i)->token;
      (method == DrawMethod::kGumbel ? gumbel : uniform) += same ? 1.0 / kDraws : 0;
    }
    const auto p = OracleDistribution(params, {}, {}, target), q = OracleDistribution(params, {}, {}, draft);
    for (const auto& [id, chance] : p) possible += q.count(id) > 0 ? std::min(chance, q.at(id)) / kDraws : 0;
  }
  RecordProperty("gumbel", std::to_string(gumbel));
  RecordProperty("uniform", std::to_string(uniform));
  RecordProperty("possible", std::to_string(possible));
  EXPECT_GT(gumbel, uniform + 0.05);
  EXPECT_GT(gumbel, 0.9 * possible);
}

}  // namespace
}  // namespace gyre
