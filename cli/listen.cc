#include "cli/listen.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "cli/exit_code.h"
#include "transport/tcp_link.h"

namespace gyre {

StatusOr<Insecure> ParseInsecure(const std::string& text) {
  if (text.empty() || text == "false") return Insecure{};
  if (text == "true" || text == "all") return Insecure{.cluster = true, .ring = true, .http = true};
  Insecure out;
  for (size_t from = 0; from <= text.size();) {
    const size_t end = std::min(text.find(',', from), text.size());
    const std::string name = text.substr(from, end - from);
    from = end + 1;
    if (name == "cluster") {
      out.cluster = true;
    } else if (name == "ring") {
      out.ring = true;
    } else if (name == "http") {
      out.http = true;
    } else {
      return UsageError("--insecure={}: '{}' is nothing that it opens; expected cluster, ring or http", text, name);
    }
  }
  return out;
}

StatusOr<HostPort> ParseListen(const char* flag, const std::string& text, bool tls, bool open, const char* part) {
  const StatusOr<HostPort> at = ParseHostPort(text);
  if (!at.ok()) return AsUsage(Annotate(at.status(), flag));
  if (!IsLoopback(at->host) && !tls && !open) {
    return UsageError(
        "{} {}: this address is not loopback, so it needs TLS: give an --identity; on a network that you trust, add "
        "--insecure={}",
        flag, text, part);
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
  return Unavailable(
      "{}: cannot listen at {}: {}", flag, where,
      error == EADDRINUSE ? "another program has the port (port 0 takes any free one)" : std::strerror(error));
}

}  // namespace gyre
