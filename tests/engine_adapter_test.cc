// Requests with LoRA adapters: the logits of merged weights, and texts that do not depend on those beside them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/runtime.h"
#include "tests/testing/logits_distance.h"
#include "tests/testing/lora_writer.h"
#include "tests/testing/prompt_logits.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;

constexpr TokenId kAdapterWords = 96;

// A tiny model with three adapters of different ranks, of which the second changes attention alone.
class Adapted {
 public:
  explicit Adapted(const testing::TinyOptions& model = {})
      : file_(model),
        plain_(*OpenModel(file_.path())),
        one_(testing::LoraGguf(*plain_, kOptions[0])),
        two_(testing::LoraGguf(*plain_, kOptions[1])),
        three_(testing::LoraGguf(*plain_, kOptions[2])) {}

  static inline const testing::LoraOptions kOptions[] = {
      {.seed = 1}, {.seed = 2, .rank = 1, .matrices = {"attn_qkv", "attn_q", "attn_v"}}, {.seed = 3, .rank = 8}};
  RuntimeOptions Ring(int stages) const {
    RuntimeOptions o = testing::TinyRing(file_.path(), stages, 128);
    o.open.adapters = {{"one", one_.path()}, {"two", two_.path()}, {"three", three_.path()}};
    return o;
  }
  const Model& plain() const { return *plain_; }
  const std::string& path() const { return file_.path(); }

 private:
  const testing::TinyModelFile file_;
  const std::shared_ptr<const Model> plain_;
  const testing::TinyModelFile one_, two_, three_;
};

std::vector<TokenId> AdapterPrompt(uint32_t seed, size_t n) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids;
  for (size_t i = 0; i < n; ++i) ids.push_back(static_cast<TokenId>(random() % kAdapterWords));
  return ids;
}

Request AdapterRequest(uint32_t adapter, uint32_t seed, size_t prompt = 20) {
  Request r;
  r.prompt = AdapterPrompt(seed, prompt);
  r.max_new_tokens = 24;
  r.ignore_end = true;
  r.adapter = adapter;
  r.logprobs = 3;
  r.sampling.temperature = seed % 2 == 0 ? 0.0f : 0.9f;
  r.sampling.seed = seed;
  return r;
}

testing::Logits AdapterLogits(const RuntimeOptions& options, const std::vector<TokenId>& ids, uint32_t adapter) {
  const auto ring = testing::OpenRing(options);
  if (ring == nullptr) return {};
  Request request;
  request.prompt = ids;
  request.prompt_logits = true;
  request.adapter = adapter;
  const testing::Outcome got = testing::RunOne(ring->engine(), request);
  EXPECT_TRUE(got.status.ok()) << got.status;
  return got.logits;
}

