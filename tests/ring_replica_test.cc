// gyre serve --replicate-kv with real processes: what a killed worker had comes from its replica, and little is
// computed again. Every text stays the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "runtime/runtime.h"
#include "tests/testing/process_ring.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/tiny_hybrid.h"

namespace gyre::replica_test {
namespace {

using std::chrono::milliseconds;
using testing::Ask;
using testing::Clients;
using testing::Lost;
using testing::OneProcess;
using testing::Replicated;
using testing::Ring;
using testing::RunOne;
using testing::RunOver;

constexpr int kVocab = 90;

testing::TinyModelFile ModelOf(const std::string& name) {
  if (name == "qwen35") return testing::TinyModelFile(testing::BuildTinyHybrid(name));
  return testing::TinyModelFile(testing::TinyOptions{.arch = name, .layers = 6});
}

class RingReplicaTest : public ::testing::TestWithParam<const char*> {};

// A worker is killed while nothing runs; each of the three stages once. The prompt that was computed before is then in
// the cache, though a third of its layers lay on a process that is gone.
TEST_P(RingReplicaTest, APromptOutlivesEachOfTheStages) {
  const testing::TinyModelFile model = ModelOf(GetParam());
  auto alone = Runtime::Open(OneProcess(model.path()));
  ASSERT_TRUE(alone.ok()) << alone.status();
  Ring ring(model.path(), {"--no-local", "--min-workers", "3", "--replicate-kv"});
  std::vector<std::pair<std::string, size_t>> workers;  // by name: index
  for (size_t i = 0; i < 3; ++i) {
    workers.emplace_back(fmt::format("w{}", i), i);
    ring.AddWorker(workers.back().first);
  }
  ASSERT_TRUE(ring.Serves(3));
  for (int kill = 0; kill < 3; ++kill) {
    Request request = Ask(2 * kill, kVocab, 30);
    while (request.prompt.size() < 100) request.prompt.push_back(static_cast<TokenId>(request.prompt.size() % 80));
    const std::vector<TokenId> expected = RunOne((*alone)->engine(), request).tokens;
    EXPECT_EQ(RunOver(ring.at(), request).tokens, expected);
    ASSERT_TRUE(Replicated(ring, 3));
    const auto status = FetchStatus(ring.address());
    ASSERT_TRUE(status.ok());
    const std::string victim = status->members(kill).name();  // in ring order
    const auto found =
        std::find_if(workers.begin(), workers.end(), [&victim](const auto& w) { return w.first == victim; });
    ring.worker(found->second).Kill(SIGKILL);
    ASSERT_TRUE(Lost(ring, static_cast<uint64_t>(kill) + 1));
    ASSERT_TRUE(ring.Serves(2));
    const testing::Answer again = RunOver(ring.at(), request);
    EXPECT_EQ(again.tokens, expected) << "without stage " << kill;
    EXPECT_GE(again.cached + 8, request.prompt.size()) << "without stage " << kill << ring.serve().output();
    found->second = static_cast<size_t>(3 + kill);
    found->first = fmt::format("w{}", found->second);
    ring.AddWorker(found->first);
    ASSERT_TRUE(ring.AsksFor("0-1,2-3,4-5"));
    ASSERT_TRUE(ring.Serves(3));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RingReplicaTest, ::testing::Values("llama", "gemma3", "qwen35"),
                         [](const auto& info) { return std::string(info.param); });

// Rows that are computed again when workers are killed under load, one after the other.
uint64_t ReplayedUnderLoad(const std::string& model, bool replicas, int kills) {
  constexpr uint32_t kTokens = 200;
  const auto expected = testing::TextsOfOneProcess(model, kVocab, kTokens);
  std::vector<std::string> flags{"--no-local", "--min-workers", "3"};
  if (replicas) flags.push_back("--replicate-kv");
  Ring ring(model, flags);
  std::vector<size_t> living{0, 1, 2};
  for (const char* name : {"w0", "w1", "w2"}) ring.AddWorker(name);
  EXPECT_TRUE(ring.Serves(3));
  Clients clients(ring.address(), kVocab, kTokens);
  std::mt19937 random(11);
  for (int kill = 0; kill < kills; ++kill) {
    clients.WaitForTokens(400);
    const size_t victim = random() % living.size();
    ring.worker(living[victim]).Kill(SIGKILL);
    living.erase(living.begin() + static_cast<std::ptrdiff_t>(victim));
    EXPECT_TRUE(Lost(ring, static_cast<uint64_t>(kill) + 1)) << ring.serve().output();
    EXPECT_TRUE(ring.Serves(2)) << ring.serve().output();
    living.push_back(static_cast<size_t>(3 + kill));
    ring.AddWorker(fmt::format("w{}", living.back()));
    EXPECT_TRUE(ring.AsksFor("0-1,2-3,4-5"));
  }
  clients.WaitForTokens(50);
  for (const auto& text : clients.Stop()) {
    EXPECT_TRUE(text.status.ok()) << text.status;
    EXPECT_EQ(text.tokens, expected[static_cast<size_t>(text.seed)]) << "text " << text.seed;
  }
  const auto status = FetchStatus(ring.address());
  EXPECT_TRUE(status.ok());
  return status.ok() ? status->rows_replayed() : 0;
}

// The model is wide enough for its steps to take as long as the pause between two rounds of a replica.
TEST(RingReplicaLoadTest, FewRowsAreReplayedAndTextsStayTheSame) {
  const testing::TinyModelFile model{testing::TinyOptions{.dim = 256, .layers = 6, .heads = 8, .kv_heads = 4}};
  const int kills = testing::kSanitized ? 1 : 3;
  const uint64_t without = ReplayedUnderLoad(model.path(), false, kills);
  const uint64_t with = ReplayedUnderLoad(model.path(), true, kills);
  EXPECT_LT(2 * with, without);
  RecordProperty("replayed", std::to_string(with));
  RecordProperty("replayed_without", std::to_string(without));
}

}  // namespace
}  // namespace gyre::replica_test
