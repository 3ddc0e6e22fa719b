// Log-probabilities and embeddings: what they are, and that nothing about the ring changes a bit of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "runtime/runtime.h"
#include "tests/testing/engine_rig.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;
using testing::OpenRing;
using testing::Outcome;
using testing::Runner;
using testing::RunOne;
using testing::ScriptedStage;

std::vector<TokenId> Ids(int seed, size_t n) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::vector<TokenId> ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % 300);
  return ids;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// log-softmax of a row, in extended precision.
std::vector<double> LogSoftmax(const std::vector<float>& logits) {
  const long double best = *std::max_element(logits.begin(), logits.end());
  long double sum = 0;
  for (float l : logits) sum += std::exp(static_cast<long double>(l) - best);
  std::vector<double> out;
  for (float l : logits) out.push_back(static_cast<double>(static_cast<long double>(l) - best - std::log(sum)));
  return out;
}

// `top` holds the n likeliest of the row, best first.
void ExpectLikeliest(const std::vector<TokenLogprob>& top, const std::vector<float>& logits, size_t n) {
  std::vector<TokenId> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<TokenId>(i);
  std::stable_sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  ASSERT_EQ(top.size(), n);
  const std::vector<double> exact = LogSoftmax(logits);
  for (size_t i = 0; i < n; ++i) {
    EXPECT_EQ(top[i].id, ids[i]) << i;
    EXPECT_NEAR(static_cast<double>(top[i].logprob), exact[static_cast<size_t>(ids[i])], 1e-6) << i;
  }
}

class PromptAnswers : public ::testing::Test {
 protected:
  RuntimeOptions Options(int stages) const {
    RuntimeOptions o = testing::TinyRing(model_.path(), stages, 200);
    o.chunk = stages == 1 ? 256 : 7;
    return o;
  }
  testing::TinyModelFile model_{testing::TinyOptions{.vocab = 300}};
};

std::vector<Request> SampledInEveryWay() {
  std::vector<SamplingParams> ways(6);
  ways[0].temperature = 0;
  ways[1] = {.temperature = 0, .repetition_penalty = 1.3f, .logit_bias = {{7, 3.0f}, {8, -2.0f}}};
  ways[2] = {.temperature = 0.7f, .top_k = 5, .seed = 3};
  ways[3] = {.temperature = 1.5f, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 4};  // asks for the full logits
  ways[4] = {.temperature = 1, .frequency_penalty = 0.5f, .presence_penalty = 0.5f, .seed = 5};
  ways[5] = {.temperature = 1.2f, .top_k = 0, .top_p = 0.99f, .min_p = 0, .logit_bias = {{9, 4.0f}}, .seed = 6};
  std::vector<Request> requests;
  for (size_t i = 0; i < ways.size(); ++i) {
    for (const uint32_t n : {0u, 1u, 20u}) {
      Request r;
      r.prompt = Ids(static_cast<int>(i), 20 + i);
      r.sampling = ways[i];
      r.max_new_tokens = 16;
      r.logprobs = n;
      r.ignore_end = true;
      requests.push_back(r);
    }
  }
  return requests;
}

// Against the model's own logits of the same text as a prompt.
TEST_F(PromptAnswers, LogprobsAreTheLogSoftmaxOfTheRawLogits) {
  RuntimeOptions o = Options(1);
  o.exact = true;  // prompt rows and generated rows are computed alike
  auto ring = OpenRing(o);
  ASSERT_NE(ring, nullptr);
  for (const Request& r : SampledInEveryWay()) {
    const Outcome got = RunOne(ring->engine(), r);
    ASSERT_TRUE(got.finished) << got.status;
    ASSERT_EQ(got.logprobs.size(), 16u);
    Request scored;
    scored.prompt = r.prompt;
    scored.prompt.insert(scored.prompt.end(), got.tokens.begin(), got.tokens.end());
    scored.prompt_logits = true;
    const auto logits = RunOne(ring->engine(), scored).logits;
    for (size_t i = 0; i < got.tokens.size(); ++i) {
      const auto& row = logits[r.prompt.size() - 1 + i];
      EXPECT_NEAR(static_cast<double>(got.logprobs[i]), LogSoftmax(row)[static_cast<size_t>(got.tokens[i])], 1e-6);
      ExpectLikeliest(got.top[i], row, *r.logprobs);
    }
  }
}

