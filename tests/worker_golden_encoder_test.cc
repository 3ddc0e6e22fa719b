// Models that make vectors against exact ones (float64): each row's hidden state, and what pooling makes of a text, by
// any number of stages, beside companions, on a cache that is too small and while layers move.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "model/classifier.h"
#include "runtime/runtime.h"
#include "tests/testing/golden.h"
#include "tests/testing/one_stage.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/shared_data.h"
#include "tests/testing/tiny_ring.h"

namespace gyre {
namespace {

using ::testing::HasSubstr;

constexpr char kFolder[] = "golden-wave2/attention/";

std::string FileOf(const char* name, const char* end) {
  return testing::SharedData(kFolder) + "tiny-" + name + "-s0-f16" + end;
}

double Distance(const std::vector<float>& got, const std::vector<float>& expected) {
  EXPECT_EQ(got.size(), expected.size());
  double error = 0, norm = 0;
  for (size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
    const auto e = static_cast<double>(expected[i]);
    error += std::pow(static_cast<double>(got[i]) - e, 2);
    norm += e * e;
  }
  EXPECT_GT(norm, 0.1);
  return std::sqrt(error / norm);
}

class GoldenVectors : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: exact vectors are not there";
    ids_ = testing::ReadNumbers<TokenId>(testing::SharedData(kFolder) + "ids.txt");
    ASSERT_EQ(ids_.size(), 64u);
    auto model = OpenModel(FileOf(GetParam(), ".gguf"));
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    ASSERT_TRUE(model_->spec().pooling);
  }
  RuntimeOptions Options(int stages) const {
    RuntimeOptions o = testing::TinyRing(FileOf(GetParam(), ".gguf"), stages, 128);
    o.kv_type = "f32";
    o.exact = true;
    return o;
  }
  Request Embed(std::vector<TokenId> ids) const {
    Request r;
    r.prompt = std::move(ids);
    r.embedding = model_->spec().pooling;
    return r;
  }
  std::vector<TokenId> ids_;
  std::shared_ptr<const Model> model_;
};

TEST_P(GoldenVectors, EachRow) {
  const std::vector<float> expected = testing::ReadFloats(FileOf(GetParam(), ".embd.f32"));
  for (const Isa isa : {BuiltIsas().front(), DetectIsa()}) {
    testing::OneStage stage(model_, testing::TestDevice(isa, 2), true, KvType::kF32, false, true);
    const auto rows =
        stage.Answers({{1, 0, RowClass::kPrompt, ids_, {{.first = 0, .count = 64, .mode = RowMode::kHidden}}}});
    std::vector<float> got;
    for (const RowAnswer& row : rows) got.insert(got.end(), row.values.begin(), row.values.end());
    EXPECT_LE(Distance(got, expected), 1e-5) << IsaName(isa);
  }
}

// Rows that see the same are computed together; one that is asked for alone has the same bits.
TEST_P(GoldenVectors, ARowAloneHasTheSameBits) {
  for (const bool exact : {true, false}) {
    testing::OneStage stage(model_, testing::TestDevice(DetectIsa(), 2), true, KvType::kF16, false, exact);
    const auto ask = [&](uint32_t first, uint32_t count) {
      const RowRequest rows{.first = first, .count = count, .mode = RowMode::kHidden};
      return stage.Run({{1, 0, RowClass::kPrompt, ids_, {rows}}});
    };
    const auto all = ask(0, 64);
    ASSERT_EQ(all.size(), 64u);
    for (const uint32_t row : {0u, 9u, 40u, 62u, 63u}) EXPECT_EQ(ask(row, 1).at(0), all[row]) << row;
    EXPECT_EQ(ask(30, 3), (std::vector<std::vector<float>>(all.begin() + 30, all.begin() + 33)));
  }
}

TEST_P(GoldenVectors, TextsBecomeVectors) {
  const std::vector<float> expected = testing::ReadFloats(FileOf(GetParam(), ".pooled.f32"));
  std::vector<float> first;
  for (const auto& [stages, chunk] : {std::pair<int, uint32_t>{1, 256}, {2, 1}, {3, 5}, {4, 16}}) {
    SCOPED_TRACE(fmt::format("{} stages, chunks of {}", stages, chunk));
    RuntimeOptions o = Options(stages);
    o.chunk = chunk;
    const auto ring = testing::OpenRing(o);
    ASSERT_NE(ring, nullptr);
    const testing::Outcome got = testing::RunOne(ring->engine(), Embed(ids_));
    ASSERT_TRUE(got.status.ok()) << got.status;
    std::vector<float> pooled = got.embedding;
    if (!model_->spec().labels.empty()) {
      const auto classifier = Classifier::Read(model_->tensors(), model_->spec());
      ASSERT_TRUE(classifier.ok()) << classifier.status();
      const std::vector<double> chances = classifier->Probabilities(pooled);
      pooled.assign(chances.begin(), chances.end());
    }
    EXPECT_LE(Distance(pooled, expected), 1e-5);
    if (first.empty()) first = got.embedding;
    EXPECT_EQ(got.embedding, first);
  }
}

