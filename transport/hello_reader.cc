#include "transport/hello_reader.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/crc32c.h"
#include "base/log.h"
#include "base/thread.h"
#include "transport/hkdf.h"
#include "transport/local_socket.h"
#include "transport/tcp_link.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;

constexpr auto kBackOff = milliseconds(100);  // where no descriptor is left
constexpr size_t kAcceptsATurn = 64;
// The most bytes before the hello is complete: two flights of TLS with a certificate, and the hello.
constexpr size_t kMaxReceived = 32 << 10;
constexpr auto kTick = milliseconds(250);
constexpr auto kTurn = milliseconds(10);  // between two looks whether a handshake that waits may begin

Caller CallerOf(const sockaddr_storage& from) {
  const StatusOr<HostPort> at = NumericHostPort(from, sizeof from);
  if (!at.ok()) return {.address = "?", .peer = "a peer"};
  return {.address = at->host, .peer = FormatHostPort(at->host, at->port)};
}

Caller CallerOf(int local_socket) {
  return {
      .address = "this host", .peer = fmt::format("process {} of this host", PeerOf(local_socket).pid), .local = true};
}

}  // namespace

StatusOr<std::unique_ptr<HelloReader>> HelloReader::Listen(HelloReaderOptions options) {
  std::unique_ptr<HelloReader> reader(new HelloReader(std::move(options)));
  GYRE_RETURN_IF_ERROR(reader->Bind());
  return reader;
}

Status HelloReader::Start() {
  GYRE_ASSIGN_OR_RETURN(thread_, StartThread("ring port", [this] { Loop(); }));
  return absl::OkStatus();
}

HelloReader::~HelloReader() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

Status HelloReader::Bind() {
  GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(options_.listen));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (const int e = getaddrinfo(at.host.c_str(), std::to_string(at.port).c_str(), &hints, &list); e != 0) {
    return Unavailable("{}: {}", options_.listen, gai_strerror(e));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> free(list, freeaddrinfo);
  wake_ = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  listener_ = Fd(::socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!wake_.ok() || !listener_.ok()) return ResourceExhausted("no socket to listen with: {}", std::strerror(errno));
  const int on = 1;
  ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::bind(listener_.get(), list->ai_addr, list->ai_addrlen) != 0 || ::listen(listener_.get(), SOMAXCONN) != 0 ||
      ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return Unavailable("cannot listen at {}: {}", options_.listen, std::strerror(errno));
  }
  if (bound.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(bound);
    port_ = ntohs(v6.sin6_port);
    any_address_ = IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr);
  } else {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(bound);
    port_ = ntohs(v4.sin_port);
    any_address_ = v4.sin_addr.s_addr == htonl(INADDR_ANY);
  }
  return absl::OkStatus();
}

void HelloReader::Loop() {
  pthread_setname_np(pthread_self(), "ring port");
  for (;;) {
    try {
      pollfd wake{.fd = wake_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&wake, 1, 0) > 0) break;
      Turn();
    } catch (const std::exception& e) {  // no memory, say: who comes is taken a little later
      accept_after_ = After(kBackOff);
      Log(LogLevel::kError, "ring port {}: {}", options_.listen, e.what());
    }
  }
  pending_.clear();
}

void HelloReader::Turn() {
  const Deadline now = Clock::now();
  Deadline until = next_tick_;
  std::vector<pollfd> fds;
  fds.push_back({.fd = wake_.get(), .events = POLLIN, .revents = 0});
  // A negative descriptor is left out.
  const std::array<int, 2> listeners = {listener_.get(), local_.get()};
  const Deadline accepts = std::max(accept_after_, accepts_.Next(now));
  for (int fd : listeners) fds.push_back({.fd = now >= accepts ? fd : -1, .events = POLLIN, .revents = 0});
  if (now < accepts) until = std::min(until, accepts);
  for (const PendingConnection& c : pending_) {
    fds.push_back({.fd = c.waits ? -1 : c.fd.get(), .events = POLLIN, .revents = 0});
    until = std::min(until, c.waits ? now + kTurn : c.until);
  }
  const auto left = std::chrono::ceil<milliseconds>(std::max(until, now) - now);
  if (::poll(fds.data(), fds.size(), static_cast<int>(left.count())) < 0 && errno != EINTR)
    accept_after_ = After(kBackOff);
  size_t i = 1 + listeners.size();
  for (auto it = pending_.begin(); it != pending_.end(); ++i) {
    bool done = (it->waits || fds[i].revents != 0) && Read(*it);
    if (!done && Clock::now() >= it->until) {
      done = Refuse(*it, it->waits ? "too many handshakes of TLS came before" : "no hello came in time");
    }
    it = done ? pending_.erase(it) : std::next(it);
  }
  for (size_t l = 0; l < listeners.size(); ++l) {
    if (fds[1 + l].revents != 0) AcceptSome(listeners[l]);
  }
  if (Clock::now() >= next_tick_) {
    next_tick_ = After(kTick);
    options_.on_tick();
  }
}

