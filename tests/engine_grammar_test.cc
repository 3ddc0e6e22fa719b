// Texts that obey a grammar: the engine over a ring that a test answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>

#include "coordinator/engine/grammar_guide.h"
#include "coordinator/engine/mask_numbers.h"
#include "coordinator/grammar/source.h"
#include "tests/testing/grammar_rig.h"

namespace gyre {
namespace {

using grammar::SourceKind;
using ::testing::HasSubstr;
using EngineGrammar = testing::GrammarRig;
using testing::Outcome;
using testing::Runner;
using testing::ScriptedStage;

constexpr char kSchema[] = R"({"type": "object", "properties": {"on": {"type": "boolean"},
    "n": {"type": "integer", "minimum": -20, "maximum": 20}, "s": {"enum": ["abc", "abd", "x"]}},
    "required": ["on", "n", "s"], "additionalProperties": false})";

TEST_F(EngineGrammar, EveryTextIsOneOfItsGrammar) {
  for (const bool candidates : {true, false}) {
    options_.candidates_path = candidates;
    for (const uint32_t k : {1u, 64u}) {
      options_.candidates = k;
      Start();
      Runner runner(*engine_);
      runner.Add(Obeys(Greedy(200), SourceKind::kJsonSchema, kSchema));
      for (uint64_t seed = 1; seed < 8; ++seed) {
        runner.Add(Obeys(Hot(200, seed), SourceKind::kJsonSchema, kSchema));
      }
      runner.Add(Obeys(Hot(100, 9), SourceKind::kRegex, "(a|b)?c{2,5}d*e"));
      runner.Add(Hot(20, 1));  // one without
      stage_.ServeUntil([&] { return runner.done(); });
      const auto outcomes = runner.Wait();
      for (size_t i = 0; i < 9; ++i) {
        EXPECT_TRUE(outcomes[i].finished) << outcomes[i].status;
        EXPECT_EQ(outcomes[i].reason, FinishReason::kStop) << TextOf(outcomes[i]);
        EXPECT_EQ(outcomes[i].stop_id, testing::kGrammarEnd);
        const bool schema = i < 8;
        EXPECT_TRUE(Takes(schema ? SourceKind::kJsonSchema : SourceKind::kRegex, schema ? kSchema : "(a|b)?c{2,5}d*e",
                          TextOf(outcomes[i])))
            << TextOf(outcomes[i]);
      }
      EXPECT_EQ(outcomes[9].tokens.size(), 20u);
      Pass();
      engine_.reset();
    }
  }
}

// The text of a request does not depend on what forced tokens take, on the ring, or on who is beside it.
TEST_F(EngineGrammar, ATextIsTheSameInAnotherRing) {
  std::vector<Request> requests;
  for (uint64_t seed = 1; seed < 5; ++seed) requests.push_back(Obeys(Hot(200, seed), SourceKind::kJsonSchema, kSchema));
  const auto expected = Undisturbed(requests);
  Start();
  Runner runner(*engine_);
  for (const Request& r : requests) runner.Add(r);
  // Each few frames a new ring, which knows no mask.
  for (int frames = 1; !runner.done(); ++frames) {
    const ScriptedStage::Received r = stage_.Poll(std::chrono::milliseconds(2));
    if (r.kind == FrameKind{}) continue;
    if (frames % 4 == 0) {
      ++rounds_;
      engine_->Resume(stage_.NewRing());
      continue;
    }
    stage_.Answer(r);
    if (frames > 400) break;
  }
  ExpectTexts(runner, expected);
  EXPECT_GT(rounds_, 2);
}

