// Families against exact logits (float64): the forward pass, and that no stages and no chunks change a bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "runtime/devices.h"
#include "runtime/runtime.h"
#include "tests/testing/golden.h"
#include "tests/testing/one_stage.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/shared_data.h"
#include "worker/layer_walk.h"

namespace gyre {
namespace {

// A model, by its file and the folder of ../shared that it lies in.
struct GoldenModel {
  const char* folder;
  const char* name;
};

constexpr GoldenModel k2026(const char* name) { return {"golden2026/", name}; }
constexpr GoldenModel kAttention2(const char* name) { return {"golden-wave2/attention/", name}; }
constexpr GoldenModel kState2(const char* name) { return {"golden-wave2/state/", name}; }

constexpr GoldenModel kModels[] = {
    k2026("tiny-qwen35-s0-f16"),
    k2026("tiny-qwen35moe-s0-f16"),
    k2026("tiny-qwen3next-s0-f16"),
    k2026("tiny-deepseek2-s0-f16"),
    k2026("tiny-deepseek2lite-s0-f16"),
    k2026("tiny-glmflash-s0-f16"),
    k2026("tiny-nemotronh-s0-f16"),
    k2026("tiny-nemotronhmoe-s0-f16"),
    k2026("tiny-granitehybrid-s0-f16"),
    k2026("tiny-lfm2-s0-f16"),
    kAttention2("tiny-afmoe-s0-f16"),
    kAttention2("tiny-apertus-s0-f16"),
    kAttention2("tiny-arcee-s0-f16"),
    kAttention2("tiny-bailingmoe-s0-f16"),
    kAttention2("tiny-bailingmoe2-s0-f16"),
    kAttention2("tiny-cohere2-s0-f16"),
    kAttention2("tiny-cohere2moe-s0-f16"),
    kAttention2("tiny-command-r-s0-f16"),
    kAttention2("tiny-deepseek-s0-f16"),
    kAttention2("tiny-dots1-s0-f16"),
    kAttention2("tiny-ernie4_5-s0-f16"),
    kAttention2("tiny-ernie4_5-moe-s0-f16"),
    kAttention2("tiny-exaone-s0-f16"),
    kAttention2("tiny-exaone-moe-s0-f16"),
    kAttention2("tiny-exaone4-s0-f16"),
    kAttention2("tiny-exaone4-swa-s0-f16"),
    kAttention2("tiny-falcon-s0-f16"),
    kAttention2("tiny-falcon-40b-s0-f16"),
    kAttention2("tiny-gemma-s0-f16"),
    kAttention2("tiny-gemma3n-s0-Q8_0"),
    kAttention2("tiny-gemma3n-kv-s0-Q8_0"),
    kAttention2("tiny-glm4-s0-f16"),
    kAttention2("tiny-gpt2-s0-f16"),
    kAttention2("tiny-gptneox-s0-f16"),
    kAttention2("tiny-granitemoe-s0-f16"),
    kAttention2("tiny-hunyuan-dense-s0-f16"),
    kAttention2("tiny-hunyuan-moe-s0-f16"),
    kAttention2("tiny-hy_v3-s0-f16"),
    kAttention2("tiny-internlm2-s0-f16"),
    kAttention2("tiny-llama4-s0-f16"),
    kAttention2("tiny-mimo2-s0-f16"),
    kAttention2("tiny-minicpm-s0-f16"),
    kAttention2("tiny-nemotron-s0-f16"),
    kAttention2("tiny-olmoe-s0-f16"),
    kAttention2("tiny-phi2-s0-f16"),
    kAttention2("tiny-phimoe-s0-f16"),
    kAttention2("tiny-qwen3vl-s0-f16"),
    kAttention2("tiny-qwen3vlmoe-s0-f16"),
    kAttention2("tiny-smallthinker-s0-f16"),
    kAttention2("tiny-stablelm-s0-f16"),
    kAttention2("tiny-stablelm-12b-s0-f16"),
    kAttention2("tiny-starcoder2-s0-f16"),
    kAttention2("tiny-step35-s0-f16"),
    kState2("tiny-deepseek32-s0-f16"),
    kState2("tiny-falcon-h1-s0-f16"),
    kState2("tiny-falcon-h1-norm-s0-f16"),
    kState2("tiny-falcon-mamba-s0-f16"),
    kState2("tiny-jamba-s0-f16"),
    kState2("tiny-kimi-linear-s0-f16"),
    kState2("tiny-lfm2moe-s0-f16"),
    kState2("tiny-mamba-s0-f16"),
    kState2("tiny-mamba2-s0-f16"),
    kState2("tiny-plamo2-s0-f16"),
    kState2("tiny-plamo2-attn-s0-f16"),
    kState2("tiny-plamo3-s0-f16"),
    kState2("tiny-rwkv7-s0-f16"),
};
// Those that make vectors: worker_golden_encoder_test compares them.
constexpr GoldenModel kVectors[] = {
    kAttention2("tiny-bert-s0-f16"),           kAttention2("tiny-modern-bert-s0-f16"),
    kAttention2("tiny-nomic-bert-s0-f16"),     kAttention2("tiny-qwen3-embedding-s0-f16"),
    kAttention2("tiny-qwen3-reranker-s0-f16"),
};
// Files of those folders that Gyre does not read: their parts are missing.
constexpr GoldenModel kNotRead[] = {
    kState2("tiny-deepseek32-cut-s0-f16"), kState2("tiny-deepseek4-s0-f16"),         kState2("tiny-glm-dsa-s0-f16"),
    kState2("tiny-minimax-m3-s0-f16"),     kState2("tiny-minimax-m3-sparse-s0-f16"),
};

using testing::ReadFloats;
using testing::ReadNumbers;

std::string PathOf(const GoldenModel& model, const char* end) {
  return testing::SharedData(model.folder) + model.name + end;
}

RuntimeOptions Options(const GoldenModel& model) {
  RuntimeOptions o;
  o.model = PathOf(model, ".gguf");
  o.stages = 2;
  o.threads = 2;
  o.ctx = 160;
  o.kv_type = "f32";
  o.max_sequences = 8;
  o.exact = true;
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

// The relative error of rows of 512 logits, beside `expected`.
double ErrorOf(const std::vector<std::vector<float>>& rows, const std::vector<float>& expected) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto e = static_cast<double>(expected[i]);
    error += std::pow(static_cast<double>(rows[i / 512][i % 512]) - e, 2);
    norm += e * e;
  }
  EXPECT_GT(norm, 1);
  return std::sqrt(error / norm);
}

class GoldenState : public ::testing::TestWithParam<GoldenModel> {
 protected:
  void SetUp() override {
    if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: exact logits are not there";
    ids_ = ReadNumbers<TokenId>(testing::SharedData(GetParam().folder) + "ids.txt");
    ASSERT_GE(ids_.size(), 64u);
    greedy_ = ReadNumbers<TokenId>(PathOf(GetParam(), ".greedy.txt"));
    ASSERT_EQ(greedy_.size(), 48u);
  }
  std::vector<TokenId> ids_, greedy_;
};

// On the simplest instruction set; the next test has the widest one.
TEST_P(GoldenState, LogitsAndGreedyIds) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitized: the widest instruction set only";
  const std::vector<float> expected = ReadFloats(PathOf(GetParam(), ".logits.f32"));
  RuntimeOptions o = Options(GetParam());
  o.isa = IsaName(BuiltIsas().front());
  o.chunk = 17;
  auto ring = Runtime::Open(o);
  ASSERT_TRUE(ring.ok()) << ring.status();
  const testing::Outcome got = testing::RunOne((*ring)->engine(), AskLogits(ids_));
  ASSERT_EQ(got.logits.size(), ids_.size()) << got.status;
  EXPECT_LE(ErrorOf(got.logits, expected), 3e-5);
  EXPECT_EQ(testing::RunOne((*ring)->engine(), AskGreedy(ids_)).tokens, greedy_);
}

