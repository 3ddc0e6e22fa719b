// Small files that hold keys: read as a whole, written so that a reader sees the old one or the new one.
#pragma once

#include <sys/stat.h>

#include <string>
#include <string_view>

#include "base/status.h"

namespace gyre {

std::string PathIn(const std::string& folder, const char* name);

// At most a MiB. kNotFound; kInvalidArgument: it is longer.
StatusOr<std::string> ReadSmallFile(const std::string& path);
// Through a new file beside it, which is synced and renamed. kUnavailable.
Status ReplaceFile(const std::string& path, std::string_view bytes, mode_t mode);
// kFailedPrecondition: there is one already.
Status CreateFile(const std::string& path, std::string_view bytes, mode_t mode);
// With mode 0700; fine if it is there.
Status MakeFolder(const std::string& path);
// Whether a file can be made there.
Status CheckWritable(const std::string& folder);

}  // namespace gyre
