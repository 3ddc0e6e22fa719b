// Candidates and full logits must draw the same token whenever the candidates decide; what is asked for, and refused.
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <random>

#include "coordinator/engine/sampler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/draw.h"
#include "tests/testing/sampling_oracle.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kInf;
using testing::kNan;
using testing::OracleAnswer;
using testing::OracleDistribution;
using testing::Plain;

using testing::Between;
using Random = testing::RandomBits;

float Real(Random& random, float low, float high) { return std::uniform_real_distribution<float>(low, high)(random); }

// One seeded row with everything that leads to its draw.
struct Case {
  SamplingParams params = Plain();
  std::vector<float> logits;
  std::vector<TokenId> tokens;
  size_t prompt_length = 0;
  std::vector<uint64_t> mask;
  uint32_t candidates = 64;
  uint32_t position = 0;

  int vocab() const { return static_cast<int>(logits.size()); }
  TokenHistory History() const { return {tokens, prompt_length}; }
};

struct Regime {
  const char* name;
  std::function<void(Random&, Case&)> set;
  bool all_decided = false;
  bool some_undecided = false;
};

Case MakeCase(Random& random, const Regime& regime) {
  Case c;
  static constexpr int kVocabs[] = {1, 2, 3, 17, 64, 65, 200, 1000, 5000};
  c.logits.resize(kVocabs[Between(random, 0, 8)]);
  std::normal_distribution<float> normal(0, Real(random, 0.1f, 6));
  const bool rounded = Between(random, 0, 3) == 0;  // many ties
  for (float& logit : c.logits) logit = rounded ? std::round(normal(random)) : normal(random);
  c.params.temperature = Between(random, 0, 3) == 0 ? 1 : Real(random, 0.05f, 3);
  c.params.seed = random();
  c.position = static_cast<uint32_t>(random());
  static constexpr uint32_t kCandidates[] = {1, 2, 8, 64, 200, 1024};
  c.candidates = kCandidates[Between(random, 0, 5)];
  const int tokens = Between(random, 0, 100);
  for (int i = 0; i < tokens; ++i) c.tokens.push_back(Between(random, 0, c.vocab() - 1));
  c.prompt_length = static_cast<size_t>(Between(random, 0, tokens));
  regime.set(random, c);
  return c;
}

void AddPenalties(Random& random, Case& c) {
  c.params.repetition_penalty = Real(random, 0.5f, 2);
  c.params.penalty_last_n = Between(random, -1, 64);
  c.params.frequency_penalty = Real(random, -2, 2);
  c.params.presence_penalty = Real(random, -2, 2);
}

void AddBias(Random& random, Case& c) {
  for (int i = Between(random, 0, 20); i > 0; --i) {
    c.params.logit_bias.emplace_back(Between(random, 0, c.vocab() - 1),
                                     Between(random, 0, 4) == 0 ? -kInf : Real(random, -9, 9));
  }
}

void AddMask(Random& random, Case& c) {
  c.mask.resize((c.logits.size() + 63) / 64);
  for (uint64_t& word : c.mask) word = random() & random();
  c.mask[0] |= 1;
}

