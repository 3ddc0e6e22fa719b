// gyre ca: the CA of a cluster, its identities and tokens.
#include <ctime>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "fmt/core.h"
#include "identity/authority.h"
#include "identity/join_token.h"

namespace gyre {
namespace {

// "30s", "15m", "1h", "7d".
StatusOr<std::chrono::seconds> ParseSpan(const std::string& text) {
  const size_t digits = text.find_first_not_of("0123456789");
  int64_t factor = 0;
  if (digits != std::string::npos && digits > 0 && digits < 8 && digits + 1 == text.size()) {
    switch (text[digits]) {
      case 's': factor = 1; break;
      case 'm': factor = 60; break;
      case 'h': factor = 3600; break;
      case 'd': factor = 86400; break;
      default: break;
    }
  }
  if (factor == 0) return UsageError("--ttl {}: expected a number with s, m, h or d, as 1h", text);
  return std::chrono::seconds(std::stoll(text.substr(0, digits)) * factor);
}

// Turns a value of the user's that is not possible into a usage error.
Status Wrong(const Status& status) {
  return status.code() == absl::StatusCode::kInvalidArgument ? AsUsage(status) : status;
}

}  // namespace

Status CaInitCommand(const CaOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const KeyType type, ParseKeyType(options.key_type));
  GYRE_RETURN_IF_ERROR(Wrong(Authority::Init(options.folder, options.cluster, type, options.days)));
  if (options.quiet) return absl::OkStatus();
  fmt::print(stderr,
             "{0}: the CA of the cluster {1}. Whoever reads {0}/ca-key.pem can be everybody in it.\n"
             "next: gyre ca issue {0} --role coordinator --name NAME -o FOLDER\n",
             options.folder, options.cluster);
  return absl::OkStatus();
}

Status CaIssueCommand(const CaOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const KeyType type, ParseKeyType(options.key_type));
  const StatusOr<Role> role = ParseRole(options.role);
  if (!role.ok()) return Wrong(role.status());
  GYRE_ASSIGN_OR_RETURN(Authority authority, Authority::Open(options.folder));
  const CertificateTerms terms{.role = *role, .name = options.name, .days = options.days, .renew = options.renew};
  GYRE_RETURN_IF_ERROR(Wrong(authority.Issue(terms, type, options.out)));
  if (!options.quiet) fmt::print(stderr, "{}: the identity of {} {}\n", options.out, options.role, options.name);
  return absl::OkStatus();
}

Status CaRevokeCommand(const CaOptions& options) {
  std::optional<Role> role;
  if (!options.role.empty()) {
    const StatusOr<Role> parsed = ParseRole(options.role);
    if (!parsed.ok()) return Wrong(parsed.status());
    role = *parsed;
  }
  GYRE_ASSIGN_OR_RETURN(Authority authority, Authority::Open(options.folder));
  GYRE_ASSIGN_OR_RETURN(const int revoked, authority.Revoke(options.name, role));
  if (options.quiet) return absl::OkStatus();
  fmt::print(stderr,
             "{} revoked; a coordinator with --cluster-ca {} reads the list by itself, another one needs {} in its "
             "identity's folder\n",
             revoked == 1 ? "1 certificate is" : fmt::format("{} certificates are", revoked), options.folder,
             authority.RevokedPath());
  return absl::OkStatus();
}

Status CaTokenCommand(const CaOptions& options) {
  GYRE_ASSIGN_OR_RETURN(const std::chrono::seconds valid, ParseSpan(options.ttl));
  GYRE_ASSIGN_OR_RETURN(const Authority authority, Authority::Open(options.folder));
  const StatusOr<JoinToken> token = CreateToken(authority, valid, options.name);
  if (!token.ok()) return Wrong(token.status());
  fmt::print("{}\n", FormatToken(*token));
  return absl::OkStatus();
}

}  // namespace gyre
