// What a KV cache of 4 bits changes: the divergence of a model's distributions from those with f16.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "fmt/core.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/prompt_logits.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using testing::Logits;

RuntimeOptions OptionsOf(const std::string& model, const std::string& kv_type) {
  RuntimeOptions o;
  o.model = model;
  o.threads = 2;
  o.ctx = 512;
  o.kv_type = kv_type;
  o.quiet = true;
  return o;
}

// The log of the sum of exponentials.
double LogSum(const std::vector<float>& logits) {
  double sum = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l));
  return std::log(sum);
}
// KL(P || Q) in nats, the mean of all positions. REQUIRES: the same shape, logits that are far from overflow.
double MeanDivergence(const Logits& p, const Logits& q) {
  double kl = 0;
  for (size_t r = 0; r < p.size(); ++r) {
    const double of_p = LogSum(p[r]), of_q = LogSum(q[r]);
    for (size_t i = 0; i < p[r].size(); ++i) {
      const double log_p = static_cast<double>(p[r][i]) - of_p, log_q = static_cast<double>(q[r][i]) - of_q;
      kl += std::exp(log_p) * (log_p - log_q);
    }
  }
  return kl / static_cast<double>(p.size());
}
double DivergenceOf(const std::string& kv_type, const std::string& model, const std::vector<TokenId>& ids) {
  return MeanDivergence(testing::PromptLogits(OptionsOf(model, "f16"), ids),
                        testing::PromptLogits(OptionsOf(model, kv_type), ids));
}

TEST(KvRounding, OfTheDemoModelIsSmall) {
  // Of the kind that the model is made for: of another text it knows little, and its guesses turn on less.
  constexpr std::string_view kText =
      "<|im_start|>user\nWhat is Gyre?<|im_end|>\n<|im_start|>assistant\nGyre runs one large language model on the "
      "machines you already have. A coordinator and several workers share the layers, and the text comes out as if one "
      "machine had run them all.<|im_end|>\n<|im_start|>user\nHow do I add a worker?<|im_end|>\n<|im_start|>assistant\n"
      "gyre worker --join HOST:PORT starts a worker and joins the coordinator at that address.<|im_end|>\n"
      "<|im_start|>user\nHow big are you?<|im_end|>\n<|im_start|>assistant\nI have about two million parameters in "
      "eight layers. That is a thousand times smaller than the models people usually run.<|im_end|>\n"
      "<|im_start|>user\nWhat can you do?<|im_end|>\n<|im_start|>assistant\nI can answer questions about Gyre, add and "
      "subtract numbers up to 99, tell short stories and answer in JSON.<|im_end|>\n";
  const auto ring = Runtime::Open(OptionsOf(GYRE_DEMO_MODEL, "f16"));
  ASSERT_TRUE(ring.ok()) << ring.status();
  const auto ids = (*ring)->service().Tokenize(kText, {.parse_special = true});
  ASSERT_TRUE(ids.ok()) << ids.status();
  ASSERT_GT(ids->size(), 100u);
  const double eight = DivergenceOf("q8_0", GYRE_DEMO_MODEL, *ids), four = DivergenceOf("q4_0", GYRE_DEMO_MODEL, *ids),
               plain = DivergenceOf("q4_0_plain", GYRE_DEMO_MODEL, *ids);
  RecordProperty("KL", fmt::format("q8_0 {:.3g}, q4_0 {:.3g}, q4_0_plain {:.3g}", eight, four, plain));
  EXPECT_LE(eight, 1e-3);
  EXPECT_LE(four, 0.01);
  EXPECT_GT(four, eight);
}

// Some models have channels of keys and values that are many times as large as the others. A head here has one such
// element in each block of 32, and what reads these elements is as many times smaller.
constexpr size_t kWidth = 128, kHeadWidth = 64, kOutlier = 3;
constexpr float kTimes = 30;
bool IsOutlier(size_t element) { return element % kKvBlock == kOutlier; }
void MakeOutliers(const std::string& name, std::vector<float>* values) {
  for (size_t i = 0; i < values->size(); ++i) {
    float& v = (*values)[i];
    if (name.ends_with("attn_k_norm.weight") && IsOutlier(i)) v *= kTimes;
    if (name.ends_with("attn_q_norm.weight") && IsOutlier(i)) v /= kTimes;
    if (name.ends_with("attn_v.weight") && IsOutlier(i / kWidth)) v *= kTimes;
    if (name.ends_with("attn_output.weight") && IsOutlier(i % kWidth)) v /= kTimes;
  }
}

TEST(KvRounding, RotationKeepsWhatLargeElementsWouldDrown) {
  for (const uint32_t seed : {1u, 2u}) {
    const testing::TinyModelFile file({.arch = "qwen3",
                                       .seed = seed,
                                       .dim = kWidth,
                                       .heads = kWidth / kHeadWidth,
                                       .kv_heads = kWidth / kHeadWidth,
                                       .ffn = 192,
                                       .change = MakeOutliers});
    std::vector<TokenId> ids;
    for (uint32_t i = 0; i < 200; ++i) ids.push_back(static_cast<TokenId>((i * i + 7 * i * seed + 3) % 96));
    const double plain = DivergenceOf("q4_0_plain", file.path(), ids), rotated = DivergenceOf("q4_0", file.path(), ids);
    RecordProperty(fmt::format("KL_{}", seed), fmt::format("q4_0 {:.3g}, q4_0_plain {:.3g}", rotated, plain));
    EXPECT_GT(plain, 0.01) << "of seed " << seed;
    EXPECT_LE(rotated, 0.25 * plain) << "of seed " << seed;
  }
}

}  // namespace
}  // namespace gyre
