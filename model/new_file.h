// A file that gets its name only when it is complete, and that never replaces the file from which it is made.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/mapped_file.h"

namespace gyre {

struct NewFileOptions {
  bool overwrite = false;                                  // an existing file is replaced
  std::vector<std::shared_ptr<const MappedFile>> sources;  // never replaced, by whatever name or link
};

// Written under a temporary name in the same folder. Used by one thread.
class NewFile {
 public:
  // kInvalidArgument: the name is that of a source, of a folder or device, or of an existing file without `overwrite`.
  // kUnavailable: the file can't be made.
  static StatusOr<NewFile> Create(const std::string& path, const NewFileOptions& options);
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();  // an unfinished file is removed

  const std::string& path() const { return path_; }
  uint64_t written() const { return written_; }  // bytes
  // kUnavailable: the system's reason, such as a full disk.
  Status Write(std::span<const std::byte> bytes);
  // Renames the file to its name after a sync. Errors as Create and Write.
  Status Finish();

 private:
  NewFile() = default;
  Status Place() const;

  std::string path_, temporary_;
  NewFileOptions options_;
  std::FILE* file_ = nullptr;
  uint64_t written_ = 0;
};

}  // namespace gyre
