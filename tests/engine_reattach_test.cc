// Requests that go on behind tokens that were drawn before: by another coordinator, or for a reader that was lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/engine_rig.h"

namespace gyre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::Runner;

class EngineReattach : public testing::EngineRig {
 protected:
  // The same request once its first `n` tokens were drawn.
  static Request After(const Request& r, const std::vector<TokenId>& tokens, size_t n) {
    Request behind = r;
    for (size_t i = 0; i < n; ++i) behind.generated.push_back({.token = tokens[i], .probability = 0.5f});
    return behind;
  }
};

TEST_F(EngineReattach, TheTextGoesOnAsItWouldHaveWhereverItWasCut) {
  const std::vector<Request> requests{Greedy(12), Hot(12, 2), Hot(12, 3, 30)};
  const auto expected = Undisturbed(requests);
  for (size_t cut = 0; cut <= 12; ++cut) {
    std::vector<Request> behind;
    for (size_t i = 0; i < requests.size(); ++i) behind.push_back(After(requests[i], expected[i], cut));
    // All tokens have their events again.
    EXPECT_EQ(Undisturbed(behind), expected) << cut;
  }
}

TEST_F(EngineReattach, AFullContextMovesOnAsItDid) {
  options_.context = 16;
  options_.context_keep = 2;
  const std::vector<Request> requests{Greedy(60), Hot(60, 2)};
  const auto expected = Undisturbed(requests);
  ASSERT_EQ(expected[0].size(), 60u);
  for (size_t cut = 0; cut <= 60; cut += 3) {
    std::vector<Request> behind;
    for (size_t i = 0; i < requests.size(); ++i) behind.push_back(After(requests[i], expected[i], cut));
    EXPECT_EQ(Undisturbed(behind), expected) << cut;
  }
}

TEST_F(EngineReattach, OneThatHadEndedEndsAgainAndComputesNothing) {
  Request r = Greedy(12);
  const auto tokens = Undisturbed({r})[0];
  r.stop_ids = {tokens[5]};
  Start();
  Runner runner(*engine_);
  Request behind = After(r, tokens, 6);
  runner.Add(behind);
  const Outcome out = runner.Wait().front();
  EXPECT_THAT(out.tokens, ::testing::ElementsAreArray(tokens.begin(), tokens.begin() + 6));
  EXPECT_EQ(engine_->stats().scheduler.steps, 0u);
}

TEST_F(EngineReattach, NonsenseIsRefused) {
  Start();
  Request r = Greedy(2);
  r.generated = {{.token = 1}, {.token = 1}, {.token = 1}};
  EXPECT_THAT(Message(engine_->Submit(r, [](SeqId, const Event&) {}).status()), HasSubstr("at most 2"));
  r.generated = {{.token = -1}};
  EXPECT_THAT(Message(engine_->Submit(r, [](SeqId, const Event&) {}).status()), HasSubstr("out of range"));
  r.generated = {{.token = 1}};
  r.prompt_logprobs = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(engine_->Submit(r, [](SeqId, const Event&) {}).status()));
}

}  // namespace
}  // namespace gyre