void HelloReader::AcceptSome(int listener) {
  for (size_t i = 0; i < kAcceptsATurn && accepts_.Has(Clock::now()); ++i) {
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    Fd fd(::accept4(listener, reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.ok()) {
      accepts_.Take();
      Caller caller = from.ss_family == AF_UNIX ? CallerOf(fd.get()) : CallerOf(from);
      OnConnection(std::move(fd), std::move(caller));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    const std::string why = std::strerror(errno);
    if (!pending_.empty()) {  // the descriptor of one that says nothing serves one that may
      Refuse(pending_.front(), why);
      pending_.pop_front();
      continue;
    }
    // Without this pause the thread would spin, as the new connection stays in the kernel's queue.
    accept_after_ = After(kBackOff);
    if (last_log_ == Deadline::min() || Clock::now() >= last_log_ + std::chrono::minutes(1)) {
      last_log_ = Clock::now();
      Log(LogLevel::kWarn, "ring port {}: connections must wait: {}", options_.listen, why);
    }
    return;
  }
}

void HelloReader::OnConnection(Fd fd, Caller caller) {
  if (caller.local && !PeerOf(fd.get()).same_user) return options_.on_refused(caller, "it belongs to another user");
  std::vector<std::string> addresses;
  for (const PendingConnection& c : pending_) addresses.push_back(c.caller.address);
  if (const auto i = GivesWay(addresses, caller.address, options_.limits)) {
    const auto it = std::next(pending_.begin(), static_cast<std::ptrdiff_t>(*i));
    Refuse(*it, "too many connections say nothing");
    pending_.erase(it);
  }
  PendingConnection& c = pending_.emplace_back();
  c.fd = std::move(fd);
  c.caller = std::move(caller);
  c.until = After(options_.hello_timeout);
  // If others may listen, nothing that they hear may open a link.
  if (!c.caller.local && options_.identity == nullptr) {
    RandomBytes(c.challenge);
    const Status asked = SendWithFds(c.fd.get(), HelloFrame(EncodeChallenge(c.challenge)), {});
    if (!asked.ok()) {
      Refuse(c, Message(asked));
      return pending_.pop_back();
    }
  }
  // A hello that needs no challenge is often here already: then the connection is never among those that may be closed.
  if (Read(c)) pending_.pop_back();
}

bool HelloReader::Read(PendingConnection& c) {
  while (c.have < c.need) {
    const StatusOr<std::optional<size_t>> n = Receive(c);
    if (!n.ok()) return Refuse(c, Message(n.status()));
    if (!*n) return false;
    c.have += **n;
    if (c.have == kFrameHeaderBytes && !OnHeader(c)) return true;
  }
  return OnPayload(c);
}

StatusOr<std::optional<size_t>> HelloReader::Receive(PendingConnection& c) {
  const std::span<std::byte> into = std::span(c.bytes).subspan(c.have, c.need - c.have);
  if (SpeaksTls(c.caller)) return ReceiveTls(c, into);
  const ssize_t n = ::recv(c.fd.get(), into.data(), into.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return std::optional<size_t>();
  if (n <= 0) return Unavailable("it ended before its hello was whole");
  return std::optional<size_t>(static_cast<size_t>(n));
}

StatusOr<std::optional<size_t>> HelloReader::ReceiveTls(PendingConnection& c, std::span<std::byte> into) {
  if (c.tls == nullptr) {
    // No work is done for a connection that has sent nothing.
    char first = 0;
    if (::recv(c.fd.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT) <= 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return std::optional<size_t>();
      return Unavailable("it ended before its handshake of TLS");
    }
    constexpr char kHandshake = 22;  // the type of a record
    if (first != kHandshake) return FailedPrecondition("it speaks without TLS");
    c.waits = !handshakes_.Take(c.caller.address, Clock::now());
    if (c.waits) return std::optional<size_t>();
    GYRE_ASSIGN_OR_RETURN(auto session, TlsSession::Make(options_.identity->current(), TlsSide::kServer));
    c.tls = std::make_unique<TlsReceiver>(std::move(session), kMaxReceived);
  }
  const StatusOr<std::optional<size_t>> n = c.tls->Receive(c.fd.get(), into);
  if (c.tls->shaken() && !c.caller.who) c.caller.who = c.tls->session().peer();
  return n;
}

// Returns false if it was refused.
bool HelloReader::OnHeader(PendingConnection& c) {
  const StatusOr<FrameHeader> header = DecodeHeader(std::span(c.bytes).first(kFrameHeaderBytes), kMaxHello);
  if (!header.ok()) return !Refuse(c, Message(header.status()));
  if (header->kind != FrameKind::kHello) return !Refuse(c, "its first frame is no hello");
  c.header = *header;
  c.need += header->length;
  return true;
}

bool HelloReader::OnPayload(PendingConnection& c) {
  const auto payload = std::span(c.bytes).subspan(kFrameHeaderBytes, c.header.length);
  if (Crc32c(payload) != c.header.payload_crc) return Refuse(c, "the checksum of its hello is wrong");
  StatusOr<Hello> hello = DecodeHello(payload, c.challenge);
  if (!hello.ok()) return Refuse(c, Message(hello.status()));
  if (hello->protocol != kLinkProtocol) {
    return Refuse(c, fmt::format("it speaks link protocol {}, expected {}", hello->protocol, kLinkProtocol));
  }
  if (c.caller.who) handshakes_.Trust(c.caller.address);
  options_.on_hello(
      {.socket = std::move(c.fd), .caller = c.caller, .tls = c.tls != nullptr ? c.tls->TakeSession() : nullptr},
      *std::move(hello));
  return true;
}

bool HelloReader::Refuse(PendingConnection& c, const std::string& why) {
  options_.on_refused(c.caller, why);
  c.fd = Fd();
  return true;
}

}  // namespace gyre
