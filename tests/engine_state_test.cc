// Models with recurrent state or latent attention through whole rings: no stages, chunks, companions, replays or moves
// of layers change a text.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/runtime.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/tiny_hybrid.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre {
namespace {

using testing::OpenRing;
using testing::Outcome;
using testing::Runner;
using testing::RunOne;

class State : public ::testing::TestWithParam<const char*> {
 protected:
  RuntimeOptions Options(int stages) const {
    RuntimeOptions o = testing::TinyRing(model_.path(), stages, 200);
    o.threads = 2;
    o.max_sequences = 6;
    return o;
  }
  bool has_state() const { return std::string(GetParam()) != "deepseek2"; }
  static Request Ask(uint32_t seed, size_t length, uint32_t tokens = 40) {
    std::mt19937 random(seed);
    Request r;
    for (size_t i = 0; i < length; ++i) r.prompt.push_back(static_cast<TokenId>(random() % 96));
    r.max_new_tokens = tokens;
    r.sampling.temperature = seed % 2 == 0 ? 0.0f : 0.8f;
    r.sampling.seed = seed;
    r.ignore_end = true;
    return r;
  }
  // The text of each request alone on one stage, in one chunk and without a prefix cache.
  std::vector<std::vector<TokenId>> Alone(const std::vector<Request>& requests) {
    RuntimeOptions o = Options(1);
    o.no_prefix_cache = true;
    auto ring = OpenRing(o);
    std::vector<std::vector<TokenId>> out;
    for (const Request& r : requests) out.push_back(RunOne(ring->engine(), r).tokens);
    return out;
  }

  testing::TinyModelFile model_{testing::BuildTinyHybrid(GetParam())};
};

TEST_P(State, StagesAndChunksChangeNoBit) {
  Request rows = Ask(2, 70, 0);
  rows.prompt_logits = true;
  std::vector<std::vector<float>> first;
  for (const int stages : {1, 2, 3, 6}) {
    for (const uint32_t chunk : {256u, 1u, 3u, 17u, 64u}) {
      RuntimeOptions o = Options(stages);
      o.chunk = chunk;
      auto ring = OpenRing(o);
      ASSERT_NE(ring, nullptr);
      Outcome got = RunOne(ring->engine(), rows);
      ASSERT_EQ(got.logits.size(), 70u) << got.status;
      if (first.empty()) {
        first = std::move(got.logits);
        EXPECT_NE(first[3], first[4]);
      } else {
        EXPECT_TRUE(first == got.logits) << stages << " stages, chunks of " << chunk;
      }
    }
  }
}

// On a cache that is too small for all, so that some begin again.
TEST_P(State, CompanionsAndReplaysChangeNoText) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 12; ++i) requests.push_back(Ask(i % 9, 5 + 7 * (i % 9)));
  const auto alone = Alone(requests);
  for (const bool cache : {true, false}) {
    RuntimeOptions o = Options(3);
    o.chunk = 8;
    o.kv_tokens = 240;
    o.no_prefix_cache = !cache;
    auto ring = OpenRing(o);
    ASSERT_NE(ring, nullptr);
    for (int round = 0; round < 2; ++round) {
      Runner runner(ring->engine());
      for (const Request& r : requests) runner.Add(r);
      const auto got = runner.Wait();
      for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].tokens, alone[i]) << i << ": " << got[i].status;
    }
    const SchedulerStats stats = ring->engine().stats().scheduler;
    EXPECT_GT(stats.preemptions, 0u);
    EXPECT_EQ(stats.cached_positions > 0, cache);
    EXPECT_TRUE(ring->engine().CheckIntegrity().ok()) << ring->engine().CheckIntegrity();
  }
}

// A prompt that comes again, and one that goes on where the first one ended.
TEST_P(State, SnapshotsServePromptsThatBeginTheSame) {
  const Request first = Ask(4, 61);
  Request longer = first;
  for (TokenId id : Ask(5, 30).prompt) longer.prompt.push_back(id);
  const auto alone = Alone({first, longer});
  auto ring = OpenRing(Options(2));
  ASSERT_NE(ring, nullptr);
  EXPECT_EQ(RunOne(ring->engine(), first).tokens, alone[0]);
  EXPECT_EQ(ring->engine().stats().scheduler.cached_positions, 0u);
  EXPECT_EQ(RunOne(ring->engine(), first).tokens, alone[0]);
  EXPECT_EQ(ring->engine().stats().scheduler.cached_positions, 60u);
  EXPECT_EQ(RunOne(ring->engine(), longer).tokens, alone[1]);
  EXPECT_EQ(ring->engine().stats().scheduler.cached_positions, 120u);
}

