#include "cli/listen.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "cli/exit_code.h"
#include "transport/tcp_link.h"

namespace gyre {

StatusOr<HostPort> ParseListen(const char* flag, const std::string& text, bool insecure) {
  const StatusOr<HostPort> at = ParseHostPort(text);
  if (!at.ok()) return AsUsage(Annotate(at.status(), flag));
  if (!IsLoopback(at->host) && !insecure) {
    return UsageError(
        "{} {}: this address is not loopback, and the cluster is not encrypted; on a network that you "
        "trust, add --insecure",
        flag, text);
  }
  return *at;
}

Status CheckPort(const char* flag, const HostPort& at) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string where = FormatHostPort(at.host, at.port);
  if (const int error = getaddrinfo(at.host.c_str(), std::to_string(at.port).c_str(), &hints, &found); error != 0) {
    return Unavailable("{} {}: {}", flag, where, gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Unavailable("{} {}: {}", flag, where, std::strerror(errno));
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool bound = bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 1) == 0;
  const int error = errno;
  close(fd);
  if (bound) return absl::OkStatus();
  return Unavailable("{}: cannot listen at {}: {}", flag, where,
                     error == EADDRINUSE ? "another program has the port" : std::strerror(error));
}

}  // namespace gyre
