// Strangers who knock at every port of a secured ring while it serves.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "base/host_port.h"
#include "base/ring_address.h"
#include "identity/join_message.h"
#include "identity/tls_context.h"
#include "tests/testing/identities.h"
#include "tests/testing/process_ring.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using namespace testing;

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

// Connects from an address of its own, so that its limits are not the members'.
int CallFrom(const char* own, const std::string& address) {
  const auto at = ParseHostPort(address);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in from{}, to{};
  from.sin_family = to.sin_family = AF_INET;
  inet_pton(AF_INET, own, &from.sin_addr);
  inet_pton(AF_INET, at->host.c_str(), &to.sin_addr);
  to.sin_port = htons(at->port);
  const timeval patience{.tv_sec = 0, .tv_usec = 100000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  if (bind(fd, reinterpret_cast<sockaddr*>(&from), sizeof from) == 0 &&
      connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) {
    return fd;
  }
  close(fd);
  return -1;
}

// One stranger: garbage, silence, cut handshakes, whole ones without and with a wrong certificate.
class Knocker {
 public:
  Knocker(std::string address, const KeyAndCertificate& forged, unsigned seed)
      : address_(std::move(address)),
        random_(seed),
        none_(*MakeTlsContext(TlsSide::kClient, kRingProtocol)),
        wrong_(*MakeTlsContext(TlsSide::kClient, kRingProtocol)) {
    const auto certificate = *ReadCertificates(forged.certificate);
    const KeyPtr key = *ReadPrivateKey(forged.key);
    Must(UseCertificate(wrong_.get(), certificate.front().get(), key.get()));
  }
  ~Knocker() {
    for (int fd : silent_) close(fd);
  }
  void Knock() {
    const int fd = CallFrom("127.0.0.9", address_);
    if (fd < 0) return;
    ++knocks_;
    switch (random_() % 6) {
      case 0: break;  // silence
      case 1: SendRandom(fd, 300); break;
      case 2: Send(fd, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); break;
      case 3: Send(fd, std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11)); break;  // the begin of a hello
      case 4: Send(fd, std::string(kJoinPreface)), SendRandom(fd, 100); break;
      default: {
        SslPtr ssl(SSL_new((random_() % 2 == 0 ? none_ : wrong_).get()));
        SSL_set_fd(ssl.get(), fd);
        SSL_connect(ssl.get());
        TakeOpenSslError();
      }
    }
    silent_.push_back(fd);
    if (silent_.size() > 50) {
      close(silent_.front());
      silent_.erase(silent_.begin());
    }
  }
  int knocks() const { return knocks_; }

 private:
  void Send(int fd, const std::string& bytes) { (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void SendRandom(int fd, size_t most) {
    std::string bytes(1 + random_() % most, '\0');
    for (char& c : bytes) c = static_cast<char>(random_());
    Send(fd, bytes);
  }
  const std::string address_;
  std::mt19937 random_;
  SslContextPtr none_, wrong_;
  std::vector<int> silent_;
  int knocks_ = 0;
};

TEST(RingStorm, StrangersAtEveryPortCostLittleAndFailNothing) {
  const char* const asked = std::getenv("GYRE_STORM_SECONDS");
  const auto length = seconds(asked != nullptr ? std::atoi(asked) : kSanitized ? 3 : 6);
  TinyModelFile model(TinyOptions{.layers = 6});
  TestAuthority authority, other;
  Ring ring(model.path(), {"--no-local", "--min-workers", "2", "--transport", "tcp", "--identity",
                           authority.Issue(Role::kCoordinator, "head"), "--cluster-ca", authority.path()});
  ring.UseIdentity(authority.IssueOpen(Role::kAdmin, "alice")->current());
  for (const char* name : {"w1", "w2"}) ring.AddNamelessWorker({"--identity", authority.Issue(Role::kWorker, name)});
  ASSERT_TRUE(ring.Serves(2));
  std::vector<std::string> ports{ring.address()};
  const auto status = FetchStatus(ring.at());
  for (const auto& m : status->members()) ports.push_back(TcpPart(m.address()));
  const std::vector<pid_t> processes{ring.serve().pid(), ring.worker(0).pid(), ring.worker(1).pid()};
  // What strangers reach: the ring's port, the listener, joining. gRPC's own threads do its handshakes.
  const std::vector<std::string> reached{"ring port", "listener", "join"};
  const auto forged = other.Forge("URI:gyre://gyre/worker/w1");
  std::atomic<bool> stop{false};
  std::atomic<int> knocks{0};
  std::vector<std::thread> threads;
  Clients clients(ring.at(), 96, 60);
  while (clients.tokens() < 50) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(seconds(1));
  std::vector<double> cpu;
  std::vector<uint64_t> memory;
  for (const pid_t pid : processes) {
    cpu.push_back(CpuSeconds(pid, reached));
    memory.push_back(ResidentKib(pid));
  }
  const auto began = std::chrono::steady_clock::now();
  for (size_t i = 0; i < ports.size(); ++i) {
    threads.emplace_back([&, i] {
      Knocker stranger(ports[i], forged, static_cast<unsigned>(i));
      while (!stop) stranger.Knock();
      knocks += stranger.knocks();
    });
  }
  std::this_thread::sleep_for(length);
  // A new client comes in meanwhile.
  EXPECT_TRUE(FetchStatus(ring.at()).ok());
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  double worst = 0;
  for (size_t i = 0; i < processes.size(); ++i)
    worst = std::max(worst, (CpuSeconds(processes[i], reached) - cpu[i]) / took);
  stop = true;
  for (std::thread& t : threads) t.join();
  const uint64_t ended = clients.ended();
  for (const auto& text : clients.Stop()) EXPECT_TRUE(text.status.ok()) << text.status;
  std::printf("%d knocks in %.1f s, at most %.1f %% of a core, %zu texts\n", knocks.load(), took, 100 * worst,
              static_cast<size_t>(ended));
  EXPECT_GT(knocks, 50);
  EXPECT_GT(ended, 0u);
  if (kSanitized) return;
  EXPECT_LT(worst, 0.1);
  for (size_t i = 0; i < processes.size(); ++i) {
    // A process grows a little by its own work too.
    EXPECT_LT(ResidentKib(processes[i]), memory[i] + (24u << 10)) << "from " << memory[i] << " KiB";
  }
}

}  // namespace
}  // namespace gyre
