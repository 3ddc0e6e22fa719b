#include "transport/discovery.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/coding.h"
#include "base/host_port.h"
#include "base/log.h"
#include "base/thread.h"
#include "transport/fd.h"
#include "transport/rate_limit.h"

namespace gyre {
namespace {

constexpr std::string_view kQuestion = "GYREFIND", kAnswer = "GYREHERE";
constexpr uint16_t kDiscoveryVersion = 1;
constexpr size_t kNonceBytes = 16, kAuthorityBytes = 32, kMessageBytes = 64;
constexpr double kAnswersASecond = 20;

sockaddr_in AddressOf(in_addr host, uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr = host;
  out.sin_port = htons(port);
  return out;
}

sockaddr_in Group() {
  in_addr group{};
  inet_pton(AF_INET, kDiscoveryGroup, &group);
  return AddressOf(group, kDiscoveryPort);
}

// The IPv4 addresses of the interfaces with multicast; loopback's too, if there is no other.
std::vector<in_addr> Interfaces() {
  std::vector<in_addr> out, loopback;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return out;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> free(all, freeifaddrs);
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_UP) == 0) continue;
    const in_addr address = reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr;
    if ((i->ifa_flags & IFF_LOOPBACK) != 0) {
      loopback.push_back(address);
    } else if ((i->ifa_flags & IFF_MULTICAST) != 0) {
      out.push_back(address);
    }
  }
  return out.empty() ? loopback : out;
}

Fd DiscoverySocket() { return Fd(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

bool BindTo(const Fd& socket, const sockaddr_in& at) {
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // several coordinators on one host
  return ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0;
}

class Responder : public DiscoveryResponder {
 public:
  Responder(const DiscoveryOptions& options, Fd hears, Fd answers, Fd wake)
      : options_(options), hears_(std::move(hears)), answers_(std::move(answers)), wake_(std::move(wake)) {
    thread_ = MakeThread("discovery", [this] { Loop(); });
  }
  ~Responder() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
    thread_.join();
  }

 private:
  void Loop() {
    TokenBucket budget(kAnswersASecond, kAnswersASecond);
    for (;;) {
      // Questions beyond the budget wait in the socket's buffer, and are lost when it is full.
      const Deadline now = Clock::now(), next = budget.Next(now);
      pollfd fds[2] = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                       {.fd = next <= now ? hears_.get() : -1, .events = POLLIN, .revents = 0}};
      const int wait =
          next <= now ? -1 : static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(next - now).count());
      if (::poll(fds, 2, wait) < 0 && errno != EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (fds[0].revents != 0) return;
      if (fds[1].revents == 0) continue;
      budget.Take();
      std::array<std::byte, kMessageBytes + 1> bytes;
      sockaddr_in from{};
      socklen_t size = sizeof from;
      const ssize_t n =
          ::recvfrom(hears_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&from), &size);
      if (n < 0) continue;
      const auto question = DecodeDiscovery(std::span(bytes).first(static_cast<size_t>(n)));
      if (!question.ok() || question->answer || question->authority != options_.authority) continue;
      const auto answer = EncodeDiscovery(
          {.answer = true, .port = options_.port, .nonce = question->nonce, .authority = options_.authority});
      ::sendto(answers_.get(), answer.data(), answer.size(), MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&from),
               size);
    }
  }

  const DiscoveryOptions options_;
  const Fd hears_, answers_, wake_;
  std::thread thread_;
};

}  // namespace

std::vector<std::byte> EncodeDiscovery(const DiscoveryMessage& m) {
  Encoder out;
  const std::string_view magic = m.answer ? kAnswer : kQuestion;
  out.PutBytes(magic.data(), magic.size());
  out.Put(kDiscoveryVersion);
  out.Put(m.port);
  std::string nonce = m.nonce, authority = m.authority;
  nonce.resize(kNonceBytes);
  authority.resize(kAuthorityBytes);  // zeros: none
  out.PutBytes(nonce.data(), nonce.size());
  out.PutBytes(authority.data(), authority.size());
  out.Put(uint32_t{0});
  return {out.bytes().begin(), out.bytes().end()};
}

