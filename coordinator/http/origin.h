// The rules that keep foreign pages out: a browser on this machine reaches a server at localhost for any page it shows.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/http/api_error.h"
#include "coordinator/http/exchange.h"

namespace gyre::http {

struct OriginRules {
  std::vector<std::string> hosts;  // names without a port, in lower case
  std::vector<std::string> cors;   // origins, as https://example.org
};

// The bound address and the hosts and origins of the options, in one form. kInvalidArgument: one of them is invalid.
StatusOr<OriginRules> MakeOriginRules(const std::string& bound_host, const std::vector<std::string>& hosts,
                                      const std::vector<std::string>& cors);

// Refuses a name that an unauthenticated peer's DNS server could point here: `authority` must be an IP address,
// localhost, or a name of the rules. "HOST" or "HOST:PORT" as in the header Host.
std::optional<ApiError> CheckHost(const OriginRules& rules, std::string_view authority);

enum class OriginKind : uint8_t {
  kNone,     // no browser's page of another server asks
  kSame,     // a page of this server
  kListed,   // a page that the rules list
  kForeign,  // any other page: nothing is for it
};
OriginKind ClassifyOrigin(const OriginRules& rules, const HttpRequest& request);

}  // namespace gyre::http
