// A file's bytes, mapped read-only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace gyre {

// Immutable; the bytes live as long as the object. A file that another process truncates while it is mapped cannot be
// guarded against: CheckSize finds it only between reads.
class MappedFile {
 public:
  // Errors: kNotFound (no such file), kInvalidArgument (a folder, an empty file), kUnavailable (the system refuses);
  // each with the path and the system's reason.
  static StatusOr<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // Does `path`, by whatever name or link, lead to this very file?
  bool SameAs(const std::string& path) const;
  // This range, and what the system maps around it, takes no memory of this process until it is read again. Ranges
  // elsewhere are ignored.
  void Drop(std::span<const std::byte> range) const;
  // kDataLoss where the file no longer has the size that was mapped.
  Status CheckSize() const;

 private:
  MappedFile(std::string path, int fd, std::span<const std::byte> bytes)
      : path_(std::move(path)), fd_(fd), bytes_(bytes) {}

  std::string path_;
  int fd_;
  std::span<const std::byte> bytes_;
};

// How bytes of a mapping, the whole or a part, are about to be read. Hints only: errors and any range are fine.
enum class ReadHint {
  kSequential,  // from the first to the last: the system reads far ahead and drops what was read first
  kSoon,        // soon and whole: the system begins to read now, and the caller goes on
};
void HintRead(std::span<const std::byte> range, ReadHint hint);

}  // namespace gyre
