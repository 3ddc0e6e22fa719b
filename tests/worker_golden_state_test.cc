// Families with latent attention or recurrent state against exact logits (float64): the forward pass, and that no
// stages, chunks or companions change a bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/runtime.h"
#include "tests/testing/golden.h"
#include "tests/testing/one_stage.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/shared_data.h"

namespace gyre {
namespace {

constexpr const char* kModels[] = {"tiny-qwen35-s0-f16",    "tiny-qwen35moe-s0-f16",     "tiny-qwen3next-s0-f16",
                                   "tiny-deepseek2-s0-f16", "tiny-deepseek2lite-s0-f16", "tiny-glmflash-s0-f16",
                                   "tiny-nemotronh-s0-f16", "tiny-nemotronhmoe-s0-f16",  "tiny-granitehybrid-s0-f16",
                                   "tiny-lfm2-s0-f16"};

using testing::ReadFloats;
using testing::ReadNumbers;

std::string Dir() { return testing::SharedData("golden2026/"); }

RuntimeOptions Options(const std::string& model) {
  RuntimeOptions o;
  o.model = Dir() + model + ".gguf";
  o.stages = 2;
  o.threads = 2;
  o.ctx = 256;
  o.kv_type = "f32";
  o.max_sequences = 8;
  o.quiet = true;
  return o;
}

Request AskLogits(const std::vector<TokenId>& ids) {
  Request r;
  r.prompt = ids;
  r.prompt_logits = true;
  return r;
}

Request AskGreedy(const std::vector<TokenId>& ids) {
  Request r;
  r.prompt = ids;
  r.max_new_tokens = 48;
  r.sampling.temperature = 0;
  return r;
}

class GoldenState : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: exact logits are not there";
    ids_ = ReadNumbers<TokenId>(Dir() + "ids.txt");
    ASSERT_EQ(ids_.size(), 64u);
    greedy_ = ReadNumbers<TokenId>(Dir() + GetParam() + ".greedy.txt");
    ASSERT_EQ(greedy_.size(), 48u);
  }
  std::vector<TokenId> ids_, greedy_;
};

TEST_P(GoldenState, LogitsAndGreedyIds) {
  const std::vector<float> expected = ReadFloats(Dir() + GetParam() + ".logits.f32");
  for (const Isa isa : BuiltIsas()) {
    if (!IsaMissing(isa).empty() || !PrefillMatchesDecode(isa)) continue;
    if (testing::kSanitized && isa != DetectIsa()) continue;
    SCOPED_TRACE(IsaName(isa));
    RuntimeOptions o = Options(GetParam());
    o.isa = IsaName(isa);
    o.chunk = 17;
    auto ring = Runtime::Open(o);
    ASSERT_TRUE(ring.ok()) << ring.status();
    const testing::Outcome got = testing::RunOne((*ring)->engine(), AskLogits(ids_));
    ASSERT_EQ(got.logits.size(), ids_.size()) << got.status;
    double error = 0, norm = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto e = static_cast<double>(expected[i]);
      error += std::pow(static_cast<double>(got.logits[i / 512][i % 512]) - e, 2);
      norm += e * e;
    }
    EXPECT_GT(norm, 1);
    EXPECT_LE(std::sqrt(error / norm), 2e-5);
    EXPECT_EQ(testing::RunOne((*ring)->engine(), AskGreedy(ids_)).tokens, greedy_);
  }
}

TEST_P(GoldenState, StagesAndChunksChangeNoBit) {
  std::vector<std::vector<float>> first;
  for (const int stages : {1, 2, 3}) {
    for (const uint32_t chunk : {1u, 3u, 17u, 64u}) {
      if (testing::kSanitized && chunk == 1) continue;
      RuntimeOptions o = Options(GetParam());
      o.stages = stages;
      o.chunk = chunk;
      auto ring = Runtime::Open(o);
      ASSERT_TRUE(ring.ok()) << ring.status();
      testing::Outcome got = testing::RunOne((*ring)->engine(), AskLogits(ids_));
      ASSERT_EQ(got.logits.size(), ids_.size()) << got.status;
      if (first.empty())
        first = std::move(got.logits);
      else
        EXPECT_EQ(first, got.logits) << stages << " stages, chunks of " << chunk;
      EXPECT_EQ(testing::RunOne((*ring)->engine(), AskGreedy(ids_)).tokens, greedy_)
          << stages << " stages, chunks of " << chunk;
    }
  }
}

// The state of the linear layers after 16, 32 and 64 ids: the inputs of their convolutions, and their matrices.
TEST(GoldenStates, RecurrentState) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: exact states are not there";
  const std::string name = Dir() + "tiny-qwen35-s0-f16";
  const auto model = OpenModel(name + ".gguf");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto ids = ReadNumbers<TokenId>(Dir() + "ids.txt");
  const std::vector<float> expected = ReadFloats(name + ".state.f32");
  const size_t channels = 160, taps = 3, matrices = 6 * 16 * 16, each = channels * taps + matrices;
  ASSERT_EQ(expected.size(), 3 * 6 * each);
  testing::OneStage stage(*model, DetectIsa(), true, KvType::kF32);
  size_t at = 0;
  uint32_t done = 0;
  for (const uint32_t end : {16u, 32u, 64u}) {
    stage.Answers({{1, done, RowClass::kPrompt, {ids.begin() + done, ids.begin() + end}, {}}});
    done = end;
    for (const size_t layer : {0, 1, 2, 4, 5, 6}) {
      const std::vector<float> state = stage.State(layer, 1, each);
      double error = 0, norm = 0;
      for (size_t i = 0; i < each; ++i, ++at) {
        const float got = i < channels * taps ? state[i % taps * channels + i / taps] : state[i];
        error += std::pow(static_cast<double>(got) - static_cast<double>(expected[at]), 2);
        norm += std::pow(static_cast<double>(expected[at]), 2);
      }
      EXPECT_GT(norm, 0.1);
      EXPECT_LE(std::sqrt(error / norm), 1e-5) << "layer " << layer << " after " << end;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenState, ::testing::ValuesIn(kModels), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace gyre
