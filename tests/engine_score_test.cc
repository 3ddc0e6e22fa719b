// Scores: the same bits on every ring, with the prefix cache and without, and as when the text was generated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "runtime/runtime.h"
#include "tests/testing/golden.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/shared_data.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;
using testing::OpenRing;
using testing::Outcome;
using testing::RunOne;

constexpr int kScoredVocab = 300;

std::vector<TokenId> SomeIds(uint32_t seed, size_t n) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % kScoredVocab);
  return ids;
}

Request Scored(std::vector<TokenId> ids, ScoreSettings score) {
  Request r;
  r.prompt = std::move(ids);
  r.score = std::move(score);
  return r;
}

std::vector<double> LogSoftmaxOf(const std::vector<float>& logits) {
  const double best = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float l : logits) sum += std::exp(static_cast<double>(l) - best);
  std::vector<double> out;
  for (float l : logits) out.push_back(static_cast<double>(l) - best - std::log(sum));
  return out;
}

void ExpectSame(const std::vector<PromptTokenEvent>& a, const std::vector<PromptTokenEvent>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].position, b[i].position);
    EXPECT_EQ(a[i].token, b[i].token);
    EXPECT_EQ(std::bit_cast<uint32_t>(a[i].logprob), std::bit_cast<uint32_t>(b[i].logprob)) << i;
    EXPECT_EQ(std::bit_cast<uint64_t>(a[i].rest), std::bit_cast<uint64_t>(b[i].rest)) << i;
    EXPECT_EQ(a[i].top, b[i].top) << i;
    EXPECT_EQ(a[i].named, b[i].named) << i;
    EXPECT_EQ(a[i].logits, b[i].logits) << i;
  }
}

class ScoreTest : public ::testing::Test {
 protected:
  RuntimeOptions Options(int stages) const {
    RuntimeOptions o = testing::TinyRing(model_.path(), stages, 200);
    o.chunk = stages == 1 ? 256 : 7;
    return o;
  }
  testing::TinyModelFile model_{testing::TinyOptions{.vocab = kScoredVocab}};
};

std::vector<Request> AllForms() {
  std::vector<Request> out;
  const std::vector<TokenId> ids = SomeIds(1, 60);
  out.push_back(Scored(ids, {.from = 1, .top = 5, .named = {}}));
  out.push_back(Scored(ids, {.from = 37, .top = 0, .named = {}}));
  out.push_back(Scored(ids, {.from = 50, .top = 3, .logits = true, .named = {}}));
  out.push_back(Scored(ids, {.from = 40, .top = 2, .named = {{1, 2, 3}, {}, {ids[42]}}}));
  out.push_back(Scored(ids, {.from = 20, .top = 2, .generated = true, .named = {}}));
  out.push_back(Scored(ids, {.from = 59, .top = 300, .named = {}}));
  out.push_back(Scored(SomeIds(2, 2), {.from = 1, .top = 1, .named = {}}));
  return out;
}

TEST_F(ScoreTest, WhatItSaysIsTheLogSoftmaxOfTheLogits) {
  auto ring = OpenRing(Options(1));
  ASSERT_NE(ring, nullptr);
  for (const Request& r : AllForms()) {
    if (r.score->generated) continue;  // other bits on some processors
    Request whole;
    whole.prompt = r.prompt;
    whole.prompt_logits = true;
    const auto logits = RunOne(ring->engine(), whole).logits;
    const Outcome got = RunOne(ring->engine(), r);
    ASSERT_TRUE(got.finished) << got.status;
    const uint32_t from = r.score->from;
    ASSERT_EQ(got.scores.size(), r.prompt.size() - from);
    for (size_t i = 0; i < got.scores.size(); ++i) {
      const PromptTokenEvent& e = got.scores[i];
      EXPECT_EQ(e.position, from + i);
      EXPECT_EQ(e.token, r.prompt[e.position]);
      const std::vector<double> exact = LogSoftmaxOf(logits[e.position - 1]);
      EXPECT_NEAR(static_cast<double>(e.logprob), exact[static_cast<size_t>(e.token)], 1e-6);
      ASSERT_EQ(e.top.size(), r.score->top);
      double rest = 1;
      for (const TokenLogprob& t : e.top) {
        EXPECT_NEAR(static_cast<double>(t.logprob), exact[static_cast<size_t>(t.id)], 1e-6);
        rest -= std::exp(exact[static_cast<size_t>(t.id)]);
      }
      EXPECT_NEAR(std::exp(e.rest), rest, 1e-6);
      ASSERT_EQ(e.named.size(), i < r.score->named.size() ? r.score->named[i].size() : 0);
      for (const TokenLogprob& t : e.named) {
        EXPECT_NEAR(static_cast<double>(t.logprob), exact[static_cast<size_t>(t.id)], 1e-6);
      }
      EXPECT_EQ(e.logits, r.score->logits ? logits[e.position - 1] : std::vector<float>());
    }
  }
}