TEST_F(PromptAnswers, CandidatesAndFullLogitsGiveTheSameLogprobsOnEveryRing) {
  const std::vector<Request> requests = SampledInEveryWay();
  auto alone = OpenRing(Options(1));
  ASSERT_NE(alone, nullptr);
  const auto expected = testing::RunAll(alone->engine(), requests);
  EXPECT_GT(alone->engine().stats().full_logits_requests, 0u);
  for (const bool candidates : {true, false}) {
    for (const int stages : {1, 3}) {
      RuntimeOptions o = Options(stages);
      o.no_candidates = !candidates;
      auto ring = OpenRing(o);
      ASSERT_NE(ring, nullptr);
      const auto got = testing::RunAll(ring->engine(), requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(got[i].tokens, expected[i].tokens) << i;
        EXPECT_TRUE(SameBits(got[i].logprobs, expected[i].logprobs)) << i;
        EXPECT_EQ(got[i].top, expected[i].top) << i;
      }
    }
  }
}

TEST_F(PromptAnswers, NothingIsSentForLogprobsThatNobodyAskedFor) {
  auto ring = OpenRing(Options(1));
  ASSERT_NE(ring, nullptr);
  Request r = SampledInEveryWay()[0];
  const Outcome with = RunOne(ring->engine(), r);
  r.logprobs.reset();
  const Outcome without = RunOne(ring->engine(), r);
  EXPECT_EQ(without.tokens, with.tokens);
  EXPECT_EQ(without.logprobs, std::vector<float>(16));
  for (const auto& top : without.top) EXPECT_TRUE(top.empty());
}

TEST_F(PromptAnswers, APromptsLogprobsComeInOrderBeforeTheText) {
  auto alone = OpenRing(Options(1));
  auto ring = OpenRing(Options(3));
  ASSERT_NE(alone, nullptr);
  ASSERT_NE(ring, nullptr);
  for (const size_t length : {1, 2, 50}) {
    Request r;
    r.prompt = Ids(3, length);
    r.sampling.temperature = 0;
    Request scored = r;
    scored.prompt_logits = true;
    const auto logits = RunOne(alone->engine(), scored).logits;
    for (const uint32_t new_tokens : {0u, 4u}) {
      r.max_new_tokens = new_tokens;
      r.prompt_logprobs = 5;
      r.logprobs = 2;
      const Outcome o = RunOne(ring->engine(), r), o_alone = RunOne(alone->engine(), r);
      ASSERT_TRUE(o.finished) << o.status;
      EXPECT_EQ(o.usage.cached_tokens, 0u);
      EXPECT_EQ(o.tokens.size(), new_tokens);
      EXPECT_EQ(o.logprobs.size(), new_tokens);
      ASSERT_EQ(o.prompt_logprobs.size(), length - 1);
      for (size_t i = 0; i + 1 < length; ++i) {
        EXPECT_EQ(o.prompt_positions[i], i + 1);
        EXPECT_NEAR(static_cast<double>(o.prompt_logprobs[i]),
                    LogSoftmax(logits[i])[static_cast<size_t>(r.prompt[i + 1])], 1e-6);
        ExpectLikeliest(o.prompt_top[i], logits[i], 5);
      }
      EXPECT_TRUE(SameBits(o.prompt_logprobs, o_alone.prompt_logprobs));
      EXPECT_EQ(o.prompt_top, o_alone.prompt_top);
    }
  }
}

Request Embed(Pooling pooling, int seed, size_t length) {
  Request r;
  r.prompt = Ids(seed, length);
  r.embedding = pooling;
  return r;
}

