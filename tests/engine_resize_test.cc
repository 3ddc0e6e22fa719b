// Layers move between the members of a running ring, with their KV pages, and no text changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <random>
#include <thread>

#include "runtime/runtime.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/tiny_ring.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using testing::OpenRing;
using testing::Outcome;
using testing::Runner;
using testing::RunOne;

constexpr uint32_t kTokens = 70;

class ResizeTest : public ::testing::TestWithParam<const char*> {
 protected:
  RuntimeOptions Options(int stages) const {
    RuntimeOptions o = testing::TinyRing(model_.path(), stages, 200);
    o.parallel = 10;
    o.chunk = 8;
    o.tcp = stages > 1 && Tcp();
    o.no_prefix_cache = Tcp();
    return o;
  }
  // Over TCP without the prefix cache, so that prompts take their time.
  static bool Tcp() { return std::string(GetParam()) == "tcp"; }
  static Request Ask(int seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    Request r;
    const size_t length = 3 + random() % 120;
    for (size_t i = 0; i < length; ++i) r.prompt.push_back(static_cast<TokenId>(random() % 60));
    r.max_new_tokens = kTokens;
    r.sampling.temperature = seed % 2 == 0 ? 0 : 0.9f;
    r.sampling.seed = static_cast<uint64_t>(seed);
    r.ignore_end = true;
    return r;
  }
  // The texts that single requests give in one process on one stage.
  std::vector<std::vector<TokenId>> Alone(int n) {
    auto ring = OpenRing(Options(1));
    std::vector<std::vector<TokenId>> out;
    for (int i = 0; i < n; ++i) out.push_back(RunOne(ring->engine(), Ask(i)).tokens);
    return out;
  }
  // A request that is also asked for the logits of its prompt, which tell when it is in the middle of it.
  static Request AskScored(int seed) {
    Request r = Ask(seed);
    while (r.prompt.size() < 120) r.prompt.push_back(static_cast<TokenId>(r.prompt.size() % 60));
    r.prompt_logits = true;
    return r;
  }
  // Requests that stand still in the middle until GoOn: what a test does meanwhile never comes too late.
  class Standing {
   public:
    explicit Standing(Engine& engine) : engine_(engine), runner_(engine) {}
    // Stands still soon after `at` tokens; 0: soon after the first row of logits of its prompt.
    void Add(const Request& request, size_t at) {
      wait_for_ = at < kTokens ? wait_for_ + 1 : wait_for_;
      runner_.Add(request, [this, at, held = false](SeqId seq, size_t n) mutable {
        if (n == at && !held) {
          held = true;
          engine_.Hold(seq);
          ++standing_;
        }
        if (n == kTokens) ++ended_;
      });
      ++added_;
    }
    void Wait() const {
      while (standing_ < wait_for_) std::this_thread::sleep_for(milliseconds(1));
    }
    void GoOn() {
      for (size_t i = 0; i < added_; ++i) engine_.Unhold(runner_.id(i));
    }
    void WaitUntilAtMostRun(size_t n) const {
      while (added_ - ended_ > n) std::this_thread::sleep_for(milliseconds(1));
    }
    std::vector<Outcome> Outcomes() { return runner_.Wait(); }

   private:
    Engine& engine_;
    size_t added_ = 0, wait_for_ = 0;
    std::atomic<size_t> standing_{0}, ended_{0};
    Runner runner_;  // its sinks use the others
  };

  testing::TinyModelFile model_{testing::TinyOptions{.layers = 6}};
};

// Another size of the KV cache while requests run: more than at the start, less, and more again.
TEST_P(ResizeTest, TheCacheGetsAnotherSizeAndNoTextChanges) {
  constexpr int kRequests = 4;
  const auto expected = Alone(kRequests);
  RuntimeOptions options = Options(3);
  options.kv_tokens = 400;
  auto ring = OpenRing(options);
  for (const uint64_t tokens : {800, 240, 1200}) {
    Standing requests(ring->engine());
    // In the small cache they would stand in each other's way.
    for (int i = 0; i < kRequests; ++i) requests.Add(Ask(i), tokens == 240 ? kTokens + 1 : 20);
    requests.Wait();
    std::promise<StatusOr<ChangeReport>> answer;
    ring->cluster().ResizeCache(tokens, [&](StatusOr<ChangeReport> report) { answer.set_value(std::move(report)); });
    const StatusOr<ChangeReport> report = answer.get_future().get();
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->kv_tokens, tokens);
    std::vector<Outcome> outcomes;
    requests.GoOn();
    outcomes = requests.Outcomes();
    for (int i = 0; i < kRequests; ++i) {
      EXPECT_EQ(outcomes[static_cast<size_t>(i)].tokens, expected[static_cast<size_t>(i)]) << tokens << " " << i;
    }
    EXPECT_TRUE(ring->engine().CheckIntegrity().ok());  // a pass of the engine's loop, after which the stats are new
    EXPECT_EQ(ring->engine().stats().scheduler.memory[kPageGroup].units, tokens / 4);
  }
}

