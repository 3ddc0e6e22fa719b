// Real processes that are killed, stopped and cut off while texts are written: every text ends as if nothing had been.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "runtime/runtime.h"
#include "tests/testing/cut_connection.h"
#include "tests/testing/process_ring.h"
#include "tests/testing/ring_runner.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/shared_data.h"
#include "tests/testing/tiny_mtp.h"

namespace gyre::survive_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Ask;
using testing::Clients;
using testing::CutConnections;
using ::testing::HasSubstr;
using testing::ProcessesTest;
using testing::Ring;

constexpr int kVocab = 96;

void ExpectTexts(const std::vector<Clients::Text>& texts, const std::vector<std::vector<TokenId>>& expected) {
  EXPECT_GE(texts.size(), 8u);
  for (const auto& text : texts) {
    EXPECT_TRUE(text.status.ok()) << text.status;
    EXPECT_EQ(text.finished, 1);
    EXPECT_EQ(text.tokens.size(), expected[static_cast<size_t>(text.seed)].size());
    EXPECT_EQ(text.tokens, expected[static_cast<size_t>(text.seed)]) << "text " << text.seed;
  }
}

// The flags of a worker that holds most of the model's weights, but not all; empty: the test has failed.
std::vector<std::string> TooLittleMemory(const std::string& model) {
  Ring whole(model, {"--no-local"});
  whole.AddWorker("w");
  if (!whole.Serves(1)) return {};
  const uint64_t weights = FetchStatus(whole.address())->members(0).weight_bytes();
  return {"--memory", fmt::format("{}k", weights * 9 / 10 / 1024)};
}

