#include "worker/node_port.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace gyre {
namespace {

// The address of this machine that packets to the coordinator leave from.
StatusOr<std::string> LocalAddressTo(const HostPort& to) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(to.host.c_str(), std::to_string(to.port).c_str(), &hints, &found); error != 0) {
    return Unavailable("{}: {}", to.host, gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> free(found, freeaddrinfo);
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Unavailable("no socket: {}", std::strerror(errno));
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  char text[NI_MAXHOST] = "";
  // A datagram socket's connect sends nothing.
  const bool fine =
      connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
      getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0;
  close(fd);
  if (!fine) return Unavailable("no route to {}", to.host);
  return std::string(text);
}

}  // namespace

StatusOr<std::unique_ptr<NodePort>> NodePort::Open(const NodeOptions& options, const HostPort& coordinator,
                                                   std::shared_ptr<EventOutbox> events) {
  RingPortOptions port;
  port.transport = options.transport;
  port.listen = options.listen;
  port.identity = options.identity;
  if (port.listen.empty()) {
    GYRE_ASSIGN_OR_RETURN(const std::string own, LocalAddressTo(coordinator));
    port.listen = FormatHostPort(own, 0);
  }
  GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(port.listen));
  if (!IsLoopback(at.host) && !options.insecure && options.identity == nullptr) {
    return FailedPrecondition(
        "the ring would listen at {}, which is not loopback, without TLS: give an --identity, or say --insecure on a "
        "network that you trust",
        at.host);
  }
  GYRE_ASSIGN_OR_RETURN(std::unique_ptr<RingPort> ring, RingPort::Open(port));
  return std::unique_ptr<NodePort>(new NodePort(std::move(ring), options, std::move(events)));
}

NodePort::NodePort(std::unique_ptr<RingPort> ring, const NodeOptions& options, std::shared_ptr<EventOutbox> events)
    : ring_(std::move(ring)),
      stock_(WeightCache(options.cache, options.cache_limit), ring_.get()),
      prober_(&stock_, [events = std::move(events)](StageProbed probed) {
        events->Push({.worker = "", .epoch = {}, .what = std::move(probed)});
      }) {
  stock_.server().SetRate(options.weights_rate);
}

uint64_t NodePort::RoomFor(const Hash256& root) const { return std::max<uint64_t>(1, stock_.cache().Capacity(root)); }

}  // namespace gyre