TEST(EngineAdapterTest, LogitsAreThoseOfMergedWeights) {
  const std::vector<TokenId> ids = AdapterPrompt(7, 40);
  for (const char* arch : {"llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "olmo2", "granite", "qwen2moe"}) {
    SCOPED_TRACE(arch);
    const Adapted adapted({.arch = arch, .layers = 3});
    for (uint32_t adapter = 1; adapter <= 3; ++adapter) {
      SCOPED_TRACE(adapter);
      const testing::TinyModelFile merged(testing::MergedModel(adapted.plain(), Adapted::kOptions[adapter - 1]));
      RuntimeOptions of_merged = testing::TinyRing(merged.path(), 1, 128), own = adapted.Ring(1);
      of_merged.exact = own.exact = true;
      const testing::Logits expected = testing::PromptLogits(of_merged, ids), got = AdapterLogits(own, ids, adapter),
                            without = AdapterLogits(own, ids, 0);
      ASSERT_EQ(got.size(), ids.size());
      EXPECT_LT(testing::Between(expected, got).rms, 1e-5);
      EXPECT_GT(testing::Between(expected, without).rms, 0.02) << "the adapter changes nothing";
    }
  }
}

// Beside others, over several stages and with chunks of any size.
TEST(EngineAdapterTest, TextsDoNotDependOnThoseBesideThem) {
  for (const char* arch : {"llama", "phi3", "qwen2moe"}) {
    SCOPED_TRACE(arch);
    const Adapted adapted({.arch = arch, .type = DType::kQ8_0});
    std::vector<Request> requests;
    for (uint32_t i = 0; i < 12; ++i) requests.push_back(AdapterRequest(i % 4, i, 5 + 7 * i % 40));
    std::vector<testing::Outcome> alone;
    {
      const auto ring = testing::OpenRing(adapted.Ring(1));
      ASSERT_NE(ring, nullptr);
      for (const Request& r : requests) alone.push_back(testing::RunOne(ring->engine(), r));
    }
    for (const int stages : {1, 3}) {
      for (const uint32_t chunk : {4u, 256u}) {
        SCOPED_TRACE(::testing::Message() << stages << " stages, chunks of " << chunk);
        RuntimeOptions options = adapted.Ring(stages);
        options.chunk = chunk;
        const auto ring = testing::OpenRing(options);
        ASSERT_NE(ring, nullptr);
        const auto together = testing::RunAll(ring->engine(), requests);
        for (size_t i = 0; i < requests.size(); ++i) {
          ASSERT_TRUE(together[i].finished) << together[i].status;
          EXPECT_EQ(together[i].tokens, alone[i].tokens) << i;
          EXPECT_EQ(together[i].logprobs, alone[i].logprobs) << i;
        }
      }
    }
  }
}

// Texts of different adapters share nothing of the prefix cache, those of one do.
TEST(EngineAdapterTest, ThePrefixCacheKeepsAdaptersApart) {
  const Adapted adapted;
  const auto ring = testing::OpenRing(adapted.Ring(2));
  ASSERT_NE(ring, nullptr);
  for (uint32_t adapter = 0; adapter <= 3; ++adapter) {
    const testing::Outcome first = testing::RunOne(ring->engine(), AdapterRequest(adapter, 2, 40));
    ASSERT_TRUE(first.finished) << first.status;
    EXPECT_EQ(first.usage.cached_tokens, 0u) << adapter;
    const testing::Outcome again = testing::RunOne(ring->engine(), AdapterRequest(adapter, 2, 40));
    EXPECT_GE(again.usage.cached_tokens, 36u) << adapter;
    EXPECT_EQ(again.tokens, first.tokens);
    EXPECT_EQ(again.logprobs, first.logprobs);
  }
}

TEST(EngineAdapterTest, RequestsThatNameNoneHaveTheFirstWhereAllHaveIt) {
  const Adapted adapted;
  RuntimeOptions options = adapted.Ring(1);
  const auto ring = testing::OpenRing(options);
  options.adapts_all = true;
  const auto always = testing::OpenRing(options);
  ASSERT_NE(ring, nullptr);
  ASSERT_NE(always, nullptr);
  const auto first = testing::RunOne(ring->engine(), AdapterRequest(1, 4)),
             none = testing::RunOne(ring->engine(), AdapterRequest(0, 4)),
             unnamed = testing::RunOne(always->engine(), AdapterRequest(0, 4)),
             third = testing::RunOne(always->engine(), AdapterRequest(3, 4));
  EXPECT_EQ(unnamed.tokens, first.tokens);
  EXPECT_EQ(unnamed.logprobs, first.logprobs);
  EXPECT_NE(unnamed.logprobs, none.logprobs);
  EXPECT_NE(unnamed.logprobs, third.logprobs);
  const auto refused = testing::RunOne(ring->engine(), AdapterRequest(4, 4));
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("adapter 4, the model has 3"));
}

// A draft model is another model: the adapters are not its own.
TEST(EngineAdapterTest, ADraftModelHasNoAdapters) {
  const Adapted adapted;
  const testing::TinyModelFile drafter(testing::TinyOptions{.seed = 9, .dim = 16, .layers = 1});
  RuntimeOptions options = adapted.Ring(1);
  options.speculation = "off";
  const auto expected = testing::RunOne(testing::OpenRing(options)->engine(), AdapterRequest(2, 4));
  options.speculation = "draft";
  options.draft_model = drafter.path();
  options.takes_all_drafts = true;
  const auto ring = testing::OpenRing(options);
  ASSERT_NE(ring, nullptr);
  const auto got = testing::RunOne(ring->engine(), AdapterRequest(2, 4));
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_EQ(got.logprobs, expected.logprobs);
  EXPECT_GT(got.usage.drafted_tokens, 0u);
}

// Layers take their adapters along, and guesses of the model without one change no text.
TEST(EngineAdapterTest, ResizesAndDraftsChangeNoText) {
  const Adapted adapted;
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 8; ++i) {
    requests.push_back(AdapterRequest(i % 4, i, 12));
    requests.back().max_new_tokens = 60;
  }
  RuntimeOptions options = adapted.Ring(3);
  options.speculation = "off";
  const auto calm = testing::OpenRing(options);
  ASSERT_NE(calm, nullptr);
  const auto expected = testing::RunAll(calm->engine(), requests);
  options.speculation = "ngram";
  options.takes_all_drafts = true;
  const auto ring = testing::OpenRing(options);
  ASSERT_NE(ring, nullptr);
  testing::Runner runner(ring->engine());
  for (const Request& r : requests) runner.Add(r);
  for (const char* ranges : {"0-0,1-1,2-4", "0-2,3-3,4-4", "0-1,2-3,4-4"}) {
    const auto changed = ring->cluster().ResizeAndWait(ranges);
    EXPECT_TRUE(changed.ok()) << changed.status();
  }
  const auto got = runner.Wait();
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(got[i].finished) << got[i].status;
    EXPECT_EQ(got[i].tokens, expected[i].tokens) << i;
    EXPECT_EQ(got[i].logprobs, expected[i].logprobs) << i;
  }
}

}  // namespace
}  // namespace gyre