std::string RandomResize(std::mt19937& random, int layers) {
  std::vector<std::string> names{"local-1", "local-2", "local-3"};
  std::shuffle(names.begin(), names.end(), random);
  const size_t n = 1 + random() % 3;
  std::vector<int> cuts;
  while (cuts.size() + 1 < n) {
    const int cut = 1 + static_cast<int>(random() % static_cast<uint32_t>(layers - 1));
    if (std::find(cuts.begin(), cuts.end(), cut) == cuts.end()) cuts.push_back(cut);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.push_back(layers);
  std::string out;
  int begin = 0;
  for (size_t i = 0; i < n; ++i) {
    out += (out.empty() ? "" : ",") + fmt::format("{}={}-{}", names[i], begin, cuts[i] - 1);
    begin = cuts[i];
  }
  return out;
}

TEST_P(ResizeTest, LayersMoveInTheMiddleOfSentencesThatStayTheSame) {
  constexpr int kTexts = 16;
  auto alone = OpenRing(Options(1));
  ASSERT_NE(alone, nullptr);
  auto ring = OpenRing(Options(3));
  ASSERT_NE(ring, nullptr);
  const int layers = static_cast<int>(ring->model().spec().layers.size());
  Standing streams(ring->engine());
  std::vector<Request> requests;
  std::mt19937 random(3);
  uint64_t pages = 0;
  const int rounds = testing::kSanitized ? 8 : 24;
  for (int i = 0; i < rounds; ++i) {
    // Requests of earlier rounds run on while these are stopped, two in their texts, one in its prompt.
    streams.WaitUntilAtMostRun(6);
    for (const Request& r : {Ask(2 * i % kTexts), Ask((2 * i + 1) % kTexts), AskScored(i % 4)}) {
      requests.push_back(r);
      streams.Add(r, r.prompt_logits ? 0 : 5 + random() % 50);
    }
    streams.Wait();
    const std::string text = RandomResize(random, layers);
    const auto report = ring->cluster().ResizeAndWait(text);
    ASSERT_TRUE(report.ok()) << text << ": " << report.status();
    pages += report->pages_moved;
    EXPECT_TRUE(ring->engine().CheckIntegrity().ok()) << ring->engine().CheckIntegrity();
    streams.GoOn();
  }
  const auto outcomes = streams.Outcomes();
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome expected = RunOne(alone->engine(), requests[i]);
    EXPECT_TRUE(outcomes[i].finished) << outcomes[i].status;
    EXPECT_EQ(outcomes[i].tokens, expected.tokens) << "stream " << i;
    EXPECT_TRUE(outcomes[i].logits == expected.logits) << "stream " << i;
    EXPECT_EQ(outcomes[i].terminals, 1);
  }
  const EngineStats stats = ring->engine().stats();
  EXPECT_EQ(stats.scheduler.replayed_rows, 0u) << "tokens were computed again";
  EXPECT_EQ(stats.step_errors, 0u);
  // Without these cases the test would prove nothing.
  EXPECT_GT(pages, 100u);
  EXPECT_GT(stats.held_in_prefill, static_cast<uint64_t>(rounds / 2));
  EXPECT_GT(stats.held_in_partial_block, 0u);
  EXPECT_EQ(stats.pauses, static_cast<uint64_t>(rounds));
}

TEST_P(ResizeTest, WithoutTheMoveTheTextsWouldChange) {
  const auto expected = Alone(8);
  auto ring = OpenRing(Options(2));
  ASSERT_NE(ring, nullptr);
  Standing streams(ring->engine());
  for (int i = 0; i < 8; ++i) streams.Add(Ask(i), 12);
  streams.Wait();
  for (const auto& w : ring->workers()) w->SkipCopyingForTest();
  ASSERT_TRUE(ring->cluster().ResizeAndWait("local-2=0-2,local-1=3-5").ok());
  streams.GoOn();
  int different = 0;
  const auto outcomes = streams.Outcomes();
  for (size_t i = 0; i < 8; ++i) different += outcomes[i].tokens != expected[i];
  EXPECT_GT(different, 0);
}