const Regime kRegimes[] = {
    {"greedy", [](Random&, Case& c) { c.params.temperature = 0; }, true},
    {"greedy, penalties, bias, mask",
     [](Random& r, Case& c) {
       c.params.temperature = 0;
       AddPenalties(r, c);
       AddBias(r, c);
       AddMask(r, c);
     },
     true},
    {"top-k <= 1024", [](Random& r, Case& c) { c.params.top_k = Between(r, 1, 1024); }, true},
    {"top-k <= 1024, everything",
     [](Random& r, Case& c) {
       c.params.top_k = Between(r, 1, 100);
       c.params.top_p = Real(r, 0.1f, 1);
       c.params.min_p = Real(r, 0, 0.5f);
       AddPenalties(r, c);
       AddBias(r, c);
       AddMask(r, c);
     },
     true},
    {"top-k > 1024",
     [](Random& r, Case& c) {
       c.params.top_k = Between(r, 1025, 6000);
       c.params.top_p = Between(r, 0, 1) != 0 ? 1 : Real(r, 0.1f, 1);
       c.params.min_p = Between(r, 0, 1) != 0 ? 0 : Real(r, 0, 0.5f);
     },
     false, true},
    {"no filter", [](Random&, Case&) {}, false, true},
    {"no filter, penalties, bias, mask",
     [](Random& r, Case& c) {
       AddPenalties(r, c);
       AddBias(r, c);
       AddMask(r, c);
     },
     false, true},
    {"top-p", [](Random& r, Case& c) { c.params.top_p = Real(r, 0.05f, 0.999f); }, false, true},
    {"top-p, penalties, bias, mask",
     [](Random& r, Case& c) {
       c.params.top_p = Real(r, 0.05f, 0.999f);
       AddPenalties(r, c);
       AddBias(r, c);
       AddMask(r, c);
     },
     false, true},
    {"min-p", [](Random& r, Case& c) { c.params.min_p = Real(r, 0.001f, 1); }, false, true},
    {"min-p and top-p, penalties, bias",
     [](Random& r, Case& c) {
       c.params.min_p = Real(r, 0.001f, 0.2f);
       c.params.top_p = Real(r, 0.3f, 0.999f);
       AddPenalties(r, c);
       AddBias(r, c);
     },
     false, true},
};

class SamplerPaths : public ::testing::TestWithParam<Regime> {};

TEST_P(SamplerPaths, CandidatesDrawWhatFullLogitsDraw) {
  constexpr int kCases = testing::kSanitized ? 500 : 2000;
  Random random(2024);
  int decided = 0, in_part = 0, undecided = 0, empty = 0;
  for (int i = 0; i < kCases; ++i) {
    SCOPED_TRACE(i);
    const Case c = MakeCase(random, GetParam());
    ASSERT_TRUE(c.params.Validate(c.vocab()).ok()) << c.params.Validate(c.vocab());
    const RowRequest request = MakeRowRequest(c.params, c.History(), c.mask, c.candidates);
    const RowAnswer answer = OracleAnswer(request, c.logits, c.position);
    const auto few = SampleCandidates(c.params, c.History(), request, answer, c.vocab());
    const auto full = SampleFull(c.params, c.History(), c.mask, c.logits, c.position);
    if (!full.ok()) {
      ASSERT_EQ(few.status(), full.status());
      ++empty;
      continue;
    }
    ASSERT_TRUE(few.ok()) << few.status();
    ++(few->has_value() ? decided : undecided);
    if (few->has_value()) {
      in_part += answer.top.size() + answer.biased.size() < c.logits.size();
      ASSERT_EQ((*few)->token, full->token);
      ASSERT_NEAR((*few)->probability, full->probability, 1e-6 * full->probability);
    }
    if (c.params.temperature == 0 || i % 8 != 0) continue;
    const auto distribution = OracleDistribution(c.params, c.History(), c.mask, c.logits);
    ASSERT_TRUE(distribution.contains(full->token));
    ASSERT_NEAR(full->probability, distribution.at(full->token), 1e-5);
  }
  std::printf("%-36s decided %d (%d without knowing all ids), undecided %d, nothing to draw %d\n", GetParam().name,
              decided, in_part, undecided, empty);
  EXPECT_GT(in_part, 0);
  EXPECT_LT(empty, kCases / 4);
  EXPECT_TRUE(!GetParam().all_decided || undecided == 0);
  EXPECT_TRUE(!GetParam().some_undecided || undecided > 0);
}
INSTANTIATE_TEST_SUITE_P(Regimes, SamplerPaths, ::testing::ValuesIn(kRegimes),
                         [](const auto& info) { return std::to_string(info.index); });