TEST_F(PromptAnswers, AnEmbeddingHasTheSameBitsHoweverItIsComputed) {
  auto alone = OpenRing(Options(1));
  ASSERT_NE(alone, nullptr);
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i)
    requests.push_back(Embed(i % 2 == 0 ? Pooling::kMean : Pooling::kLast, i / 2, 5 + 30 * i));
  std::vector<std::vector<float>> expected;
  for (const Request& r : requests) {
    const Outcome o = RunOne(alone->engine(), r);
    ASSERT_TRUE(o.finished) << o.status;
    EXPECT_EQ(o.embedding.size(), 32u);
    EXPECT_TRUE(o.tokens.empty());
    EXPECT_EQ(o.usage.prompt_tokens, r.prompt.size());
    expected.push_back(o.embedding);
  }
  EXPECT_FALSE(SameBits(expected[0], expected[1]));
  for (const int stages : {1, 2, 4}) {
    for (const uint32_t chunk : {1u, 3u, 64u}) {
      RuntimeOptions o = Options(stages);
      o.chunk = chunk;
      o.max_rows = 24;
      auto ring = OpenRing(o);
      ASSERT_NE(ring, nullptr);
      // Twice: the second time the cache has the prompts. Beside texts.
      Runner runner(ring->engine());
      for (int round = 0; round < 2; ++round) {
        for (const Request& r : requests) runner.Add(r);
      }
      for (const Request& r : SampledInEveryWay()) runner.Add(r);
      const auto outcomes = runner.Wait();
      for (size_t i = 0; i < 12; ++i) {
        ASSERT_TRUE(outcomes[i].finished) << outcomes[i].status;
        EXPECT_TRUE(SameBits(outcomes[i].embedding, expected[i % 6]))
            << i << " stages " << stages << " chunk " << chunk;
      }
    }
  }
  // The last row alone may stand on cached ones, the mean may not.
  EXPECT_GT(RunOne(alone->engine(), requests[5]).usage.cached_tokens, 0u);
  EXPECT_TRUE(SameBits(RunOne(alone->engine(), requests[5]).embedding, expected[5]));
  EXPECT_EQ(RunOne(alone->engine(), requests[4]).usage.cached_tokens, 0u);
}

// Preempted in the middle of their prompts, rows are computed again and counted once.
TEST_F(PromptAnswers, PreemptionChangesNothing) {
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) {
    Request text;
    text.prompt = Ids(i, 10);
    text.max_new_tokens = 70;
    text.ignore_end = true;
    text.priority = 1;
    requests.push_back(text);
    requests.push_back(Embed(Pooling::kMean, i, 60 + 20 * static_cast<size_t>(i)));
    requests.push_back(Embed(Pooling::kLast, i, 60 + 20 * static_cast<size_t>(i)));
    Request scored = Embed(Pooling::kMean, i, 80);
    scored.embedding.reset();
    scored.prompt_logprobs = 3;
    scored.logprobs = 3;
    scored.max_new_tokens = 5;
    requests.push_back(scored);
  }
  auto alone = OpenRing(Options(1));
  ASSERT_NE(alone, nullptr);
  std::vector<Outcome> expected;
  for (const Request& r : requests) expected.push_back(RunOne(alone->engine(), r));
  RuntimeOptions o = Options(2);
  o.chunk = 4;
  o.max_rows = 16;
  o.kv_tokens = 240;
  auto ring = OpenRing(o);
  ASSERT_NE(ring, nullptr);
  const auto got = testing::RunAll(ring->engine(), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(got[i].finished) << got[i].status;
    EXPECT_EQ(got[i].tokens, expected[i].tokens) << i;
    EXPECT_TRUE(SameBits(got[i].embedding, expected[i].embedding)) << i;
    EXPECT_TRUE(SameBits(got[i].prompt_logprobs, expected[i].prompt_logprobs)) << i;
    EXPECT_EQ(got[i].prompt_top, expected[i].prompt_top) << i;
    EXPECT_EQ(got[i].top, expected[i].top) << i;
  }
  EXPECT_GT(ring->engine().stats().scheduler.preemptions, 0u);
  EXPECT_GT(ring->engine().stats().scheduler.replayed_rows, 0u);
}

