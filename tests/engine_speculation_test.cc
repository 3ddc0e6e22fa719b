// Texts have the same bits with and without speculation, whoever drafts, over any number of stages.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "coordinator/engine/drafter.h"
#include "model/arch.h"
#include "runtime/runtime.h"
#include "tests/testing/delayed_port.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/shared_data.h"
#include "tests/testing/speculation_checks.h"
#include "tests/testing/tiny_hybrid.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre {
namespace {

// Knows some texts, and guesses what follows in them: rightly, wrongly from some place on, or anything.
class Adversary : public Drafter {
 public:
  explicit Adversary(int vocab) : vocab_(vocab) {}
  void Know(std::vector<TokenId> text) { known_.push_back(std::move(text)); }

  void Draft(DraftQuestion q, std::function<void(std::vector<TokenId>)> answer) override {
    std::vector<TokenId> drafts;
    {
      std::lock_guard lock(mutex_);
      behind_ += q.assumed > 0 ? 1 : 0;
      std::vector<TokenId>& text = texts_[q.seq];
      text.resize(q.first);
      text.insert(text.end(), q.tokens.begin(), q.tokens.end());
      const uint32_t wrong_at = random_() % 3 == 0 ? UINT32_MAX : random_() % (q.most + 1);
      const auto known = std::find_if(known_.begin(), known_.end(), [&](const std::vector<TokenId>& k) {
        return k.size() >= text.size() && std::equal(text.begin(), text.end(), k.begin());
      });
      for (uint32_t i = 0; i < q.most; ++i) {
        const size_t at = text.size() + i;
        const bool right = i < wrong_at && known != known_.end() && at < known->size();
        drafts.push_back(right ? (*known)[at] : static_cast<TokenId>(random_() % static_cast<uint32_t>(vocab_)));
      }
    }
    answer(std::move(drafts));
  }
  void End(SeqId seq) override {
    std::lock_guard lock(mutex_);
    texts_.erase(seq);
  }
  void Stop() override {}
  Duration each() const override { return {}; }
  // Questions about what follows drafts in flight.
  int behind() const {
    std::lock_guard lock(mutex_);
    return behind_;
  }

 private:
  const int vocab_;
  std::vector<std::vector<TokenId>> known_;
  mutable std::mutex mutex_;
  int behind_ = 0;
  std::map<SeqId, std::vector<TokenId>> texts_;
  std::mt19937 random_{1};
};

constexpr int kWords = 96;

// Greedy and drawn, with histories, log-probabilities, stop strings and questions for full logits.
std::vector<Request> Requests() {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 6; ++i) {
    Request r;
    std::mt19937 random(i);
    // What stands there twice is drafted from the text itself.
    for (uint32_t n = 0; n < 12 + 3 * i; ++n) r.prompt.push_back(static_cast<TokenId>(random() % kWords));
    r.prompt.insert(r.prompt.end(), r.prompt.begin(), r.prompt.begin() + 9);
    r.max_new_tokens = 36;
    testing::VarySettings(&r, i, 0.8f);
    if (i % 2 == 1) r.sampling.repetition_penalty = 1.3f, r.sampling.frequency_penalty = 0.2f;
    if (i == 3) r.sampling.temperature = 0, r.sampling.repetition_penalty = 1;
    requests.push_back(std::move(r));
  }
  return requests;
}

std::shared_ptr<Adversary> Knowing(const std::vector<Request>& requests,
                                   const std::vector<testing::Outcome>& outcomes) {
  auto adversary = std::make_shared<Adversary>(kWords);
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<TokenId> text = requests[i].prompt;
    text.insert(text.end(), outcomes[i].tokens.begin(), outcomes[i].tokens.end());
    adversary->Know(std::move(text));
  }
  return adversary;
}

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
  const std::vector<Request> requests = Requests();
  const auto without = testing::OpenRing(testing::SpeculatingRing(path, 1, "off"));
  ASSERT_NE(without, nullptr);
  const std::vector<testing::Outcome> expected = testing::RunAll(without->engine(), requests);
  EXPECT_EQ(without->engine().stats().drafted_tokens, 0u);
  const auto adversary = Knowing(requests, expected);
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

class SpeculationTest : public ::testing::Test {
 protected:
  static testing::TinyOptions Options() {
    testing::TinyOptions o;
    o.layers = 4;
    o.dim = 64;
    o.heads = 2;
    o.kv_heads = 1;  // wide enough for every type of the KV cache
    return o;
  }
  const testing::TinyModelFile file_{Options()};
  const std::vector<Request> requests_ = Requests();
};

