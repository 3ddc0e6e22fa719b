#include "base/transport.h"

#include "fmt/format.h"

namespace gyre {
namespace {

struct TransportRow {
  Transport transport;
  std::string_view name;
  bool wish;  // options and plans may choose it
};
constexpr TransportRow kTransports[] = {
    {Transport::kAuto, "auto", true}, {Transport::kTcp, "tcp", true},       {Transport::kUdp, "udp", true},
    {Transport::kShm, "shm", true},   {Transport::kKernel, "kernel", true}, {Transport::kMemory, "memory", false},
};

const TransportRow* RowOf(Transport transport) {
  for (const TransportRow& row : kTransports) {
    if (row.transport == transport) return &row;
  }
  return nullptr;
}

}  // namespace

std::string_view TransportName(Transport transport) {
  const TransportRow* row = RowOf(transport);
  return row == nullptr ? "?" : row->name;
}

bool IsTransportWish(Transport transport) {
  const TransportRow* row = RowOf(transport);
  return row != nullptr && row->wish;
}

bool IsTransport(Transport transport) { return RowOf(transport) != nullptr; }

std::vector<std::string> TransportWishes() {
  std::vector<std::string> names;
  for (const TransportRow& row : kTransports) {
    if (row.wish) names.emplace_back(row.name);
  }
  return names;
}

StatusOr<Transport> ParseTransport(std::string_view name) {
  for (const TransportRow& row : kTransports) {
    if (row.wish && row.name == name) return row.transport;
  }
  return InvalidArgument("--transport {}: expected one of {}", name, fmt::join(TransportWishes(), ", "));
}

StatusOr<Transport> AgreedTransport(Transport cluster, Transport own) {
  if (own == Transport::kAuto || own == cluster) return cluster;
  if (cluster == Transport::kAuto) return own;
  return FailedPrecondition("the cluster's links go over {}, this worker's over {} (--transport)",
                            TransportName(cluster), TransportName(own));
}

}  // namespace gyre
