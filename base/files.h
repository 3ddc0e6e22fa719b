// Small files and folders: read as a whole, and written so that a reader sees the old bytes or the new ones.
// Thread-safe.
#pragma once

#include <sys/stat.h>

#include <string>
#include <string_view>

#include "base/status.h"

namespace gyre {

// "PATH: WHAT: the system's reason". kResourceExhausted: the disk is full; kNotFound; kPermissionDenied, also of a
// read-only file system; kUnavailable: anything else. error: errno. All errors of this file have this form.
Status FileError(const std::string& path, const char* what, int error);

std::string PathIn(const std::string& folder, const char* name);

// Reads at most a MiB. kNotFound: the file can't be read; kInvalidArgument: it is longer.
StatusOr<std::string> ReadSmallFile(const std::string& path);
// A text that is another one when the file was replaced or written; "-;" where there is none.
std::string FileStamp(const std::string& path);
// Writes a new file beside this one, syncs it and renames it.
Status ReplaceFile(const std::string& path, std::string_view bytes, mode_t mode);
// kFailedPrecondition: the file exists already.
Status CreateFile(const std::string& path, std::string_view bytes, mode_t mode);
// Opens or makes a file and locks it; the lock ends when the descriptor is closed. kFailedPrecondition with the
// sentence `held`: another process has it. The caller closes the descriptor.
StatusOr<int> OpenLocked(const std::string& path, int flags, mode_t mode, const std::string& held);
// Makes the folder and its parents. A folder that exists already is no error.
Status MakeFolder(const std::string& path);
// Like MakeFolder, but only this user has access: mode 0700.
Status MakePrivateFolder(const std::string& path);
// Checks that nobody but its owner may read a file with a secret, as ssh does. A file of another user may be read by a
// group, as somebody made it for this process. kInvalidArgument: "PATH: others on this machine may read SECRET ...".
Status CheckPrivate(const std::string& path, std::string_view secret);
// Checks that a file can be made in the folder.
Status CheckWritable(const std::string& folder);

}  // namespace gyre