TEST_P(GoldenState, StagesAndChunksChangeNoBit) {
  const std::vector<float> expected = ReadFloats(PathOf(GetParam(), ".logits.f32"));
  std::vector<std::vector<float>> first;
  int layers = 1;
  for (const auto& [most, chunk] : {std::pair<int, uint32_t>{1, 256}, {2, 1}, {3, 3}, {4, 16}}) {
    if (testing::kSanitized && chunk == 1) continue;
    const int stages = std::min(most, layers);
    SCOPED_TRACE(fmt::format("{} stages, chunks of {}", stages, chunk));
    RuntimeOptions o = Options(GetParam());
    o.stages = stages;
    o.chunk = chunk;
    auto ring = Runtime::Open(o);
    ASSERT_TRUE(ring.ok()) << ring.status();
    layers = static_cast<int>((*ring)->model().spec().layers.size());
    testing::Outcome got = testing::RunOne((*ring)->engine(), AskLogits(ids_));
    ASSERT_EQ(got.logits.size(), ids_.size()) << got.status;
    if (first.empty()) {
      first = std::move(got.logits);
      EXPECT_LE(ErrorOf(first, expected), 3e-5);
    } else {
      EXPECT_EQ(first, got.logits);
    }
    EXPECT_EQ(testing::RunOne((*ring)->engine(), AskGreedy(ids_)).tokens, greedy_);
  }
  // Fast arithmetic rounds otherwise, but everywhere alike.
  first.clear();
  for (const auto& [most, chunk] : {std::pair<int, uint32_t>{1, 256}, {3, 3}}) {
    RuntimeOptions o = Options(GetParam());
    o.stages = std::min(most, layers);
    o.chunk = chunk;
    o.exact = false;
    auto ring = Runtime::Open(o);
    ASSERT_TRUE(ring.ok()) << ring.status();
    testing::Outcome got = testing::RunOne((*ring)->engine(), AskLogits(ids_));
    ASSERT_EQ(got.logits.size(), ids_.size()) << got.status;
    if (first.empty())
      first = std::move(got.logits);
    else
      EXPECT_EQ(first, got.logits);
  }
}

