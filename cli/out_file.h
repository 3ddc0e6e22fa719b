// The file that a flag of a command names for its result.
#pragma once

#include <cstddef>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "model/new_file.h"

namespace gyre {

// A new file gets its name when it is complete. A device or a pipe is written as it is. Used by one thread.
class OutFile {
 public:
  // Errors as NewFile::Create.
  static StatusOr<OutFile> Open(const std::string& path, const NewFileOptions& options);
  Status Write(std::span<const std::byte> bytes);
  Status Finish();

 private:
  OutFile() = default;
  std::string path_;
  std::optional<NewFile> file_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> device_{nullptr, std::fclose};
};

}  // namespace gyre
