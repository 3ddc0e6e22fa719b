#include "http_client/url.h"

#include <algorithm>
#include <string_view>

#include "base/host_port.h"

namespace gyre {
namespace {

bool IsPrintable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7F'; });
}

}  // namespace

StatusOr<Url> ParseUrl(const std::string& text) {
  constexpr size_t kLongest = 2000;
  if (text.size() > kLongest) return InvalidArgument("a URL of {} bytes, expected at most {}", text.size(), kLongest);
  if (!IsPrintable(text)) {
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

StatusOr<HttpAddress> ParseAddress(const std::string& text) {
  constexpr size_t kLongest = 16384;
  if (text.size() > kLongest) return InvalidArgument("a URL of {} bytes, expected at most {}", text.size(), kLongest);
  if (!IsPrintable(text)) return InvalidArgument("a URL with spaces or control characters");
  const size_t scheme = text.find("://");
  if (scheme == std::string::npos) return InvalidArgument("'{}', expected http://HOST/... or https://HOST/...", text);
  const size_t end = std::min(text.find_first_of("/?#", scheme + 3), text.size());
  HttpAddress out;
  GYRE_ASSIGN_OR_RETURN(out.server, ParseUrl(text.substr(0, end)));
  out.target = text.substr(end, text.find('#', end) - end);
  if (out.target.empty() || out.target[0] != '/') out.target.insert(0, "/");
  return out;
}

StatusOr<HttpAddress> ResolveReference(const HttpAddress& base, const std::string& reference) {
  const size_t colon = reference.find(':');
  if (colon != std::string::npos && colon < reference.find_first_of("/?#")) return ParseAddress(reference);
  const std::string scheme = base.server.tls ? "https:" : "http:";
  if (reference.rfind("//", 0) == 0) return ParseAddress(scheme + reference);
  const std::string server = FormatUrl(base.server), path = base.target.substr(0, base.target.find('?'));
  if (reference.empty() || reference[0] == '#') return base;
  if (reference[0] == '/') return ParseAddress(server + reference);
  if (reference[0] == '?') return ParseAddress(server + path + reference);
  return ParseAddress(server + path.substr(0, path.rfind('/') + 1) + reference);
}

std::string FormatAddress(const HttpAddress& address) {
  return FormatUrl(address.server) + address.target.substr(0, address.target.find('?'));
}

std::string EscapePath(const std::string& path) {
  std::string out;
  for (const char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("/-._~").find(c) != std::string_view::npos;
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

}  // namespace gyre
