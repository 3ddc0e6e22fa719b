// Errors of the file system as statuses.
#pragma once

#include <string>

#include "base/status.h"

namespace gyre {

// "PATH: WHAT: the system's reason". kResourceExhausted: the disk is full; kNotFound; kPermissionDenied, also of a
// read-only file system; kUnavailable: anything else. error: errno.
Status FileError(const std::string& path, const char* what, int error);

}  // namespace gyre