// The log-sum-exps of a last stage may be rounded otherwise than the full path's sum. u or p right at a boundary must
// then be left open, never drawn differently.
TEST(SamplerMargin, RoundingOfTheRestNeverChangesAToken) {
  Random random(5);
  int decided = 0, undecided = 0;
  for (int i = 0; i < 2000; ++i) {
    // Equal logits: every multiple of 1/n is a boundary of the running sums.
    const int n = 1 << Between(random, 2, 8);
    const std::vector<float> logits(static_cast<size_t>(n), Real(random, -30, 30));
    SamplingParams params = Plain();
    params.temperature = Real(random, 0.01f, 2);
    params.top_p = static_cast<float>(Between(random, 1, n - 1)) / static_cast<float>(n);
    params.seed = random();
    const RowRequest request = MakeRowRequest(params, {}, {}, static_cast<uint32_t>(n - 1));
    RowAnswer answer = OracleAnswer(request, logits, 0);
    answer.log_sum_exp_t += Real(random, -1e-11f, 1e-11f);
    const auto few = SampleCandidates(params, {}, request, answer, n);
    const auto full = SampleFull(params, {}, {}, logits, 0);
    ASSERT_TRUE(few.ok() && full.ok());
    ++(few->has_value() ? decided : undecided);
    EXPECT_TRUE(!few->has_value() || (*few)->token == full->token);
  }
  EXPECT_GT(undecided, 0);
  EXPECT_EQ(decided, 0) << "every one of these stands on a boundary";
}

TEST(SamplerPathsOdd, NanAndInfinityAmongTheOthers) {
  Random random(6);
  int decided = 0;
  for (int i = 0; i < (testing::kSanitized ? 800 : 3000); ++i) {
    Case c = MakeCase(random, kRegimes[Between(random, 0, 10)]);
    for (int odd = Between(random, 1, 20); odd > 0; --odd) {
      static constexpr float kOdd[] = {kNan, kInf, -kInf};
      c.logits[static_cast<size_t>(Between(random, 0, c.vocab() - 1))] = kOdd[Between(random, 0, 2)];
    }
    const RowRequest request = MakeRowRequest(c.params, c.History(), c.mask, c.candidates);
    const RowAnswer answer = OracleAnswer(request, c.logits, c.position);
    const auto few = SampleCandidates(c.params, c.History(), request, answer, c.vocab());
    const auto full = SampleFull(c.params, c.History(), c.mask, c.logits, c.position);
    ASSERT_EQ(few.status(), full.status());
    if (!few.ok() || !few->has_value()) continue;
    ++decided;
    ASSERT_EQ((*few)->token, full->token) << i;
  }
  EXPECT_GT(decided, 100);
}

TEST(SamplerRequest, ModeBiasedAndTemperature) {
  SamplingParams params = Plain();
  params.temperature = 0;
  const std::vector<TokenId> tokens = {5, 3, 5, 9};
  const TokenHistory history{tokens, 2};
  EXPECT_EQ(MakeRowRequest(params, history, {}).mode, RowMode::kArgmax);
  const std::vector<uint64_t> mask = {6};
  EXPECT_EQ(MakeRowRequest(params, history, mask).mode, RowMode::kArgmax);
  EXPECT_EQ(MakeRowRequest(params, history, mask).mask, mask);

  params.frequency_penalty = 1;
  params.logit_bias = {{7, 1.f}, {2, -kInf}};
  RowRequest request = MakeRowRequest(params, history, {});
  EXPECT_EQ(request.mode, RowMode::kTopK);
  EXPECT_EQ(request.k, 1u);
  EXPECT_EQ(request.temperature, 0);
  EXPECT_THAT(request.biased, ElementsAre(2, 5, 7, 9));

  params = {.temperature = 0.5f, .top_k = 40, .logit_bias = {}};
  request = MakeRowRequest(params, history, {}, 64);
  EXPECT_EQ(request.k, 40u);
  EXPECT_EQ(request.temperature, 0);  // all that counts is in the forty
  EXPECT_THAT(request.biased, IsEmpty());
  params.top_k = 2000;
  request = MakeRowRequest(params, history, {}, 64);
  EXPECT_EQ(request.k, 64u);
  EXPECT_EQ(request.temperature, 0.5f);
  params.top_k = 0;
  params.top_p = 1;
  EXPECT_EQ(MakeRowRequest(params, history, {}).temperature, 0);  // min-p needs the best only
  params.min_p = 0;
  EXPECT_EQ(MakeRowRequest(params, history, {}).temperature, 0.5f);
  params.temperature = 1;
  EXPECT_EQ(MakeRowRequest(params, history, {}).temperature, 1);
  params.top_k = 40;
  EXPECT_EQ(MakeRowRequest(params, history, {}).temperature, 0);
  params.top_k = 0;
  EXPECT_EQ(MakeRowRequest(params, history, {}, 5000).k, kMaxTopK);
  EXPECT_EQ(MakeRowRequest(params, history, {}, 0).k, 1u);
}

