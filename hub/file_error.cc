#include "hub/file_error.h"

#include <cerrno>
#include <system_error>

namespace gyre {

Status FileError(const std::string& path, const char* what, int error) {
  const std::string reason = std::generic_category().message(error);
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return ResourceExhausted("{}: {}: {}", path, what, reason);
    case ENOENT:
    case ENOTDIR: return NotFound("{}: {}: {}", path, what, reason);
    case EACCES:
    case EPERM:
    case EROFS: return MakeStatus(absl::StatusCode::kPermissionDenied, "{}: {}: {}", path, what, reason);
    default: return Unavailable("{}: {}: {}", path, what, reason);
  }
}

}  // namespace gyre
