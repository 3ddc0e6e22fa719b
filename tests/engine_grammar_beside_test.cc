// Texts that obey a grammar, with what else may end them or shorten their context: stop strings, a context that is
// shifted. An engine over a ring that the test answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/grammar_rig.h"

namespace gyre {
namespace {

using grammar::SourceKind;
using GrammarBeside = testing::GrammarRig;
using testing::Outcome;
using testing::Runner;
using testing::ScriptedStage;

constexpr char kCallSchema[] = R"({"type": "object", "properties": {"on": {"type": "boolean"},
    "s": {"enum": ["abc", "abd", "x"]}, "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 3,
    "maxItems": 5}}, "required": ["on", "s", "list"], "additionalProperties": false})";

// What is left of a text whose tokens have these pieces, and the number of its tokens: it ends with the first one that
// completes the stop string.
struct Stopped {
  std::string text;
  size_t tokens = 0;
};
Stopped StoppedAt(const std::vector<std::string>& pieces, const std::vector<TokenId>& tokens, const std::string& stop) {
  Stopped out;
  for (const TokenId token : tokens) {
    out.text += pieces[static_cast<size_t>(token)];
    ++out.tokens;
    const size_t at = out.text.find(stop);
    if (at == std::string::npos) continue;
    out.text.resize(at);
    break;
  }
  return out;
}

// The text is that without the stop string, up to it, whether the model chose its tokens, they were forced or guessed.
TEST_F(GrammarBeside, AStopStringEndsTheTextWhereItStands) {
  options_.tokenizer = tokenizer_.get();
  options_.scheduler.takes_all_drafts = true;
  std::vector<Request> requests;
  for (uint64_t seed = 1; seed < 5; ++seed) {
    requests.push_back(Obeys(Hot(200, seed), SourceKind::kJsonSchema, kCallSchema));
  }
  const auto whole = Undisturbed(requests);
  for (const bool guessed : {false, true}) {
    for (const char* stop : {"{", "\"on\"", "\"s", "ist\":", "true", "}", "nowhere"}) {
      SCOPED_TRACE(fmt::format("{}, {}", stop, guessed ? "guessed" : "drawn"));
      Start();
      Runner runner(*engine_);
      for (size_t i = 0; i < requests.size(); ++i) {
        Request r = requests[i];
        r.stops = {"unknown", stop};
        if (guessed) r.prediction = whole[i];
        runner.Add(std::move(r));
      }
      stage_.ServeUntil([&] { return runner.done(); });
      const auto outcomes = runner.Wait();
      for (size_t i = 0; i < requests.size(); ++i) {
        const Stopped expected = StoppedAt(pieces_, whole[i], stop);
        const bool stops = expected.tokens < whole[i].size();
        EXPECT_TRUE(outcomes[i].finished) << outcomes[i].status;
        EXPECT_EQ(outcomes[i].text, expected.text);
        EXPECT_EQ(
            outcomes[i].tokens,
            std::vector<TokenId>(whole[i].begin(), whole[i].begin() + static_cast<std::ptrdiff_t>(expected.tokens)));
        EXPECT_EQ(outcomes[i].reason, FinishReason::kStop);
        EXPECT_EQ(outcomes[i].stop, stops ? stop : "");
        EXPECT_EQ(outcomes[i].stop_id, stops ? -1 : testing::kGrammarEnd);
        EXPECT_EQ(outcomes[i].terminals, 1);
        EXPECT_EQ(outcomes[i].events_after_terminal, 0);
      }
      if (guessed && std::string(stop) == "}") EXPECT_GT(engine_->stats().accepted_drafts, 0u);
      Pass();
      engine_.reset();
    }
  }
}

// All of its tokens are known before the first of them goes out.
TEST_F(GrammarBeside, AStopStringAmongForcedTokensEndsTheText) {
  options_.tokenizer = tokenizer_.get();
  Start();
  Runner runner(*engine_);
  Request r = Obeys(Greedy(100), SourceKind::kRegex, "x(yz){12}");
  r.stops = {"zyzyzy"};
  runner.Add(std::move(r));
  stage_.ServeUntil([&] { return runner.done(); });
  const Outcome outcome = runner.Wait()[0];
  EXPECT_EQ(TextOf(outcome), "xyzyzyzy");
  EXPECT_EQ(outcome.text, "xy");
  EXPECT_EQ(outcome.reason, FinishReason::kStop);
  EXPECT_EQ(outcome.stop, "zyzyzy");
  EXPECT_GT(engine_->stats().forced_tokens, 5u);
  Pass();
}

// The context loses its older tokens, the grammar none of them: the text is whole and valid. It is the same where rings
// break, and where it goes on in another process, wherever it was.
TEST_F(GrammarBeside, AShiftedContextChangesNothingInTheGrammar) {
  options_.context = 24;
  options_.context_keep = 2;
  std::vector<Request> requests;
  for (uint64_t seed = 1; seed < 5; ++seed) {
    requests.push_back(Obeys(Hot(300, seed), SourceKind::kJsonSchema, kCallSchema));
  }
  const auto expected = Undisturbed(requests);
  Start();
  {
    Runner runner(*engine_);
    for (const Request& r : requests) runner.Add(r);
    for (int frames = 1; !runner.done() && frames < 2000; ++frames) {
      const ScriptedStage::Received r = stage_.Poll(std::chrono::milliseconds(2));
      if (r.kind == FrameKind{}) continue;
      if (frames % 7 == 0) {
        ++rounds_;
        engine_->Resume(stage_.NewRing());
        continue;
      }
      stage_.Answer(r);
    }
    ExpectTexts(runner, expected);
    EXPECT_GT(rounds_, 2);
    const auto outcomes = runner.Wait();
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(outcomes[i].reason, FinishReason::kStop);
      EXPECT_TRUE(Takes(SourceKind::kJsonSchema, kCallSchema, TextOf(outcomes[i]))) << TextOf(outcomes[i]);
      EXPECT_GE(outcomes[i].usage.context_shifts, 2u);
    }
    EXPECT_GT(engine_->stats().forced_tokens, 0u);
  }
  for (size_t n = 0; n < expected[0].size(); ++n) {
    SCOPED_TRACE(n);
    Runner runner(*engine_);
    Request rest = requests[0];
    for (size_t i = 0; i < n; ++i) rest.generated.push_back({.token = expected[0][i]});
    runner.Add(std::move(rest));
    ExpectTexts(runner, {expected[0]});
  }
}

}  // namespace
}  // namespace gyre
