// Addresses of HTTP servers as users write them.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace gyre {

struct Url {
  bool tls = false;
  std::string host;  // without brackets
  uint16_t port = 0;
  std::string path;  // "" or "/...", without a slash at its end
  bool operator==(const Url&) const = default;
};

// "http://HOST[:PORT][/PATH]" or https. kInvalidArgument: another scheme, no host, a user's name, a query, or a
// character that stands in no URL.
StatusOr<Url> ParseUrl(const std::string& text);
// "https://host:443/v1": always with the port.
std::string FormatUrl(const Url& url);

// The address of a server, and the target of a request to it.
struct HttpAddress {
  Url server;          // its path is ""
  std::string target;  // "/..." with the query
  bool operator==(const HttpAddress&) const = default;
};

// Like ParseUrl, and with a query; a fragment is dropped. At most 16 KiB.
StatusOr<HttpAddress> ParseAddress(const std::string& text);
// The target of a Location or Link header at `base`: a whole URL, "//HOST/...", "/path", "?query" or a relative path.
StatusOr<HttpAddress> ResolveReference(const HttpAddress& base, const std::string& reference);
// The address for messages: without the query, as it may hold a signature.
std::string FormatAddress(const HttpAddress& address);
// Escapes characters that a path may not have; '/' stays.
std::string EscapePath(const std::string& path);

}  // namespace gyre
