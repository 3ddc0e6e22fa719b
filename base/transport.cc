#include "base/transport.h"

#include <string>

namespace gyre {
namespace {

// The transports that options of this version may choose.
constexpr Transport kWishes[] = {Transport::kAuto, Transport::kTcp, Transport::kUdp, Transport::kShm,
                                 Transport::kKernel};

}  // namespace

std::string_view TransportName(Transport transport) {
  switch (transport) {
    case Transport::kAuto: return "auto";
    case Transport::kTcp: return "tcp";
    case Transport::kUdp: return "udp";
    case Transport::kShm: return "shm";
    case Transport::kKernel: return "kernel";
    case Transport::kMemory: return "memory";
  }
  return "?";
}

bool IsTransportWish(Transport transport) {
  for (Transport wish : kWishes) {
    if (wish == transport) return true;
  }
  return false;
}

bool IsTransport(Transport transport) { return transport <= Transport::kMemory; }

StatusOr<Transport> ParseTransport(std::string_view name) {
  std::string expected;
  for (Transport wish : kWishes) {
    if (name == TransportName(wish)) return wish;
    expected += fmt::format("{}{}", expected.empty() ? "" : ", ", TransportName(wish));
  }
  return InvalidArgument("--transport {}: expected one of {}", name, expected);
}

StatusOr<Transport> AgreedTransport(Transport cluster, Transport own) {
  if (own == Transport::kAuto || own == cluster) return cluster;
  if (cluster == Transport::kAuto) return own;
  return FailedPrecondition("the cluster's links go over {}, this worker's over {} (--transport)",
                            TransportName(cluster), TransportName(own));
}

}  // namespace gyre