// One layer after the other, as `gyre diff` computes them: those of a block that have one input, too.
TEST(GoldenStates, LayersOneAfterTheOther) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: exact logits are not there";
  for (const GoldenModel& golden : {kState2("tiny-falcon-h1-s0-f16"), kState2("tiny-jamba-s0-f16"),
                                    kState2("tiny-rwkv7-s0-f16"), kAttention2("tiny-gemma3n-kv-s0-Q8_0")}) {
    SCOPED_TRACE(golden.name);
    const auto ids = ReadNumbers<TokenId>(testing::SharedData(golden.folder) + "ids.txt");
    const auto model = OpenModel(PathOf(golden, ".gguf"));
    ASSERT_TRUE(model.ok()) << model.status();
    auto device = OpenDevice({.threads = 1});
    ASSERT_TRUE(device.ok()) << device.status();
    auto walk = LayerWalk::Make(*model, *device, {.kv_type = KvType::kF32, .exact = true, .chunk = 40}, ids);
    ASSERT_TRUE(walk.ok()) << walk.status();
    WalkedRows rows;
    ASSERT_TRUE((*walk)->LoadEmbedding().ok());
    ASSERT_TRUE((*walk)->Embed(&rows).ok());
    for (int layer = 0; layer < (*walk)->layers(); ++layer) {
      ASSERT_TRUE((*walk)->LoadLayer(layer).ok());
      const Status done = (*walk)->Run(&rows);
      ASSERT_TRUE(done.ok()) << done;
    }
    ASSERT_TRUE((*walk)->LoadHead().ok());
    std::vector<float> logits;
    ASSERT_TRUE((*walk)->Logits(rows.rows, &logits).ok());
    std::vector<std::vector<float>> got;
    for (size_t i = 0; i < ids.size(); ++i)
      got.emplace_back(logits.begin() + static_cast<ptrdiff_t>(i * 512),
                       logits.begin() + static_cast<ptrdiff_t>(i * 512 + 512));
    EXPECT_LE(ErrorOf(got, ReadFloats(PathOf(golden, ".logits.f32"))), 3e-5);
  }
}

