// A coordinator that runs layers itself: alone, and beside workers that come, go and share them with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <random>
#include <thread>

#include "fmt/format.h"
#include "kernels/isa.h"
#include "runtime/local_target.h"
#include "runtime/runtime.h"
#include "tests/testing/process_ring.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Ask;
using testing::Clients;
using ::testing::HasSubstr;
using testing::ProcessesTest;
using testing::Ring;

constexpr int kVocab = 96;
constexpr uint32_t kTokens = 120;

class LocalTest : public ProcessesTest {
 protected:
  std::vector<std::vector<TokenId>> Alone() { return testing::TextsOfOneProcess(model_.path(), kVocab, kTokens); }
  static std::string LayersOf(const std::string& address, const std::string& name) {
    const auto status = FetchStatus(address);
    if (!status.ok()) return Message(status.status());
    for (const auto& m : status->members()) {
      if (m.name() == name && m.has_layers()) return FormatRange({m.layers().begin(), m.layers().end()});
    }
    return "-";
  }
};

// From one process to three and through every place in the ring, while texts are being written.
TEST_F(LocalTest, TheCoordinatorsLayersMoveAsAnybodysAndNoTextChanges) {
  const auto expected = Alone();
  Ring ring(model_.path(), {"--min-workers", "2", "--no-prefix-cache"});
  ASSERT_TRUE(ring.Serves(1));
  Clients clients(ring.address(), kVocab, kTokens);
  clients.WaitForTokens(50);
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(3));
  EXPECT_EQ(LayersOf(ring.address(), "local"), "4-5") << "its share, the last of the ring";
  clients.WaitForTokens(100);
  const char* const cuts[] = {"local=0-1,w1=2-3,w2=4-5", "w1=0-2,local=3-3,w2=4-5",
                              "w2=0-3,w1=4-4,local=5-5", "local=0-5",
                              "w1=0-2,w2=3-5",           "w1=0,local=1-4,w2=5"};
  uint64_t pages = 0;
  for (int i = 0; i < (testing::kSanitized ? 6 : 12); ++i) {
    const auto change = AskResize(ring.address(), cuts[i % 6]);
    ASSERT_TRUE(change.ok()) << cuts[i % 6] << ": " << change.status() << ring.serve().output();
    pages += change->pages_moved();
    clients.WaitForTokens(60);
  }
  const auto drained = AskDrain(ring.address(), "local");
  ASSERT_TRUE(drained.ok()) << drained.status();
  EXPECT_EQ(LayersOf(ring.address(), "local"), "-");
  clients.WaitForTokens(60);
  const auto texts = clients.Stop();
  EXPECT_GT(texts.size(), 8u);
  for (const auto& text : texts) {
    EXPECT_TRUE(text.status.ok()) << text.status;
    EXPECT_EQ(text.tokens, expected[static_cast<size_t>(text.seed)]) << "text " << text.seed;
  }
  const auto status = FetchStatus(ring.address());
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->rows_replayed(), 0u) << "tokens were computed again";
  EXPECT_EQ(status->failed(), 0u);
  EXPECT_GT(pages, 100u);
}

TEST_F(LocalTest, ItGetsTheLayersThatItIsStartedWith) {
  Ring ring(model_.path(), {"--layers", "2-3", "--min-workers", "2"});
  ASSERT_TRUE(ring.Serves(1));
  EXPECT_EQ(LayersOf(ring.address(), "local"), "0-5") << "alone it has all";
  ring.AddWorker("w1", {"--layers", "4-5"});
  ring.AddWorker("w2");
  ASSERT_TRUE(ring.Serves(3));
  EXPECT_EQ(LayersOf(ring.address(), "local"), "2-3");
  EXPECT_EQ(LayersOf(ring.address(), "w2"), "0-1");
  testing::Process wrong({GYRE_BINARY, "serve", model_.path(), "--cluster", "127.0.0.1:0", "--layers", "2-6"});
  EXPECT_EQ(wrong.Wait(std::chrono::seconds(20)), 2);
  EXPECT_THAT(wrong.output(), HasSubstr("--layers 2-6: the model has layers 0-5"));
  testing::Process none(
      {GYRE_BINARY, "serve", model_.path(), "--cluster", "127.0.0.1:0", "--layers", "2-3", "--no-local"});
  EXPECT_EQ(none.Wait(std::chrono::seconds(20)), 2);
}

TEST_F(LocalTest, WithNoLocalTheWorkersHaveAllLayers) {
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  EXPECT_EQ(LayersOf(ring.address(), "local"), "-");
}

