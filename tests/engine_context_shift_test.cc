// Texts that go on when their context is full, with EngineOptions::context_keep.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coordinator/engine/context_window.h"
#include "coordinator/engine/sampler.h"
#include "kernels/isa.h"
#include "tests/testing/engine_rig.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre {
namespace {

using testing::OpenRing;
using testing::Outcome;
using testing::Runner;
using testing::RunOne;

constexpr uint32_t kContext = 48;

std::vector<TokenId> InWindow(const ContextWindow& w, const std::vector<TokenId>& text) {
  std::vector<TokenId> out;
  for (uint32_t p = 0; w.IndexAt(p) < text.size(); ++p) out.push_back(text[w.IndexAt(p)]);
  return out;
}

TEST(ContextWindow, KeepsTheFirstAndTheNewerHalfOfTheOthers) {
  ContextWindow w;
  std::vector<TokenId> text = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(InWindow(w, text), text);
  w.Shift(2, text.size(), 8);
  EXPECT_EQ(InWindow(w, text), (std::vector<TokenId>{0, 1, 6, 7, 8}));
  EXPECT_EQ(w.gap(), 4u);
  text.insert(text.end(), {9, 10, 11, 12});
  EXPECT_EQ(InWindow(w, text), (std::vector<TokenId>{0, 1, 6, 7, 8, 9, 10, 11, 12}));
  w.Shift(2, text.size(), 8);
  EXPECT_EQ(InWindow(w, text), (std::vector<TokenId>{0, 1, 10, 11, 12}));
  EXPECT_EQ(w.shifts(), 2u);
}

// Whatever is to be kept and however small the context is or gets, there is room afterwards, and something is left.
TEST(ContextWindow, AlwaysMakesRoom) {
  for (uint32_t limit = 1; limit < 12; ++limit) {
    for (uint32_t keep = 0; keep < 14; ++keep) {
      ContextWindow w;
      std::vector<TokenId> text;
      for (TokenId id = 0; id < 60; ++id) {
        text.push_back(id);
        const uint32_t now = id < 40 ? limit : std::max(1u, limit / 3);
        if (InWindow(w, text).size() <= now) continue;
        w.Shift(keep, text.size(), now);
        const std::vector<TokenId> left = InWindow(w, text);
        ASSERT_GE(left.size(), 1u);
        ASSERT_LE(left.size(), now) << "limit " << limit << ", keep " << keep;
        ASSERT_EQ(left.back(), id);
        for (TokenId i = 0; i < static_cast<TokenId>(std::min(keep, now / 2)); ++i) {
          ASSERT_EQ(left[static_cast<size_t>(i)], i);
        }
      }
    }
  }
}

class ContextShift : public ::testing::Test {
 protected:
  static RuntimeOptions Options(const std::string& model, int stages, int32_t keep) {
    RuntimeOptions o = testing::TinyRing(model, stages, kContext);
    o.context_shift = true;
    o.context_keep = keep;
    return o;
  }
  static Request Ask(size_t length, uint32_t n, TokenId first = 1) {
    Request r;
    for (size_t i = 0; i < length; ++i) {
      r.prompt.push_back((first + static_cast<TokenId>(i * i * 7 + i)) % 290);
    }
    r.max_new_tokens = n;
    r.sampling.temperature = 0;
    r.ignore_end = true;
    return r;
  }
  const testing::TinyModelFile model_{testing::TinyOptions{.layers = 3, .vocab = 300}};
};

// The promise: after each shift the text is that of a new request whose prompt is what is left. It holds with two
// classes of rows too.
TEST_F(ContextShift, TheTextIsThatOfANewRequestWithWhatIsLeft) {
  std::vector<Isa> isas = {DetectIsa()};
  if (IsaMissing(Isa::kAmxEmulated).empty()) isas.push_back(Isa::kAmxEmulated);
  for (const Isa isa : isas) {
    for (const int32_t keep : {0, 4, 1000, -1}) {
      SCOPED_TRACE(std::string(IsaName(isa)) + ", keep " + std::to_string(keep));
      RuntimeOptions o = Options(model_.path(), 2, keep);
      o.isa = IsaName(isa);
      o.kv_type = "f16";
      o.block_size = 16;  // attention takes whole pages by tiles
      o.parallel = 3;
      auto shifting = OpenRing(o);
      o.context_shift = false;
      o.no_prefix_cache = true;
      o.ctx = kContext + 1;  // a context is shifted when one more token than it holds is there
      auto fresh = OpenRing(o);
      ASSERT_TRUE(shifting != nullptr && fresh != nullptr);
      Request request = Ask(20, 150);
      request.logprobs = 1;
      const Outcome shifted = RunOne(shifting->engine(), request);
      ASSERT_TRUE(shifted.finished) << shifted.status;
      EXPECT_EQ(shifted.reason, FinishReason::kLength);
      EXPECT_EQ(shifted.tokens.size(), 150u);

      std::vector<TokenId> text = request.prompt, window = request.prompt;
      std::vector<float> logprobs;
      const size_t kept = keep < 0 ? request.prompt.size() : std::min<size_t>(static_cast<size_t>(keep), kContext / 2);
      uint32_t shifts = 0;
      for (;;) {
        const auto left = static_cast<uint32_t>(request.prompt.size() + 150 - text.size());
        const auto room = static_cast<uint32_t>(kContext + 1 - window.size());
        Request next = request;
        next.prompt = window;
        next.max_new_tokens = std::min(left, room);
        const Outcome o2 = RunOne(fresh->engine(), next);
        ASSERT_TRUE(o2.finished) << o2.status;
        text.insert(text.end(), o2.tokens.begin(), o2.tokens.end());
        logprobs.insert(logprobs.end(), o2.logprobs.begin(), o2.logprobs.end());
        window.insert(window.end(), o2.tokens.begin(), o2.tokens.end());
        if (left <= room) break;
        ++shifts;
        const size_t rest = window.size() - kept;
        window.erase(window.begin() + static_cast<std::ptrdiff_t>(kept),
                     window.end() - static_cast<std::ptrdiff_t>(rest / 2));
      }
      EXPECT_GE(shifts, 3u);
      EXPECT_EQ(shifted.usage.context_shifts, shifts);
      EXPECT_EQ(shifting->engine().stats().context_shifts, shifts);
      text.erase(text.begin(), text.begin() + 20);
      EXPECT_EQ(shifted.tokens, text);
      EXPECT_EQ(shifted.logprobs, logprobs) << "not bit for bit";
      EXPECT_TRUE(shifting->engine().CheckIntegrity().ok());
      // Every token is another one than with a longer context: else nothing was tested.
      o.ctx = 256;
      const auto longer = OpenRing(o);
      ASSERT_NE(longer, nullptr);
      EXPECT_NE(RunOne(longer->engine(), request).tokens, shifted.tokens);
    }
  }
}

TEST_F(ContextShift, OthersBesideItChangeNothing) {
  std::vector<Request> requests;
  for (int i = 0; i < 7; ++i) requests.push_back(Ask(5 + 7 * static_cast<size_t>(i), 100, 1 + 40 * (i / 2)));
  requests[2].sampling = {.temperature = 1.0f, .seed = 5};
  requests[3].sampling = {.temperature = 0, .repetition_penalty = 1.3f, .frequency_penalty = 0.3f};
  requests[4].logprobs = 2;
  std::vector<Outcome> alone;
  {
    auto ring = OpenRing(Options(model_.path(), 1, 4));
    ASSERT_NE(ring, nullptr);
    for (const Request& r : requests) alone.push_back(RunOne(ring->engine(), r));
  }
  for (const int variant : {0, 1, 2, 3}) {
    SCOPED_TRACE(variant);
    RuntimeOptions o = Options(model_.path(), variant == 0 ? 1 : 3, 4);
    o.no_prefix_cache = variant == 1;
    if (variant == 2) o.kv_tokens = 80;  // they preempt each other
    o.kv_reserve = variant == 3;
    auto ring = OpenRing(o);
    ASSERT_NE(ring, nullptr);
    Runner runner(ring->engine());
    for (const Request& r : requests) runner.Add(r);
    const std::vector<Outcome> outcomes = runner.Wait();
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE(outcomes[i].finished) << outcomes[i].status;
      EXPECT_EQ(outcomes[i].tokens, alone[i].tokens) << i;
      EXPECT_EQ(outcomes[i].logprobs, alone[i].logprobs) << i;
      EXPECT_EQ(outcomes[i].usage.context_shifts, alone[i].usage.context_shifts) << i;
      EXPECT_GE(outcomes[i].usage.context_shifts, 1u) << i;
    }
    EXPECT_TRUE(ring->engine().CheckIntegrity().ok());
    if (variant == 2) EXPECT_GT(ring->engine().stats().scheduler.preemptions, 0u);
    if (variant == 3) EXPECT_EQ(ring->engine().stats().scheduler.preemptions, 0u);
  }
}