TEST(SamplerAnswer, WhatDoesNotFitTheRequestIsRefused) {
  SamplingParams params = Plain();
  params.top_k = 3;
  params.logit_bias = {{4, 1.f}};
  const std::vector<float> logits = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<uint64_t> mask = {0xFE};
  const RowRequest request = MakeRowRequest(params, {}, mask);
  const RowAnswer good = OracleAnswer(request, logits, 0);
  const auto code = [&](const RowAnswer& answer) {
    return SampleCandidates(params, {}, request, answer, 8).status().code();
  };
  EXPECT_EQ(code(good), absl::StatusCode::kOk);
  std::vector<RowAnswer> bad(8, good);
  bad[0].mode = RowMode::kArgmax;
  bad[1].biased.clear();
  bad[2].biased[0].id = 3;
  bad[3].top.push_back({1, 0});
  std::swap(bad[4].top[0], bad[4].top[1]);
  bad[5].top[2] = {4, 0};   // biased
  bad[6].top[2] = {0, 0};   // masked
  bad[7].top[2] = {99, 0};  // beyond the vocabulary
  for (const RowAnswer& answer : bad) EXPECT_EQ(code(answer), absl::StatusCode::kInternal);
  for (RowMode mode : {RowMode::kFullLogits, RowMode::kArgmax}) {
    RowRequest other = request;
    other.mode = mode;
    EXPECT_EQ(SampleCandidates(params, {}, other, good, 8).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(SamplerValidate, NamesFieldValueAndRange) {
  EXPECT_TRUE(SamplingParams{}.Validate(10).ok());
  const auto message = [](const std::function<void(SamplingParams&)>& set) {
    SamplingParams params;
    set(params);
    const Status status = params.Validate(10);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return Message(status);
  };
  EXPECT_EQ(message([](SamplingParams& p) { p.temperature = -1; }), "temperature is -1, it must be 0 to 100");
  EXPECT_THAT(message([](SamplingParams& p) { p.temperature = kNan; }), HasSubstr("temperature is nan"));
  EXPECT_EQ(message([](SamplingParams& p) { p.top_k = -1; }), "top_k is -1, it must be 0 (off) or more");
  EXPECT_EQ(message([](SamplingParams& p) { p.top_p = 0; }), "top_p is 0, it must be above 0 and at most 1");
  EXPECT_THAT(message([](SamplingParams& p) { p.top_p = 1.5f; }), HasSubstr("top_p is 1.5"));
  EXPECT_THAT(message([](SamplingParams& p) { p.min_p = 2; }), HasSubstr("min_p is 2"));
  EXPECT_THAT(message([](SamplingParams& p) { p.repetition_penalty = 0; }), HasSubstr("repetition_penalty is 0"));
  EXPECT_THAT(message([](SamplingParams& p) { p.frequency_penalty = 3; }), HasSubstr("frequency_penalty is 3"));
  EXPECT_THAT(message([](SamplingParams& p) { p.presence_penalty = kInf; }), HasSubstr("presence_penalty is inf"));
  EXPECT_THAT(message([](SamplingParams& p) { p.penalty_last_n = -2; }), HasSubstr("penalty_last_n is -2"));
  EXPECT_THAT(message([](SamplingParams& p) { p.logit_bias = {{10, 1.f}}; }), HasSubstr("token id 10, the vocabulary"));
  EXPECT_THAT(message([](SamplingParams& p) { p.logit_bias = {{-1, 1.f}}; }), HasSubstr("token id -1"));
  EXPECT_THAT(message([](SamplingParams& p) { p.logit_bias = {{1, kInf}}; }), HasSubstr("token id 1 is inf"));
  EXPECT_THAT(message([](SamplingParams& p) { p.logit_bias = {{1, kNan}}; }), HasSubstr("token id 1 is nan"));
}

}  // namespace
}  // namespace gyre
