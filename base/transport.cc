#include "base/transport.h"

#include "fmt/format.h"

namespace gyre {
namespace {

struct TransportRow {
  Transport transport;
  std::string_view name;
  bool preference;  // options and plans may choose it
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

bool IsTransportPreference(Transport transport) {
  const TransportRow* row = RowOf(transport);
  return row != nullptr && row->preference;
}

bool IsTransport(Transport transport) { return RowOf(transport) != nullptr; }

std::vector<std::string> TransportPreferences() {
  std::vector<std::string> names;
  for (const TransportRow& row : kTransports) {
    if (row.preference) names.emplace_back(row.name);
  }
  return names;
}

StatusOr<Transport> ParseTransport(std::string_view name) {
  for (const TransportRow& row : kTransports) {
    if (row.preference && row.name == name) return row.transport;
  }
  return InvalidArgument("--transport {}: expected one of {}", name, fmt::join(TransportPreferences(), ", "));
}

StatusOr<Transport> AgreedTransport(Transport cluster, Transport own) {
  if (own == Transport::kAuto || own == cluster) return cluster;
  if (cluster == Transport::kAuto) return own;
  return FailedPrecondition("the cluster's links go over {}, this worker's over {} (--transport)",
                            TransportName(cluster), TransportName(own));
}

}  // namespace gyre