// What a file far beyond a window or a chunk computes: the last 128 of its rows.
TEST(GoldenStates, FarBeyondAWindow) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: exact logits are not there";
  if (testing::kSanitized) GTEST_SKIP() << "sanitized: it takes minutes";
  for (const auto& [name, ids_name] :
       {std::pair{"tiny-smallthinker-s0-f16", "ids-4224.txt"}, {"tiny-llama4-s0-f16", "ids-8256.txt"}}) {
    SCOPED_TRACE(name);
    const GoldenModel model = kAttention2(name);
    const auto ids = ReadNumbers<TokenId>(testing::SharedData(model.folder) + ids_name);
    const std::vector<float> expected = ReadFloats(PathOf(model, ".long.logits.f32"));
    ASSERT_EQ(expected.size(), 128u * 512);
    RuntimeOptions o = Options(model);
    o.ctx = static_cast<int>(ids.size());
    o.chunk = 256;
    auto ring = Runtime::Open(o);
    ASSERT_TRUE(ring.ok()) << ring.status();
    testing::Outcome got = testing::RunOne((*ring)->engine(), AskLogits(ids));
    ASSERT_EQ(got.logits.size(), ids.size()) << got.status;
    got.logits.erase(got.logits.begin(), got.logits.end() - 128);
    EXPECT_LE(ErrorOf(got.logits, expected), 1e-4);
  }
}

// Where the indexer of sparse attention chooses all positions, what follows is dense attention; more are refused.
TEST(GoldenStates, SparseAttentionIsDenseAtFirst) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: exact logits are not there";
  for (const auto& [name, most] : {std::pair{"tiny-deepseek32-cut-s0-f16", 24},
                                   {"tiny-glm-dsa-s0-f16", 24},
                                   {"tiny-minimax-m3-s0-f16", 32},
                                   {"tiny-minimax-m3-sparse-s0-f16", 32}}) {
    SCOPED_TRACE(name);
    const GoldenModel model = kState2(name);
    auto ids = ReadNumbers<TokenId>(testing::SharedData(model.folder) + "ids.txt");
    std::vector<float> expected = ReadFloats(PathOf(model, ".logits.f32"));
    ids.resize(static_cast<size_t>(most));
    expected.resize(ids.size() * 512);
    RuntimeOptions o = Options(model);
    o.ctx = most;
    auto ring = Runtime::Open(o);
    ASSERT_TRUE(ring.ok()) << ring.status();
    const testing::Outcome got = testing::RunOne((*ring)->engine(), AskLogits(ids));
    ASSERT_EQ(got.logits.size(), ids.size()) << got.status;
    EXPECT_LE(ErrorOf(got.logits, expected), 3e-5);
    o.ctx = most + 1;
    EXPECT_NE(Message(Runtime::Open(o).status()).find("attends to the positions that an indexer chooses"),
              std::string::npos);
  }
}

// Each file is compared, or named as one that is not read.
TEST(GoldenStates, NoFileIsForgotten) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout";
  std::set<std::string> known;
  for (const GoldenModel& m : kModels) known.insert(PathOf(m, ".gguf"));
  for (const GoldenModel& m : kVectors) known.insert(PathOf(m, ".gguf"));
  for (const GoldenModel& m : kNotRead) {
    known.insert(PathOf(m, ".gguf"));
    const std::string name = m.name;
    // Their texts are at most as long as what their indexers choose.
    const bool opens = name.find("deepseek32") != name.npos || name.find("glm-dsa") != name.npos ||
                       name.find("minimax-m3") != name.npos;
    EXPECT_EQ(OpenModel(PathOf(m, ".gguf")).ok(), opens) << name;
  }
  for (const char* folder : {"golden-wave2/attention", "golden-wave2/state"}) {
    for (const auto& file : std::filesystem::directory_iterator(testing::SharedData(folder))) {
      if (file.path().extension() != ".gguf") continue;
      EXPECT_EQ(known.count(file.path().string()), 1u) << file.path();
    }
  }
}

// The state of the linear layers after 16, 32 and 64 ids: the inputs of their convolutions, and their matrices.
TEST(GoldenStates, RecurrentState) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: exact states are not there";
  const std::string name = PathOf(k2026("tiny-qwen35-s0-f16"), "");
  const auto model = OpenModel(name + ".gguf");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto ids = ReadNumbers<TokenId>(testing::SharedData("golden2026/") + "ids.txt");
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
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace gyre
