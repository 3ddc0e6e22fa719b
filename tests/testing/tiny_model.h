// A tiny seeded model, or any bytes, in a temporary file.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/testing/gguf_writer.h"

namespace gyre::testing {

class TinyModelFile {
 public:
  explicit TinyModelFile(const TinyOptions& options = {}) : TinyModelFile(BuildTinyModel(options)) {}
  explicit TinyModelFile(const std::vector<std::byte>& bytes) {
    char path[] = "/tmp/gyre-tiny-XXXXXX";
    const int fd = mkstemp(path);
    path_ = path;
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t n = write(fd, bytes.data() + at, bytes.size() - at);
      if (n <= 0) abort();
      at += static_cast<size_t>(n);
    }
    close(fd);
  }
  ~TinyModelFile() { unlink(path_.c_str()); }
  TinyModelFile(const TinyModelFile&) = delete;
  TinyModelFile& operator=(const TinyModelFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace gyre::testing
