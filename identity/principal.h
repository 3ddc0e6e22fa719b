// The owner of a certificate: a role and a name in a cluster, as the URI gyre://CLUSTER/ROLE/NAME (docs/security.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace gyre {

enum class Role : uint8_t { kCoordinator, kWorker, kClient, kAdmin };

std::string_view RoleName(Role role);
// kInvalidArgument says what is expected.
StatusOr<Role> ParseRole(std::string_view name);

struct Principal {
  std::string cluster;
  Role role = Role::kWorker;
  std::string name;
  bool operator==(const Principal&) const = default;
};

// The names that the coordinator's process has in hellos; no certificate has them.
inline constexpr char kCoordinatorName[] = "coordinator";
inline constexpr char kLocalName[] = "local";

inline constexpr size_t kLongestName = 64;  // bytes

// The rule for all names, of clusters, of identities' owners and of members: 1 to 64 letters, digits, '.', '_', '-',
// the first a letter or digit. kInvalidArgument.
Status CheckName(std::string_view name);
// A cluster's or owner's name, and a worker's, is none of the coordinator's own either. kInvalidArgument.
Status CheckPrincipalName(std::string_view name);

std::string FormatPrincipal(const Principal& principal);  // the URI
// The text may come from an unauthenticated peer, and is not repeated in the message. kInvalidArgument.
StatusOr<Principal> ParsePrincipal(std::string_view uri);
// "worker w1", for messages.
std::string Describe(const Principal& principal);

}  // namespace gyre
