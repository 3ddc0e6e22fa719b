// Texts have the same bits with and without speculation, whoever drafts, over any number of stages.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "coordinator/engine/drafter.h"
#include "runtime/runtime.h"
#include "tests/testing/delayed_port.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/speculation_checks.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre {
namespace {

class SpeculationTest : public ::testing::Test {
 protected:
  static testing::TinyOptions Options() {
    testing::TinyOptions o;
    o.layers = 4;
    o.dim = 64;
    o.heads = 2;
    o.kv_heads = 1;  // wide enough for every type of the KV cache
    return o;
  }
  const testing::TinyModelFile file_{Options()};
  const std::vector<Request> requests_ = testing::SpeculationRequests();
};

TEST_F(SpeculationTest, SameBitsForEveryTypeOfTheKvCache) {
  for (const char* type : {"f32", "f16", "bf16", "q8_0", "q4_0"}) {
    SCOPED_TRACE(type);
    RuntimeOptions o = testing::SpeculatingRing(file_.path(), 1, "off");
    o.kv_type = type;
    const auto without = testing::OpenRing(o);
    ASSERT_NE(without, nullptr);
    const auto expected = testing::RunAll(without->engine(), requests_);
    o = testing::SpeculatingRing(file_.path(), 2, "auto");
    o.kv_type = type;
    o.drafter = testing::Knowing(requests_, expected);
    const auto with = testing::OpenRing(o);
    ASSERT_NE(with, nullptr);
    testing::ExpectSameOutcomes(testing::RunAll(with->engine(), requests_), expected);
    EXPECT_GT(with->engine().stats().accepted_drafts, 0u);
  }
}

// With all logits of each row, and with the whole prompt or a chunk in a step.
TEST_F(SpeculationTest, SameBitsWithoutCandidatesAndWithShortSteps) {
  const auto without = testing::OpenRing(testing::SpeculatingRing(file_.path(), 1, "off"));
  ASSERT_NE(without, nullptr);
  const auto expected = testing::RunAll(without->engine(), requests_);
  for (const bool candidates : {false, true}) {
    RuntimeOptions o = testing::SpeculatingRing(file_.path(), 2, "auto");
    o.no_candidates = !candidates;
    o.max_rows = candidates ? 5 : 64;
    o.chunk = 3;
    o.drafter = testing::Knowing(requests_, expected);
    const auto with = testing::OpenRing(o);
    ASSERT_NE(with, nullptr);
    testing::ExpectSameOutcomes(testing::RunAll(with->engine(), requests_), expected);
    EXPECT_GT(with->engine().stats().accepted_drafts, 0u);
  }
}

TEST_F(SpeculationTest, SameBitsThroughResizes) {
  const auto without = testing::OpenRing(testing::SpeculatingRing(file_.path(), 1, "off"));
  ASSERT_NE(without, nullptr);
  const auto expected = testing::RunAll(without->engine(), requests_);
  RuntimeOptions o = testing::SpeculatingRing(file_.path(), 3, "auto");
  o.tcp = true;
  o.drafter = testing::Knowing(requests_, expected);
  const auto ring = testing::OpenRing(o);
  ASSERT_NE(ring, nullptr);
  for (const char* text : {"local-1=0,local-2=1,local-3=2-3", "local-1=0-1,local-2=2,local-3=3", "local-3=0-3"}) {
    testing::Runner runner(ring->engine());
    for (const Request& r : requests_) runner.Add(r);
    const auto report = ring->cluster().ResizeAndWait(text);
    ASSERT_TRUE(report.ok()) << report.status();
    testing::ExpectSameOutcomes(runner.Wait(), expected);
  }
  EXPECT_GT(ring->engine().stats().accepted_drafts, 0u);
}

// The drafter goes on while a lap is under way; layers move, steps fail and the ring breaks meanwhile.
TEST_F(SpeculationTest, SameBitsOverLongWays) {
  const auto without = testing::OpenRing(testing::SpeculatingRing(file_.path(), 1, "off"));
  ASSERT_NE(without, nullptr);
  const auto expected = testing::RunAll(without->engine(), requests_);
  RuntimeOptions o = testing::SpeculatingRing(file_.path(), 3, "auto");
  const auto adversary = testing::Knowing(requests_, expected);
  o.drafter = adversary;
  o.wrap_port = testing::Delays(std::chrono::milliseconds(2));
  const auto ring = testing::OpenRing(o);
  ASSERT_NE(ring, nullptr);
  testing::ExpectSameOutcomes(testing::RunAll(ring->engine(), requests_), expected);
  EXPECT_GT(adversary->behind(), 5);
  for (const char* plan : {"local-1=0,local-2=1,local-3=2-3", "local-1=0-1,local-2=2,local-3=3"}) {
    testing::Runner runner(ring->engine());
    for (const Request& r : requests_) runner.Add(r);
    const auto report = ring->cluster().ResizeAndWait(plan);
    ASSERT_TRUE(report.ok()) << report.status();
    ring->workers()[1]->BreakLinksForTest();
    testing::ExpectSameOutcomes(runner.Wait(), expected);
  }
  ring->workers()[1]->SetFaultHook([count = std::make_shared<std::atomic<int>>(0)]() -> Status {
    return ++*count % 40 == 9 ? Internal("planted fault") : absl::OkStatus();
  });
  testing::ExpectSameOutcomes(testing::RunAll(ring->engine(), requests_), expected);
  EXPECT_TRUE(ring->engine().CheckIntegrity().ok());
}

// A stage leaves out what it has not begun when it hears that a draft before it was not drawn.
TEST_F(SpeculationTest, VoidStepsAreNotComputed) {
  const auto without = testing::OpenRing(testing::SpeculatingRing(file_.path(), 1, "off"));
  ASSERT_NE(without, nullptr);
  const auto expected = testing::RunAll(without->engine(), requests_);
  for (const int stages : {1, 3}) {
    RuntimeOptions o = testing::SpeculatingRing(file_.path(), stages, "auto");
    o.drafter = testing::Knowing(requests_, expected);
    o.steps_in_flight = 6;
    const auto ring = testing::OpenRing(o);
    ASSERT_NE(ring, nullptr);
    // Steps wait for the stages, so that some lie there when others are sent in their place.
    for (const auto& worker : ring->workers()) {
      worker->SetFaultHook([] {
        std::this_thread::sleep_for(std::chrono::microseconds(500));
        return absl::OkStatus();
      });
    }
    // On a busy machine the stages may hear too late, so the texts come several times.
    uint64_t left_out = 0;
    for (int round = 0; round < 20 && left_out == 0; ++round) {
      testing::ExpectSameOutcomes(testing::RunAll(ring->engine(), requests_), expected);
      for (const auto& worker : ring->workers()) left_out += worker->stats().void_steps;
    }
    EXPECT_GT(left_out, 0u) << stages;
  }
}

// The model drafts for itself, so that nearly all comes true; another model of the same vocabulary is mostly wrong.
TEST_F(SpeculationTest, ADraftModelChangesNoBit) {
  const auto without = testing::OpenRing(testing::SpeculatingRing(file_.path(), 1, "off"));
  ASSERT_NE(without, nullptr);
  testing::TinyOptions other = Options();
  other.seed = 77;
  const testing::TinyModelFile stranger(other);
  for (const DrawMethod method : {DrawMethod::kUniform, DrawMethod::kGumbel}) {
    std::vector<Request> requests = requests_;
    for (Request& r : requests) r.sampling.draw = method, r.speculation.n_max = 6;
    const auto expected = testing::RunAll(without->engine(), requests);
    for (const std::string& path : {file_.path(), stranger.path()}) {
      RuntimeOptions o = testing::SpeculatingRing(file_.path(), 2, "auto");
      o.draft_model = path;
      o.draft_tokens = 5;
      o.steps_in_flight = 1;  // rows wait for drafts, which come too late elsewhere
      o.parallel = 2;         // its texts push each other out
      const auto with = testing::OpenRing(o);
      ASSERT_NE(with, nullptr);
      testing::ExpectSameOutcomes(testing::RunAll(with->engine(), requests), expected);
      const EngineStats stats = with->engine().stats();
      EXPECT_GT(stats.drafted_tokens, 50u);
      if (path == file_.path()) EXPECT_GT(2 * stats.accepted_drafts, stats.drafted_tokens);
    }
  }
}

TEST_F(SpeculationTest, ADraftModelOfAnotherVocabularyIsRefused) {
  testing::TinyOptions other = Options();
  other.vocab = 112;
  const testing::TinyModelFile stranger(other);
  RuntimeOptions o = testing::SpeculatingRing(file_.path(), 1, "auto");
  o.draft_model = stranger.path();
  const auto ring = Runtime::Open(o);
  EXPECT_EQ(ring.status().code(), absl::StatusCode::kFailedPrecondition) << ring.status();
}

// The limits of a request hold to the token, and its numbers say what was drafted.
TEST_F(SpeculationTest, LimitsHoldAndRequestsChoose) {
  const auto ring = testing::OpenRing(testing::SpeculatingRing(file_.path(), 1, "ngram"));
  ASSERT_NE(ring, nullptr);
  Request r = requests_[3];
  std::vector<TokenId> whole;
  for (uint32_t n = 1; n <= 20; ++n) {
    r.max_new_tokens = n;
    const testing::Outcome got = testing::RunOne(ring->engine(), r);
    ASSERT_EQ(got.tokens.size(), n);
    EXPECT_TRUE(std::equal(whole.begin(), whole.end(), got.tokens.begin()));
    whole = got.tokens;
    EXPECT_GE(got.usage.drafted_tokens, got.usage.accepted_drafts);
    EXPECT_LT(got.usage.accepted_drafts, n);
  }
  r.speculation.n_max = 0;
  const testing::Outcome none = testing::RunOne(ring->engine(), r);
  EXPECT_EQ(none.tokens, whole);
  EXPECT_EQ(none.usage.drafted_tokens, 0u);
  // What is predicted is drafted, from the answer's beginning on.
  r.speculation.n_max = 4;
  r.prediction = whole;
  const testing::Outcome predicted = testing::RunOne(ring->engine(), r);
  EXPECT_EQ(predicted.tokens, whole);
  EXPECT_GE(predicted.usage.accepted_drafts, 12u);
}

}  // namespace
}  // namespace gyre
