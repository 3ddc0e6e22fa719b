// The engine over real stages of a tiny seeded model: failures, cancellation, and exactly one end for each request.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "coordinator/cluster/plan_change.h"
#include "kernels/isa.h"
#include "runtime/runtime.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using testing::OpenRing;
using testing::Outcome;
using testing::Runner;
using testing::RunOne;

class EngineTest : public ::testing::Test {
 protected:
  RuntimeOptions Options(int stages) const { return testing::TinyRing(model_.path(), stages, 128); }
  static Request Ask(int seed, uint32_t n, size_t length = 7) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    Request r;
    for (size_t i = 0; i < length; ++i) r.prompt.push_back(static_cast<TokenId>(random() % 60));
    r.max_new_tokens = n;
    r.sampling.temperature = 0;
    r.ignore_end = true;
    return r;
  }
  // Fails the steps whose running number is in `steps`, at one stage.
  static void FailSteps(Runtime& ring, size_t stage, std::set<int> steps) {
    auto count = std::make_shared<std::atomic<int>>(0);
    ring.workers()[stage]->SetFaultHook([count, steps = std::move(steps)]() -> Status {
      return steps.count((*count)++) > 0 ? Internal("planted fault") : absl::OkStatus();
    });
  }

  testing::TinyModelFile model_;
};

TEST_F(EngineTest, AFailedStepIsSentAgainAndTheTextStaysTheSame) {
  auto alone = OpenRing(Options(1));
  ASSERT_NE(alone, nullptr);
  std::vector<std::vector<TokenId>> expected;
  for (int i = 0; i < 6; ++i) expected.push_back(RunOne(alone->engine(), Ask(i, 40, 20)).tokens);
  for (size_t stage : {size_t{0}, size_t{1}, size_t{2}}) {
    RuntimeOptions o = Options(3);
    o.chunk = 3;
    auto ring = OpenRing(o);
    ASSERT_NE(ring, nullptr);
    FailSteps(*ring, stage, {0, 30, 70, 110});
    Runner runner(ring->engine());
    for (int i = 0; i < 6; ++i) runner.Add(Ask(i, 40, 20));
    const auto outcomes = runner.Wait();
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(outcomes[i].finished) << outcomes[i].status;
      EXPECT_EQ(outcomes[i].tokens, expected[i]);
      EXPECT_EQ(outcomes[i].terminals, 1);
    }
    EXPECT_GT(ring->engine().stats().step_errors, 0u);
    EXPECT_TRUE(ring->engine().CheckIntegrity().ok()) << ring->engine().CheckIntegrity();
  }
}

// A conversation's next turn takes what was generated from the cache only where its own rows would come out alike.
TEST_F(EngineTest, GeneratedRowsServeTheNextPromptWhereBothAreComputedAlike) {
  if (!IsaMissing(Isa::kAmxEmulated).empty()) GTEST_SKIP() << IsaMissing(Isa::kAmxEmulated);
  for (const bool exact : {false, true}) {
    for (const Isa isa : {Isa::kAvx512, Isa::kAmxEmulated}) {
      RuntimeOptions o = Options(2);
      o.isa = IsaName(isa);
      o.exact = exact;
      auto ring = OpenRing(o);
      ASSERT_NE(ring, nullptr);
      Request turn = Ask(1, 20, 8);
      const Outcome first = RunOne(ring->engine(), turn);
      turn.prompt.insert(turn.prompt.end(), first.tokens.begin(), first.tokens.end());
      // The prompt has 28 tokens; the last row is always computed.
      EXPECT_EQ(RunOne(ring->engine(), turn).usage.cached_tokens, exact || PrefillMatchesDecode(isa) ? 24u : 8u)
          << IsaName(isa) << " exact " << exact;
    }
  }
}

TEST_F(EngineTest, AnErrorThatRepeatsFailsTheRequestWithItsSentence) {
  auto ring = OpenRing(Options(2));
  ASSERT_NE(ring, nullptr);
  std::set<int> all;
  for (int i = 0; i < 1000; ++i) all.insert(i);
  FailSteps(*ring, 1, all);
  const Outcome o = RunOne(ring->engine(), Ask(1, 10));
  EXPECT_FALSE(o.finished);
  EXPECT_NE(Message(o.status).find("planted fault"), std::string::npos) << o.status;
  EXPECT_EQ(o.terminals, 1);
  ring->workers()[1]->SetFaultHook({});
  EXPECT_TRUE(RunOne(ring->engine(), Ask(1, 10)).finished) << "the ring goes on after a failed request";
}