StatusOr<DiscoveryMessage> DecodeDiscovery(std::span<const std::byte> bytes) {
  if (bytes.size() != kMessageBytes)
    return DataLoss("a datagram of {} bytes, expected {}", bytes.size(), kMessageBytes);
  Decoder in(bytes);
  std::string magic(kQuestion.size(), '\0');
  in.GetBytes(magic.data(), magic.size());
  DiscoveryMessage m;
  m.answer = magic == kAnswer;
  if (!m.answer && magic != kQuestion) return DataLoss("no datagram of the discovery");
  if (in.Get<uint16_t>() != kDiscoveryVersion) return DataLoss("another version of the discovery");
  m.port = in.Get<uint16_t>();
  m.nonce.resize(kNonceBytes);
  m.authority.resize(kAuthorityBytes);
  in.GetBytes(m.nonce.data(), m.nonce.size());
  in.GetBytes(m.authority.data(), m.authority.size());
  if (m.authority == std::string(kAuthorityBytes, '\0')) m.authority.clear();
  return m;
}

StatusOr<std::unique_ptr<DiscoveryResponder>> DiscoveryResponder::Start(const DiscoveryOptions& options) {
  Fd hears = DiscoverySocket(), answers = DiscoverySocket(), wake(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!hears.ok() || !answers.ok() || !wake.ok()) return ResourceExhausted("no socket: {}", std::strerror(errno));
  if (!BindTo(hears, Group())) return Unavailable("UDP port {}: {}", kDiscoveryPort, std::strerror(errno));
  in_addr own{};
  const bool named = inet_pton(AF_INET, options.host.c_str(), &own) == 1 && own.s_addr != INADDR_ANY;
  // If the server has a single address, answers come from it.
  if (named && !BindTo(answers, AddressOf(own, 0))) return Unavailable("{}: {}", options.host, std::strerror(errno));
  size_t joined = 0;
  for (const in_addr& interface : named ? std::vector<in_addr>{own} : Interfaces()) {
    ip_mreq request{.imr_multiaddr = Group().sin_addr, .imr_interface = interface};
    joined += ::setsockopt(hears.get(), IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request) == 0;
  }
  if (joined == 0) return Unavailable("no interface joins the group {}: {}", kDiscoveryGroup, std::strerror(errno));
  try {
    return std::unique_ptr<DiscoveryResponder>(
        std::make_unique<Responder>(options, std::move(hears), std::move(answers), std::move(wake)));
  } catch (const std::exception& e) {
    return ResourceExhausted("no thread for the discovery: {}", e.what());
  }
}

StatusOr<std::string> FindCoordinator(const std::string& authority, Deadline deadline,
                                      const std::function<bool()>& stopped) {
  DiscoveryMessage question{.authority = authority};
  question.nonce.resize(kNonceBytes);
  [[maybe_unused]] const ssize_t random = ::getrandom(question.nonce.data(), question.nonce.size(), 0);
  const auto bytes = EncodeDiscovery(question);
  const sockaddr_in group = Group();
  Fd socket = DiscoverySocket();
  if (!socket.ok()) return ResourceExhausted("no socket: {}", std::strerror(errno));
  Deadline ask = Clock::now();
  while (Clock::now() < deadline) {
    if (stopped && stopped()) return absl::CancelledError("stopped");
    if (Clock::now() >= ask) {
      ask = After(std::chrono::seconds(1));
      size_t sent = 0;
      for (const in_addr& interface : Interfaces()) {
        ::setsockopt(socket.get(), IPPROTO_IP, IP_MULTICAST_IF, &interface, sizeof interface);
        sent += ::sendto(socket.get(), bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&group),
                         sizeof group) > 0;
      }
      if (sent == 0) return Unavailable("the question for a coordinator can't be sent: {}", std::strerror(errno));
    }
    pollfd p{.fd = socket.get(), .events = POLLIN, .revents = 0};
    if (::poll(&p, 1, 50) <= 0) continue;
    std::array<std::byte, kMessageBytes + 1> got;
    sockaddr_in from{};
    socklen_t size = sizeof from;
    const ssize_t n =
        ::recvfrom(socket.get(), got.data(), got.size(), MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&from), &size);
    if (n < 0) continue;
    const auto answer = DecodeDiscovery(std::span(got).first(static_cast<size_t>(n)));
    if (!answer.ok() || !answer->answer || answer->port == 0) continue;
    if (answer->nonce != question.nonce || answer->authority != authority) continue;
    char host[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &from.sin_addr, host, sizeof host);
    return FormatHostPort(host, answer->port);
  }
  return DeadlineExceeded("no coordinator answers on this network");
}

}  // namespace gyre
