// Locks between processes, on files that have no other purpose and are never removed.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

namespace gyre {

// Held until the object or the process ends, in any way. Each object locks for itself, also within one process.
class FileLock {
 public:
  enum class Mode { kShared, kExclusive };

  // nullptr: another object holds it. If nothing can be written (a read-only file system, another user's folder) and
  // there is no file to lock either, the result is a lock that holds nothing. Errors as FileError.
  static StatusOr<std::unique_ptr<FileLock>> Try(const std::string& path, Mode mode);
  // Waits for the lock. Only for locks that are held for a moment.
  static StatusOr<std::unique_ptr<FileLock>> Wait(const std::string& path, Mode mode);

  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  const int fd_;  // -1 = none
};

}  // namespace gyre
