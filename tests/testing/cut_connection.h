// A bad network for the TCP connections of another process: they are cut, damaged and slow.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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

// Calls `what` with each connection of the process for which `which` says so, and returns how often that said true; -1:
// the system does not allow it. The process must be a child of this one.
inline int ForConnections(pid_t pid, const std::function<bool(TcpEnds)>& which, const std::function<bool(int)>& what) {
  const auto process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (process < 0) return -1;
  int done = 0;
  bool allowed = false;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
    const int fd = static_cast<int>(syscall(SYS_pidfd_getfd, process, std::stoi(entry.path().filename()), 0));
    if (fd < 0) continue;
    allowed = true;
    if (const auto ends = EndsOf(fd); ends && which(*ends)) done += what(fd);
    close(fd);
  }
  close(process);
  return allowed ? done : -1;
}

// Shuts them down, as ForConnections says.
inline int CutConnections(pid_t pid, const std::function<bool(TcpEnds)>& which) {
  return ForConnections(pid, which, [](int fd) { return shutdown(fd, SHUT_RDWR) == 0; });
}

// Puts bytes between those that the process sends.
inline int CorruptConnections(pid_t pid, const std::function<bool(TcpEnds)>& which, size_t bytes) {
  std::array<char, 64> wrong;
  wrong.fill('?');
  return ForConnections(pid, which, [&](int fd) {
    return send(fd, wrong.data(), std::min(bytes, wrong.size()), MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
  });
}

// Takes bytes away that the process has not read yet.
inline int StealFromConnections(pid_t pid, const std::function<bool(TcpEnds)>& which, size_t bytes) {
  std::array<char, 64> stolen;
  return ForConnections(
      pid, which, [&](int fd) { return recv(fd, stolen.data(), std::min(bytes, stolen.size()), MSG_DONTWAIT) > 0; });
}

// Lets the process send so many bytes in a second over them; UINT32_MAX: as many as it can.
inline int SlowConnections(pid_t pid, const std::function<bool(TcpEnds)>& which, uint32_t bytes) {
  return ForConnections(pid, which, [bytes](int fd) {
    return setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes, sizeof bytes) == 0;
  });
}

}  // namespace gyre::testing