TEST_F(ContextShift, ScoresOfThePromptCameBeforeAndComeOnce) {
  auto ring = OpenRing(Options(model_.path(), 1, 4));
  ASSERT_NE(ring, nullptr);
  Request r = Ask(20, 90);
  r.prompt_logprobs = 1;
  const Outcome scored = RunOne(ring->engine(), r);
  ASSERT_TRUE(scored.finished) << scored.status;
  EXPECT_EQ(scored.prompt_logprobs.size(), 19u);
  EXPECT_EQ(scored.tokens, RunOne(ring->engine(), Ask(20, 90)).tokens);
  r.prompt_logprobs.reset();
  r.prompt_logits = true;
  const Outcome logits = RunOne(ring->engine(), r);
  EXPECT_EQ(logits.logits.size(), 20u);
  EXPECT_EQ(logits.tokens, scored.tokens);
}

TEST_F(ContextShift, WhatDoesNotFitAtItsBeginningIsStillRefused) {
  auto ring = OpenRing(Options(model_.path(), 1, 4));
  ASSERT_NE(ring, nullptr);
  EXPECT_TRUE(absl::IsOutOfRange(RunOne(ring->engine(), Ask(kContext + 1, 4)).status));
  // One that just fits is shifted at its first token.
  const Outcome full = RunOne(ring->engine(), Ask(kContext, 4));
  EXPECT_EQ(full.tokens.size(), 4u);
  EXPECT_EQ(full.usage.context_shifts, 1u);
}

