#include "transport/tcp_round_trip.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace gyre {

std::optional<Duration> TcpRoundTrip(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  if (size < offsetof(tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt) return std::nullopt;
  if (info.tcpi_min_rtt == 0 || info.tcpi_min_rtt == ~0u) return std::nullopt;
  return std::chrono::microseconds(info.tcpi_min_rtt);
}

}  // namespace gyre
