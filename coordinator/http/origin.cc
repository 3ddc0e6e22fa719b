#include "coordinator/http/origin.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

namespace gyre::http {
namespace {

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

struct Authority {
  std::string host;  // in lower case, without brackets and without a dot at its end
  std::string port;  // "" = none
};

// nullopt: the text is no authority.
std::optional<Authority> ParseAuthority(std::string_view text) {
  Authority out;
  std::string_view port;
  if (!text.empty() && text.front() == '[') {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return std::nullopt;
    out.host = Lower(text.substr(1, close - 1));
    in6_addr ignored{};
    if (inet_pton(AF_INET6, out.host.c_str(), &ignored) != 1) return std::nullopt;
    text = text.substr(close + 1);
    if (!text.empty() && text.front() != ':') return std::nullopt;
    port = text;
  } else {
    const size_t colon = text.find(':');
    out.host = Lower(text.substr(0, colon));
    port = colon == std::string_view::npos ? std::string_view() : text.substr(colon);
    const bool named = !out.host.empty() && std::all_of(out.host.begin(), out.host.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
    });
    if (!named) return std::nullopt;
    if (out.host.back() == '.') out.host.pop_back();
    if (out.host.empty()) return std::nullopt;
  }
  if (port.empty()) return out;
  port.remove_prefix(1);
  uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size()) return std::nullopt;
  out.port = std::to_string(number);
  return out;
}

bool IsAddress(const std::string& host) {
  in6_addr six{};
  in_addr four{};
  return inet_pton(AF_INET, host.c_str(), &four) == 1 || inet_pton(AF_INET6, host.c_str(), &six) == 1;
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

struct Origin {
  std::string scheme;
  Authority authority;  // with its port, also where the scheme says it
};

std::optional<Origin> ParseOrigin(std::string_view text) {
  const size_t colon = text.find("://");
  if (colon == std::string_view::npos) return std::nullopt;
  Origin out;
  out.scheme = Lower(text.substr(0, colon));
  const std::optional<Authority> authority = ParseAuthority(text.substr(colon + 3));
  if (!authority || (out.scheme != "http" && out.scheme != "https")) return std::nullopt;
  out.authority = *authority;
  if (out.authority.port.empty()) out.authority.port = out.scheme == "https" ? "443" : "80";
  return out;
}

std::string Format(const Origin& origin) {
  return origin.scheme + "://" + origin.authority.host + ":" + origin.authority.port;
}

}  // namespace

StatusOr<OriginRules> MakeOriginRules(const std::string& bound_host, const std::vector<std::string>& hosts,
                                      const std::vector<std::string>& cors) {
  OriginRules rules;
  rules.hosts.push_back(Lower(bound_host));
  for (const std::string& host : hosts) {
    const std::optional<Authority> parsed = ParseAuthority(host);
    if (!parsed || !parsed->port.empty()) {
      return InvalidArgument("'{}' is no host: expected a name without a port, as gyre.example.org", host);
    }
    rules.hosts.push_back(parsed->host);
  }
  for (const std::string& origin : cors) {
    const std::optional<Origin> parsed = ParseOrigin(origin);
    if (!parsed)
      return InvalidArgument("'{}' is no origin: expected SCHEME://HOST[:PORT], as https://example.org", origin);
    rules.cors.push_back(Format(*parsed));
  }
  return rules;
}

std::optional<ApiError> CheckHost(const OriginRules& rules, std::string_view authority) {
  const std::optional<Authority> parsed = ParseAuthority(authority);
  if (!parsed) return BadRequest("the header Host is no host");
  const std::string& host = parsed->host;
  // No DNS server answers for an address. Resolvers answer for localhost and its subdomains themselves.
  const bool known = IsAddress(host) || host == "localhost" || EndsWith(host, ".localhost") ||
                     std::find(rules.hosts.begin(), rules.hosts.end(), host) != rules.hosts.end();
  if (known) return std::nullopt;
  return ApiError{
      .status = 403,
      .message = fmt::format("this server does not answer as {}; the flag --allow-host {} lets it", host, host),
      .code = "host_not_allowed"};
}

OriginKind ClassifyOrigin(const OriginRules& rules, const HttpRequest& request) {
  const std::string* text = request.Header("origin");
  if (text == nullptr) {
    // Without Origin a browser still says whether the page with a picture or script is this server's. A page that a
    // user opens is "none", or a navigation from another page.
    const std::string* site = request.Header("sec-fetch-site");
    const std::string* mode = request.Header("sec-fetch-mode");
    const bool foreign = site != nullptr && (*site == "cross-site" || *site == "same-site");
    return foreign && (mode == nullptr || *mode != "navigate") ? OriginKind::kForeign : OriginKind::kNone;
  }
  const std::optional<Origin> origin = ParseOrigin(*text);
  if (!origin) return OriginKind::kForeign;
  if (std::find(rules.cors.begin(), rules.cors.end(), Format(*origin)) != rules.cors.end()) return OriginKind::kListed;
  const std::string* host = request.Header("host");
  const std::optional<Authority> here = host == nullptr ? std::nullopt : ParseAuthority(*host);
  if (!here || here->host != origin->authority.host) return OriginKind::kForeign;
  // Behind a proxy with TLS the scheme differs; a port serves one scheme only.
  const std::string port = !here->port.empty() ? here->port : origin->scheme == "https" ? "443" : "80";
  return port == origin->authority.port ? OriginKind::kSame : OriginKind::kForeign;
}

}  // namespace gyre::http
