// Cuts a TCP connection of another process, as a network does that resets it.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace gyre::testing {

// The ports of one end of a connection.
struct TcpEnds {
  uint16_t local = 0, remote = 0;
};

inline std::optional<TcpEnds> EndsOf(int fd) {
  sockaddr_storage local{}, remote{};
  socklen_t local_size = sizeof local, remote_size = sizeof remote;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_size) != 0) return std::nullopt;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&remote), &remote_size) != 0) return std::nullopt;
  auto port = [](const sockaddr_storage& at) -> uint16_t {
    if (at.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&at)->sin_port);
    if (at.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&at)->sin6_port);
    return 0;
  };
  if (port(local) == 0) return std::nullopt;
  return TcpEnds{port(local), port(remote)};
}

// Shuts down the connections of the process for which `which` returns true, and returns their number; -1: the system
// does not allow it. The process must be a child of this one.
inline int CutConnections(pid_t pid, const std::function<bool(TcpEnds)>& which) {
  const auto process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (process < 0) return -1;
  int cut = 0;
  bool allowed = false;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    const int fd = static_cast<int>(syscall(SYS_pidfd_getfd, process, std::stoi(entry.path().filename()), 0));
    if (fd < 0) continue;
    allowed = true;
    if (const auto ends = EndsOf(fd); ends && which(*ends)) cut += shutdown(fd, SHUT_RDWR) == 0;
    close(fd);
  }
  close(process);
  return allowed ? cut : -1;
}

}  // namespace gyre::testing
