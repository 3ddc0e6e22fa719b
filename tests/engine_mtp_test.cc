// The layer for drafts of a model's file (MTP): texts have the same bits with and without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/runtime.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/shared_data.h"
#include "tests/testing/speculation_checks.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_mtp.h"
#include "tests/testing/tiny_ring.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;

constexpr int kMtpWords = 96;

// Greedy and drawn, with histories, log-probabilities, stop ids and questions for full logits.
std::vector<Request> MtpRequests(uint32_t count = 6) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < count; ++i) {
    Request r;
    std::mt19937 random(i + 40);
    for (uint32_t n = 0; n < 7 + 5 * i; ++n) r.prompt.push_back(static_cast<TokenId>(random() % kMtpWords));
    r.max_new_tokens = 32;
    testing::VarySettings(&r, i, 0.6f);
    if (i == 1) r.sampling.repetition_penalty = 1.3f, r.sampling.frequency_penalty = 0.2f;
    requests.push_back(std::move(r));
  }
  return requests;
}

RuntimeOptions MtpRing(const std::string& model, int stages, const std::string& speculation) {
  RuntimeOptions o = testing::SpeculatingRing(model, stages, speculation);
  o.draft_tokens = 4;
  return o;
}

std::vector<testing::Outcome> Without(const std::string& model, const std::vector<Request>& requests) {
  const auto ring = testing::OpenRing(MtpRing(model, 1, "off"));
  if (ring == nullptr) return {};
  auto outcomes = testing::RunAll(ring->engine(), requests);
  EXPECT_EQ(ring->engine().stats().drafted_tokens, 0u);
  return outcomes;
}

// Where a token follows from the one before it alone, every guess comes true.
TEST(EngineMtp, AllDraftsOfARightLayerAreAccepted) {
  for (const bool own_head : {false, true}) {
    const testing::TinyModelFile file(testing::BuildTinyMtp({.own_head = own_head}));
    std::vector<Request> requests = MtpRequests(1);
    requests[0].max_new_tokens = 60;
    const auto expected = Without(file.path(), requests);
    for (const int stages : {1, 3}) {
      const auto ring = testing::OpenRing(MtpRing(file.path(), stages, "mtp"));
      ASSERT_NE(ring, nullptr);
      const auto got = testing::RunAll(ring->engine(), requests);
      testing::ExpectSameOutcomes(got, expected);
      EXPECT_EQ(got[0].usage.accepted_drafts, got[0].usage.drafted_tokens);
      // Two in the first step, then up to four in each, as far as the sequence has pages.
      EXPECT_GE(got[0].usage.accepted_drafts, 36u);
    }
  }
}

TEST(EngineMtp, SameBitsWithAllRequestsOverStages) {
  const testing::TinyModelFile file(testing::BuildTinyMtp({.loud = 0.3f}));
  const std::vector<Request> requests = MtpRequests();
  const auto expected = Without(file.path(), requests);
  for (const auto& [stages, speculation] : {std::pair(1, "mtp"), {2, "auto"}, {3, "mtp"}}) {
    SCOPED_TRACE(stages);
    RuntimeOptions o = MtpRing(file.path(), stages, speculation);
    if (stages == 2) o.chunk = 3, o.max_rows = 9;
    if (stages == 3) o.kv_tokens = 128;  // texts push each other out
    const auto ring = testing::OpenRing(o);
    ASSERT_NE(ring, nullptr);
    testing::ExpectSameOutcomes(testing::RunAll(ring->engine(), requests), expected);
    const EngineStats stats = ring->engine().stats();
    EXPECT_GT(stats.accepted_drafts, 20u);
    EXPECT_GT(stats.drafted_tokens, stats.accepted_drafts);
    // The prefixes of the same prompts are in the cache now.
    testing::ExpectSameOutcomes(testing::RunAll(ring->engine(), requests), expected);
    EXPECT_TRUE(ring->engine().CheckIntegrity().ok());
  }
}

// A layer of random weights, that is nearly always wrong.
TEST(EngineMtp, SameBitsWithALayerThatIsWrong) {
  const testing::TinyModelFile file(testing::BuildTinyMtp({.loud = 1, .own = true}));
  const std::vector<Request> requests = MtpRequests();
  const auto expected = Without(file.path(), requests);
  const auto ring = testing::OpenRing(MtpRing(file.path(), 2, "mtp"));
  ASSERT_NE(ring, nullptr);
  testing::ExpectSameOutcomes(testing::RunAll(ring->engine(), requests), expected);
  EXPECT_GT(ring->engine().stats().drafted_tokens, 50u);
}

