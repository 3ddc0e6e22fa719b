// The rule by which a waiting connection is closed for a new one. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace gyre {

struct AdmissionLimits {
  size_t total = 64;
  size_t per_address = 16;  // so that one peer's connections displace only its own
};

// `addresses`: the hosts of waiting connections, the oldest first. Returns which of them to close for a new one from
// `newcomer`: the oldest of that address if it has used its share, else the oldest of all if the total is reached.
// nullopt: none.
inline std::optional<size_t> GivesWay(std::span<const std::string> addresses, const std::string& newcomer,
                                      const AdmissionLimits& limits) {
  std::optional<size_t> oldest;
  size_t of_address = 0;
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (addresses[i] != newcomer) continue;
    if (!oldest) oldest = i;
    ++of_address;
  }
  if (of_address >= limits.per_address && oldest) return oldest;
  if (addresses.size() >= limits.total && !addresses.empty()) return 0;
  return std::nullopt;
}

}  // namespace gyre
