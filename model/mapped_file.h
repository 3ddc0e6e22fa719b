// A file's bytes, mapped read-only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace gyre {

// Immutable; the bytes live as long as the object. If another process truncates the file while it is mapped, nothing
// protects a read: CheckSize finds it only between reads.
class MappedFile {
 public:
  // Errors: kNotFound (no such file), kInvalidArgument (a folder, an empty file), kResourceExhausted (no address space
  // for it), kUnavailable (the system refuses); each with the path and the system's reason.
  static StatusOr<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // For reading the very file that is mapped, whatever its path leads to by now. It lives as long as the object.
  int fd() const { return fd_; }
  // Whether `path`, by whatever name or link, leads to this very file.
  bool SameAs(const std::string& path) const;
  // Frees the memory that this range, and the pages that the system maps around it, takes in this process, until it is
  // read again. Ranges outside the mapping are ignored.
  void Drop(std::span<const std::byte> range) const;
  // kDataLoss if the file no longer has the size that was mapped.
  Status CheckSize() const;

 private:
  MappedFile(std::string path, int fd, std::span<const std::byte> bytes)
      : path_(std::move(path)), fd_(fd), bytes_(bytes) {}

  std::string path_;
  int fd_;
  std::span<const std::byte> bytes_;
};

// The way in which bytes of a mapping, the whole or a part, are about to be read. Hints only: any range is fine.
enum class ReadHint {
  kSequential,  // from the first to the last: the system reads far ahead and drops what was read first
  kSoon,        // soon and whole: the system begins to read now, and the caller goes on
};
void HintRead(std::span<const std::byte> range, ReadHint hint);

}  // namespace gyre
