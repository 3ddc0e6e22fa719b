// Connected sockets on loopback, for tests of TCP links.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "transport/tcp_link.h"

namespace gyre::testing {

// {client, server} of one connection.
inline std::pair<int, int> ConnectedSockets() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  if (bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 || listen(listener, 1) != 0) std::abort();
  getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size);
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(client, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) std::abort();
  const int server = accept(listener, nullptr, nullptr);
  close(listener);
  return {client, server};
}

inline std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> TcpPair(const TcpOptions& options = {}) {
  const auto [client, server] = ConnectedSockets();
  return {*MakeTcpLink(client, "the server", options), *MakeTcpLink(server, "the client", options)};
}

// A link whose bytes pass a relay that cuts and delays them at random places: a seeded bad network. The relay ends with
// the link.
class ChoppedLink : public Link {
 public:
  ChoppedLink(std::unique_ptr<Link> link, std::shared_ptr<std::thread> relay)
      : link_(std::move(link)), relay_(std::move(relay)) {}
  ~ChoppedLink() override {
    link_.reset();
    if (relay_.use_count() == 1) relay_->join();
  }
  Status Send(FrameHeader header, std::span<const ByteSpan> parts, Deadline deadline) override {
    return link_->Send(header, parts, deadline);
  }
  StatusOr<Frame> Recv(Deadline deadline) override { return link_->Recv(deadline); }
  void Wake() override { link_->Wake(); }
  Transport transport() const override { return link_->transport(); }
  void Close() override { link_->Close(); }

 private:
  std::unique_ptr<Link> link_;
  std::shared_ptr<std::thread> relay_;
};

inline void Relay(int a, int b, uint32_t seed) {
  std::mt19937 random(seed);
  std::array<pollfd, 2> fds{{{.fd = a, .events = POLLIN, .revents = 0}, {.fd = b, .events = POLLIN, .revents = 0}}};
  int open = 2;
  while (open > 0 && poll(fds.data(), 2, -1) >= 0) {
    for (size_t i = 0; i < 2; ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      char bytes[4096];
      const size_t most = random() % 3 == 0 ? 1 + random() % 7 : sizeof bytes;
      const ssize_t n = recv(fds[i].fd, bytes, most, 0);
      const int to = i == 0 ? b : a;
      if (n <= 0) {
        shutdown(to, SHUT_WR);
        fds[i].fd = -1;
        --open;
        continue;
      }
      if (random() % 64 == 0) usleep(random() % 500);
      // The other direction may be the one that frees it, so neither may block both.
      for (ssize_t sent = 0; sent < n;) {
        const ssize_t m = send(to, bytes + sent, static_cast<size_t>(n - sent), MSG_NOSIGNAL);
        if (m <= 0) break;
        sent += m;
      }
    }
  }
  close(a);
  close(b);
}

inline std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> ChoppedTcpPair(uint32_t seed) {
  const auto [client, near] = ConnectedSockets();
  const auto [far, server] = ConnectedSockets();
  auto relay = std::make_shared<std::thread>(Relay, near, far, seed);
  return {std::make_unique<ChoppedLink>(*MakeTcpLink(client, "the server"), relay),
          std::make_unique<ChoppedLink>(*MakeTcpLink(server, "the client"), relay)};
}

}  // namespace gyre::testing
