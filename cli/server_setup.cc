#include "cli/server_setup.h"

#include <cstdlib>
#include <limits>

#include "base/log.h"
#include "base/range.h"
#include "cli/exit_code.h"
#include "cli/session.h"

namespace gyre {

void TellMore() {
  if (std::getenv("GYRE_LOG") == nullptr) SetLogLevel(LogLevel::kInfo);
}

StatusOr<LayerRange> ParseLayerPreference(const std::string& text) {
  const auto range = ParseRange(text);
  if (!range || range->last < range->first || range->last == std::numeric_limits<int>::max()) {
    return UsageError("--layers {}: expected A-B, as 0-7", text);
  }
  return LayerRange{range->first, range->last + 1};
}

StatusOr<uint64_t> ParseSizeFlag(const char* flag, const std::string& text) {
  if (text.empty()) return uint64_t{0};
  const StatusOr<uint64_t> bytes = ParseSize(text);
  return bytes.ok() ? bytes : AsUsage(Annotate(bytes.status(), flag));
}

StatusOr<std::shared_ptr<IdentityFolder>> OpenIdentity(const std::string& folder, Role role,
                                                       const std::string& revoked) {
  if (folder.empty()) return std::shared_ptr<IdentityFolder>();
  auto identity = IdentityFolder::Open(folder, revoked);
  if (!identity.ok()) return Annotate(identity.status(), "--identity");
  const Principal self = (*identity)->current()->self();
  if (self.role == role) return identity;
  return UsageError("--identity {}: it is the identity of {}, expected one of the role {}", folder, Describe(self),
                    RoleName(role));
}

std::string KeptSpeeds(const SourceOptions& source) {
  const std::string folder = CacheFolder(source);
  return folder.empty() ? "" : folder + "/machine-speeds";
}

}  // namespace gyre
