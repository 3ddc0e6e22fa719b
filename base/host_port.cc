#include "base/host_port.h"

#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace gyre {

StatusOr<HostPort> ParseHostPort(const std::string& text) {
  // The text may come from an unauthenticated peer: a message repeats only characters that an address may have.
  constexpr size_t kLongest = 300;  // a DNS name has at most 253 characters
  if (text.size() > kLongest) return InvalidArgument("an address of {} bytes: expected HOST:PORT", text.size());
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7F'; });
  if (!printable) return InvalidArgument("an address with spaces or control characters: expected HOST:PORT");
  if (text.find("://") != std::string::npos) return InvalidArgument("'{}' is a URL: expected HOST:PORT", text);
  const size_t colon = text.rfind(':');
  HostPort out;
  if (colon == std::string::npos) return InvalidArgument("'{}': expected HOST:PORT", text);
  out.host = text.substr(0, colon);
  if (out.host.size() >= 2 && out.host.front() == '[' && out.host.back() == ']') {
    out.host = out.host.substr(1, out.host.size() - 2);
  } else if (out.host.find(':') != std::string::npos) {
    return InvalidArgument("'{}': an IPv6 address stands in brackets, [ADDRESS]:PORT", text);
  }
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data() + colon + 1, end, out.port);
  if (error == std::errc::result_out_of_range) {
    return InvalidArgument("'{}': the port is {}, expected 0 to 65535", text, text.substr(colon + 1));
  }
  if (error != std::errc() || at != end || out.host.empty()) return InvalidArgument("'{}': expected HOST:PORT", text);
  return out;
}

StatusOr<std::vector<std::string>> ParseAddresses(const std::string& text) {
  constexpr size_t kMost = 64;
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    out.push_back(text.substr(begin, end - begin));
    GYRE_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(out.back()));
    if (at.port == 0) return InvalidArgument("'{}': the port is 0, expected 1 to 65535", out.back());
    if (out.size() > kMost) return InvalidArgument("more than {} addresses", kMost);
    begin = end + 1;
  }
  return out;
}

std::string FormatHostPort(const std::string& host, uint16_t port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

StatusOr<HostPort> NumericHostPort(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  const int error = getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, port, sizeof port,
                                NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0) return InvalidArgument("no address of IPv4 or IPv6: {}", gai_strerror(error));
  HostPort out{.host = host};
  std::from_chars(port, port + std::strlen(port), out.port);
  return out;
}

std::string HostName() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace gyre
