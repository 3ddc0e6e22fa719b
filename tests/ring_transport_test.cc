// Real processes on one host and what carries their links: as the cluster and the workers prefer, and shown as it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "runtime/runtime.h"
#include "tests/testing/process_ring.h"
#include "tests/testing/ring_runner.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Ask;
using testing::Clients;
using ::testing::HasSubstr;
using testing::Process;
using testing::Ring;

constexpr uint32_t kTextTokens = 120;

class RingTransportTest : public testing::ProcessesTest {
 protected:
  // The carriers of the coordinator's and each member's outgoing links, in the plan's order; once all are known.
  static std::string Carriers(const Ring& ring) {
    std::string out;
    for (int i = 0; i < 1000; ++i) {
      const auto status = FetchStatus(ring.address());
      if (status.ok()) {
        out = status->first_hop_transport();
        for (const auto& m : status->members()) {
          if (m.has_layers()) out += " " + m.transport();
        }
        if (out.find("  ") == std::string::npos && out.front() != ' ' && out.back() != ' ') return out;
      }
      std::this_thread::sleep_for(milliseconds(10));
    }
    return out;
  }
  std::vector<std::vector<TokenId>> Expected() const {
    return testing::TextsOfOneProcess(model_.path(), 96, kTextTokens);
  }
};

// Texts over the ring while layers move between its processes, over whatever carries links and pages.
void SameTexts(Ring& ring, const std::vector<std::vector<TokenId>>& expected) {
  Clients clients(ring.address(), 96, kTextTokens);
  for (const char* ranges : {"w2=0-1,w1=2-5", "w1=0-2,w2=3-5", "w1=0-5", "w1=0-3,w2=4-5"}) {
    for (const uint64_t until = clients.tokens() + 200; clients.tokens() < until && !clients.Ended(1);)
      std::this_thread::sleep_for(milliseconds(1));
    const auto change = AskResize(ring.address(), ranges);
    ASSERT_TRUE(change.ok()) << change.status() << ring.serve().output();
  }
  const auto texts = clients.Stop();
  EXPECT_GE(texts.size(), 8u);
  for (const auto& text : texts) {
    EXPECT_TRUE(text.status.ok()) << text.status;
    EXPECT_EQ(text.tokens, expected[static_cast<size_t>(text.seed)]) << "text " << text.seed;
  }
}

TEST_F(RingTransportTest, ProcessesOfOneHostShareMemoryByThemselves) {
  const auto expected = Expected();
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  EXPECT_EQ(Carriers(ring), "shm shm shm");
  SameTexts(ring, expected);
  EXPECT_EQ(Carriers(ring), "shm shm shm");
  Process layers({GYRE_BINARY, "layers", "--cluster", ring.address()});
  EXPECT_EQ(layers.Wait(seconds(20)), 0);
  EXPECT_THAT(layers.output(), HasSubstr(" shm  127.0.0.1"));
  EXPECT_THAT(layers.output(), HasSubstr("link from the coordinator: shm (--transport auto)"));
  // An address for people has nothing that only processes understand.
  EXPECT_THAT(FetchStatus(ring.address())->members(0).address(), ::testing::MatchesRegex("127.0.0.1:[0-9]+"));
  ring.worker(0).Kill(SIGKILL);
  ring.worker(0).Wait(seconds(5));
  for (int i = 0; i < 2000 && FetchStatus(ring.address())->state() == "serving"; ++i)
    std::this_thread::sleep_for(milliseconds(5));
  ring.AddWorker("w3");
  EXPECT_TRUE(ring.AsksFor("w2=0-2,w3=3-5"));
  EXPECT_TRUE(ring.Serves(2));
  auto target = OpenRemote(ring.address());
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_TRUE((*target)->Run(Ask(1, 96, 5), [](const Event&) {}).ok());
}

TEST_F(RingTransportTest, WithTcpAllGoesOverTcp) {
  const auto expected = Expected();
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2", "--transport", "tcp"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  EXPECT_EQ(Carriers(ring), "tcp tcp tcp");
  SameTexts(ring, expected);
}

TEST_F(RingTransportTest, WithUdpAllGoesOverUdp) {
  const auto expected = Expected();
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2", "--transport", "udp"});
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  EXPECT_EQ(Carriers(ring), "udp udp udp");
  SameTexts(ring, expected);
  EXPECT_EQ(Carriers(ring), "udp udp udp");
  Process layers({GYRE_BINARY, "layers", "--cluster", ring.address()});
  EXPECT_EQ(layers.Wait(seconds(20)), 0);
  EXPECT_THAT(layers.output(), HasSubstr(" udp  127.0.0.1"));
  EXPECT_THAT(layers.output(), HasSubstr("link from the coordinator: udp (--transport udp)"));
  // A worker that wants something else is told so.
  Process& other = ring.AddWorker("other", {"--transport", "shm"});
  EXPECT_EQ(other.Wait(seconds(20)), 1);
  EXPECT_THAT(other.output(),
              HasSubstr("other: the cluster's links go over udp, this worker's over shm (--transport)"));
}

TEST_F(RingTransportTest, AWorkerMayWishUdpForItsOwnHops) {
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2"});
  ring.AddWorker("w1", {"--transport", "udp"});
  ring.AddWorker("w2");
  ASSERT_TRUE(ring.Serves(2));
  const std::string carriers = Carriers(ring);
  EXPECT_THAT(carriers, HasSubstr("udp"));
  auto target = OpenRemote(ring.address());
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_TRUE((*target)->Run(Ask(1, 96, 20), [](const Event&) {}).ok());
}

TEST_F(RingTransportTest, AWorkersOwnWishHoldsForItsHops) {
  Ring ring(model_.path(), {"--no-local", "--min-workers", "3"});
  ring.AddWorker("w1");
  ASSERT_TRUE(ring.worker(0).WaitFor("joined "));
  ring.AddWorker("w2", {"--transport", "tcp"});
  ASSERT_TRUE(ring.worker(1).WaitFor("joined "));
  ring.AddWorker("w3", {"--transport", "shm"});
  ASSERT_TRUE(ring.worker(2).WaitFor("joined "));
  // w2 and w3 want different things of the hop between them: the plan says so, and others are tried.
  std::string state;
  for (int i = 0; i < 2000 && state.find("w3") == std::string::npos; ++i) {
    const auto status = FetchStatus(ring.address());
    if (!status.ok()) continue;
    state = status->state();
    for (const auto& record : status->history()) state += "; " + record.result();
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_THAT(state, HasSubstr("shm")) << ring.serve().output();
  EXPECT_THAT(state, HasSubstr("--transport")) << ring.serve().output();
}

TEST_F(RingTransportTest, AWorkerThatContradictsTheClusterIsRefused) {
  Ring ring(model_.path(), {"--no-local", "--min-workers", "2", "--transport", "shm"});
  Process& other = ring.AddWorker("other", {"--transport", "tcp"});
  EXPECT_EQ(other.Wait(seconds(20)), 1);
  EXPECT_THAT(other.output(),
              HasSubstr("other: the cluster's links go over shm, this worker's over tcp (--transport)"));
  for (const char* name : {"w1", "w2"}) ring.AddWorker(name);
  ASSERT_TRUE(ring.Serves(2));
  EXPECT_EQ(Carriers(ring), "shm shm shm");
}

}  // namespace
}  // namespace gyre