// Layers move, links break and steps fail in the middle of texts.
TEST(EngineMtp, SameBitsThroughResizesAndFaults) {
  const testing::TinyModelFile file(testing::BuildTinyMtp({.loud = 0.3f}));
  const std::vector<Request> requests = MtpRequests();
  const auto expected = Without(file.path(), requests);
  RuntimeOptions o = MtpRing(file.path(), 3, "mtp");
  o.tcp = true;
  const auto ring = testing::OpenRing(o);
  ASSERT_NE(ring, nullptr);
  for (const char* plan : {"local-1=0,local-2=1-2,local-3=3", "local-3=0,local-2=1,local-1=2-3", "local-2=0-3",
                           "local-1=0-1,local-2=2,local-3=3"}) {
    SCOPED_TRACE(plan);
    testing::Runner runner(ring->engine());
    for (const Request& r : requests) runner.Add(r);
    const auto report = ring->cluster().ResizeAndWait(plan);
    ASSERT_TRUE(report.ok()) << report.status();
    ring->workers()[1]->BreakLinksForTest();
    testing::ExpectSameOutcomes(runner.Wait(), expected);
  }
  EXPECT_GT(ring->engine().stats().accepted_drafts, 40u);
  ring->workers()[2]->SetFaultHook([count = std::make_shared<std::atomic<int>>(0)]() -> Status {
    return ++*count % 40 == 9 ? Internal("planted fault") : absl::OkStatus();
  });
  testing::ExpectSameOutcomes(testing::RunAll(ring->engine(), requests), expected);
  EXPECT_TRUE(ring->engine().CheckIntegrity().ok());
}

// Experts, latent attention, windows and delta nets before the layer, which is one of theirs. Its weights are random.
TEST(EngineMtp, SameBitsInEveryFamilyWithSuchLayers) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: the families' files are not there";
  for (const char* name : {"golden2026/tiny-glm4moe", "golden2026/tiny-glmflash", "golden2026/tiny-qwen35moe",
                           "golden-wave2/attention/tiny-exaone-moe", "golden-wave2/attention/tiny-hy_v3"}) {
    SCOPED_TRACE(name);
    const std::string path = testing::SharedData(std::string(name) + "-s0-f16.gguf");
    std::vector<Request> requests = MtpRequests(3);
    const auto expected = Without(path, requests);
    const auto ring = testing::OpenRing(MtpRing(path, 2, "mtp"));
    ASSERT_NE(ring, nullptr);
    testing::ExpectSameOutcomes(testing::RunAll(ring->engine(), requests), expected);
    EXPECT_GT(ring->engine().stats().drafted_tokens, 20u);
  }
  // These have a norm more, whose place is not known.
  for (const char* name : {"bailingmoe2", "mimo2"}) {
    const std::string path = testing::SharedData(fmt::format("golden-wave2/attention/tiny-{}-s0-f16.gguf", name));
    EXPECT_THAT(Message(Runtime::Open(MtpRing(path, 1, "mtp")).status()), HasSubstr("layer_output_norm.weight"));
  }
}

TEST(EngineMtp, IsNotUsedWhereItIsNotAskedFor) {
  const testing::TinyModelFile file(testing::BuildTinyMtp({}));
  const std::vector<Request> requests = MtpRequests(2);
  const auto expected = Without(file.path(), requests);
  const auto ring = testing::OpenRing(MtpRing(file.path(), 1, "ngram"));
  ASSERT_NE(ring, nullptr);
  testing::ExpectSameOutcomes(testing::RunAll(ring->engine(), requests), expected);
  for (const char* speculation : {"off", "ngram"}) {
    // A damaged layer is of no consequence then.
    const testing::TinyModelFile damaged(testing::BuildTinyMtp({.without = "blk.4.nextn.eh_proj.weight"}));
    EXPECT_NE(testing::OpenRing(MtpRing(damaged.path(), 1, speculation)), nullptr);
  }
}

TEST(EngineMtp, DamagedFilesAreRefusedWhereTheLayerIsAskedFor) {
  struct Damage {
    testing::TinyMtpOptions options;
    const char* says;
  };
  for (const Damage& d : {Damage{{.without = "blk.4.nextn.eh_proj.weight"}, "blk.4.nextn.eh_proj.weight is missing"},
                          {{.without = "blk.4.nextn.enorm.weight"}, "blk.4.nextn.enorm.weight is missing"},
                          {{.without = "blk.4.attn_k.weight"}, "blk.4.attn_k.weight"},
                          {{.extra = "blk.4.nextn.gate.weight"}, "blk.4.nextn.gate.weight has no place"},
                          {{.without = "blk.4.nextn.hnorm.weight", .extra = "blk.4.nextn.hnorm.bias"},
                           "blk.4.nextn.hnorm.weight is missing"}}) {
    const testing::TinyModelFile file(testing::BuildTinyMtp(d.options));
    const auto refused = Runtime::Open(MtpRing(file.path(), 1, "mtp"));
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(Message(refused.status()), HasSubstr(d.says));
    EXPECT_THAT(Message(refused.status()), HasSubstr("--speculation mtp"));
    // By itself it goes on without.
    const auto ring = testing::OpenRing(MtpRing(file.path(), 1, "auto"));
    ASSERT_NE(ring, nullptr);
    testing::ExpectSameOutcomes(testing::RunAll(ring->engine(), MtpRequests(2)), Without(file.path(), MtpRequests(2)));
  }
  const testing::TinyModelFile without(testing::TinyOptions{});
  EXPECT_THAT(Message(Runtime::Open(MtpRing(without.path(), 1, "mtp")).status()), HasSubstr("no layer for drafts"));
  EXPECT_THAT(Message(Runtime::Open(MtpRing(without.path(), 1, "draft")).status()), HasSubstr("--draft-model"));
}

}  // namespace
}  // namespace gyre