uint16_t PortOf(const std::string& address) {
  return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

// Workers of three are killed, one after the other; another takes the place of each.
void KillUnderLoad(const std::string& model, int vocab, uint32_t tokens, int kills, const char* speculation = "auto") {
  const auto expected = testing::TextsOfOneProcess(model, vocab, tokens);
  Ring ring(model, {"--no-local", "--min-workers", "3", "--speculation", speculation});
  std::vector<size_t> living{0, 1, 2};
  for (const char* name : {"w0", "w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(3));
  Clients clients(ring.address(), vocab, tokens);
  std::mt19937 random(7);
  for (int kill = 0; kill < kills; ++kill) {
    clients.WaitForTokens(50 + random() % 100);
    const size_t victim = random() % living.size();
    ring.worker(living[victim]).Kill(SIGKILL);
    living.erase(living.begin() + static_cast<std::ptrdiff_t>(victim));
    ASSERT_TRUE(Lost(ring, static_cast<uint64_t>(kill) + 1)) << ring.serve().output();
    ASSERT_TRUE(ring.Serves(2)) << ring.serve().output();
    clients.WaitForTokens(30);
    living.push_back(static_cast<size_t>(3 + kill));
    const std::string name = fmt::format("w{}", living.back());
    ring.AddWorker(name);
    for (int i = 0; i < 2000 && ring.serve().output().find(name + " joined") == std::string::npos; ++i)
      std::this_thread::sleep_for(milliseconds(5));
    const auto resized = AskResize(ring.address(), "1 2");
    ASSERT_TRUE(resized.ok()) << resized.status();
  }
  clients.WaitForTokens(50);
  ExpectTexts(clients.Stop(), expected);
  const auto status = FetchStatus(ring.address());
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->failed(), 0u);
  EXPECT_EQ(status->lost(), static_cast<uint64_t>(kills));
  EXPECT_GT(status->rows_replayed(), 0u);
}

class SurvivingProcessesTest : public ProcessesTest {};

TEST_F(SurvivingProcessesTest, AKilledWorkerCostsNoRequest) {
  KillUnderLoad(model_.path(), kVocab, 200, testing::kSanitized ? 2 : 4);
}

// The layer for drafts goes with the head from worker to worker, which fetch it.
TEST(RingSurviveTest, AKilledWorkerMayHaveTheLayerForDrafts) {
  const testing::TinyModelFile file(testing::BuildTinyMtp({.layers = 6, .loud = 0.2f}));
  KillUnderLoad(file.path(), kVocab, 200, 2, "mtp");
}

TEST(RingSurviveTest, StoriesGoOnWithoutAKilledWorker) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: the trained model is not there";
  KillUnderLoad(testing::SharedData("models/stories260K.gguf"), 512, 200, testing::kSanitized ? 1 : 3);
}

TEST_F(SurvivingProcessesTest, AStoppedWorkerIsFoundByItsSilenceAndComesBackAsAnother) {
  const auto expected = testing::TextsOfOneProcess(model_.path(), kVocab, 300);
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  Clients clients(ring.address(), kVocab, 300);
  clients.WaitForTokens(100);
  ring.worker(1).Kill(SIGSTOP);
  const auto stopped = std::chrono::steady_clock::now();
  ASSERT_TRUE(Lost(ring, 1));
  EXPECT_LT(std::chrono::steady_clock::now() - stopped, milliseconds(testing::kSanitized ? 4000 : 2300));
  EXPECT_THAT(ring.serve().output(), HasSubstr("nothing was heard of w2"));
  ASSERT_TRUE(ring.Serves(1));
  clients.WaitForTokens(100);
  const char* const longer = std::getenv("GYRE_STOP_SECONDS");
  std::this_thread::sleep_until(stopped + seconds(longer != nullptr ? std::stoi(longer) : 5));
  ring.worker(1).Kill(SIGCONT);
  for (int i = 0; i < 2000; ++i) {
    const auto status = FetchStatus(ring.address());
    if (status.ok() && status->members_size() == 2) break;
    std::this_thread::sleep_for(milliseconds(5));
  }
  const auto resized = AskResize(ring.address(), "w2=0-2,w1=3-5");
  ASSERT_TRUE(resized.ok()) << resized.status() << ring.worker(1).output();
  clients.WaitForTokens(100);
  ExpectTexts(clients.Stop(), expected);
  EXPECT_EQ(FetchStatus(ring.address())->failed(), 0u);
}

// The link from the first worker to the second is reset, and the one from the coordinator to the first.
TEST_F(SurvivingProcessesTest, ACutRingLinkIsRepaired) {
  const auto expected = testing::TextsOfOneProcess(model_.path(), kVocab, 200);
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2", "--transport", "tcp"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  Clients clients(ring.address(), kVocab, 200);
  for (uint64_t cut = 1; cut <= 2; ++cut) {
    clients.WaitForTokens(100);
    const auto before = FetchStatus(ring.address());
    ASSERT_TRUE(before.ok());
    const uint16_t port = PortOf(before->members(cut == 1 ? 1 : 0).address());
    // The worker that joined first has the first layers.
    const size_t first = before->members(0).name() == "w1" ? 0 : 1;
    const pid_t from = cut == 1 ? ring.worker(first).pid() : ring.serve().pid();
    const int links = CutConnections(from, [port](testing::TcpEnds ends) { return ends.remote == port; });
    if (links < 0) GTEST_SKIP() << "this system does not allow to cut another process's connections";
    ASSERT_GE(links, 1);
    for (int i = 0; i < 2000 && FetchStatus(ring.address())->plans() < 1 + cut; ++i)
      std::this_thread::sleep_for(milliseconds(5));
    ASSERT_TRUE(ring.Serves(2));
  }
  clients.WaitForTokens(100);
  ExpectTexts(clients.Stop(), expected);
  const auto status = FetchStatus(ring.address());
  EXPECT_EQ(status->failed(), 0u);
  EXPECT_EQ(status->lost(), 0u) << ring.serve().output();
  EXPECT_EQ(status->plans(), 3u);
}

// The ring goes on while a worker finds its coordinator again.
TEST_F(SurvivingProcessesTest, ACutControlConnectionCostsNothing) {
  const auto expected = testing::TextsOfOneProcess(model_.path(), kVocab, 200);
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  Clients clients(ring.address(), kVocab, 200);
  const uint16_t port = PortOf(ring.address());
  for (int cut = 0; cut < 3; ++cut) {
    clients.WaitForTokens(100);
    const auto from = static_cast<size_t>(cut % 2);
    const int links =
        CutConnections(ring.worker(from).pid(), [port](testing::TcpEnds ends) { return ends.remote == port; });
    if (links < 0) GTEST_SKIP() << "this system does not allow to cut another process's connections";
    ASSERT_EQ(links, 1);
    const std::string back = fmt::format("w{} is back", from + 1);
    for (int i = 0; i < 600 && ring.serve().output().find(back) == std::string::npos; ++i)
      std::this_thread::sleep_for(milliseconds(5));
    EXPECT_THAT(ring.serve().output(), HasSubstr(back));
    // The coordinator's commands reach the worker over the new connection.
    const auto resized = AskResize(ring.address(), cut % 2 == 0 ? "2" : "4");
    ASSERT_TRUE(resized.ok()) << resized.status() << ring.worker(from).output();
  }
  clients.WaitForTokens(100);
  ExpectTexts(clients.Stop(), expected);
  const auto status = FetchStatus(ring.address());
  EXPECT_EQ(status->failed(), 0u);
  EXPECT_EQ(status->lost(), 0u) << ring.serve().output();
  EXPECT_EQ(status->rows_replayed(), 0u);
}

TEST_F(SurvivingProcessesTest, SigtermDrainsAWorkerAndNothingIsComputedAgain) {
  const auto expected = testing::TextsOfOneProcess(model_.path(), kVocab, 200);
  Ring ring(model_.path(), {"--no-local", "--min-workers", "3"});
  for (const char* name : {"w1", "w2", "w3"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(3));
  Clients clients(ring.address(), kVocab, 200);
  clients.WaitForTokens(100);
  ring.worker(1).Kill(SIGTERM);
  EXPECT_EQ(ring.worker(1).Wait(seconds(20)), 0) << ring.worker(1).output();
  EXPECT_THAT(ring.worker(1).output(), HasSubstr("dismissed"));
  ASSERT_TRUE(ring.Serves(2));
  clients.WaitForTokens(100);
  // The same from afar.
  const auto removed = AskRemove(ring.address(), "w3");
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(ring.worker(2).Wait(seconds(20)), 0) << ring.worker(2).output();
  ASSERT_TRUE(ring.Serves(1));
  clients.WaitForTokens(100);
  ExpectTexts(clients.Stop(), expected);
  const auto status = FetchStatus(ring.address());
  EXPECT_EQ(status->failed(), 0u);
  EXPECT_EQ(status->lost(), 0u) << ring.serve().output();
  EXPECT_EQ(status->rows_replayed(), 0u);
  // The last one has nobody to give its layers to, and ends all the same.
  ring.worker(0).Kill(SIGTERM);
  EXPECT_EQ(ring.worker(0).Wait(seconds(20)), 0) << ring.worker(0).output();
  EXPECT_THAT(ring.serve().output(), HasSubstr("w1 leaves with its layers"));
}

// "Start the new machine, drain the old one", with members that hold no more than their half, and the KV cache gets
// another size, while clients ask.
TEST(RingSurviveTest, AnIdleWorkerTakesTheLayersOfTheOneThatIsDrained) {
  const testing::TinyModelFile model{testing::TinyOptions{.dim = 192, .layers = 6}};
  const auto expected = testing::TextsOfOneProcess(model.path(), kVocab, 60);
  const std::vector<std::string> memory = TooLittleMemory(model.path());
  ASSERT_FALSE(memory.empty());
  Ring ring(model.path(), {"--no-local", "--min-workers", "2"});
  for (const char* name : {"old", "b"}) ring.AddWorker(name, memory);
  ASSERT_TRUE(ring.Serves(2));
  Clients clients(ring.address(), kVocab, 60);
  clients.WaitForTokens(50);
  testing::Process& fresh = ring.AddWorker("new", memory);
  ASSERT_TRUE(fresh.WaitFor("joined ").has_value()) << fresh.output();
  const auto drained = AskDrain(ring.address(), "old");
  ASSERT_TRUE(drained.ok()) << drained.status();
  EXPECT_THAT(drained->named_ranges(), HasSubstr("new="));
  EXPECT_THAT(drained->named_ranges(), ::testing::Not(HasSubstr("old=")));
  clients.WaitForTokens(50);
  // Its process is not needed any more; then likewise at a SIGTERM.
  ASSERT_TRUE(AskRemove(ring.address(), "old").ok());
  EXPECT_EQ(ring.worker(0).Wait(seconds(20)), 0);
  testing::Process& next = ring.AddWorker("next", memory);
  ASSERT_TRUE(next.WaitFor("joined ").has_value()) << next.output();
  ring.worker(1).Kill(SIGTERM);
  EXPECT_EQ(ring.worker(1).Wait(seconds(20)), 0) << ring.worker(1).output();
  EXPECT_THAT(ring.worker(1).output(), HasSubstr("dismissed"));
  ASSERT_TRUE(ring.Serves(2));
  clients.WaitForTokens(50);
  const auto resized = AskKvTokens(ring.address(), 400);
  ASSERT_TRUE(resized.ok()) << resized.status();
  EXPECT_EQ(resized->kv_tokens(), 400u);
  clients.WaitForTokens(50);
  ExpectTexts(clients.Stop(), expected);
  const auto status = FetchStatus(ring.address());
  EXPECT_EQ(status->failed(), 0u);
  EXPECT_EQ(status->lost(), 0u) << ring.serve().output();
  EXPECT_EQ(status->memory(0).units(), 100u);
  std::string kinds;
  for (const auto& e : status->events()) kinds += e.kind() + " ";
  EXPECT_THAT(kinds, HasSubstr("drained plan left joined plan left")) << kinds;
}

// One of two workers is lost, and the other has no memory for its layers.
TEST(RingSurviveTest, RequestsWaitForAWorkerWhereTheSurvivorsAreTooSmall) {
  // Its weights are large beside the cache.
  const testing::TinyModelFile model{testing::TinyOptions{.dim = 192, .layers = 6}};
  const auto expected = testing::TextsOfOneProcess(model.path(), kVocab, 100);
  const std::vector<std::string> memory = TooLittleMemory(model.path());
  ASSERT_FALSE(memory.empty());
  Ring ring(model.path(), {"--no-local", "--min-workers", "2"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name, memory);
  ASSERT_TRUE(ring.Serves(2));
  Clients clients(ring.address(), kVocab, 100);
  clients.WaitForTokens(100);
  ring.worker(1).Kill(SIGKILL);
  ASSERT_TRUE(Lost(ring, 1));
  std::string state;
  for (int i = 0; i < 1000 && state.find("requests wait for a worker") == std::string::npos; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    state = FetchStatus(ring.address())->state();
  }
  EXPECT_THAT(state, HasSubstr("worker w2 with layers "));
  EXPECT_THAT(state, HasSubstr("requests wait for a worker"));
  EXPECT_THAT(state, HasSubstr("w1 is left out: w1 needs"));
  // A client that asks now learns this, and the deadline ends the wait.
  auto target = OpenRemote(ring.address());
  ASSERT_TRUE(target.ok()) << target.status();
  std::vector<std::string> told;
  const auto give_up = std::chrono::steady_clock::now() + milliseconds(700);
  EXPECT_TRUE((*target)
                  ->Run(
                      Ask(1, kVocab, 5),
                      [&](const Event& event) {
                        if (const auto* w = std::get_if<Waiting>(&event)) told.push_back(Message(w->why));
                      },
                      [&] { return std::chrono::steady_clock::now() > give_up; })
                  .ok());
  ASSERT_FALSE(told.empty());
  EXPECT_THAT(told[0], HasSubstr("requests wait for a worker"));
  ring.AddWorker("w3", memory);
  ASSERT_TRUE(ring.Serves(2));
  clients.WaitForTokens(100);
  ExpectTexts(clients.Stop(), expected);
  EXPECT_EQ(FetchStatus(ring.address())->failed(), 0u);
}

}  // namespace
}  // namespace gyre::survive_test