TEST_F(SpeculationTest, SameBitsForEveryTypeOfTheKvCache) {
  for (const char* type : {"f32", "f16", "bf16", "q8_0", "q4_0"}) {
    SCOPED_TRACE(type);
    RuntimeOptions o = testing::SpeculatingRing(file_.path(), 1, "off");
    o.kv_type = type;
    const auto without = testing::OpenRing(o);
    ASSERT_NE(without, nullptr);
    const auto expected = testing::RunAll(without->engine(), requests_);
    o = testing::SpeculatingRing(file_.path(), 2, "auto");
    o.kv_type = type;
    o.drafter = Knowing(requests_, expected);
    const auto with = testing::OpenRing(o);
    ASSERT_NE(with, nullptr);
    testing::ExpectSameOutcomes(testing::RunAll(with->engine(), requests_), expected);
    EXPECT_GT(with->engine().stats().accepted_drafts, 0u);
  }
}

// With all logits of each row, and with the whole prompt or a chunk in a step.
TEST_F(SpeculationTest, SameBitsWithoutCandidatesAndWithShortSteps) {
  const auto without = testing::OpenRing(testing::SpeculatingRing(file_.path(), 1, "off"));
  ASSERT_NE(without, nullptr);
  const auto expected = testing::RunAll(without->engine(), requests_);
  for (const bool candidates : {false, true}) {
    RuntimeOptions o = testing::SpeculatingRing(file_.path(), 2, "auto");
    o.no_candidates = !candidates;
    o.max_rows = candidates ? 5 : 64;
    o.chunk = 3;
    o.drafter = Knowing(requests_, expected);
    const auto with = testing::OpenRing(o);
    ASSERT_NE(with, nullptr);
    testing::ExpectSameOutcomes(testing::RunAll(with->engine(), requests_), expected);
    EXPECT_GT(with->engine().stats().accepted_drafts, 0u);
  }
}

TEST_F(SpeculationTest, SameBitsThroughResizes) {
  const auto without = testing::OpenRing(testing::SpeculatingRing(file_.path(), 1, "off"));
  ASSERT_NE(without, nullptr);
  const auto expected = testing::RunAll(without->engine(), requests_);
  RuntimeOptions o = testing::SpeculatingRing(file_.path(), 3, "auto");
  o.tcp = true;
  o.drafter = Knowing(requests_, expected);
  const auto ring = testing::OpenRing(o);
  ASSERT_NE(ring, nullptr);
  for (const char* text : {"local-1=0,local-2=1,local-3=2-3", "local-1=0-1,local-2=2,local-3=3", "local-3=0-3"}) {
    testing::Runner runner(ring->engine());
    for (const Request& r : requests_) runner.Add(r);
    const auto report = ring->cluster().ResizeAndWait(text);
    ASSERT_TRUE(report.ok()) << report.status();
    testing::ExpectSameOutcomes(runner.Wait(), expected);
  }
  EXPECT_GT(ring->engine().stats().accepted_drafts, 0u);
}

// The drafter goes on while a lap is under way; layers move, steps fail and the ring breaks meanwhile.
TEST_F(SpeculationTest, SameBitsOverLongWays) {
  const auto without = testing::OpenRing(testing::SpeculatingRing(file_.path(), 1, "off"));
  ASSERT_NE(without, nullptr);
  const auto expected = testing::RunAll(without->engine(), requests_);
  RuntimeOptions o = testing::SpeculatingRing(file_.path(), 3, "auto");
  const auto adversary = Knowing(requests_, expected);
  o.drafter = adversary;
  o.wrap_port = testing::Delays(std::chrono::milliseconds(2));
  const auto ring = testing::OpenRing(o);
  ASSERT_NE(ring, nullptr);
  testing::ExpectSameOutcomes(testing::RunAll(ring->engine(), requests_), expected);
  EXPECT_GT(adversary->behind(), 5);
  for (const char* plan : {"local-1=0,local-2=1,local-3=2-3", "local-1=0-1,local-2=2,local-3=3"}) {
    testing::Runner runner(ring->engine());
    for (const Request& r : requests_) runner.Add(r);
    const auto report = ring->cluster().ResizeAndWait(plan);
    ASSERT_TRUE(report.ok()) << report.status();
    ring->workers()[1]->BreakLinksForTest();
    testing::ExpectSameOutcomes(runner.Wait(), expected);
  }
  ring->workers()[1]->SetFaultHook([count = std::make_shared<std::atomic<int>>(0)]() -> Status {
    return ++*count % 40 == 9 ? Internal("planted fault") : absl::OkStatus();
  });
  testing::ExpectSameOutcomes(testing::RunAll(ring->engine(), requests_), expected);
  EXPECT_TRUE(ring->engine().CheckIntegrity().ok());
}

