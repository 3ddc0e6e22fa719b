// Every family's texts have the same bits with every drafter. What threads do is in engine_speculation_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "model/arch.h"
#include "runtime/runtime.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/shared_data.h"
#include "tests/testing/speculation_checks.h"
#include "tests/testing/tiny_hybrid.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre {
namespace {

class SpeculationFamilies : public ::testing::TestWithParam<std::string> {};

TEST_P(SpeculationFamilies, SameBitsWithEveryDrafter) {
  testing::TinyOptions options;
  options.arch = GetParam();
  options.layers = 6;
  options.dim = 64;
  const bool hybrid = testing::IsTinyHybrid(GetParam());
  std::string path;
  if (!hybrid && !testing::IsTiny(GetParam())) {
    if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: the family's file is not there";
    path = testing::SharedData(fmt::format("golden-wave2/state/tiny-{}-s0-f16.gguf", GetParam()));
    options.arch = "llama";  // not asked
  }
  const testing::TinyModelFile file(hybrid ? testing::BuildTinyHybrid(GetParam()) : testing::BuildTinyModel(options));
  if (path.empty()) path = file.path();
  const std::vector<Request> requests = testing::SpeculationRequests();
  const auto without = testing::OpenRing(testing::SpeculatingRing(path, 1, "off"));
  ASSERT_NE(without, nullptr);
  const std::vector<testing::Outcome> expected = testing::RunAll(without->engine(), requests);
  EXPECT_EQ(without->engine().stats().drafted_tokens, 0u);
  const auto adversary = testing::Knowing(requests, expected);
  for (const auto& [stages, speculation] :
       {std::pair(1, "ngram"), {1, "auto"}, {2, "auto"}, {3, "ngram"}, {4, "auto"}}) {
    SCOPED_TRACE(fmt::format("{} stages, {}", stages, speculation));
    RuntimeOptions o = testing::SpeculatingRing(path, stages, speculation);
    if (std::string_view(speculation) == "auto") o.drafter = adversary;
    if (stages == 3) o.kv_tokens = 128;  // texts push each other out
    const auto ring = testing::OpenRing(o);
    ASSERT_NE(ring, nullptr);
    std::vector<Request> asked = requests;
    for (size_t i = 0; i < asked.size(); ++i) {
      asked[i].prediction = expected[i].tokens;
      for (size_t at = 5; at < asked[i].prediction.size(); at += 8)
        asked[i].prediction[at] = 95 - static_cast<TokenId>(i);
    }
    testing::ExpectSameOutcomes(testing::RunAll(ring->engine(), asked), expected);
    const EngineStats stats = ring->engine().stats();
    EXPECT_GT(stats.accepted_drafts, 0u);
    if (o.drafter != nullptr) EXPECT_GT(stats.drafted_tokens, stats.accepted_drafts);
    EXPECT_TRUE(ring->engine().CheckIntegrity().ok());
  }
}

std::vector<std::string> TinyArchitectures() {
  std::vector<std::string> out = KnownArchitectures();
  std::erase_if(out, [](const std::string& arch) { return !testing::IsTiny(arch) && !testing::IsTinyHybrid(arch); });
  out.insert(out.end(), {"kimi-linear", "mamba", "jamba"});  // files of ../shared
  return out;
}
INSTANTIATE_TEST_SUITE_P(All, SpeculationFamilies, ::testing::ValuesIn(TinyArchitectures()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace gyre
