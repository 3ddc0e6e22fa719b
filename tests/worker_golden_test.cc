// The forward pass against exact logits (float64) of small models of every architecture and type.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/runtime.h"
#include "tests/testing/golden.h"
#include "tests/testing/kernel_test.h"
#include "tests/testing/logits_distance.h"
#include "tests/testing/prompt_logits.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/shared_data.h"

namespace gyre {
namespace {

struct GoldenCase {
  const char* name;
  double peer;             // relative error of the usual peer on this file, which rounds activations to f16 or int8
  bool exact;              // f32 activations: absolute bound and the greedy ids
  bool unrounded = false;  // quantized weights with f32 activations
};

constexpr GoldenCase kCases[] = {
    {"tiny-llama-s0-f16", 0, true},           {"tiny-llama3-s0-f16", 0, true},
    {"tiny-qwen2-s0-f16", 0, true},           {"tiny-qwen3-s0-f16", 0, true},
    {"tiny-gemma3-s0-f16", 0, true},          {"tiny-llama-s0-bf16", 6.55e-3, false},
    {"tiny-llama-s0-Q8_0", 2.32e-2, false},   {"tiny-llama-s0-Q4_0", 2.40e-2, false},
    {"tiny-llama-s0-Q4_1", 2.36e-2, false},   {"tiny-llama-s0-Q5_0", 2.29e-2, false},
    {"tiny-llama-s0-Q5_1", 2.26e-2, false},   {"tiny-llama-s0-Q4_K", 2.89e-2, false},
    {"tiny-llama-s0-Q5_K", 2.95e-2, false},   {"tiny-llama-s0-Q6_K", 2.85e-2, false},
    {"tiny-llama-s0-Q2_K", 3.24e-2, false},   {"tiny-llama-s0-Q3_K", 3.00e-2, false},
    {"tiny-llama-s0-IQ4_NL", 2.23e-2, false}, {"tiny-llama-s0-IQ4_XS", 2.85e-2, false},
    {"tiny-gemma2-s0-f16", 0, true},          {"tiny-phi3-s0-f16", 0, true},
    {"tiny-mixtral-s0-f16", 0, true},         {"tiny-qwen2moe-s0-f16", 0, true},
    {"tiny-qwen3moe-s0-f16", 0, true},
};
// Families of 2025 and 2026, in another folder. Their logits feel rounding more.
constexpr GoldenCase kCases2026[] = {
    {"tiny-glm4moe-s0-f16", 1.17e-3, true},         {"tiny-minimax-m2-s0-f16", 1.14e-3, true},
    {"tiny-gpt-oss-s0-f16", 1.72e-3, true},         {"tiny-gpt-oss-s0-mxfp4", 3.00e-2, false},
    {"tiny-gpt-oss-s0-mxfp4", 3.00e-2, true, true}, {"tiny-mistral3-s0-f16", 1.93e-3, true},
    {"tiny-smollm3-s0-f16", 1.80e-3, true},         {"tiny-olmo2-s0-f16", 6.07e-4, true},
    {"tiny-olmo3-s0-f16", 9.47e-4, true},           {"tiny-granite-s0-f16", 1.96e-3, true},
    {"tiny-seed-oss-s0-f16", 1.97e-3, true},        {"tiny-gemma4-s0-f16", 2.16e-3, true},
    {"tiny-gemma4-moe-s0-f16", 2.41e-3, true},      {"tiny-gemma4-e-s0-f16", 2.39e-3, true},
};

using testing::ReadNumbers;

constexpr ptrdiff_t kVocab = 512;

testing::Logits ReadLogits(const std::string& path) {
  const std::vector<float> all = testing::ReadFloats(path);
  testing::Logits rows;
  for (auto row = all.begin(); row != all.end(); row += kVocab) rows.emplace_back(row, row + kVocab);
  return rows;
}

class Golden : public ::testing::TestWithParam<Isa> {};

void Check(const GoldenCase& c, const std::string& dir, Isa isa) {
  const auto ids = ReadNumbers<TokenId>(dir + "ids.txt");
  ASSERT_EQ(ids.size(), 64u);
  for (const std::string kv : {"f32", "f16"}) {
    SCOPED_TRACE(std::string(c.name) + " KV " + kv);
    RuntimeOptions o;
    o.model = dir + c.name + ".gguf";
    o.stages = 2;
    o.threads = 2;
    o.ctx = 256;
    o.kv_type = kv;
    o.isa = IsaName(isa);
    o.quiet = true;
    o.chunk = 17;
    o.exact = c.unrounded;
    auto ring = Runtime::Open(o);
    ASSERT_TRUE(ring.ok()) << ring.status();
    Request rows;
    rows.prompt = ids;
    rows.prompt_logits = true;
    const testing::Outcome got = testing::RunOne((*ring)->engine(), rows);
    ASSERT_EQ(got.logits.size(), ids.size()) << got.status;
    const testing::Logits expected = ReadLogits(dir + c.name + ".logits.f32");
    ASSERT_EQ(expected.size(), ids.size());
    double norm = 0, max = 0;
    for (size_t r = 0; r < expected.size(); ++r) {
      for (size_t i = 0; i < expected[r].size(); ++i) {
        const auto x = static_cast<double>(expected[r][i]);
        norm += x * x;
        max = std::max(max, std::fabs(static_cast<double>(got.logits[r][i]) - x));
      }
    }
    const double relative = testing::Between(expected, got.logits).rms;
    EXPECT_GT(norm, 1);
    // Where a router was near a tie a row may get another expert: of a mixture the middle row counts.
    const bool mixture = !(*ring)->model().spec().layers.back().dense();
    const double typical = mixture ? testing::MedianRow(expected, got.logits) : relative;
    if (!PrefillMatchesDecode(isa) && c.exact && !c.unrounded) {  // prompts in bf16, with an eighth of f16's precision
      if (mixture)  // of tiny random experts other ones are chosen in many rows
        EXPECT_LE(testing::MedianRow(expected, got.logits), c.peer > 0 ? 0.2 : 2e-2);
      else
        EXPECT_LE(relative, std::max(1e-2, 12 * c.peer));
      EXPECT_GT(relative, 1e-4) << "nothing was rounded to bf16";
      continue;
    }
    if (!c.exact) {
      EXPECT_LE(typical, 1.10 * c.peer);
      continue;
    }
    if (kv == "f16") {
      EXPECT_LE(typical, std::max(1.5e-3, c.peer));
      EXPECT_GT(relative, 1e-5) << "KV was not rounded to f16 at all";
      continue;
    }
    EXPECT_LE(max, 1e-4);
    EXPECT_LE(relative, 1e-5);
    Request greedy;
    greedy.prompt = ids;
    greedy.max_new_tokens = 48;
    greedy.sampling.temperature = 0;
    EXPECT_EQ(testing::RunOne((*ring)->engine(), greedy).tokens, ReadNumbers<TokenId>(dir + c.name + ".greedy.txt"));
  }
}

TEST_P(Golden, LogitsAndGreedyIds) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: exact logits are not there";
  if (!IsaMissing(GetParam()).empty()) GTEST_SKIP() << IsaMissing(GetParam());
  if (testing::kSanitized && GetParam() != DetectIsa()) GTEST_SKIP() << "sanitized: the widest instruction set only";
  for (const GoldenCase& c : kCases) Check(c, testing::SharedData("golden/"), GetParam());
  for (const GoldenCase& c : kCases2026) Check(c, testing::SharedData("golden2026/"), GetParam());
}

// The other types of the KV cache cost what their rounding costs.
TEST_P(Golden, EveryTypeOfTheKvCache) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: exact logits are not there";
  if (!IsaMissing(GetParam()).empty()) GTEST_SKIP() << IsaMissing(GetParam());
  if (testing::kSanitized && GetParam() != DetectIsa()) GTEST_SKIP() << "sanitized: the widest instruction set only";
  if (!PrefillMatchesDecode(GetParam())) GTEST_SKIP() << "bf16 rounds prompts more than these caches do";
  const std::string dir = testing::SharedData("golden/");
  const testing::Logits expected = ReadLogits(dir + "tiny-llama-s0-f16.logits.f32");
  const auto ids = ReadNumbers<TokenId>(dir + "ids.txt");
  double last = 0, half = 0;
  for (const auto& [kv, bound] :
       {std::pair<const char*, double>{"f32", 1e-5}, {"f16", 1e-3}, {"q8_0", 2e-2}, {"q4_0", 0.3}, {"bf16", 1e-2}}) {
    RuntimeOptions o;
    o.model = dir + "tiny-llama-s0-f16.gguf";
    o.stages = 2;
    o.threads = 2;
    o.ctx = 256;
    o.kv_type = kv;
    o.isa = IsaName(GetParam());
    o.quiet = true;
    const testing::Logits got = testing::PromptLogits(o, ids);
    ASSERT_EQ(got.size(), ids.size());
    const double relative = testing::Between(expected, got).rms;
    EXPECT_LE(relative, bound) << kv;
    // bf16 has fewer bits than f16, and is not compared with q8_0.
    EXPECT_GT(relative, 2 * (kv == std::string("bf16") ? half : last))
        << kv << " rounds no more than the one before it";
    last = relative;
    if (kv == std::string("f16")) half = relative;
  }
}

std::vector<Isa> Isas() {
  std::vector<Isa> isas(BuiltIsas().begin(), BuiltIsas().end());
#if defined(__x86_64__)
  isas.push_back(Isa::kAmxEmulated);
#endif
  return isas;
}
INSTANTIATE_TEST_SUITE_P(Isa, Golden, ::testing::ValuesIn(Isas()), testing::IsaTestName);

}  // namespace
}  // namespace gyre