TEST_P(GoldenVectors, CompanionsASmallCacheAndMovesChangeNoBit) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 24; ++i) {
    std::mt19937 random(i);
    std::vector<TokenId> ids;
    for (uint32_t n = 0; n < 1 + 5 * i; ++n) ids.push_back(static_cast<TokenId>(random() % 512));
    requests.push_back(Embed(std::move(ids)));
    const Pooling poolings[] = {*model_->spec().pooling, Pooling::kMean, Pooling::kLast, Pooling::kFirst};
    requests.back().embedding = poolings[i % 4];
  }
  std::vector<testing::Outcome> alone;
  {
    const auto ring = testing::OpenRing(Options(1));
    ASSERT_NE(ring, nullptr);
    for (const Request& r : requests) alone.push_back(testing::RunOne(ring->engine(), r));
  }
  RuntimeOptions o = Options(3);
  o.kv_tokens = 160;
  const auto ring = testing::OpenRing(o);
  ASSERT_NE(ring, nullptr);
  const size_t last = model_->spec().layers.size() - 1;
  for (const std::string& plan :
       {fmt::format("local-1=0,local-2=1,local-3=2-{}", last), fmt::format("local-3=0,local-1=1-{}", last)}) {
    testing::Runner runner(ring->engine());
    for (const Request& r : requests) runner.Add(r);
    const auto report = ring->cluster().ResizeAndWait(plan);
    EXPECT_TRUE(report.ok()) << report.status();
    const auto got = runner.Wait();
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(got[i].status.ok()) << got[i].status;
      EXPECT_EQ(got[i].embedding, alone[i].embedding) << plan << ", text " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenVectors,
                         ::testing::Values("bert", "nomic-bert", "modern-bert", "qwen3-embedding", "qwen3-reranker"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class EncoderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: there is no encoder";
  }
};

TEST_F(EncoderTest, OnlyVectorsOfTextsThatFit) {
  for (const auto& [name, most] : {std::pair{"bert", 160}, {"nomic-bert", 2048}}) {
    SCOPED_TRACE(name);
    const auto model = OpenModel(FileOf(name, ".gguf"));
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->spec().most_context, most);
    RuntimeOptions o = testing::TinyRing(FileOf(name, ".gguf"), 2, 96);
    const auto ring = testing::OpenRing(o);
    ASSERT_NE(ring, nullptr);
    Request text;
    text.prompt = {1, 2, 3};
    for (const uint32_t tokens : {0u, 4u}) {
      text.max_new_tokens = tokens;
      const auto refused = ring->engine().Submit(text, [](SeqId, const Event&) {});
      EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(Message(refused.status()), HasSubstr("this model is an encoder"));
    }
    Question question;
    question.input = IdsInput{1, 2, 3};
    EXPECT_THAT(Message(ring->service().MakeRequest(question).status()), HasSubstr("this model is an encoder"));
    question.embedding = Pooling::kMean;
    EXPECT_TRUE(ring->service().MakeRequest(question).ok());
    Request longer;
    longer.prompt.assign(97, 1);
    longer.embedding = Pooling::kMean;
    EXPECT_EQ(Message(ring->engine().Submit(longer, [](SeqId, const Event&) {}).status()),
              "the prompt has 97 tokens, the context and the KV cache hold 96");
    o.ctx = most + 1;
    EXPECT_THAT(Message(Runtime::Open(o).status()), HasSubstr(fmt::format("a context of {} positions", most + 1)));
  }
}

// What a stage is sent comes from outside.
TEST_F(EncoderTest, AStageTakesWholeTextsOnly) {
  testing::OneStage stage(*OpenModel(FileOf("bert", ".gguf")), DetectIsa());
  StepAnswer answer;
  const RowRequest hidden{.first = 0, .count = 1, .mode = RowMode::kHidden};
  EXPECT_TRUE(stage.Try({{1, 0, RowClass::kPrompt, {5, 6}, {hidden}}}, &answer).ok());
  EXPECT_EQ(Message(stage.Try({{1, 2, RowClass::kPrompt, {5}, {hidden}}}, &answer)),
            "sequence 1: rows from position 2 on, an encoder takes whole texts");
  EXPECT_EQ(Message(stage.Try({{1, 0, RowClass::kPrompt, {5}, {{.first = 0, .count = 1}}}}, &answer)),
            "sequence 1: an answer of an encoder that is no hidden state");
}

}  // namespace
}  // namespace gyre