TEST_F(EngineTest, EveryRequestEndsExactlyOnceUnderRandomCancels) {
  RuntimeOptions o = Options(3);
  o.kv_tokens = 160;
  o.chunk = 5;
  auto ring = OpenRing(o);
  ASSERT_NE(ring, nullptr);
  FailSteps(*ring, 1, {3, 40, 41, 90, 200, 201, 202, 300});
  std::mt19937 random(7);
  Runner runner(ring->engine());
  std::vector<size_t> indices;
  for (int i = 0; i < 60; ++i) {
    const uint32_t n = 1 + random() % 40;
    const bool cancels = random() % 3 == 0;
    const size_t at = 1 + random() % 10;
    Engine& engine = ring->engine();
    indices.push_back(runner.Add(Ask(i, n, 1 + random() % 50), [&engine, cancels, at](SeqId seq, size_t tokens) {
      if (cancels && tokens == at) engine.Cancel(seq);
    }));
    if (random() % 4 == 0) ring->engine().Cancel(runner.id(indices[random() % indices.size()]));
    EXPECT_TRUE(engine.CheckIntegrity().ok()) << engine.CheckIntegrity();
  }
  int cancelled = 0, finished = 0;
  for (const Outcome& outcome : runner.Wait()) {
    EXPECT_EQ(outcome.terminals, 1);
    EXPECT_EQ(outcome.events_after_terminal, 0);
    cancelled += outcome.cancelled;
    finished += outcome.finished;
  }
  EXPECT_GT(cancelled, 0);
  EXPECT_GT(finished, 0);
  // Steps in flight of cancelled sequences land; then every block is back.
  for (int i = 0; i < 200 && ring->engine().stats().scheduler.in_flight > 0; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    EXPECT_TRUE(ring->engine().CheckIntegrity().ok());
  }
  const SchedulerStats stats = ring->engine().stats().scheduler;
  EXPECT_EQ(stats.memory[kPageGroup].available, stats.memory[kPageGroup].units);
}

TEST_F(EngineTest, PromptLogitsComeOnceEachAlsoAfterAPreemption) {
  Request scored = Ask(9, 0, 40);
  scored.prompt_logits = true;
  auto alone = OpenRing(Options(1));
  ASSERT_NE(alone, nullptr);
  const auto expected = RunOne(alone->engine(), scored).logits;
  ASSERT_EQ(expected.size(), 40u);
  RuntimeOptions o = Options(3);
  o.kv_tokens = 240;
  o.chunk = 3;
  auto ring = OpenRing(o);
  ASSERT_NE(ring, nullptr);
  Runner runner(ring->engine());
  for (int i = 0; i < 8; ++i) runner.Add(Ask(i, 60, 10 + 5 * static_cast<size_t>(i)));
  runner.Add(scored);
  const auto outcomes = runner.Wait();
  EXPECT_TRUE(outcomes.back().finished) << outcomes.back().status;
  EXPECT_TRUE(outcomes.back().logits == expected) << outcomes.back().logits.size() << " rows";
  EXPECT_GT(ring->engine().stats().scheduler.replayed_rows, 0u) << "nothing was preempted";
}

TEST_F(EngineTest, StoppingTheEngineCancelsWhatRuns) {
  auto ring = OpenRing(Options(2));
  ASSERT_NE(ring, nullptr);
  Runner runner(ring->engine());
  for (int i = 0; i < 8; ++i) runner.Add(Ask(i, 120));
  ring.reset();
  for (const Outcome& o : runner.Wait()) {
    EXPECT_EQ(o.terminals, 1);
    EXPECT_TRUE(o.cancelled || o.finished);
  }
}