// Rows that a preempted request finds in the cache when it is admitted again do not count as cached prompt.
TEST_F(PromptAnswers, OnlyThePromptsFirstAdmissionCountsAsCached) {
  RuntimeOptions o = Options(1);
  o.kv_tokens = 240;
  auto ring = OpenRing(o);
  ASSERT_NE(ring, nullptr);
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    Request text;
    text.prompt = Ids(i, 20);
    text.max_new_tokens = 70;
    text.ignore_end = true;
    requests.push_back(text);
  }
  for (const Outcome& got : testing::RunAll(ring->engine(), requests)) EXPECT_EQ(got.usage.cached_tokens, 0u);
  EXPECT_GT(ring->engine().stats().scheduler.preemptions, 0u);
  EXPECT_GT(ring->engine().stats().scheduler.cached_positions, 0u);
  EXPECT_EQ(RunOne(ring->engine(), requests[5]).usage.cached_tokens, 16u);
}

TEST_F(PromptAnswers, AResizeInTheMiddleOfAnEmbeddingChangesNothing) {
  auto alone = OpenRing(Options(1));
  ASSERT_NE(alone, nullptr);
  const Request request = Embed(Pooling::kMean, 1, 150);
  const auto expected = RunOne(alone->engine(), request).embedding;
  RuntimeOptions o = Options(2);
  o.chunk = 4;
  auto ring = OpenRing(o);
  ASSERT_NE(ring, nullptr);
  for (const std::string plan : {"local-1=0-0,local-2=1-4", "local-2=0-4"}) {
    // It stands still after a few steps until the layers have moved.
    std::atomic<int> steps{0};
    std::atomic<uint64_t> seq{0};
    std::atomic<bool> held{false};
    for (const auto& w : ring->workers()) {
      w->SetFaultHook([&]() -> Status {
        if (++steps < 10) return absl::OkStatus();
        while (seq == 0) std::this_thread::yield();
        if (!held.exchange(true)) ring->engine().Hold(SeqId{seq.load()});
        return absl::OkStatus();
      });
    }
    Runner runner(ring->engine());
    runner.Add(request);
    seq = static_cast<uint64_t>(runner.id(0));
    while (!held) std::this_thread::yield();
    for (const auto& w : ring->workers()) w->SetFaultHook({});
    const auto report = ring->cluster().ResizeAndWait(plan);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_GT(report->pages_moved, 0u);
    EXPECT_FALSE(runner.done());
    ring->engine().Unhold(runner.id(0));
    const Outcome got = runner.Wait()[0];
    EXPECT_TRUE(got.finished) << got.status;
    EXPECT_TRUE(SameBits(got.embedding, expected));
  }
  EXPECT_EQ(ring->engine().stats().scheduler.replayed_rows, 0u);
  EXPECT_EQ(ring->engine().stats().held_in_prefill, 2u);
}

TEST_F(PromptAnswers, AFailedStepIsSentAgainAndCountedOnce) {
  auto alone = OpenRing(Options(1));
  RuntimeOptions o = Options(3);
  o.chunk = 2;
  auto ring = OpenRing(o);
  ASSERT_NE(alone, nullptr);
  ASSERT_NE(ring, nullptr);
  Request scored = Embed(Pooling::kMean, 4, 90);
  scored.embedding.reset();
  scored.prompt_logprobs = 1;
  const std::vector<Request> requests{Embed(Pooling::kMean, 4, 100), Embed(Pooling::kMean, 5, 70), scored};
  auto count = std::make_shared<std::atomic<int>>(0);
  ring->workers()[1]->SetFaultHook([count]() -> Status {
    // A request fails if its rows fail twice alone. All rows of the four steps on the way are sent again within 12
    // steps, alone, before the next fault comes.
    const int n = ++*count;
    return n == 3 || n == 25 || n == 47 ? Internal("planted fault") : absl::OkStatus();
  });
  const auto got = testing::RunAll(ring->engine(), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Outcome expected = RunOne(alone->engine(), requests[i]);
    ASSERT_TRUE(got[i].finished) << got[i].status;
    EXPECT_TRUE(SameBits(got[i].embedding, expected.embedding)) << i;
    EXPECT_EQ(got[i].prompt_top, expected.prompt_top) << i;
  }
  EXPECT_GT(ring->engine().stats().step_errors, 1u);
}