TEST_F(ScoreTest, EveryRingAndTheCacheGiveTheSameBits) {
  const std::vector<Request> requests = AllForms();
  std::vector<Outcome> expected;
  for (const Request& r : requests) {  // a ring of its own each, so that no cache has anything
    auto alone = OpenRing(Options(1));
    ASSERT_NE(alone, nullptr);
    expected.push_back(RunOne(alone->engine(), r));
    ASSERT_TRUE(expected.back().finished) << expected.back().status;
    EXPECT_EQ(expected.back().usage.cached_tokens, 0u);
  }
  for (const int stages : {1, 2, 3, 4}) {
    auto ring = OpenRing(Options(stages));
    ASSERT_NE(ring, nullptr);
    for (int round = 0; round < 2; ++round) {  // the second time the cache has them
      const auto got = testing::RunAll(ring->engine(), requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(::testing::Message() << "stages " << stages << " request " << i << " round " << round);
        ASSERT_TRUE(got[i].finished) << got[i].status;
        ExpectSame(got[i].scores, expected[i].scores);
        EXPECT_LT(got[i].usage.cached_tokens, requests[i].score->from);
      }
      if (round == 1) EXPECT_GE(got[1].usage.cached_tokens, 32u);
    }
  }
}

// A row's class is one of its inputs: a generated text is scored with the bits of its generation.
TEST_F(ScoreTest, AGeneratedTextScoresAsItWasGenerated) {
  auto ring = OpenRing(Options(2));
  ASSERT_NE(ring, nullptr);
  Request text;
  text.prompt = SomeIds(5, 30);
  text.max_new_tokens = 40;
  text.ignore_end = true;
  text.logprobs = 4;
  text.sampling = {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 7};
  const Outcome said = RunOne(ring->engine(), text);
  ASSERT_EQ(said.tokens.size(), 40u);
  std::vector<TokenId> ids = text.prompt;
  ids.insert(ids.end(), said.tokens.begin(), said.tokens.end());
  for (const bool fresh : {false, true}) {
    auto other = fresh ? OpenRing(Options(1)) : nullptr;
    const Outcome scored =
        RunOne((fresh ? other : ring)->engine(), Scored(ids, {.from = 30, .top = 4, .generated = true, .named = {}}));
    ASSERT_TRUE(scored.finished) << scored.status;
    ASSERT_EQ(scored.prompt_logprobs.size(), 40u);
    for (size_t i = 0; i < 40; ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(scored.prompt_logprobs[i]), std::bit_cast<uint32_t>(said.logprobs[i])) << i;
      EXPECT_EQ(scored.prompt_top[i], said.top[i]) << i;
    }
  }
}

// Several continuations of one prompt: its rows are computed once.
TEST_F(ScoreTest, ContinuationsShareTheirContext) {
  auto ring = OpenRing(Options(2));
  ASSERT_NE(ring, nullptr);
  const std::vector<TokenId> context = SomeIds(9, 120);
  std::vector<Request> requests;
  for (uint32_t c = 0; c < 4; ++c) {
    std::vector<TokenId> ids = context;
    const std::vector<TokenId> more = SomeIds(20 + c, 3);
    ids.insert(ids.end(), more.begin(), more.end());
    requests.push_back(Scored(ids, {.from = 120, .named = {}}));
  }
  std::vector<Outcome> got{RunOne(ring->engine(), requests[0])};
  for (Outcome& o : testing::RunAll(ring->engine(), {requests.begin() + 1, requests.end()}))
    got.push_back(std::move(o));
  for (const Outcome& o : got) EXPECT_EQ(o.scores.size(), 3u) << o.status;
  // All but the rows behind the last whole block before the first scored row.
  for (size_t c = 1; c < 4; ++c) EXPECT_GE(got[c].usage.cached_tokens, 116u);
  auto apart = OpenRing(Options(1));
  for (size_t c = 0; c < 4; ++c) ExpectSame(got[c].scores, RunOne(apart->engine(), requests[c]).scores);
}

