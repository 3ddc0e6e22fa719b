#include "coordinator/grpc/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <string_view>
#include <thread>
#include <vector>

#include "base/host_port.h"
#include "base/log.h"
#include "base/thread.h"
#include "coordinator/grpc/refusal_log.h"
#include "identity/join_message.h"

namespace gyre {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
static_assert(kJoinPreface.size() == kPreface.size());
constexpr char kTlsHandshake = 22;  // the type of a record
constexpr int kBacklog = 128;
// New connections a second, so that a flood of them costs little; the others wait in the kernel's queue.
constexpr double kAccepts = 1000;
// After an accept that failed for want of descriptors or memory, so that the thread does not spin.
constexpr auto kRest = std::chrono::milliseconds(100);
// Between two looks whether a handshake that waits may begin.
constexpr auto kTurn = std::chrono::milliseconds(10);

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

void SetOption(int fd, int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof value); }

struct PeerName {
  std::string host, peer;  // without and with its port
};

PeerName NameOf(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  if (::getnameinfo(address, size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {"?", "an unknown address"};
  }
  return {host, std::string(host).find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                                                 : fmt::format("[{}]:{}", host, port)};
}

// The highest descriptor that a connection may have. The system gives out the lowest free number, so the number says
// how many are open in the process.
int HighestDescriptor(size_t max_connections) {
  rlimit limit{};
  rlim_t most = 1024;
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) most = limit.rlim_cur;
  most -= most / 4;  // the rest is for links, files and threads
  return static_cast<int>(std::min<rlim_t>(most, max_connections));
}

StatusOr<Descriptor> Bind(const addrinfo& to, const std::string& address) {
  Descriptor fd(::socket(to.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return Unavailable("no socket for {}: {}", address, std::strerror(errno));
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  SetOption(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);  // connections inherit it
  if (to.ai_family == AF_INET6) SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(fd.get(), to.ai_addr, to.ai_addrlen) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    if (errno == EADDRINUSE) {
      return Unavailable("cannot listen at {}: another program has the port (port 0 takes any free one)", address);
    }
    if (errno == EADDRNOTAVAIL) return Unavailable("cannot listen at {}: this machine has no such address", address);
    return Unavailable("cannot listen at {}: {}", address, std::strerror(errno));
  }
  return fd;
}

class TcpListener : public Listener {
 public:
  TcpListener(const ListenerOptions& options, Descriptor socket, Descriptor wake, std::string address)
      : options_(options),
        address_(std::move(address)),
        socket_(std::move(socket)),
        wake_(std::move(wake)),
        highest_(HighestDescriptor(options.max_connections)),
        handshakes_(options.handshakes) {}
  ~TcpListener() override { TcpListener::Stop(); }

  const std::string& address() const override { return address_; }
  Status Start(std::function<void(int fd)> take) override {
    take_ = std::move(take);
    GYRE_ASSIGN_OR_RETURN(thread_, StartThread("listener", [this] {
                            try {
                              Loop();
                            } catch (const std::exception& e) {
                              Log(LogLevel::kError, "{} takes no more connections: {}", address_, e.what());
                            }
                            silent_.clear();
                          }));
    return absl::OkStatus();
  }
  void Stop() override {
    if (stopping_.exchange(true)) return;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
    if (thread_.joinable()) thread_.join();
    socket_ = Descriptor();
  }

 private:
  // A connection that has not yet sent its preface, or whose handshake waits for its turn.
  struct Silent {
    Descriptor fd;
    PeerName name;
    Deadline until;
    bool waits = false;
  };

  void Loop();
  void Accept();
  // False: nothing to decide yet.
  bool Decide(Silent& s);
  bool DecideTls(Silent& s, std::string_view begin);
  // False: too many came before; it waits.
  bool TakeTurn(Silent& s);
  void Expire();

  const ListenerOptions options_;
  const std::string address_;
  Descriptor socket_, wake_;
  const int highest_;
  std::function<void(int fd)> take_;
  std::deque<Silent> silent_;  // the oldest first
  TokenBucket accepts_{kAccepts, kAccepts};
  AddressBudget handshakes_;
  RefusalLog refusals_{"a connection"};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

void TcpListener::Loop() {
  std::vector<pollfd> polled;
  while (!stopping_) {
    const Deadline now = Clock::now();
    const bool may_accept = accepts_.Has(now);
    polled.assign({{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                   {.fd = may_accept ? socket_.get() : -1, .events = POLLIN, .revents = 0}});
    Deadline until = may_accept ? kNoDeadline : accepts_.Next(now);
    for (const Silent& s : silent_) {
      // One that waits for its turn is readable all the time.
      polled.push_back({.fd = s.waits ? -1 : s.fd.get(), .events = POLLIN | POLLRDHUP, .revents = 0});
      until = std::min(until, s.waits ? now + kTurn : s.until);
    }
    int wait = -1;
    if (until != kNoDeadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
      wait = static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 20));
    }
    if (::poll(polled.data(), polled.size(), wait) < 0 && errno != EINTR) std::this_thread::sleep_for(kRest);
    for (size_t i = 0; i < silent_.size(); ++i) {
      Silent& s = silent_[i];
      const bool decided = s.waits ? TakeTurn(s) : polled[i + 2].revents != 0 && Decide(s);
      if (decided) s.fd = Descriptor();
    }
    std::erase_if(silent_, [](const Silent& s) { return s.fd.get() < 0; });
    Expire();
    if (polled[1].revents != 0) Accept();
  }
}

void TcpListener::Accept() {
  sockaddr_storage from{};
  socklen_t size = sizeof from;
  Descriptor fd(::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd.get() < 0) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      refusals_.Log("an unknown peer", Unavailable("{}", std::strerror(errno)));
      std::this_thread::sleep_for(kRest);
    }
    return;
  }
  accepts_.Take();
  PeerName name = NameOf(reinterpret_cast<const sockaddr*>(&from), size);
  if (fd.get() > highest_) {
    return refusals_.Log(name.peer, ResourceExhausted("{} descriptors are open, the limit for connections", highest_));
  }
  // The socket is readable once the whole preface is there, or the end.
  SetOption(fd.get(), SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(kPreface.size()));
  std::vector<std::string> hosts;
  for (const Silent& s : silent_) hosts.push_back(AddressGroup(s.name.host));
  if (const auto i = GivesWay(hosts, AddressGroup(name.host), options_.silent)) {
    const auto it = silent_.begin() + static_cast<std::ptrdiff_t>(*i);
    refusals_.Log(it->name.peer, ResourceExhausted("too many connections say nothing"));
    silent_.erase(it);
  }
  silent_.push_back({.fd = std::move(fd), .name = std::move(name), .until = After(options_.hello_timeout)});
}