// Its member stays, so that the ring is repaired in vain before the others go on without it.
TEST_F(EngineTest, RequestsGoOnWithoutAStageThatIsDead) {
  std::vector<std::vector<TokenId>> expected;
  {
    auto alone = OpenRing(Options(1));
    ASSERT_NE(alone, nullptr);
    for (int i = 0; i < 4; ++i) expected.push_back(RunOne(alone->engine(), Ask(i, 120)).tokens);
  }
  auto ring = OpenRing(Options(2));
  ASSERT_NE(ring, nullptr);
  std::atomic<bool> running{false};
  Runner runner(ring->engine());
  for (int i = 0; i < 4; ++i) {
    runner.Add(Ask(i, 120), [&](SeqId, size_t) { running = true; });
  }
  while (!running) std::this_thread::yield();
  ring->workers()[1]->Stop();
  const auto outcomes = runner.Wait();
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(outcomes[i].terminals, 1);
    EXPECT_TRUE(outcomes[i].finished) << outcomes[i].status;
    EXPECT_EQ(outcomes[i].tokens, expected[i]);
    ASSERT_FALSE(outcomes[i].waits.empty());
    EXPECT_THAT(Message(outcomes[i].waits[0]), ::testing::HasSubstr("the ring could not be repaired"));
  }
  EXPECT_TRUE(RunOne(ring->engine(), Ask(1, 5)).finished);
  EXPECT_EQ(ring->engine().stats().rings_lost, 1u);
}

TEST_F(EngineTest, DeadlinesEndRequestsWithASentence) {
  auto ring = OpenRing(Options(1));
  ASSERT_NE(ring, nullptr);
  Request r = Ask(1, 100);
  r.deadline = Clock::now() - milliseconds(1);
  const Outcome o = RunOne(ring->engine(), std::move(r));
  EXPECT_TRUE(absl::IsDeadlineExceeded(o.status)) << o.status;
}

TEST_F(EngineTest, RefusalsSayWhatIsWrong) {
  auto ring = OpenRing(Options(1));
  ASSERT_NE(ring, nullptr);
  auto refused = [&](Request r) { return RunOne(ring->engine(), std::move(r)).status; };
  Request empty = Ask(1, 5);
  empty.prompt.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(refused(empty)));
  Request wild = Ask(1, 5);
  wild.prompt[2] = 1 << 20;
  EXPECT_TRUE(absl::IsInvalidArgument(refused(wild)));
  wild.prompt[2] = -1;
  EXPECT_TRUE(absl::IsInvalidArgument(refused(wild)));
  EXPECT_TRUE(absl::IsOutOfRange(refused(Ask(1, 5, 1000))));
  Request hot = Ask(1, 5);
  hot.sampling.temperature = -1;
  EXPECT_TRUE(absl::IsInvalidArgument(refused(hot)));
}

TEST_F(EngineTest, GenerationEndsAtTheContext) {
  auto ring = OpenRing(Options(2));
  ASSERT_NE(ring, nullptr);
  const Outcome o = RunOne(ring->engine(), Ask(3, 100000, 10));
  EXPECT_TRUE(o.finished);
  EXPECT_EQ(o.reason, FinishReason::kLength);
  EXPECT_EQ(o.tokens.size(), 128u - 10);
}

TEST_F(EngineTest, PenaltiesAndBiasReachTheDraw) {
  auto ring = OpenRing(Options(2));
  ASSERT_NE(ring, nullptr);
  Request r = Ask(5, 30);
  r.sampling.presence_penalty = 2;
  r.sampling.repetition_penalty = 1.5f;
  r.sampling.logit_bias = {{9, 1000.0f}};
  const Outcome biased = RunOne(ring->engine(), r);
  ASSERT_TRUE(biased.finished) << biased.status;
  for (TokenId id : biased.tokens) EXPECT_EQ(id, 9);
  r.sampling.logit_bias = {{9, -INFINITY}};
  const Outcome banned = RunOne(ring->engine(), r);
  for (TokenId id : banned.tokens) EXPECT_NE(id, 9);
}

TEST_F(EngineTest, AStageThatCannotPrepareAbortsThePlan) {
  RuntimeOptions o = Options(2);
  o.stages = 99;
  EXPECT_TRUE(absl::IsInvalidArgument(Runtime::Open(o).status()));
  o = Options(1);
  o.model = "/nowhere/model.gguf";
  EXPECT_TRUE(absl::IsNotFound(Runtime::Open(o).status()));
}

}  // namespace
}  // namespace gyre
