// Unauthenticated peers who knock at every port of a secured ring while it serves.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/host_port.h"
#include "base/ring_address.h"
#include "tests/testing/process_ring.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/unauthenticated_peers.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using namespace testing;
using testing::Ring;

// Processor seconds of a process, of the threads whose names are given or of all.
double CpuSeconds(pid_t pid, const std::vector<std::string>& threads) {
  double out = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), ignored)) {
    std::ifstream in(entry.path() / "stat");
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    const size_t open = text.find('('), close = text.rfind(')');
    if (open == std::string::npos || close == std::string::npos) continue;
    const std::string name = text.substr(open + 1, close - open - 1);
    if (!threads.empty() && std::find(threads.begin(), threads.end(), name) == threads.end()) continue;
    std::istringstream fields(text.substr(close + 2));
    std::string skipped;
    for (int i = 0; i < 11; ++i) fields >> skipped;
    double user = 0, system = 0;
    fields >> user >> system;
    out += (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  return out;
}

uint64_t ResidentKib(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::stoull(line.substr(6));
  }
  return 0;
}

// The threads that unauthenticated peers reach in a process: where they dial, where they join, what reads the UDP port
// and HTTP.
const std::vector<std::string> kReached{"ring port", "listener", "join", "udp", "http"};

struct Usage {
  std::vector<double> reached;              // processor seconds of each process so far
  std::vector<uint64_t> memory;             // KiB
  double own = CpuSeconds(::getpid(), {});  // of this process
  std::chrono::steady_clock::time_point at = std::chrono::steady_clock::now();
  explicit Usage(const std::vector<pid_t>& processes) {
    for (const pid_t pid : processes) {
      reached.push_back(CpuSeconds(pid, kReached));
      memory.push_back(ResidentKib(pid));
    }
  }
  // The share of a core that those threads of a process have taken since then.
  double Since(const Usage& before, size_t process) const {
    return (reached[process] - before.reached[process]) / std::chrono::duration<double>(at - before.at).count();
  }
};

class RingStorm : public ::testing::TestWithParam<const char*> {};

TEST_P(RingStorm, UnauthenticatedPeersAtEveryPortCostLittleAndFailNothing) {
  const char* const asked = std::getenv("GYRE_STORM_SECONDS");
  const auto length = seconds(asked != nullptr ? std::atoi(asked) : kSanitized ? 2 : 3);
  const bool over_udp = GetParam() == std::string("udp");
  TinyModelFile model(TinyOptions{.layers = 6});
  TestAuthority authority, other;
  Ring ring(model.path(),
            {"--no-local", "--min-workers", "2", "--transport", GetParam(), "--http", "127.0.0.1:0", "--identity",
             authority.Issue(Role::kCoordinator, "head"), "--cluster-ca", authority.path()});
  ring.UseIdentity(authority.IssueOpen(Role::kAdmin, "alice")->current());
  for (const char* name : {"w1", "w2"}) ring.AddNamelessWorker({"--identity", authority.Issue(Role::kWorker, name)});
  ASSERT_TRUE(ring.Serves(2));
  std::vector<std::string> ports{ring.address(), ring.http()};
  std::vector<uint16_t> udp_ports;  // of the same numbers, unless somebody else had them
  const auto status = FetchStatus(ring.at());
  for (const auto& m : status->members()) {
    ports.push_back(TcpPart(m.address()));
    udp_ports.push_back(ParseHostPort(ports.back())->port);
  }
  const std::vector<pid_t> processes{ring.serve().pid(), ring.worker(0).pid(), ring.worker(1).pid()};
  ::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to connections that were closed
  const auto forged = other.Forge("URI:gyre://gyre/worker/w1");
  Clients clients(ring.at(), 96, 60);
  clients.WaitForTokens(50);
  // The thread of UDP works for the ring too, so what it takes without unauthenticated peers is measured first.
  const Usage quiet(processes);
  std::vector<RecordedDatagram> recorded;
  const DatagramRecorder recorder;
  if (over_udp && recorder.ok()) {
    recorded = recorder.Record(5000, seconds(1));
    EXPECT_GT(recorded.size(), 20u);
  }
  std::this_thread::sleep_until(quiet.at + seconds(1));
  const Usage before(processes);

  std::atomic<bool> stop{false};
  std::atomic<int> knocks{0};
  std::atomic<uint64_t> datagrams{0}, spoofed{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ports.size(); ++i) {
    threads.emplace_back([&, i] {
      Knocker unauthenticated(ports[i], forged, static_cast<unsigned>(i));
      for (; !stop; std::this_thread::sleep_for(milliseconds(2))) unauthenticated.Knock();
      knocks += unauthenticated.knocks();
    });
  }
  if (over_udp) {
    threads.emplace_back([&] {
      DatagramUnauthenticatedPeer unauthenticated(udp_ports, recorded, 1);
      for (; !stop; std::this_thread::sleep_for(milliseconds(2))) {
        for (int i = 0; i < 10; ++i) unauthenticated.SendOne();
      }
      datagrams = unauthenticated.sent();
      spoofed = unauthenticated.spoofed();
      EXPECT_FALSE(unauthenticated.answered());
    });
  }
  std::this_thread::sleep_for(length);
  // A new client comes in meanwhile.
  const auto meanwhile = FetchStatus(ring.at());
  ASSERT_TRUE(meanwhile.ok()) << meanwhile.status();
  EXPECT_EQ(meanwhile->epoch().number(), status->epoch().number()) << "a link broke: " << ring.serve().output();
  const Usage after(processes);
  stop = true;
  for (std::thread& t : threads) t.join();
  const uint64_t ended = clients.ended();
  for (const auto& text : clients.Stop()) EXPECT_TRUE(text.status.ok()) << text.status;
  double worst = 0;
  for (size_t i = 0; i < processes.size(); ++i) {
    worst = std::max(worst, after.Since(before, i) - before.Since(quiet, i));
  }
  std::printf(
      "%d knocks, %zu datagrams, %zu of them in others' names, in %.1f s: at most %.1f %% of a core, %zu texts\n",
      knocks.load(), static_cast<size_t>(datagrams), static_cast<size_t>(spoofed),
      std::chrono::duration<double>(after.at - before.at).count(), 100 * worst, static_cast<size_t>(ended));
  EXPECT_GT(knocks, 50);
  EXPECT_GT(ended, 0u);
  if (over_udp) {
    EXPECT_GT(datagrams, 100u);
  }
  if (!recorded.empty()) {
    EXPECT_GT(spoofed, 20u);
  }
  if (kSanitized) return;
  // A seventh of a core; on a slow machine half of what it costs to knock, but never more than a quarter.
  const auto share = [](const Usage& from, const Usage& to) {
    return (to.own - from.own) / std::chrono::duration<double>(to.at - from.at).count();
  };
  const double knocking = share(before, after) - share(quiet, before);
  EXPECT_LT(worst, std::clamp(knocking / 2, 0.15, 0.25)) << "knocking took " << knocking << " of a core";
  for (size_t i = 0; i < processes.size(); ++i) {
    // A process grows a little by its own work too.
    EXPECT_LT(after.memory[i], before.memory[i] + (24u << 10)) << "from " << before.memory[i] << " KiB";
  }
}

INSTANTIATE_TEST_SUITE_P(Carriers, RingStorm, ::testing::Values("tcp", "udp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace gyre
