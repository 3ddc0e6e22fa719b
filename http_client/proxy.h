// The proxies that environment variables name.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "http_client/url.h"

namespace gyre {

struct Proxy {
  Url url;                    // plain HTTP
  std::string authorization;  // the value of Proxy-Authorization; "" = none
};

// Proxies for http and https, and the hosts that are reached without one.
struct ProxySettings {
  std::optional<Proxy> http, https;
  std::vector<std::string>
      direct;  // NO_PROXY's entries: "host", "host:port", ".domain", "*", an address or "10.0.0.0/8"

  // The proxy on the way to `url`, or nullopt.
  std::optional<Proxy> For(const Url& url) const;
};

// Reads http_proxy, https_proxy, all_proxy and no_proxy in lower or upper case; lower case wins. A proxy is
// "[http://][USER:PASSWORD@]HOST[:PORT]". kInvalidArgument: none of these; kUnimplemented: a proxy of another kind.
StatusOr<ProxySettings> ParseProxies(const std::function<std::optional<std::string>(const std::string&)>& env);

}  // namespace gyre
