#include "http_client/proxy.h"

#include <arpa/inet.h>
#include <algorithm>
#include <cctype>

#include <openssl/evp.h>

#include "base/host_port.h"
#include "base/range.h"

namespace gyre {
namespace {

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Decodes escapes: "%40" is "@".
std::string Unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto hex = [&](size_t at) { return at < text.size() && std::isxdigit(static_cast<unsigned char>(text[at])); };
    if (text[i] == '%' && hex(i + 1) && hex(i + 2)) {
      out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string Base64(const std::string& text) {
  std::string out(4 * ((text.size() + 2) / 3) + 1, '\0');
  const int n = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  out.resize(static_cast<size_t>(n));
  return out;
}

// The messages do not repeat the text, as it may hold a password.
StatusOr<Proxy> ParseProxy(std::string text) {
  Proxy out;
  constexpr size_t kLongest = 2000;
  if (text.size() > kLongest) return InvalidArgument("a proxy of {} bytes, expected http://HOST:PORT", text.size());
  if (const size_t scheme = text.find("://"); scheme == std::string::npos) {
    text.insert(0, "http://");
  } else if (Lower(text.substr(0, scheme)) != "http") {
    return Unimplemented("a proxy of the kind '{}', expected http://HOST:PORT", text.substr(0, scheme));
  }
  const size_t begin = 7, end = std::min(text.find('/', begin), text.size()), at = text.rfind('@', end);
  if (at != std::string::npos && at > begin) {
    const std::string user = Unescape(text.substr(begin, at - begin));
    out.authorization = "Basic " + Base64(user.find(':') == std::string::npos ? user + ":" : user);
    text.erase(begin, at + 1 - begin);
  }
  const StatusOr<Url> url = ParseUrl(text);
  if (!url.ok()) return InvalidArgument("not a proxy's address, expected http://HOST:PORT");
  out.url = *url;
  out.url.path.clear();
  return out;
}

// The bytes of an address, 4 or 16; "" = the host is a name.
std::string AddressBytes(const std::string& host) {
  char bytes[16];
  if (inet_pton(AF_INET, host.c_str(), bytes) == 1) return std::string(bytes, 4);
  if (inet_pton(AF_INET6, host.c_str(), bytes) == 1) return std::string(bytes, 16);
  return "";
}

// Whether `address` lies in "10.0.0.0/8".
bool InNetwork(const std::string& network, const std::string& address) {
  const size_t slash = network.find('/');
  const std::string base = AddressBytes(network.substr(0, slash));
  const int bits = slash == std::string::npos ? -1 : ParseNumber(network.substr(slash + 1)).value_or(-1);
  if (address.empty() || base.size() != address.size() || bits < 0 || bits > static_cast<int>(base.size() * 8)) {
    return false;
  }
  for (int i = 0; i < bits; ++i) {
    const int mask = 0x80 >> (i % 8);
    if ((base[static_cast<size_t>(i / 8)] & mask) != (address[static_cast<size_t>(i / 8)] & mask)) return false;
  }
  return true;
}

// entry: one of NO_PROXY, in lower case.
bool Matches(std::string entry, const Url& url) {
  if (entry == "*") return true;
  const std::string host = Lower(url.host), address = AddressBytes(host);
  if (InNetwork(entry, address)) return true;
  if (const std::string own = AddressBytes(entry); !own.empty()) return own == address;
  if (const StatusOr<HostPort> with_port = ParseHostPort(entry); with_port.ok()) {
    if (with_port->port != url.port) return false;
    entry = with_port->host;
    if (!address.empty()) return AddressBytes(entry) == address;
  }
  if (entry.rfind("*.", 0) == 0) entry.erase(0, 1);
  if (!entry.empty() && entry[0] == '.') entry.erase(0, 1);
  if (entry.empty() || !address.empty()) return false;
  const size_t end = host.size() - std::min(host.size(), entry.size());
  return host.substr(end) == entry && (end == 0 || host[end - 1] == '.');
}

}  // namespace

std::optional<Proxy> ProxySettings::For(const Url& url) const {
  const bool straight =
      std::any_of(direct.begin(), direct.end(), [&](const auto& entry) { return Matches(entry, url); });
  return straight ? std::nullopt : url.tls ? https : http;
}

StatusOr<ProxySettings> ParseProxies(const std::function<std::optional<std::string>(const std::string&)>& env) {
  // The lower-case variable wins, also if it is empty.
  const auto value = [&](std::string name) -> std::optional<std::string> {
    if (const std::optional<std::string> lower = env(name)) return lower;
    for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return env(name);
  };
  ProxySettings out;
  const std::string all = value("all_proxy").value_or("");
  for (const bool tls : {false, true}) {
    const std::string name = tls ? "https_proxy" : "http_proxy";
    const std::optional<std::string> own = value(name);
    const std::string& text = own.has_value() ? *own : all;
    if (text.empty()) continue;
    const StatusOr<Proxy> proxy = ParseProxy(text);
    if (!proxy.ok()) return Annotate(proxy.status(), own.has_value() ? name : "all_proxy");
    (tls ? out.https : out.http) = *proxy;
  }
  const std::string direct = Lower(value("no_proxy").value_or(""));
  for (size_t begin = 0; begin < direct.size();) {
    const size_t end = std::min(direct.find_first_of(", \t", begin), direct.size());
    if (end > begin) out.direct.push_back(direct.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

}  // namespace gyre
