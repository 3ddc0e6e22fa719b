// Texts that obey a grammar: the engine over a ring that a test answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "coordinator/engine/mask_numbers.h"
#include "coordinator/grammar/source.h"
#include "tests/testing/engine_rig.h"

namespace gyre {
namespace {

using grammar::SourceKind;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::Runner;
using testing::ScriptedStage;

// Token 0 to 94 are the characters from the space on, but some are longer texts; 96 ends a text.
std::vector<std::string> Pieces() {
  std::vector<std::string> pieces;
  for (int id = 0; id < ScriptedStage::kVocab; ++id) pieces.emplace_back(1, static_cast<char>(' ' + id));
  pieces[1] = "ab";
  pieces[3] = "bc";
  pieces[4] = "true";
  pieces[5] = "\":";
  pieces[6] = "{\"";
  pieces[95] = pieces[96] = "";
  return pieces;
}
constexpr TokenId kEnd = 96;

class EngineGrammar : public testing::EngineRig {
 protected:
  const std::vector<std::string> pieces_ = Pieces();
  const std::shared_ptr<const grammar::TokenTrie> trie_ =
      std::make_shared<grammar::TokenTrie>(pieces_, std::vector<TokenId>{kEnd});

  std::shared_ptr<grammar::CompiledGrammar> Compiled(SourceKind kind, const std::string& text) {
    auto read = grammar::ReadSource({.kind = kind, .text = text});
    EXPECT_TRUE(read.ok()) << read.status();
    auto compiled = grammar::CompiledGrammar::Make(*std::move(read), trie_);
    EXPECT_TRUE(compiled.ok()) << compiled.status();
    return *compiled;
  }
  Request Obeys(Request r, SourceKind kind, const std::string& text) {
    r.grammar = Compiled(kind, text);
    r.stop_ids = {kEnd};
    return r;
  }
  std::string TextOf(const Outcome& outcome) const {
    std::string text;
    for (const TokenId id : outcome.tokens) text += pieces_[static_cast<size_t>(id)];
    return text;
  }
  // Whether the whole text is one of the grammar.
  bool Takes(SourceKind kind, const std::string& source, const std::string& text) {
    const auto g = Compiled(kind, source);
    const auto state = g->Advance(g->start(), text);
    return state.ok() && !state->dead() && g->MayEnd(*state);
  }
};

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
        EXPECT_EQ(outcomes[i].stop_id, kEnd);
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
    r.stop_ids = {kEnd};
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