// A drained worker stays without layers, whatever happens, until somebody undrains it.
TEST_F(LocalTest, ADrainLasts) {
  Ring ring(model_.path(), {"--min-workers", "2"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(3));
  ASSERT_TRUE(AskDrain(ring.address(), "w1").ok());
  EXPECT_TRUE(AskDrain(ring.address(), "w1").ok()) << "once more changes nothing";
  EXPECT_EQ(LayersOf(ring.address(), "w1"), "-");
  EXPECT_THAT(Message(AskResize(ring.address(), "w1=0-2,w2=3-5").status()), HasSubstr("w1 is drained"));
  EXPECT_FALSE(AskUndrain(ring.address(), "w9").ok());
  ASSERT_TRUE(AskUndrain(ring.address(), "w1").ok());
  const auto dry = AskResize(ring.address(), "w1=0-2,w2=3-5", true);
  ASSERT_TRUE(dry.ok()) << dry.status();
  EXPECT_TRUE(dry->dry_run());
  EXPECT_GT(dry->moves_size(), 0);
  EXPECT_EQ(LayersOf(ring.address(), "w1"), "-") << "a dry run moves nothing";
  EXPECT_TRUE(AskResize(ring.address(), "w1=0-2,w2=3-5").ok());
  EXPECT_EQ(LayersOf(ring.address(), "w1"), "0-2");
}

// Every event of a request, to compare; without times.
std::vector<std::string> Told(Target& target, const Request& request) {
  const auto top = [](const std::vector<TokenLogprob>& list) {
    std::string out;
    for (const TokenLogprob& t : list) out += fmt::format(" {}:{}", t.id, t.logprob);
    return out;
  };
  std::vector<std::string> out;
  const Status status = target.Run(request, [&](const Event& event) {
    if (const auto* t = std::get_if<TokenEvent>(&event)) {
      out.push_back(fmt::format("{} {} '{}' {}{}", t->token, t->probability, t->text, t->logprob, top(t->top)));
    } else if (const auto* p = std::get_if<PromptTokenEvent>(&event)) {
      out.push_back(fmt::format("@{} {} {}{}", p->position, p->token, p->logprob, top(p->top)));
    } else if (const auto* e = std::get_if<EmbeddingEvent>(&event)) {
      for (float value : e->values) out.push_back(fmt::format("{}", value));
    } else if (const auto* f = std::get_if<Finished>(&event)) {
      out.push_back(fmt::format("{} '{}' {}+{}, {} cached, {} shifts, '{}' {}", static_cast<int>(f->reason), f->text,
                                f->usage.prompt_tokens, f->usage.generated_tokens, f->usage.cached_tokens,
                                f->usage.context_shifts, f->stop, f->stop_id));
    }
  });
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

TEST_F(LocalTest, AClientOverGrpcIsToldWhatOneInTheProcessIs) {
  const std::string model = GYRE_DEMO_MODEL;
  auto alone = Runtime::Open(testing::OneProcess(model));
  ASSERT_TRUE(alone.ok()) << alone.status();
  const auto here = MakeLocalTarget(*std::move(alone), "test");
  Ring ring(model);
  ASSERT_TRUE(ring.Serves(1));
  const auto there = OpenRemote(ring.address());
  ASSERT_TRUE(there.ok()) << there.status();
  std::vector<Request> requests(4);
  for (Request& r : requests) {
    r.prompt = *here->Encode("What is Gyre?", {.add_special = true});
    r.sampling.temperature = 0;
    r.max_new_tokens = 12;
  }
  requests[0].logprobs = requests[0].prompt_logprobs = 3;
  requests[0].ignore_end = true;
  requests[1].embedding = Pooling::kMean;
  requests[1].max_new_tokens = 0;
  requests[2].cache_salt = 7;
  requests[2].stops = {"e"};
  requests[3].cache_salt = 8;
  requests[3].stop_ids = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 200, 201, 202, 203, 204, 205, 206, 207, 208, 209};
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<std::string> told = Told(**there, requests[i]);
    EXPECT_EQ(told, Told(*here, requests[i])) << i;
    EXPECT_GE(told.size(), 2u) << i;
  }
  // Each call has its line.
  const auto line = ring.serve().WaitFor("Generate OK ");
  ASSERT_TRUE(line.has_value()) << ring.serve().output();
  EXPECT_THAT(ring.serve().output(),
              ::testing::ContainsRegex("grpc g[0-9a-f]{8}-[0-9a-f]{8} Generate OK [0-9.]+ ms tokens [0-9]+\\+12"));
}

// A coordinator that is stopped or gone holds up nobody who has had enough.
TEST_F(LocalTest, CallsToACoordinatorThatDoesNotAnswerEndWhenTheUserStopsThem) {
  Ring ring(GYRE_DEMO_MODEL);
  ASSERT_TRUE(ring.Serves(1));
  std::atomic<bool> stopped{false};
  ClusterAddress cluster(ring.address());
  cluster.reconnect = seconds(60);
  cluster.interrupted = [&] { return stopped.load(); };
  const auto there = OpenRemote(cluster);
  ASSERT_TRUE(there.ok()) << there.status();
  const auto stops = [&](const std::function<Status()>& call, const std::string& why) {
    stopped = false;
    auto called = std::async(std::launch::async, call);
    EXPECT_EQ(called.wait_for(milliseconds(300)), std::future_status::timeout);
    const Deadline at = Clock::now();
    stopped = true;
    const Status status = called.get();
    EXPECT_LT(Clock::now() - at, seconds(10));
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
    EXPECT_EQ(Message(status), "stopped while " + ring.address() + " had not answered" + why);
  };
  const auto encode = [&] { return (*there)->Encode("a", {}).status(); };
  EXPECT_TRUE(encode().ok());
  ring.serve().Kill(SIGSTOP);
  stops(encode, "");
  stops([&] { return (*there)->Prompt({{{"role", "user"}, {"content", "a"}}}, nullptr, "").status(); }, "");
  stops([&] { return (*there)->Resize("0").status(); }, "; the change may still be made");
  ring.serve().Kill(SIGKILL);
  stops(encode, "");
}

}  // namespace
}  // namespace gyre