TEST_P(ResizeTest, RefusalsSayWhyAndChangeNothing) {
  auto ring = OpenRing(Options(3));
  ASSERT_NE(ring, nullptr);
  auto refusal = [&](const std::string& text) { return Message(ring->cluster().ResizeAndWait(text).status()); };
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal("0-1,3-5"), HasSubstr("nobody has layer 2"));
  EXPECT_THAT(refusal("0-3,3-5"), HasSubstr("overlap"));
  EXPECT_THAT(refusal("0-3"), HasSubstr("nobody has layers 4-5"));
  EXPECT_THAT(refusal("0-6"), HasSubstr("the model has layers 0-5"));
  EXPECT_THAT(refusal("bob=0-5"), HasSubstr("no worker 'bob'"));
  EXPECT_THAT(refusal("local-1=0-2,local-1=3-5"), HasSubstr("twice"));
  EXPECT_THAT(refusal("0-1,2-3,4-4,5-5"), HasSubstr("nobody is left for layer 5"));
  EXPECT_THAT(refusal("7"), HasSubstr("expected rising numbers from 1 to 5"));
  EXPECT_THAT(refusal("banana"), HasSubstr("banana"));
  EXPECT_THAT(refusal(""), HasSubstr("boundaries"));
  EXPECT_EQ(ring->cluster().status().plan->epoch.number, 1u);
  // Ranges may be written in several ways.
  const auto cut = ring->cluster().ResizeAndWait("1 3");
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->ranges, "0-0,1-2,3-5");
  EXPECT_EQ(ring->cluster().ResizeAndWait("local-3=-,0-2,3-5")->ranges, "0-2,3-5");
  EXPECT_FALSE(ring->cluster().status().members.back().layers.has_value());
  EXPECT_EQ(ring->cluster().ResizeAndWait("0-5")->ranges, "0-5");
  EXPECT_TRUE(RunOne(ring->engine(), Ask(1)).finished);
}

TEST_P(ResizeTest, ABrokenLinkIsRepairedAndNothingIsLost) {
  const auto expected = Alone(6);
  auto ring = OpenRing(Options(3));
  ASSERT_NE(ring, nullptr);
  Standing streams(ring->engine());
  // Some stand still, some have rows in the ring that breaks.
  for (int i = 0; i < 6; ++i) streams.Add(Ask(i), i % 2 == 0 ? 10 : kTokens + 1);
  streams.Wait();
  ring->workers()[1]->BreakLinksForTest();
  while (ring->cluster().status().plan->epoch.number < 2) std::this_thread::sleep_for(milliseconds(1));
  streams.GoOn();
  const auto outcomes = streams.Outcomes();
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(outcomes[i].finished) << outcomes[i].status;
    EXPECT_EQ(outcomes[i].tokens, expected[i]);
  }
  EXPECT_EQ(ring->cluster().status().plan->epoch.number, 2u);
}

TEST_P(ResizeTest, RequestsGoOnWithoutALostMember) {
  const auto expected = Alone(6);
  auto alone = OpenRing(Options(1));
  ASSERT_NE(alone, nullptr);
  for (const char* lost : {"local-1", "local-2", "local-3"}) {
    SCOPED_TRACE(lost);
    auto ring = OpenRing(Options(3));
    ASSERT_NE(ring, nullptr);
    Standing streams(ring->engine());
    // Some stand still in their texts, one in the middle of its prompt; some have rows in the ring that is lost.
    for (int i = 0; i < 6; ++i) streams.Add(Ask(i), i % 2 == 0 ? 10 : kTokens + 1);
    const Request scored = AskScored(3);
    streams.Add(scored, 0);
    streams.Wait();
    ring->workers()[static_cast<size_t>(lost[6] - '1')]->Stop();
    ring->cluster().Leave({.name = lost}, Unavailable("its process ended"));
    streams.GoOn();
    const auto outcomes = streams.Outcomes();
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(outcomes[i].terminals, 1);
      EXPECT_TRUE(outcomes[i].finished) << outcomes[i].status;
      EXPECT_EQ(outcomes[i].tokens, expected[i]) << "text " << i;
    }
    EXPECT_TRUE(outcomes[6].finished) << outcomes[6].status;
    EXPECT_TRUE(outcomes[6].logits == RunOne(alone->engine(), scored).logits);
    const ClusterStatus status = ring->cluster().status();
    EXPECT_EQ(status.plan->stages.size(), 2u);
    EXPECT_EQ(status.lost, 1u);
    EXPECT_GT(ring->engine().stats().scheduler.replayed_rows, 0u);
    EXPECT_EQ(ring->engine().stats().failed, 0u);
    EXPECT_TRUE(ring->engine().CheckIntegrity().ok()) << ring->engine().CheckIntegrity();
    EXPECT_TRUE(RunOne(ring->engine(), Ask(1)).finished);
  }
}

// Pages are read between two steps of their source. Copying that gives up sooner would never end beside long steps.
TEST(ResizeLimitsTest, CopyingWaitsAsLongAsAStepMayTake) {
  EXPECT_GE(WorkerOptions{}.bulk_silence, EngineOptions{}.step_timeout);
}

INSTANTIATE_TEST_SUITE_P(Links, ResizeTest, ::testing::Values("memory", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace gyre
