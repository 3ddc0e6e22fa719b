// Addresses, and connections to them that can be cancelled at any time.
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"
#include "transport/fd.h"
#include "transport/tcp_link.h"

namespace gyre {
namespace {

using std::chrono::milliseconds;

constexpr auto kTurn = milliseconds(50);  // between two looks at `stopped`
// Lookups that a name server does not answer keep their threads for a while.
constexpr int kMaxLookups = 8;

struct Endpoint {
  sockaddr_storage address{};
  socklen_t size = 0;
};

struct Lookup {
  Mutex mutex;
  CondVar changed;
  bool done GYRE_GUARDED_BY(mutex) = false;
  int error GYRE_GUARDED_BY(mutex) = 0;
  std::vector<Endpoint> found GYRE_GUARDED_BY(mutex);
};

int Resolve(const HostPort& to, int flags, std::vector<Endpoint>* found) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(to.host.c_str(), std::to_string(to.port).c_str(), &hints, &list);
  if (error != 0) return error;
  for (const addrinfo* a = list; a != nullptr; a = a->ai_next) {
    Endpoint& e = found->emplace_back();
    std::memcpy(&e.address, a->ai_addr, a->ai_addrlen);
    e.size = a->ai_addrlen;
  }
  freeaddrinfo(list);
  return 0;
}

Status Stopped(const std::string& address) {
  return MakeStatus(absl::StatusCode::kCancelled, "{}: the attempt to connect was given up", address);
}

// getaddrinfo can't be interrupted, so it runs on a thread that outlives a caller that stopped waiting.
StatusOr<std::vector<Endpoint>> ResolveName(const std::string& address, const HostPort& to, Deadline deadline,
                                            const std::function<bool()>& stopped) {
  static std::atomic<int> lookups{0};
  if (lookups.fetch_add(1) >= kMaxLookups) {
    --lookups;
    return ResourceExhausted("{}: {} lookups of names are still without an answer", address, kMaxLookups);
  }
  auto lookup = std::make_shared<Lookup>();
  StatusOr<std::thread> started = StartThread("lookup", [lookup, to] {
    std::vector<Endpoint> found;
    int error = EAI_MEMORY;
    try {
      error = Resolve(to, 0, &found);
    } catch (const std::bad_alloc&) {
    }
    --lookups;
    MutexLock lock(&lookup->mutex);
    lookup->error = error;
    lookup->found = std::move(found);
    lookup->done = true;
    lookup->changed.SignalAll();
  });
  if (!started.ok()) {
    --lookups;
    return Annotate(started.status(), address);
  }
  started->detach();
  MutexLock lock(&lookup->mutex);
  while (!lookup->done) {
    if (stopped && stopped()) return Stopped(address);
    if (Clock::now() >= deadline) return DeadlineExceeded("{}: the name was not resolved in time", address);
    lookup->changed.WaitUntil(&lookup->mutex, std::min(deadline, After(kTurn)));
  }
  if (lookup->error != 0) return Unavailable("{}: {}", address, gai_strerror(lookup->error));
  return std::move(lookup->found);
}

StatusOr<int> ConnectTo(const std::string& address, const Endpoint& to, Deadline deadline,
                        const std::function<bool()>& stopped) {
  Fd fd(::socket(to.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.ok()) return ResourceExhausted("{}: no socket: {}", address, std::strerror(errno));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.address), to.size) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return Unavailable("{}: {}", address, std::strerror(errno));
    for (;;) {
      if (stopped && stopped()) return Stopped(address);
      const Deadline now = Clock::now();
      if (now >= deadline) return DeadlineExceeded("{}: does not answer", address);
      const auto left = std::chrono::ceil<milliseconds>(std::min<Duration>(kTurn, deadline - now));
      pollfd p{.fd = fd.get(), .events = POLLOUT, .revents = 0};
      if (::poll(&p, 1, static_cast<int>(left.count())) > 0) break;
    }
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return Unavailable("{}: {}", address, std::strerror(error));
  }
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd.release();
}

StatusOr<int> Connect(const std::string& address, Deadline deadline, const std::function<bool()>& stopped) {
  GYRE_ASSIGN_OR_RETURN(const HostPort to, ParseHostPort(address));
  std::vector<Endpoint> endpoints;
  if (Resolve(to, AI_NUMERICHOST, &endpoints) != 0) {
    GYRE_ASSIGN_OR_RETURN(endpoints, ResolveName(address, to, deadline, stopped));
  }
  Status last = Unavailable("{}: the name has no address", address);
  for (size_t i = 0; i < endpoints.size(); ++i) {
    // Each address of a name gets its share of the time, as the first may drop packets.
    Deadline until = deadline;
    if (deadline != kNoDeadline)
      until = Clock::now() + (deadline - Clock::now()) / static_cast<int>(endpoints.size() - i);
    StatusOr<int> fd = ConnectTo(address, endpoints[i], until, stopped);
    if (fd.ok() || absl::IsCancelled(fd.status())) return fd;
    last = fd.status();
  }
  return last;
}

}  // namespace

bool IsLoopback(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return host == "localhost";
}

StatusOr<int> ConnectTcp(const std::string& address, Deadline deadline, const std::function<bool()>& stopped) {
  try {
    return Connect(address, deadline, stopped);
  } catch (const std::exception& e) {
    return ResourceExhausted("{}: {}", address, e.what());
  }
}

}  // namespace gyre