// A stage leaves out what it has not begun when it hears that a draft before it was not drawn.
TEST_F(SpeculationTest, VoidStepsAreNotComputed) {
  const auto without = testing::OpenRing(testing::SpeculatingRing(file_.path(), 1, "off"));
  ASSERT_NE(without, nullptr);
  const auto expected = testing::RunAll(without->engine(), requests_);
  for (const int stages : {1, 3}) {
    RuntimeOptions o = testing::SpeculatingRing(file_.path(), stages, "auto");
    o.drafter = Knowing(requests_, expected);
    o.steps_in_flight = 6;
    const auto ring = testing::OpenRing(o);
    ASSERT_NE(ring, nullptr);
    // Steps wait for the stages, so that some lie there when others are sent in their place.
    for (const auto& worker : ring->workers()) {
      worker->SetFaultHook([] {
        std::this_thread::sleep_for(std::chrono::microseconds(500));
        return absl::OkStatus();
      });
    }
    // On a busy machine the stages may hear too late, so the texts come several times.
    uint64_t left_out = 0;
    for (int round = 0; round < 20 && left_out == 0; ++round) {
      testing::ExpectSameOutcomes(testing::RunAll(ring->engine(), requests_), expected);
      for (const auto& worker : ring->workers()) left_out += worker->stats().void_steps;
    }
    EXPECT_GT(left_out, 0u) << stages;
  }
}

// The model drafts for itself, so that nearly all comes true; another model of the same vocabulary is mostly wrong.
TEST_F(SpeculationTest, ADraftModelChangesNoBit) {
  const auto without = testing::OpenRing(testing::SpeculatingRing(file_.path(), 1, "off"));
  ASSERT_NE(without, nullptr);
  testing::TinyOptions other = Options();
  other.seed = 77;
  const testing::TinyModelFile stranger(other);
  for (const DrawMethod method : {DrawMethod::kUniform, DrawMethod::kGumbel}) {
    std::vector<Request> requests = requests_;
    for (Request& r : requests) r.sampling.draw = method, r.speculation.n_max = 6;
    const auto expected = testing::RunAll(without->engine(), requests);
    for (const std::string& path : {file_.path(), stranger.path()}) {
      RuntimeOptions o = testing::SpeculatingRing(file_.path(), 2, "auto");
      o.draft_model = path;
      o.draft_tokens = 5;
      o.steps_in_flight = 1;  // rows wait for drafts, which come too late elsewhere
      o.parallel = 2;         // its texts push each other out
      const auto with = testing::OpenRing(o);
      ASSERT_NE(with, nullptr);
      testing::ExpectSameOutcomes(testing::RunAll(with->engine(), requests), expected);
      const EngineStats stats = with->engine().stats();
      EXPECT_GT(stats.drafted_tokens, 50u);
      if (path == file_.path()) EXPECT_GT(2 * stats.accepted_drafts, stats.drafted_tokens);
    }
  }
}

TEST_F(SpeculationTest, ADraftModelOfAnotherVocabularyIsRefused) {
  testing::TinyOptions other = Options();
  other.vocab = 112;
  const testing::TinyModelFile stranger(other);
  RuntimeOptions o = testing::SpeculatingRing(file_.path(), 1, "auto");
  o.draft_model = stranger.path();
  const auto ring = Runtime::Open(o);
  EXPECT_EQ(ring.status().code(), absl::StatusCode::kFailedPrecondition) << ring.status();
}

// The limits of a request hold to the token, and its numbers say what was drafted.
TEST_F(SpeculationTest, LimitsHoldAndRequestsChoose) {
  const auto ring = testing::OpenRing(testing::SpeculatingRing(file_.path(), 1, "ngram"));
  ASSERT_NE(ring, nullptr);
  Request r = requests_[3];
  std::vector<TokenId> whole;
  for (uint32_t n = 1; n <= 20; ++n) {
    r.max_new_tokens = n;
    const testing::Outcome got = testing::RunOne(ring->engine(), r);
    ASSERT_EQ(got.tokens.size(), n);
    EXPECT_TRUE(std::equal(whole.begin(), whole.end(), got.tokens.begin()));
    whole = got.tokens;
    EXPECT_GE(got.usage.drafted_tokens, got.usage.accepted_drafts);
    EXPECT_LT(got.usage.accepted_drafts, n);
  }
  r.speculation.n_max = 0;
  const testing::Outcome none = testing::RunOne(ring->engine(), r);
  EXPECT_EQ(none.tokens, whole);
  EXPECT_EQ(none.usage.drafted_tokens, 0u);
  // What is predicted is drafted, from the answer's beginning on.
  r.speculation.n_max = 4;
  r.prediction = whole;
  const testing::Outcome predicted = testing::RunOne(ring->engine(), r);
  EXPECT_EQ(predicted.tokens, whole);
  EXPECT_GE(predicted.usage.accepted_drafts, 12u);
}

}  // namespace
}  // namespace gyre
