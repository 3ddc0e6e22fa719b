// Small files and folders: read as a whole, and written so that a reader sees the old bytes or the new ones.
// Thread-safe.
#pragma once

#include <sys/stat.h>

#include <string>
#include <string_view>

#include "base/status.h"

namespace gyre {

// "PATH: WHAT: the system's reason". kResourceExhausted: the disk is full; kNotFound; kPermissionDenied, also of a
// read-only file system; kUnavailable: anything else. error: errno. Errors of this file are such ones.
Status FileError(const std::string& path, const char* what, int error);

std::string PathIn(const std::string& folder, const char* name);

// At most a MiB. kNotFound: it can't be read; kInvalidArgument: it is longer.
StatusOr<std::string> ReadSmallFile(const std::string& path);
// Through a new file beside it, which is synced and renamed.
Status ReplaceFile(const std::string& path, std::string_view bytes, mode_t mode);
// kFailedPrecondition: there is one already.
Status CreateFile(const std::string& path, std::string_view bytes, mode_t mode);
// Makes the folder and those that it lies in. A folder that exists already is no error.
Status MakeFolder(const std::string& path);
// The same, for this user's eyes only: mode 0700.
Status MakePrivateFolder(const std::string& path);
// Whether a file can be made there.
Status CheckWritable(const std::string& folder);

}  // namespace gyre
