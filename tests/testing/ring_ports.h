// Ring ports on loopback that share a key, and connections to them that send bytes which no port would send.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/ring_port.h"

namespace gyre::testing {

inline Hello SampleHello() {
  Hello h{
      .role = LinkRole::kRing, .epoch = {.term = 5, .number = 3}, .hop = 1, .model_hash = 77, .key = {}, .from = "w1"};
  for (size_t i = 0; i < h.key.size(); ++i) h.key[i] = static_cast<uint8_t>(i + 1);
  return h;
}

// Opens a port without a key.
inline std::unique_ptr<RingPort> OpenPortWithoutKey(RingPortOptions options = {}) {
  if (options.listen.empty()) options.listen = "127.0.0.1:0";
  auto port = RingPort::Open(options);
  EXPECT_TRUE(port.ok()) << port.status();
  return *std::move(port);
}

inline std::unique_ptr<RingPort> OpenPort(RingPortOptions options = {}) {
  auto port = OpenPortWithoutKey(std::move(options));
  port->SetKey(SampleHello().epoch, SampleHello().key);
  return port;
}

// Both ends of one hop; the dialer is in another "process".
inline std::pair<StatusOr<std::unique_ptr<Link>>, StatusOr<std::unique_ptr<Link>>> Connect(RingPort& from, RingPort& to,
                                                                                           const Hello& dials,
                                                                                           const Hello& expects) {
  const Deadline deadline = After(std::chrono::seconds(20));
  auto dialed = std::async(std::launch::async, [&] { return from.Dial(to.address(), dials, deadline); });
  auto accepted = to.Accept(expects, deadline);
  return {dialed.get(), std::move(accepted)};
}

// A socket that is connected to the port; -1 if it can't be.
inline int Call(const RingPort& port) {
  auto fd = ConnectTcp(port.address(), After(std::chrono::seconds(20)));
  return fd.ok() ? *fd : -1;
}

using gyre::HelloFrame;

inline void Put(int fd, std::span<const std::byte> bytes) {
  (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);  // it may be closed meanwhile
}

// The port's first bytes over plain TCP; zeros if there are none.
inline HelloChallenge ReadChallenge(int fd) {
  std::vector<std::byte> bytes(kFrameHeaderBytes + EncodeChallenge({}).size());
  for (size_t have = 0; have < bytes.size();) {
    pollfd p{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&p, 1, 20000) != 1) return {};
    const ssize_t n = recv(fd, bytes.data() + have, bytes.size() - have, 0);
    if (n <= 0) return {};
    have += static_cast<size_t>(n);
  }
  return DecodeChallenge(std::span(bytes).subspan(kFrameHeaderBytes)).value_or(HelloChallenge{});
}

inline int CallWith(const RingPort& port, const Hello& hello) {
  const int fd = Call(port);
  Put(fd, HelloFrame(EncodeHello(hello, ReadChallenge(fd))));
  return fd;
}

// While an object lives, at most `spare` more descriptors can be opened.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t spare) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(0);
    close(next);
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(next) + spare;
    setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace gyre::testing
