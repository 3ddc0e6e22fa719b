// Faults that no kill makes: a request that ends whoever computes it, and a thread that stands still in a living
// process.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <thread>

#include "tests/testing/process_ring.h"
#include "tests/testing/sanitized.h"

namespace gyre::fault_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Ask;
using testing::Clients;
using ::testing::HasSubstr;
using testing::Ring;

constexpr int kVocab = 96;
constexpr TokenId kPoison = 95;

class RingFaultTest : public testing::ProcessesTest {
 protected:
  // Texts of Ask have no kPoison in their prompts: they are drawn again without it.
  static Request Harmless(int seed, uint32_t tokens) {
    Request r = Ask(seed, kVocab, tokens);
    for (TokenId& t : r.prompt) t = t == kPoison ? TokenId{5} : t;
    r.sampling.logit_bias = {{kPoison, -std::numeric_limits<float>::infinity()}};
    return r;
  }
  std::vector<std::vector<TokenId>> Undisturbed(int texts, uint32_t tokens) {
    auto alone = Runtime::Open(testing::OneProcess(model_.path()));
    EXPECT_TRUE(alone.ok()) << alone.status();
    std::vector<std::vector<TokenId>> out;
    for (int i = 0; alone.ok() && i < texts; ++i)
      out.push_back(testing::RunOne((*alone)->engine(), Harmless(i, tokens)).tokens);
    return out;
  }
};

TEST_F(RingFaultTest, ARequestThatKillsWorkersFailsAloneAndTheOthersGoOn) {
  constexpr int kTexts = 6;
  constexpr uint32_t kTokens = 600;
  const auto expected = Undisturbed(kTexts, kTokens);
  Ring ring(model_.path(), {"--no-local", "--min-workers", "5"});
  std::vector<testing::Process*> workers;
  for (int i = 0; i < 5; ++i) {
    workers.push_back(
        &ring.AddProgram({GYRE_FAULTY_WORKER, ring.address(), fmt::format("w{}", i), std::to_string(kPoison)}));
  }
  ASSERT_TRUE(ring.Serves(5));
  std::vector<std::thread> clients;
  std::vector<std::vector<TokenId>> texts(kTexts);
  std::vector<Status> ends(kTexts);
  std::atomic<uint64_t> tokens{0};
  for (int i = 0; i < kTexts; ++i) {
    clients.emplace_back([&, i] {
      auto target = OpenRemote(ring.at());
      if (!target.ok()) return;
      ends[static_cast<size_t>(i)] = (*target)->Run(Harmless(i, kTokens), [&, i](const Event& event) {
        if (const auto* t = std::get_if<TokenEvent>(&event)) {
          texts[static_cast<size_t>(i)].push_back(t->token);
          ++tokens;
        }
      });
    });
  }
  while (tokens < 100) std::this_thread::sleep_for(milliseconds(1));
  auto target = OpenRemote(ring.at());
  ASSERT_TRUE(target.ok()) << target.status();
  Request poison = Ask(1, kVocab, 50);
  poison.prompt = {4, 5, kPoison, 6};
  const Status refused = (*target)->Run(poison, [](const Event&) {});
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("taken to be the cause"));
  // The same question asked again kills no worker.
  EXPECT_THAT(Message((*target)->Run(poison, [](const Event&) {})), HasSubstr("it is refused for"));
  for (auto& t : clients) t.join();
  for (size_t i = 0; i < kTexts; ++i) {
    EXPECT_TRUE(ends[i].ok()) << ends[i];
    EXPECT_EQ(texts[i], expected[i]) << "text " << i;
  }
  const auto status = FetchStatus(ring.at());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->failed(), 1u);
  EXPECT_EQ(status->poison_requests(), 1u);
  EXPECT_EQ(status->rings_lost(), 3u);
  int dead = 0;
  for (testing::Process* w : workers) dead += w->Wait(milliseconds(0)) == 9;
  EXPECT_EQ(dead, 3) << "two to suspect it, one to show it";
}

// The thread of the process with this name; -1: there is none.
pid_t ThreadOf(pid_t process, const std::string& name) {
  DIR* tasks = opendir(fmt::format("/proc/{}/task", process).c_str());
  pid_t found = -1;
  while (const dirent* task = tasks == nullptr ? nullptr : readdir(tasks)) {
    std::ifstream comm(fmt::format("/proc/{}/task/{}/comm", process, task->d_name));
    std::string text;
    if (std::getline(comm, text) && text == name) found = std::atoi(task->d_name);
  }
  if (tasks != nullptr) closedir(tasks);
  return found;
}

// Only the stage's thread of a worker stands still: its heartbeats go on.
TEST_F(RingFaultTest, AStuckStageIsNoticedThoughItsProcessLives) {
  if (std::getenv("GYRE_SLOW_TESTS") == nullptr) GTEST_SKIP() << "it takes twenty seconds (GYRE_SLOW_TESTS)";
  const auto expected = testing::TextsOfOneProcess(model_.path(), kVocab, 300);
  Ring ring(model_.path(), {"--no-local", "--min-workers", "3"});
  for (const char* name : {"w1", "w2", "w3"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(3));
  Clients clients(ring.address(), kVocab, 300);
  clients.WaitForTokens(300);
  const pid_t thread = ThreadOf(ring.worker(1).pid(), "stage w2");
  ASSERT_GT(thread, 0);
  if (ptrace(PTRACE_SEIZE, thread, 0, 0) != 0) GTEST_SKIP() << "this system does not allow to stop another's thread";
  ASSERT_EQ(ptrace(PTRACE_INTERRUPT, thread, 0, 0), 0);
  int state = 0;
  ASSERT_EQ(waitpid(thread, &state, __WALL), thread);
  const auto stopped = std::chrono::steady_clock::now();
  const uint64_t before = clients.tokens();
  while (clients.tokens() < before + 200 && std::chrono::steady_clock::now() - stopped < seconds(60))
    std::this_thread::sleep_for(milliseconds(20));
  EXPECT_GE(clients.tokens(), before + 200) << ring.serve().output();
  fmt::print("{:.1f} s\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - stopped).count());
  ptrace(PTRACE_DETACH, thread, 0, 0);
  const auto texts = clients.Stop();
  for (const auto& text : texts) {
    EXPECT_TRUE(text.status.ok()) << text.status;
    EXPECT_EQ(text.tokens, expected[static_cast<size_t>(text.seed)]) << "text " << text.seed;
  }
  EXPECT_EQ(FetchStatus(ring.at())->failed(), 0u);
}

}  // namespace
}  // namespace gyre::fault_test