bool TcpListener::Decide(Silent& s) {
  char bytes[kPreface.size()];
  const ssize_t n = ::recv(s.fd.get(), bytes, sizeof bytes, MSG_PEEK);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) return true;  // it left without a word
  const std::string_view begin(bytes, static_cast<size_t>(n));
  if (options_.tls) return DecideTls(s, begin);
  if (begin != kPreface) {
    refusals_.Log(s.name.peer, InvalidArgument("it does not speak HTTP/2, which gRPC needs"));
    return true;
  }
  SetOption(s.fd.get(), SOL_SOCKET, SO_RCVLOWAT, 1);
  take_(s.fd.Release());
  return true;
}

bool TcpListener::DecideTls(Silent& s, std::string_view begin) {
  const bool join = begin == kJoinPreface && options_.take_join;
  if (begin.front() == kTlsHandshake || join) return TakeTurn(s);
  if (begin == kJoinPreface) {
    refusals_.Log(s.name.peer, FailedPrecondition("it would join with a token, and there is no --cluster-ca"));
  } else if (begin == kPreface) {
    refusals_.Log(s.name.peer, FailedPrecondition("it speaks without TLS: it needs an --identity"));
  } else {
    refusals_.Log(s.name.peer, InvalidArgument("it does not speak TLS"));
  }
  return true;
}

bool TcpListener::TakeTurn(Silent& s) {
  s.waits = !handshakes_.Take(s.name.host, Clock::now());
  if (s.waits) return false;
  SetOption(s.fd.get(), SOL_SOCKET, SO_RCVLOWAT, 1);
  char bytes[kPreface.size()];
  const ssize_t n = ::recv(s.fd.get(), bytes, sizeof bytes, MSG_PEEK);
  const bool join = n == static_cast<ssize_t>(sizeof bytes) && std::string_view(bytes, sizeof bytes) == kJoinPreface;
  if (!join) {
    take_(s.fd.Release());
    return true;
  }
  if (::recv(s.fd.get(), bytes, sizeof bytes, 0) == n) options_.take_join(s.fd.Release(), s.name.host, s.name.peer);
  return true;
}

void TcpListener::Expire() {
  const Deadline now = Clock::now();
  const double seconds = std::chrono::duration<double>(options_.hello_timeout).count();
  while (!silent_.empty() && silent_.front().until <= now) {
    const Silent& s = silent_.front();
    refusals_.Log(s.name.peer,
                  s.waits ? DeadlineExceeded("its TLS handshake waited for {:.1f} s behind too many others", seconds)
                          : DeadlineExceeded("it said nothing for {:.1f} s", seconds));
    silent_.pop_front();
  }
}

}  // namespace

StatusOr<std::unique_ptr<Listener>> Listener::Open(const ListenerOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(options.address));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(at.host.c_str(), std::to_string(at.port).c_str(), &hints, &found); error != 0) {
    return Unavailable("cannot listen at {}: {}", options.address, ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> free(found, ::freeaddrinfo);
  StatusOr<Descriptor> socket = Unavailable("cannot listen at {}: no address", options.address);
  for (const addrinfo* a = found; a != nullptr && !socket.ok(); a = a->ai_next) socket = Bind(*a, options.address);
  if (!socket.ok()) return socket.status();
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(socket->get(), reinterpret_cast<sockaddr*>(&bound), &size);
  const auto port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                                      : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  Descriptor wake(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (wake.get() < 0) return ResourceExhausted("cannot listen at {}: {}", options.address, std::strerror(errno));
  return std::unique_ptr<Listener>(
      std::make_unique<TcpListener>(options, *std::move(socket), std::move(wake), FormatHostPort(at.host, port)));
}

}  // namespace gyre
