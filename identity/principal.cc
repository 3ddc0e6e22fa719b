#include "identity/principal.h"

#include <algorithm>
#include <array>

namespace gyre {
namespace {

constexpr std::array<std::string_view, 4> kRoles = {"coordinator", "worker", "client", "admin"};
constexpr std::string_view kScheme = "gyre://";

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

}  // namespace

std::string_view RoleName(Role role) { return kRoles.at(static_cast<size_t>(role)); }

StatusOr<Role> ParseRole(std::string_view name) {
  const auto it = std::find(kRoles.begin(), kRoles.end(), name);
  if (it != kRoles.end()) return static_cast<Role>(it - kRoles.begin());
  return InvalidArgument("there is no such role; expected coordinator, worker, client or admin");
}

Status CheckName(std::string_view name) {
  const bool begins = !name.empty() && IsNameCharacter(name[0]) && name[0] != '.' && name[0] != '-' && name[0] != '_';
  const bool fits = begins && name.size() <= kLongestName && std::all_of(name.begin(), name.end(), IsNameCharacter);
  if (!fits) {
    return InvalidArgument("a name has 1 to {} letters, digits, '.', '_' or '-' and begins with a letter or digit",
                           kLongestName);
  }
  return absl::OkStatus();
}

Status CheckPrincipalName(std::string_view name) {
  GYRE_RETURN_IF_ERROR(CheckName(name));
  if (name == kLocalName || name == kCoordinatorName) {
    return InvalidArgument("the name '{}' is the coordinator's own, expected another one", std::string(name));
  }
  return absl::OkStatus();
}

std::string FormatPrincipal(const Principal& p) {
  return fmt::format("{}{}/{}/{}", kScheme, p.cluster, RoleName(p.role), p.name);
}

StatusOr<Principal> ParsePrincipal(std::string_view uri) {
  const Status wrong = InvalidArgument("expected gyre://CLUSTER/ROLE/NAME");
  if (uri.substr(0, kScheme.size()) != kScheme) return wrong;
  uri.remove_prefix(kScheme.size());
  const size_t first = uri.find('/');
  if (first == std::string_view::npos) return wrong;
  const size_t second = uri.find('/', first + 1);
  if (second == std::string_view::npos) return wrong;
  const StatusOr<Role> role = ParseRole(uri.substr(first + 1, second - first - 1));
  if (!role.ok()) return wrong;
  Principal out{
      .cluster = std::string(uri.substr(0, first)), .role = *role, .name = std::string(uri.substr(second + 1))};
  if (!CheckPrincipalName(out.cluster).ok() || !CheckPrincipalName(out.name).ok()) return wrong;
  return out;
}

std::string Describe(const Principal& p) { return fmt::format("{} {}", RoleName(p.role), p.name); }

}  // namespace gyre
