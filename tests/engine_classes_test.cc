// Two classes of rows through the engine: prompts by tiles and generated rows without, each as if alone, on any
// processor with AVX-512.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/isa.h"
#include "runtime/runtime.h"
#include "tests/testing/llama2c_writer.h"
#include "tests/testing/logits_distance.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre {
namespace {

using testing::OpenRing;
using testing::Outcome;
using testing::RunOne;

class Classes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!IsaMissing(Isa::kAmxEmulated).empty()) GTEST_SKIP() << IsaMissing(Isa::kAmxEmulated);
  }
  static std::unique_ptr<Runtime> Open(const std::string& model, Isa isa, int stages = 1) {
    RuntimeOptions o = testing::TinyRing(model, stages, 128);
    o.isa = IsaName(isa);
    o.kv_type = "f16";
    o.parallel = 30;  // 15 in each of two stages
    return OpenRing(o);
  }
  static Request Ask(uint32_t seed, size_t length, uint32_t n) {
    std::mt19937 random(seed);
    Request r;
    for (size_t i = 0; i < length; ++i) r.prompt.push_back(static_cast<TokenId>(3 + random() % 60));
    r.max_new_tokens = n;
    r.sampling.temperature = 1;
    r.sampling.seed = seed;
    r.ignore_end = true;
    return r;
  }
  static Request AskLogits(uint32_t seed, size_t length) {
    Request r = Ask(seed, length, 0);
    r.prompt_logits = true;
    return r;
  }
};

// Groups of 8 are multiplied as f32, whatever a row's class: only attention differs.
TEST_F(Classes, AttentionOfPromptsIsByTilesThatOfGeneratedRowsIsNot) {
  const testing::TinyModelFile model(
      testing::BuildTinyBin({.version = 2, .dim = 64, .hidden = 64, .layers = 3, .seq_len = 128, .scale = 0.004f}));
  const auto with = Open(model.path(), Isa::kAmxEmulated), without = Open(model.path(), Isa::kAvx512);
  ASSERT_TRUE(with != nullptr && without != nullptr);
  const Outcome tiles = RunOne(with->engine(), AskLogits(1, 50)), plain = RunOne(without->engine(), AskLogits(1, 50));
  ASSERT_EQ(tiles.logits.size(), 50u);
  ASSERT_EQ(plain.logits.size(), 50u);
  EXPECT_NE(tiles.logits.back(), plain.logits.back());
  EXPECT_LT(testing::Between({plain.logits.back()}, {tiles.logits.back()}).rms, 1e-2);
  // A row that sees but itself has the weight 1 and a value that is exact: what follows it is generated, with the same
  // bits.
  const Outcome a = RunOne(with->engine(), Ask(2, 1, 60)), b = RunOne(without->engine(), Ask(2, 1, 60));
  EXPECT_EQ(a.probabilities.size(), 60u);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.probabilities, b.probabilities);
}

// Sixteen rows and more that generate in one step are multiplied by tiles of int8; prompts come in between.
TEST_F(Classes, ARowOfEitherClassDoesNotDependOnTheStep) {
  testing::TinyOptions options;
  options.dim = 64;
  options.type = DType::kQ8_0;
  const testing::TinyModelFile model(options);
  const auto alone = Open(model.path(), Isa::kAmxEmulated), ring = Open(model.path(), Isa::kAmxEmulated, 2);
  ASSERT_TRUE(alone != nullptr && ring != nullptr);
  testing::Runner runner(ring->engine());
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 50; ++i) requests.push_back(Ask(i, 1 + 5 * i % 48, 10 + i));
  for (const Request& request : requests) runner.Add(request);
  const auto together = runner.Wait();
  ASSERT_EQ(together.size(), requests.size());
  for (size_t i = 0; i < together.size(); ++i) {
    const Outcome expected = RunOne(alone->engine(), requests[i]);
    ASSERT_TRUE(expected.finished) << expected.status;
    EXPECT_EQ(together[i].tokens, expected.tokens) << i;
    EXPECT_EQ(together[i].probabilities, expected.probabilities) << i;
  }
}

}  // namespace
}  // namespace gyre
