#include "hub/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "base/files.h"

namespace gyre {
namespace {

// Returns -1 if there is no file to lock and none can be made.
StatusOr<int> OpenToLock(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd >= 0) return fd;
  const int error = errno;
  if (error != EROFS && error != EACCES && error != EPERM) return FileError(path, "can't open it", error);
  const int readable = open(path.c_str(), O_RDONLY | O_CLOEXEC);  // a lock needs no right to write
  return readable >= 0 ? readable : -1;
}

int Operation(FileLock::Mode mode) { return mode == FileLock::Mode::kShared ? LOCK_SH : LOCK_EX; }

// Some file systems have no locks: processes that share such a cache get none.
bool HasNoLocks(int error) { return error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL; }

}  // namespace

StatusOr<std::unique_ptr<FileLock>> FileLock::Try(const std::string& path, Mode mode) {
  GYRE_ASSIGN_OR_RETURN(const int fd, OpenToLock(path));
  auto lock = std::unique_ptr<FileLock>(new FileLock(fd));
  if (fd < 0 || flock(fd, Operation(mode) | LOCK_NB) == 0 || HasNoLocks(errno)) return lock;
  if (errno == EWOULDBLOCK) return std::unique_ptr<FileLock>();
  return FileError(path, "can't lock it", errno);
}

StatusOr<std::unique_ptr<FileLock>> FileLock::Wait(const std::string& path, Mode mode) {
  GYRE_ASSIGN_OR_RETURN(const int fd, OpenToLock(path));
  auto lock = std::unique_ptr<FileLock>(new FileLock(fd));
  while (fd >= 0 && flock(fd, Operation(mode)) != 0 && !HasNoLocks(errno)) {
    if (errno != EINTR) return FileError(path, "can't lock it", errno);
  }
  return lock;
}

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace gyre
