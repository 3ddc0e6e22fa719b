// Addresses as users write them: "HOST:PORT", "[::1]:PORT".
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace gyre {

struct HostPort {
  std::string host;
  uint16_t port = 0;
};

// kInvalidArgument: no host, no port, a port beyond 65535, an IPv6 address without brackets, or a character that no
// address has.
StatusOr<HostPort> ParseHostPort(const std::string& text);
// "HOST:PORT[,HOST:PORT...]": at least one, each as ParseHostPort takes it with a port of 1 or more.
StatusOr<std::vector<std::string>> ParseAddresses(const std::string& text);
std::string FormatHostPort(const std::string& host, uint16_t port);
// A socket's address of IPv4 or IPv6, as numbers; kInvalidArgument: it is neither.
StatusOr<HostPort> NumericHostPort(const sockaddr_storage& address, socklen_t size);

// This machine's host name (gethostname).
std::string HostName();

}  // namespace gyre