// The engine checks a stage's answers, over a ring that the test answers.
class PromptRig : public testing::EngineRig {
 protected:
  // The end of a request whose step's answers were changed.
  template <typename Change>
  std::string Fails(const Request& request, Change change) {
    Start();
    Runner runner(*engine_);
    runner.Add(request);
    stage_.AnswerStep(stage_.Next(), change);
    const Outcome o = runner.Wait()[0];
    EXPECT_TRUE(absl::IsInternal(o.status)) << o.status;
    Pass();
    engine_.reset();
    return Message(o.status);
  }
  static Request Logprobs(uint32_t n) {
    Request r = Greedy(2);
    r.logprobs = n;
    return r;
  }
  static Request Embedding(Pooling pooling) {
    Request r = Greedy(0);
    r.embedding = pooling;
    return r;
  }
};

TEST_F(PromptRig, AnswersThatDoNotFitFailTheRequest) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(Fails(Logprobs(3), [](RowAnswer* row) { row->best.pop_back(); }), HasSubstr("has the 2 best ids"));
  EXPECT_THAT(Fails(Logprobs(3), [](RowAnswer* row) { row->best.push_back({1, -9}); }), HasSubstr("has the 4 best"));
  EXPECT_THAT(Fails(Logprobs(3), [](RowAnswer* row) { row->best[2].id = ScriptedStage::kVocab; }), HasSubstr("id 97"));
  EXPECT_THAT(Fails(Logprobs(3), [](RowAnswer* row) { row->best[1].id = -1; }), HasSubstr("id -1"));
  EXPECT_THAT(Fails(Logprobs(3), [](RowAnswer* row) { std::swap(row->best[0], row->best[1]); }), HasSubstr("where it"));
  EXPECT_THAT(Fails(Logprobs(3), [](RowAnswer* row) { row->best[2] = row->best[1]; }), HasSubstr("where it"));
  EXPECT_THAT(Fails(Logprobs(1), [=](RowAnswer* row) { row->best[0].logit = kNan; }), HasSubstr("where it"));
  EXPECT_THAT(Fails(Logprobs(0), [=](RowAnswer* row) { row->log_sum_exp_all = double{kNan}; }), HasSubstr("is nan"));
  Request scored = Greedy(2);
  scored.prompt_logprobs = 2;
  EXPECT_THAT(Fails(scored, [](RowAnswer* row) { row->biased.clear(); }), HasSubstr("does not name the id 2"));
  EXPECT_THAT(Fails(scored, [](RowAnswer* row) { row->position += row->position == 1 ? 7 : 0; }),
              HasSubstr("no answer for position 1"));
  for (const Pooling pooling : {Pooling::kMean, Pooling::kLast}) {
    const Request r = Embedding(pooling);
    EXPECT_THAT(Fails(r, [](RowAnswer* row) { row->values.pop_back(); }), HasSubstr("sent 7 values"));
    EXPECT_THAT(Fails(r, [](RowAnswer* row) { row->values.push_back(0); }), HasSubstr("expected 8"));
    EXPECT_THAT(Fails(r, [](RowAnswer* row) { row->mode = RowMode::kFullLogits; }), HasSubstr("hidden state"));
    EXPECT_THAT(Fails(r, [=](RowAnswer* row) { row->values[3] = kNan; }), HasSubstr("no finite number"));
    EXPECT_THAT(Fails(r, [](RowAnswer* row) { row->position += row->position == 2 ? 1 : 0; }), HasSubstr("position 2"));
  }
  EXPECT_THAT(Fails(Embedding(Pooling::kMean), [](RowAnswer* row) { row->position += row->position == 1 ? 7 : 0; }),
              HasSubstr("no answer for position 1"));
}