TEST_F(ContextShift, WithoutItAFullContextEndsTheText) {
  auto ring = OpenRing(testing::TinyRing(model_.path(), 1, kContext));
  ASSERT_NE(ring, nullptr);
  const Outcome o = RunOne(ring->engine(), Ask(20, 90));
  EXPECT_EQ(o.reason, FinishReason::kLength);
  EXPECT_EQ(o.tokens.size(), kContext - 20);
  EXPECT_EQ(o.usage.context_shifts, 0u);
}

using ContextShiftRig = testing::EngineRig;

// Penalties look at the whole text, what was dropped too: no token comes twice while others are left.
TEST_F(ContextShiftRig, PenaltiesRememberWhatWasDropped) {
  options_.context = 16;
  options_.context_keep = 2;
  Start();
  Request r = Greedy(80);
  r.sampling.presence_penalty = 2;  // the toy model's logits lie in [0, 1)
  Runner runner(*engine_);
  runner.Add(r);
  stage_.ServeUntil([&] { return runner.done(); });
  const Outcome o = runner.Wait()[0];
  ASSERT_EQ(o.tokens.size(), 80u);
  EXPECT_GE(o.usage.context_shifts, 5u);
  EXPECT_EQ(std::set<TokenId>(o.tokens.begin(), o.tokens.end()).size(), 80u);
}

// The number that draws a token belongs to the token's place in the text, not to that in the context, where the same
// positions come again and again.
TEST_F(ContextShiftRig, DrawsGoOnWithTheText) {
  options_.context = 16;
  options_.context_keep = 2;
  Request r = Hot(80, 3);
  r.sampling.temperature = 100;  // the toy model's logits lie in [0, 1): all tokens are about as likely
  for (const bool candidates : {true, false}) {
    options_.candidates_path = candidates;
    options_.candidates = 48;
    std::vector<TokenId> text = r.prompt;
    ContextWindow window;
    const std::vector<std::vector<TokenId>> texts = Undisturbed({r});
    for (const TokenId token : texts[0]) {
      const auto position = static_cast<uint32_t>(text.size() - 1 - window.gap());
      const std::vector<float> logits = testing::ScriptedStage::Logits(text.back(), position);
      const float own = logits[static_cast<size_t>(token)];
      const auto better = std::count_if(logits.begin(), logits.end(), [own](float x) { return x > own; });
      const double u = UniformAt(3, static_cast<uint32_t>(text.size() - 1));
      ASSERT_NEAR(static_cast<double>(better) / testing::ScriptedStage::kVocab, u, 0.03) << text.size();
      text.push_back(token);
      if (position + 2 > 16) window.Shift(2, text.size(), 16);
    }
    EXPECT_GE(window.shifts(), 5u);
  }
}

// A shift in the middle of rings that break: what was on its way is computed again, in the context that there is now.
TEST_F(ContextShiftRig, ABrokenRingChangesNothing) {
  options_.context = 16;
  options_.context_keep = 2;
  const auto expected = Undisturbed({Greedy(60), Hot(60, 2)});
  Start();
  Runner runner(*engine_);
  runner.Add(Greedy(60));
  runner.Add(Hot(60, 2));
  for (size_t broken = 1; broken <= 6; ++broken) {
    for (int i = 0; i < 9; ++i) stage_.Answer(stage_.Next());
    stage_.CloseBoth();
    WaitUntilBroken(broken);
    engine_->Resume(stage_.NewRing());
  }
  ExpectTexts(runner, expected);
}

}  // namespace
}  // namespace gyre