// Scores beside texts that take the blocks away, a few rows of answers at a time.
TEST_F(ScoreTest, PreemptionChangesNothing) {
  std::vector<Request> requests = AllForms();
  for (uint32_t i = 0; i < 4; ++i) {
    Request text;
    text.prompt = SomeIds(40 + i, 10);
    text.max_new_tokens = 70;
    text.ignore_end = true;
    text.priority = 1;
    requests.push_back(text);
  }
  auto alone = OpenRing(Options(1));
  ASSERT_NE(alone, nullptr);
  RuntimeOptions o = Options(2);
  o.chunk = 4;
  o.max_rows = 16;
  o.kv_tokens = 240;
  auto ring = OpenRing(o);
  ASSERT_NE(ring, nullptr);
  const auto got = testing::RunAll(ring->engine(), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(got[i].finished) << got[i].status;
    const Outcome expected = RunOne(alone->engine(), requests[i]);
    EXPECT_EQ(got[i].tokens, expected.tokens);
    ExpectSame(got[i].scores, expected.scores);
  }
  EXPECT_TRUE(ring->engine().CheckIntegrity().ok());
}

TEST_F(ScoreTest, WrongSettingsAreRefusedWithTheirSentence) {
  auto ring = OpenRing(Options(1));
  ASSERT_NE(ring, nullptr);
  const auto refused = [&](const std::function<void(Request&)>& change) {
    Request r = Scored(SomeIds(1, 10), {.from = 5, .named = {}});
    change(r);
    return Message(RunOne(ring->engine(), r).status);
  };
  EXPECT_THAT(refused([](Request& r) { r.score->from = 0; }), HasSubstr("begins at position 1"));
  EXPECT_THAT(refused([](Request& r) { r.score->from = 11; }), HasSubstr("the prompt has 10 tokens"));
  EXPECT_THAT(refused([](Request& r) { r.score->top = 1025; }), HasSubstr("at most 1024"));
  EXPECT_THAT(refused([](Request& r) { r.score->named = {{3, 3}}; }), HasSubstr("do not rise"));
  EXPECT_THAT(refused([](Request& r) { r.score->named = {{300}}; }), HasSubstr("the vocabulary has 0-299"));
  EXPECT_THAT(refused([](Request& r) { r.score->named.resize(6); }), HasSubstr("names ids for 6 positions"));
  EXPECT_THAT(refused([](Request& r) { r.prompt_logits = true; }), HasSubstr("no other answers"));
}

// Log-probabilities of models of many families against those of float64 logits.
TEST(ScoreGoldenTest, LogprobsAreThoseOfFloat64) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: exact logits are not there";
  constexpr ptrdiff_t kGoldenVocab = 512;
  for (const std::string name : {"tiny-llama-s0-f16", "tiny-qwen3-s0-f16", "tiny-gemma3-s0-f16", "tiny-phi3-s0-f16"}) {
    const std::string dir = testing::SharedData("golden/");
    const auto ids = testing::ReadNumbers<TokenId>(dir + "ids.txt");
    const std::vector<float> all = testing::ReadFloats(dir + name + ".logits.f32");
    ASSERT_EQ(all.size(), ids.size() * kGoldenVocab);
    for (const int stages : {1, 2}) {
      SCOPED_TRACE(::testing::Message() << name << " stages " << stages);
      RuntimeOptions o;
      o.model = dir + name + ".gguf";
      o.stages = static_cast<uint32_t>(stages);
      o.threads = 1;
      o.ctx = 256;
      o.kv_type = "f32";
      o.exact = true;
      o.quiet = true;
      auto ring = Runtime::Open(o);
      ASSERT_TRUE(ring.ok()) << ring.status();
      for (int round = 0; round < 2; ++round) {
        const uint32_t from = round == 0 ? 1 : 40;  // the second time with the prefix cache
        const Outcome got = RunOne((*ring)->engine(), Scored(ids, {.from = from, .top = 8, .named = {}}));
        ASSERT_EQ(got.scores.size(), ids.size() - from) << got.status;
        if (round == 1) EXPECT_GE(got.usage.cached_tokens, 32u);
        for (const PromptTokenEvent& e : got.scores) {
          const auto row = all.begin() + static_cast<ptrdiff_t>(e.position - 1) * kGoldenVocab;
          const std::vector<double> exact = LogSoftmaxOf({row, row + kGoldenVocab});
          EXPECT_NEAR(static_cast<double>(e.logprob), exact[static_cast<size_t>(e.token)], 1e-4);
          for (const TokenLogprob& t : e.top)
            EXPECT_NEAR(static_cast<double>(t.logprob), exact[static_cast<size_t>(t.id)], 1e-4);
        }
      }
    }
  }
}

}  // namespace
}  // namespace gyre
