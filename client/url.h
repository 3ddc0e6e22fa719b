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
};

// "http://HOST[:PORT][/PATH]" or https. kInvalidArgument: another scheme, no host, a user's name, a query, or a
// character that stands in no URL.
StatusOr<Url> ParseUrl(const std::string& text);
// "https://host:443/v1": always with the port.
std::string FormatUrl(const Url& url);

}  // namespace gyre
