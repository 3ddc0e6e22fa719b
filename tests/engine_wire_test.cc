// Rings whose activations travel rounded: how far logits may go, and what must not change a text.
#include <gtest/gtest.h>

#include <random>

#include "runtime/runtime.h"
#include "tests/testing/logits_distance.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"
#include "worker/wire_rows.h"

namespace gyre {
namespace {

using testing::OpenRing;
using testing::Outcome;
using testing::Runner;
using testing::RunOne;

constexpr int kVocab = 96;

class EngineWireTest : public ::testing::Test {
 protected:
  RuntimeOptions Options(int stages, const std::string& wire) const {
    RuntimeOptions o = testing::TinyRing(model_.path(), stages, 256);
    o.wire = wire;
    o.exact = true;  // tiles of bf16 would round what the hops have rounded once more
    return o;
  }
  static Request Ask(int seed, uint32_t n, size_t length) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    Request r;
    for (size_t i = 0; i < length; ++i) r.prompt.push_back(static_cast<TokenId>(random() % kVocab));
    r.max_new_tokens = n;
    r.sampling.temperature = seed % 2 == 0 ? 0 : 0.8f;
    r.sampling.seed = static_cast<uint64_t>(seed);
    r.ignore_end = true;
    return r;
  }
  static testing::Logits LogitsOf(Runtime& ring, int seed, size_t length) {
    Request r = Ask(seed, 0, length);
    r.prompt_logits = true;
    Outcome o = RunOne(ring.engine(), r);
    EXPECT_TRUE(o.finished) << o.status;
    EXPECT_EQ(o.logits.size(), length);
    return std::move(o.logits);
  }
  testing::TinyModelFile model_{testing::TinyOptions{.dim = 64, .layers = 6}};
};

TEST_F(EngineWireTest, LogitsGoAsFarAsTheRoundingOfTheHopsAndNoFurther) {
  auto alone = OpenRing(Options(1, "f32"));
  ASSERT_NE(alone, nullptr);
  for (int stages : {2, 3, 6}) {
    for (WireType type : {WireType::kF32, WireType::kF16, WireType::kQ8}) {
      SCOPED_TRACE(fmt::format("{} over {} stages", WireTypeName(type), stages));
      auto ring = OpenRing(Options(stages, WireTypeName(type)));
      ASSERT_NE(ring, nullptr);
      for (int seed : {1, 2, 3, 4}) {
        const testing::Distance d = testing::Between(LogitsOf(*alone, seed, 60), LogitsOf(*ring, seed, 60));
        if (type == WireType::kF32) {
          EXPECT_EQ(d.most, 0) << "the ring never changes the answer";
          continue;
        }
        const double expected = testing::RoundingOf(type, stages - 1);
        EXPECT_GT(d.rms, 0.7 * expected);
        EXPECT_LT(d.rms, 1.8 * expected);
        EXPECT_LT(d.most, 10 * expected);
      }
    }
  }
}

TEST_F(EngineWireTest, OneStageRoundsNothing) {
  auto exact = OpenRing(Options(1, "f32")), alone = OpenRing(Options(1, "q8"));
  ASSERT_TRUE(exact != nullptr && alone != nullptr);
  EXPECT_TRUE(LogitsOf(*exact, 1, 60) == LogitsOf(*alone, 1, 60));
}

// Chunks, rows beside it, a replay after a preemption, links in memory or over TCP: all the same on the same cut.
TEST_F(EngineWireTest, WhatIsBesideARowChangesNothing) {
  for (const char* wire : {"f16", "q8"}) {
    SCOPED_TRACE(wire);
    auto one = OpenRing(Options(3, wire));
    ASSERT_NE(one, nullptr);
    constexpr int kRequests = 8;
    std::vector<std::vector<TokenId>> texts;
    for (int i = 0; i < kRequests; ++i)
      texts.push_back(RunOne(one->engine(), Ask(i, 60, 10 + 5 * static_cast<size_t>(i))).tokens);
    const auto logits = LogitsOf(*one, 3, 40);
    for (const bool tcp : {false, true}) {
      RuntimeOptions o = Options(3, wire);
      o.tcp = tcp;
      o.chunk = 3;
      o.kv_tokens = 240;  // of the 700 that they want
      o.no_prefix_cache = true;
      auto ring = OpenRing(o);
      ASSERT_NE(ring, nullptr);
      Runner runner(ring->engine());
      for (int i = 0; i < kRequests; ++i) runner.Add(Ask(i, 60, 10 + 5 * static_cast<size_t>(i)));
      Request scored = Ask(3, 0, 40);
      scored.prompt_logits = true;
      runner.Add(scored);
      const auto outcomes = runner.Wait();
      for (size_t i = 0; i < kRequests; ++i) {
        EXPECT_TRUE(outcomes[i].finished) << outcomes[i].status;
        EXPECT_EQ(outcomes[i].tokens, texts[i]) << "text " << i;
      }
      EXPECT_TRUE(outcomes[kRequests].logits == logits);
      EXPECT_GT(ring->engine().stats().scheduler.replayed_rows, 0u) << "nothing was preempted";
    }
  }
}

TEST_F(EngineWireTest, FewerBytesTravel) {
  uint64_t rows_f32 = 0, bytes_f32 = 0;
  for (WireType type : {WireType::kF32, WireType::kF16, WireType::kQ8}) {
    RuntimeOptions options = Options(3, WireTypeName(type));
    options.speculation = "off";  // whose rows would be counted, too
    auto ring = OpenRing(options);
    ASSERT_NE(ring, nullptr);
    EXPECT_TRUE(RunOne(ring->engine(), Ask(1, 30, 50)).finished);
    uint64_t rows = 0, bytes = 0;
    for (const auto& w : ring->workers()) {
      rows += w->stats().rows_sent;
      bytes += w->stats().row_bytes_sent;
    }
    if (type == WireType::kF32) {
      rows_f32 = rows;
      bytes_f32 = bytes;
      EXPECT_EQ(rows, 2u * (50 + 29)) << "two hops, and the last token goes nowhere";
      continue;
    }
    // The same steps with the same headers: the rows alone are smaller.
    EXPECT_EQ(rows, rows_f32);
    EXPECT_EQ(bytes_f32 - bytes, rows * (WireRowBytes(WireType::kF32, 64) - WireRowBytes(type, 64)));
    EXPECT_EQ(ring->workers().back()->stats().rows_sent, 0u);
  }
}

TEST_F(EngineWireTest, AnUnknownTypeIsRefused) {
  EXPECT_EQ(Message(Runtime::Open(Options(2, "q9")).status()), "--wire q9: expected f32, f16 or q8");
}

}  // namespace
}  // namespace gyre
