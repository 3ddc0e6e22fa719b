// Locks between processes, on files that exist for nothing else and stay.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

namespace gyre {

// Held until the object or the process ends, however it ends. Each object counts alone, also within one process.
class FileLock {
 public:
  enum class Mode { kShared, kExclusive };

  // nullptr: somebody else holds it. Where nothing can be written (a read-only file system, somebody else's folder) and
  // there is no file to lock either, a lock that holds nothing. Errors as FileError.
  static StatusOr<std::unique_ptr<FileLock>> Try(const std::string& path, Mode mode);
  // Waits. For locks that are held for a moment only.
  static StatusOr<std::unique_ptr<FileLock>> Wait(const std::string& path, Mode mode);

  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  const int fd_;  // -1 = none
};

}  // namespace gyre