// Drafts of predictions that are partly wrong, with questions for full logits, several steps in flight and new rings.
TEST_F(EngineGrammar, DraftsChangeNoText) {
  std::vector<Request> requests;
  for (uint64_t seed = 1; seed < 5; ++seed) requests.push_back(Obeys(Hot(200, seed), SourceKind::kJsonSchema, kSchema));
  requests.push_back(Hot(40, 7, 8));
  requests.push_back(Greedy(40, 8, 30));
  options_.speculation = Speculation::kOff;
  const auto expected = Undisturbed(requests);
  options_.speculation = Speculation::kAuto;
  options_.scheduler.takes_all_drafts = true;
  options_.steps_in_flight = 4;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prediction = expected[i];
    for (size_t at = 6; at < expected[i].size(); at += 7) requests[i].prediction[at] = 9;
  }
  for (const int every : {1000, 25}) {  // frames
    Start();
    Runner runner(*engine_);
    for (const Request& r : requests) runner.Add(r);
    // A frame is answered when no other one comes, so that steps follow others.
    std::deque<ScriptedStage::Received> waiting;
    size_t most_waiting = 0;
    for (int frames = 1; !runner.done() && frames < 500;) {
      const ScriptedStage::Received r = stage_.Poll(std::chrono::milliseconds(2));
      if (r.kind != FrameKind{}) {
        waiting.push_back(r);
        most_waiting = std::max(most_waiting, waiting.size());
      } else if (!waiting.empty() && frames++ % every == 0) {
        engine_->Resume(stage_.NewRing());
        waiting.clear();
      } else if (!waiting.empty()) {
        stage_.Answer(waiting.front());
        waiting.pop_front();
      }
    }
    for (; !waiting.empty(); waiting.pop_front()) stage_.Answer(waiting.front());
    EXPECT_GT(most_waiting, 2u);
    ExpectTexts(runner, expected);
    EXPECT_GT(engine_->stats().accepted_drafts, 20u);
    EXPECT_GT(engine_->stats().drafted_tokens, engine_->stats().accepted_drafts);
    engine_.reset();
  }
}

// What must follow costs no lap of the ring.
TEST_F(EngineGrammar, ForcedTokensGoInOneStep) {
  Start();
  Runner runner(*engine_);
  runner.Add(Obeys(Greedy(100), SourceKind::kRegex, "x(yz){12}"));
  size_t steps = 0;
  ForEachFrame(runner, [&](const ScriptedStage::Received& r) {
    ++steps;
    stage_.Answer(r);
  });
  const Outcome outcome = runner.Wait()[0];
  EXPECT_EQ(TextOf(outcome), "xyzyzyzyzyzyzyzyzyzyzyzyz");
  EXPECT_EQ(outcome.tokens.size(), 26u) << "with the end";
  for (const float p : outcome.probabilities) EXPECT_EQ(p, 1.0f);
  EXPECT_LE(steps, 3u);
  EXPECT_EQ(engine_->stats().forced_tokens, 24u);
}

// Bytes that must come are the tokenizer's tokens, which cost no lap either; without jumping ahead each token does.
TEST_F(EngineGrammar, ForcedBytesGoInOneStep) {
  constexpr char kPattern[] = R"x(p(abc":true|abc":!){8})x";
  size_t steps[2] = {0, 0};
  for (const bool jumps : {true, false}) {
    Start();
    Runner runner(*engine_);
    for (uint64_t seed = 1; seed < 4; ++seed) {
      Request r = Hot(100, seed);
      r.grammar = Compiled(SourceKind::kRegex, kPattern, jumps);
      r.stop_ids = {testing::kGrammarEnd};
      runner.Add(std::move(r));
    }
    ForEachFrame(runner, [&](const ScriptedStage::Received& r) {
      steps[jumps ? 1 : 0] += r.kind == FrameKind::kTokens ? 1 : 0;
      stage_.Answer(r);
    });
    for (const Outcome& outcome : runner.Wait()) {
      EXPECT_TRUE(outcome.finished) << outcome.status;
      EXPECT_TRUE(Takes(SourceKind::kRegex, kPattern, TextOf(outcome))) << TextOf(outcome);
      if (!jumps) continue;
      const auto count = [&](TokenId id) { return std::count(outcome.tokens.begin(), outcome.tokens.end(), id); };
      EXPECT_EQ(count(1), 8) << "ab, then c, then the quote with its colon";
      EXPECT_EQ(count('c' - ' '), 8);
      EXPECT_EQ(count(5), 8);
      EXPECT_EQ(count(3), 0) << "bc would merge later";
    }
    if (jumps) {
      EXPECT_GE(engine_->stats().forced_tokens, 3u * 24 - 3);
    } else {
      EXPECT_EQ(engine_->stats().forced_tokens, 0u);
    }
    Pass();
    engine_.reset();
  }
  EXPECT_LT(steps[1] * 2, steps[0]);
}