// A full context loses its older tokens; what is left is a new prompt.
TEST_P(State, AFullContextGoesOn) {
  RuntimeOptions o = Options(1);
  o.ctx = 48;
  o.context_shift = true;
  const Request request = Ask(2, 30, 90);
  std::vector<TokenId> first;
  for (const int stages : {1, 3}) {
    o.stages = stages;
    auto ring = OpenRing(o);
    ASSERT_NE(ring, nullptr);
    const Outcome got = RunOne(ring->engine(), request);
    EXPECT_EQ(got.tokens.size(), 90u) << got.status;
    EXPECT_GT(ring->engine().stats().context_shifts, 0u);
    if (first.empty()) first = got.tokens;
    EXPECT_EQ(got.tokens, first);
  }
}

// Layers move while texts are written; pages and states go with them, and nothing is computed again.
TEST_P(State, LayersMoveAndNoTextChanges) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 3; ++i) requests.push_back(Ask(i, 20 + 9 * i, 60));
  requests.push_back(Ask(7, 80, 30));
  const auto alone = Alone(requests);
  requests.back().prompt_logits = true;  // they tell when it is in the middle of its prompt
  RuntimeOptions o = Options(3);
  o.chunk = 8;
  o.no_prefix_cache = true;
  auto ring = OpenRing(o);
  ASSERT_NE(ring, nullptr);
  for (const char* text : {"local-1=0-0,local-2=1-1,local-3=2-5", "local-3=0-2,local-1=3-5", "local-2=0-5",
                           "local-1=0-1,local-3=2-3,local-2=4-5"}) {
    std::atomic<size_t> standing{0};
    Runner runner(ring->engine());
    for (const Request& r : requests) {
      runner.Add(r, [&ring, &standing, &r, first = true](SeqId seq, size_t n) mutable {
        if (r.prompt_logits ? !std::exchange(first, false) : n != 7) return;
        ring->engine().Hold(seq);
        ++standing;
      });
    }
    while (standing < requests.size()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto report = ring->cluster().ResizeAndWait(text);
    EXPECT_TRUE(report.ok()) << text << ": " << report.status();
    if (report.ok()) EXPECT_GT(report->pages_moved, 0u) << text;
    for (size_t i = 0; i < requests.size(); ++i) ring->engine().Unhold(runner.id(i));
    const auto got = runner.Wait();
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].tokens, alone[i]) << text << ": " << got[i].status;
  }
  EXPECT_EQ(ring->engine().stats().scheduler.replayed_rows, 0u);
  EXPECT_EQ(ring->engine().stats().step_errors, 0u);
}

// Without the move of their states, texts would be refused, not changed.
TEST_P(State, AStateThatDidNotComeAlongIsNoticed) {
  if (!has_state()) GTEST_SKIP() << "pages have no header";
  const Request request = Ask(2, 30, 60);
  const auto alone = Alone({request});
  auto ring = OpenRing(Options(2));
  ASSERT_NE(ring, nullptr);
  std::atomic<bool> stands{false};
  Runner runner(ring->engine());
  runner.Add(request, [&](SeqId seq, size_t n) {
    if (n != 7) return;
    ring->engine().Hold(seq);
    stands = true;
  });
  while (!stands) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (const auto& w : ring->workers()) w->SkipCopyingForTest();
  ASSERT_TRUE(ring->cluster().ResizeAndWait("local-2=0-1,local-1=2-5").ok());
  ring->engine().Unhold(runner.id(0));
  const auto got = runner.Wait();
  EXPECT_GT(ring->engine().stats().step_errors, 0u);
  // The replay begins again, from position 0 or fails; it never goes on with another's state.
  if (got[0].finished) EXPECT_EQ(got[0].tokens, alone[0]);
}

INSTANTIATE_TEST_SUITE_P(Families, State, ::testing::Values("qwen35", "lfm2", "nemotron_h", "deepseek2"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace gyre
