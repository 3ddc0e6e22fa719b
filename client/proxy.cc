#include "client/proxy.h"

namespace gyre {

std::optional<Proxy> ProxySettings::For(const Url&) const { return std::nullopt; }

StatusOr<ProxySettings> ParseProxies(const std::function<std::optional<std::string>(const std::string&)>&) {
  return ProxySettings{};
}

}  // namespace gyre