TEST_F(EngineGrammar, WithLogProbabilitiesEachTokenIsAnswered) {
  Start();
  Runner runner(*engine_);
  Request r = Obeys(Greedy(100), SourceKind::kRegex, "xyz");
  r.logprobs = 2;
  runner.Add(std::move(r));
  stage_.ServeUntil([&] { return runner.done(); });
  const Outcome outcome = runner.Wait()[0];
  EXPECT_EQ(TextOf(outcome), "xyz");
  EXPECT_EQ(outcome.logprobs.size(), 4u);
  for (const float p : outcome.logprobs) EXPECT_LT(p, 0.0f) << "raw, of all ids";
  EXPECT_EQ(engine_->stats().forced_tokens, 0u);
}

// A mask goes round the ring once.
TEST_F(EngineGrammar, AMaskIsSentOnce) {
  Start();
  Runner runner(*engine_);
  const auto g = Compiled(SourceKind::kRegex, "[a-d]{30}");
  for (uint64_t seed = 1; seed < 9; ++seed) {
    Request r = Hot(100, seed);
    r.grammar = g;
    r.stop_ids = {testing::kGrammarEnd};
    runner.Add(std::move(r));
  }
  stage_.ServeUntil([&] { return runner.done(); });
  for (const Outcome& o : runner.Wait()) EXPECT_TRUE(o.finished) << o.status;
  EXPECT_LE(stage_.masks_came(), 31u) << "30 places, and the end";
}

TEST_F(EngineGrammar, WhatCannotBeObeyedIsRefused) {
  Start();
  Runner runner(*engine_);
  Request endless = Obeys(Greedy(5), SourceKind::kRegex, "a*");
  endless.ignore_end = true;
  runner.Add(std::move(endless));
  EXPECT_TRUE(absl::IsInvalidArgument(runner.Wait()[0].status));
  EXPECT_THAT(Message(runner.Wait()[0].status), HasSubstr("ignore_end"));
  // Tokens that were generated before are no text of the grammar.
  Request before = Obeys(Greedy(5), SourceKind::kRegex, "abc");
  before.generated = {{.token = 5}};
  runner.Add(std::move(before));
  EXPECT_TRUE(absl::IsFailedPrecondition(runner.Wait()[1].status)) << runner.Wait()[1].status;
  Pass();
}

// It goes on behind the tokens of a process before.
TEST_F(EngineGrammar, ATextGoesOnWhereItWas) {
  const Request whole = Obeys(Hot(200, 3), SourceKind::kJsonSchema, kSchema);
  const auto expected = Undisturbed({whole});
  for (size_t n = 0; n < expected[0].size(); ++n) {
    Start();
    Runner runner(*engine_);
    Request rest = whole;
    for (size_t i = 0; i < n; ++i) rest.generated.push_back({.token = expected[0][i]});
    runner.Add(std::move(rest));
    ExpectTexts(runner, expected);
    engine_.reset();
  }
}

TEST_F(EngineGrammar, AMinimumDoesNotKeepOffTheOnlyEnd) {
  Start();
  Runner runner(*engine_);
  Request r = Obeys(Greedy(100), SourceKind::kRegex, "a{2,30}");
  r.min_new_tokens = 20;
  runner.Add(std::move(r));
  r = Obeys(Greedy(100), SourceKind::kRegex, "a{3}");
  r.min_new_tokens = 20;
  runner.Add(std::move(r));
  stage_.ServeUntil([&] { return runner.done(); });
  EXPECT_GE(TextOf(runner.Wait()[0]).size(), 20u);
  EXPECT_EQ(TextOf(runner.Wait()[1]), "aaa");
}

// A tokenizer that stands still while its gate is closed.
class Gated : public Tokenizer {
 public:
  explicit Gated(const Tokenizer& inner) : inner_(inner) {}
  void Set(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options) const override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
    return inner_.Encode(text, options);
  }
  int size() const override { return inner_.size(); }
  std::string Piece(TokenId id, bool at_start) const override { return inner_.Piece(id, at_start); }
  std::string Text(TokenId id) const override { return inner_.Text(id); }
  TokenType type(TokenId id) const override { return inner_.type(id); }
  TokenId bos() const override { return inner_.bos(); }
  TokenId eos() const override { return inner_.eos(); }
  bool add_bos() const override { return inner_.add_bos(); }
  bool add_eos() const override { return inner_.add_eos(); }
  bool IsEndOfGeneration(TokenId id) const override { return inner_.IsEndOfGeneration(id); }
  const std::string& kind() const override { return inner_.kind(); }

 private:
  const Tokenizer& inner_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool open_ = true;
};

