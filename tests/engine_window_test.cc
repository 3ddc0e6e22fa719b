// Layers with a window give back what is behind it, and no text changes: chunks, companions, preemption, resizes, the
// prefix cache, a context that shifts.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "kernels/isa.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre {
namespace {

using testing::OpenRing;
using testing::Outcome;
using testing::Runner;
using testing::RunOne;

// Windows of 8 positions: in all layers of mistral, in five of six of gemma3.
class WindowTest : public ::testing::TestWithParam<const char*> {
 protected:
  static testing::TinyOptions Model() {
    testing::TinyOptions o;
    o.arch = GetParam();
    o.layers = 6;
    return o;
  }
  RuntimeOptions Options(int stages, uint32_t chunk, uint32_t tokens) const {
    RuntimeOptions o = testing::TinyRing(file_.path(), stages, 256);
    o.chunk = chunk;
    o.kv_tokens = tokens;
    return o;
  }
  static Request Asked(uint32_t seed, size_t length, uint32_t more) {
    std::mt19937 random(seed);
    Request r;
    for (size_t i = 0; i < length; ++i) r.prompt.push_back(static_cast<TokenId>(random() % 90));
    r.max_new_tokens = more;
    r.sampling.temperature = 0;
    r.ignore_end = true;
    return r;
  }
  // All prompts whole and nothing cached: no block that came back is used again.
  std::vector<std::vector<TokenId>> Undisturbed(const std::vector<Request>& requests) const {
    RuntimeOptions o = Options(1, 256, 8 * 256);
    o.no_chunked_prefill = o.no_prefix_cache = true;
    const auto ring = OpenRing(o);
    std::vector<std::vector<TokenId>> texts;
    for (const Request& r : requests) texts.push_back(RunOne(ring->engine(), r).tokens);
    return texts;
  }
  const testing::TinyModelFile file_{Model()};
};

TEST_P(WindowTest, ChunksCompanionsPreemptionAndResizes) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 10; ++i) requests.push_back(Asked(i, 20 + 17 * i, 40));
  const auto expected = Undisturbed(requests);
  struct Run {
    int stages;
    uint32_t chunk;
    std::vector<std::string> resizes;
  };
  for (const auto& [stages, chunk, resizes] :
       {Run{1, 1, {}}, {1, 17, {}}, {2, 3, {"0-0,1-5", "0-3,4-5"}}, {3, 64, {"0,1,2-5", "0-3,4,5"}}}) {
    SCOPED_TRACE(fmt::format("{} stages, chunks of {}", stages, chunk));
    const auto ring = OpenRing(Options(stages, chunk, 640));
    ASSERT_NE(ring, nullptr);
    Runner runner(ring->engine());
    for (const Request& r : requests) runner.Add(r);
    for (const std::string& text : resizes) {
      const auto report = ring->cluster().ResizeAndWait(text);
      EXPECT_TRUE(report.ok()) << report.status();
    }
    const auto outcomes = runner.Wait();
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(outcomes[i].tokens, expected[i]) << i;
    // Rows beyond the last token may still land.
    while (ring->engine().stats().scheduler.in_flight > 0) std::this_thread::yield();
    EXPECT_TRUE(ring->engine().CheckIntegrity().ok()) << ring->engine().CheckIntegrity();
    const SchedulerStats stats = ring->engine().stats().scheduler;
    EXPECT_LE(stats.memory[kWindowGroup].units, stats.memory[kPageGroup].units);
    if (chunk < 64) EXPECT_LT(stats.memory[kWindowGroup].units, stats.memory[kPageGroup].units);
    EXPECT_EQ(stats.memory[kWindowGroup].available, stats.memory[kWindowGroup].units);
  }
}

TEST_P(WindowTest, TheNextTurnFindsItsBeginning) {
  const auto ring = OpenRing(Options(2, 16, 1024));
  ASSERT_NE(ring, nullptr);
  Request first = Asked(1, 150, 30);
  const Outcome one = RunOne(ring->engine(), first);
  Request second = first;
  second.prompt.insert(second.prompt.end(), one.tokens.begin(), one.tokens.end());
  for (int i = 0; i < 20; ++i) second.prompt.push_back(5);
  const Outcome two = RunOne(ring->engine(), second);
  // All blocks that the last row of the first turn was not in; those of the prompt only where generated rows have other
  // bits (docs/kernels.md).
  EXPECT_GE(two.usage.cached_tokens, PrefillMatchesDecode(DetectIsa()) ? 172u : 144u);
  EXPECT_EQ(two.tokens, Undisturbed({second})[0]);
  // Without the answer, as a chat without its thoughts is.
  Request third = first;
  for (int i = 0; i < 20; ++i) third.prompt.push_back(6);
  const Outcome three = RunOne(ring->engine(), third);
  EXPECT_GE(three.usage.cached_tokens, 144u);
  EXPECT_EQ(three.tokens, Undisturbed({third})[0]);
}

TEST_P(WindowTest, AReservedContextIsNeverPreempted) {
  RuntimeOptions o = Options(1, 8, 768);
  o.kv_reserve = true;
  const auto ring = OpenRing(o);
  ASSERT_NE(ring, nullptr);
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 6; ++i) requests.push_back(Asked(i, 30 + 9 * i, 60));
  const auto expected = Undisturbed(requests);
  Runner runner(ring->engine());
  for (const Request& r : requests) runner.Add(r);
  const auto outcomes = runner.Wait();
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(outcomes[i].tokens, expected[i]) << i;
  EXPECT_EQ(ring->engine().stats().scheduler.preemptions, 0u);
}

TEST_P(WindowTest, AShiftedContextGoesOn) {
  std::vector<std::vector<TokenId>> texts;
  for (const bool whole : {true, false}) {
    RuntimeOptions o = testing::TinyRing(file_.path(), 1, 64);
    o.context_shift = true;
    o.no_chunked_prefill = o.no_prefix_cache = whole;
    o.chunk = 5;
    const auto ring = OpenRing(o);
    ASSERT_NE(ring, nullptr);
    texts.push_back(RunOne(ring->engine(), Asked(3, 40, 150)).tokens);
  }
  EXPECT_EQ(texts[0].size(), 150u);
  EXPECT_EQ(texts[0], texts[1]);
}

INSTANTIATE_TEST_SUITE_P(Arch, WindowTest, ::testing::Values("mistral", "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace gyre
