// Sessions of agents over real rings: from the second turn on only what is new is computed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/http/anthropic.h"
#include "coordinator/http/openai.h"
#include "runtime/runtime.h"
#include "tests/testing/agent_session.h"
#include "tests/testing/agent_tokenizer.h"
#include "tests/testing/http_api.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/tiny_hybrid.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre::http {
namespace {

using gyre::testing::AgentSession;

constexpr uint32_t kTurns = 12, kContext = 40000;

// GYRE_TURNS_FULL: a session of some 30,000 tokens, with its figures printed.
bool Full() { return std::getenv("GYRE_TURNS_FULL") != nullptr; }

std::vector<std::byte> MakeModel(const std::string& arch) {
  using gyre::testing::AgentTokenizer;
  const uint32_t vocab = AgentTokenizer::vocab();
  if (gyre::testing::IsTinyHybrid(arch)) {
    return gyre::testing::BuildTinyHybrid(arch, {}, 1, false,
                                          {.vocab = vocab, .context = kContext, .tokenizer = AgentTokenizer::Write});
  }
  return gyre::testing::BuildTinyModel(
      {.arch = arch, .vocab = vocab, .context = kContext, .tokenizer = AgentTokenizer::Write});
}

struct Turn {
  uint64_t prompt = 0, cached = 0;
};

class TurnsTest : public ::testing::TestWithParam<const char*> {
 protected:
  TurnsTest() : file_(MakeModel(GetParam())) {
    RuntimeOptions o;
    o.model = file_.path();
    o.threads = 1;
    o.quiet = true;
    o.ctx = kContext;
    o.parallel = 2;
    o.max_sequences = 8;
    o.exact = true;  // an answer has the same bits as a part of the next prompt, on any processor
    ring_ = gyre::testing::OpenRing(o);
    api_ = std::make_unique<ApiCaller>(ring_->service());
    AddOpenAiRoutes(api_->router, api_->context);
    AddAnthropicRoutes(api_->router, api_->context);
  }
  // One model is enough for a sanitizer, which makes it slow.
  void SetUp() override {
    if (testing::kSanitized && GetParam() != std::string_view("qwen35")) GTEST_SKIP() << "not with a sanitizer";
  }
  ~TurnsTest() override { EXPECT_TRUE(ring_->engine().CheckIntegrity().ok()) << ring_->engine().CheckIntegrity(); }

  Turn Ask(const AgentSession& session, size_t turn) {
    const boost::json::value answer = api_->Get(session.path(), session.Body(turn));
    const auto number = [&answer](const char* at) { return std::stoull(At(answer, at)); };
    if (!session.anthropic()) {
      return {number("/usage/prompt_tokens"), number("/usage/prompt_tokens_details/cached_tokens")};
    }
    const uint64_t cached = number("/usage/cache_read_input_tokens");
    return {number("/usage/input_tokens") + cached, cached};
  }
  // Plays a session. A prompt has the one before it as its beginning, but for the thoughts that an answer begins with
  // and counters; at most `lost` tokens of that are computed again.
  void Play(AgentSession::Shape shape, uint64_t lost) {
    const gyre::testing::SessionSize size =
        Full() ? gyre::testing::SessionSize{.system = 50000, .tools = 24, .result = 150} : gyre::testing::SessionSize{};
    const AgentSession session(shape, size);
    uint64_t before = 0;
    double worst = 1;
    for (size_t i = 0; i < kTurns; ++i) {
      const Turn turn = Ask(session, i);
      if (i > 0) {
        EXPECT_GE(turn.cached + lost, before) << "turn " << i + 1 << " of " << turn.prompt << " tokens";
        worst = std::min(worst, static_cast<double>(turn.cached) / static_cast<double>(turn.prompt));
      }
      if (Full()) {
        printf("%s\t%s\tturn %zu\tprompt %llu\tcached %llu\t%.2f%%\n", GetParam(), session.path(), i + 1,
               static_cast<unsigned long long>(turn.prompt), static_cast<unsigned long long>(turn.cached),
               100.0 * static_cast<double>(turn.cached) / static_cast<double>(turn.prompt));
      }
      before = turn.prompt;
    }
    if (Full()) EXPECT_GE(worst, 0.99);
  }

  gyre::testing::TinyModelFile file_;
  std::unique_ptr<Runtime> ring_;
  std::unique_ptr<ApiCaller> api_;
};

// What an answer begins with, and less than two blocks.
constexpr uint64_t kLost = 20 + 32;
// A counter stood behind the last message, and what the template closes a result with.
constexpr uint64_t kCounter = 65;

TEST_P(TurnsTest, ClaudeCodePaysForWhatIsNew) { Play(AgentSession::Shape::kClaudeCode, kLost); }

TEST_P(TurnsTest, OpenCodePaysForWhatIsNew) { Play(AgentSession::Shape::kOpenCode, kLost + kCounter); }

// The model's own answers are a part of the next turn, with their tokens as they were drawn.
TEST_P(TurnsTest, AnswersThatComeBackAreFound) {
  boost::json::array ids;
  for (uint32_t i = 0; i < 500; ++i) ids.emplace_back(5 + i * 7 % 200);
  uint64_t before = 0;
  for (const uint32_t answer : {300u, 90u, 211u}) {
    const boost::json::value said =
        api_->Get("/v1/completions", boost::json::serialize(boost::json::object{{"model", "demo"},
                                                                                {"prompt", ids},
                                                                                {"max_tokens", answer},
                                                                                {"temperature", 1},
                                                                                {"seed", 5},
                                                                                {"ignore_eos", true},
                                                                                {"return_token_ids", true}}));
    const uint64_t cached = std::stoull(At(said, "/usage/prompt_tokens_details/cached_tokens"));
    // Of a recurrent state there is a copy each 64 tokens of an answer.
    EXPECT_GE(cached + 64 + 2 * 16, before) << "of a prompt of " << ids.size();
    const auto& drawn = said.at("choices").at(0).at("token_ids").as_array();
    ASSERT_EQ(drawn.size(), answer);
    ids.insert(ids.end(), drawn.begin(), drawn.end());
    before = ids.size();
    for (uint32_t i = 0; i < 30; ++i) ids.emplace_back(9 + i);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TurnsTest, ::testing::Values("llama", "gemma3", "qwen35", "lfm2", "deepseek2"));

}  // namespace
}  // namespace gyre::http