// However many texts wait for masks of one grammar, those of others get theirs.
TEST_F(EngineGrammar, ASlowGrammarHoldsUpItsOwnTextsOnly) {
  Gated gate(*tokenizer_);
  const auto compiled = [&](const char* pattern) {
    auto made = grammar::CompiledGrammar::Make(*grammar::ReadSource({.kind = SourceKind::kRegex, .text = pattern}),
                                               trie_, {.tokenizer = &gate});
    EXPECT_TRUE(made.ok()) << made.status();
    return *made;
  };
  Request slow, quick;
  slow.grammar = compiled("xabc");
  quick.grammar = Compiled(SourceKind::kRegex, "[xy]abc");
  std::mutex mutex;
  std::condition_variable came;
  std::deque<std::function<void()>> works;
  std::vector<SeqId> found;
  GrammarGuide guide({.tokenizer = nullptr,
                      .vocab = ScriptedStage::kVocab,
                      .post =
                          [&](std::function<void()> work) {
                            const std::lock_guard lock(mutex);
                            works.push_back(std::move(work));
                            came.notify_one();
                          },
                      .found =
                          [&](SeqId seq, const Status& status, Duration) {
                            EXPECT_TRUE(status.ok()) << status;
                            found.push_back(seq);
                          }});
  const auto run_until_found = [&](size_t n) {
    while (found.size() < n) {
      std::unique_lock lock(mutex);
      if (!came.wait_for(lock, std::chrono::minutes(1), [&] { return !works.empty(); })) return false;
      const auto work = std::move(works.front());
      works.pop_front();
      lock.unlock();
      work();
    }
    return true;
  };
  gate.Set(false);
  const std::vector<TokenId> x = {'x' - ' '};
  for (const uint64_t seq : {1u, 2u, 3u}) EXPECT_TRUE(guide.Begin(SeqId{seq}, slow, x).ok());
  EXPECT_TRUE(guide.Begin(SeqId{4}, quick, x).ok());
  EXPECT_TRUE(guide.Awaits(SeqId{1}) && guide.Awaits(SeqId{4}));
  EXPECT_TRUE(run_until_found(1));
  EXPECT_EQ(found, (std::vector<SeqId>{SeqId{4}}));
  EXPECT_EQ(guide.Forced(SeqId{4}), 1) << "ab";
  guide.End(SeqId{2});  // its search may end when it is gone
  gate.Set(true);
  EXPECT_TRUE(run_until_found(3));
  EXPECT_EQ(found, (std::vector<SeqId>{SeqId{4}, SeqId{1}, SeqId{3}}));
  EXPECT_FALSE(guide.Awaits(SeqId{3}));
  EXPECT_EQ(guide.Forced(SeqId{3}), 1);
  EXPECT_EQ(guide.MaskOf(SeqId{2}), nullptr);
  guide.Stop();
}

TEST(MaskNumbersTest, ANumberIsGivenAgainOnlyToALaterStep) {
  MaskNumbers numbers(2);
  const auto mask = [] { return std::make_shared<const grammar::TokenMask>(); };
  const auto a = mask(), b = mask(), c = mask();
  EXPECT_TRUE(numbers.Name(a, 1)->is_new);
  EXPECT_EQ(numbers.Name(b, 1)->number, 1u);
  EXPECT_FALSE(numbers.Name(a, 1)->is_new);
  EXPECT_FALSE(numbers.Name(c, 1).has_value()) << "this step names both";
  const auto again = numbers.Name(c, 2);
  EXPECT_EQ(again->number, 1u) << "b is the longest unused";
  EXPECT_TRUE(again->is_new);
  EXPECT_FALSE(numbers.Name(a, 2)->is_new);
  EXPECT_TRUE(numbers.Name(b, 3)->is_new);
  numbers.Clear();
  EXPECT_TRUE(numbers.Name(b, 4)->is_new);
}

}  // namespace
}  // namespace gyre