TEST_F(PromptRig, TheOpenQuestionKeepsItsLogprobs) {
  Start();
  Request r = Hot(6, 1);
  r.logprobs = 4;
  const auto run = [&] {
    Runner runner(*engine_);
    runner.Add(r);
    stage_.ServeUntil([&] { return runner.done(); });
    return runner.Wait()[0];
  };
  const Outcome asked = run();
  EXPECT_GT(engine_->stats().full_logits_requests, 0u);
  options_.candidates_path = false;
  Start();
  const Outcome full = run();
  EXPECT_EQ(engine_->stats().full_logits_requests, 0u);
  EXPECT_EQ(asked.tokens, full.tokens);
  EXPECT_EQ(asked.top, full.top);
  EXPECT_TRUE(SameBits(asked.logprobs, full.logprobs));
  for (size_t i = 0; i < asked.tokens.size(); ++i) {
    const TokenId before = i == 0 ? r.prompt.back() : asked.tokens[i - 1];
    const auto logits = ScriptedStage::Logits(before, static_cast<uint32_t>(r.prompt.size() - 1 + i));
    EXPECT_NEAR(static_cast<double>(asked.logprobs[i]), LogSoftmax(logits)[static_cast<size_t>(asked.tokens[i])], 1e-6);
    ExpectLikeliest(asked.top[i], logits, 4);
  }
}

TEST_F(PromptRig, RequestsThatCannotBeMetAreRefusedByName) {
  Start();
  const auto refused = [&](auto change) {
    Request r = Greedy(3);
    change(r);
    return Message(engine_->Submit(r, [](SeqId, const Event&) {}).status());
  };
  EXPECT_THAT(refused([](Request& r) { r.logprobs = 21; }), HasSubstr("logprobs is 21, at most 20"));
  EXPECT_THAT(refused([](Request& r) { r.prompt_logprobs = 21; }), HasSubstr("prompt_logprobs is 21, at most 20"));
  EXPECT_THAT(refused([](Request& r) { r.prompt_logits = true, r.prompt_logprobs = 1; }), HasSubstr("not for both"));
  EXPECT_THAT(refused([](Request& r) { r.embedding = Pooling::kMean; }), HasSubstr("generates no text"));
  EXPECT_THAT(refused([](Request& r) { r.embedding = Pooling::kLast, r.max_new_tokens = 0, r.logprobs = 0; }),
              HasSubstr("asks for no logits"));
  options_.dim = 0;
  Start();
  EXPECT_THAT(refused([](Request& r) { r.embedding = Pooling::kLast, r.max_new_tokens = 0; }), HasSubstr("how wide"));
}

TEST_F(PromptRig, FinishedSaysWhichIdEndedTheText) {
  const auto tokens = Undisturbed({Greedy(8)})[0];
  Start();
  Request r = Greedy(8);
  r.stop_ids = {tokens[2], tokens[4]};
  const auto run = [&] {
    Runner runner(*engine_);
    runner.Add(r);
    stage_.ServeUntil([&] { return runner.done(); });
    return runner.Wait()[0];
  };
  const Outcome stopped = run();
  EXPECT_EQ(stopped.stop_id, stopped.tokens.back());
  EXPECT_EQ(stopped.reason, FinishReason::kStop);
  EXPECT_TRUE(stopped.stop.empty());
  r.ignore_end = true;
  const Outcome ran_on = run();
  EXPECT_EQ(ran_on.stop_id, -1);
  EXPECT_EQ(ran_on.tokens.size(), 8u);
}

}  // namespace
}  // namespace gyre
