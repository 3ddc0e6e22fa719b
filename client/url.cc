#include "client/url.h"

#include <algorithm>

#include "base/host_port.h"

namespace gyre {

StatusOr<Url> ParseUrl(const std::string& text) {
  constexpr size_t kLongest = 2000;
  if (text.size() > kLongest) return InvalidArgument("a URL of {} bytes, expected at most {}", text.size(), kLongest);
  if (!std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7F'; })) {
    return InvalidArgument("a URL with spaces or control characters, expected http://HOST:PORT");
  }
  Url url;
  const size_t scheme = text.find("://");
  const std::string name = text.substr(0, scheme == std::string::npos ? 0 : scheme);
  if (name != "http" && name != "https") return InvalidArgument("'{}', expected http://HOST:PORT or https://...", text);
  url.tls = name == "https";
  const size_t begin = scheme + 3, slash = std::min(text.find('/', begin), text.size());
  std::string address = text.substr(begin, slash - begin);
  url.path = text.substr(slash);
  if (address.find('@') != std::string::npos) {
    return InvalidArgument("a URL with a user's name; a key goes into --api-key or GYRE_API_KEY");
  }
  if (text.find_first_of("?#") != std::string::npos)
    return InvalidArgument("'{}', expected a URL without a query", text);
  const size_t bracket = address.rfind(']');
  const size_t colon = address.find(':', bracket == std::string::npos ? 0 : bracket);
  if (colon == std::string::npos) address += url.tls ? ":443" : ":80";
  const StatusOr<HostPort> at = ParseHostPort(address);
  if (!at.ok()) return Annotate(at.status(), text);
  url.host = at->host;
  url.port = at->port;
  while (!url.path.empty() && url.path.back() == '/') url.path.pop_back();
  return url;
}

std::string FormatUrl(const Url& url) {
  return (url.tls ? "https://" : "http://") + FormatHostPort(url.host, url.port) + url.path;
}

}  // namespace gyre
