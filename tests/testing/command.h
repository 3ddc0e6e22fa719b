// Runs the built gyre to its end. Tests that include it are built with GYRE_BINARY and GYRE_DEMO_MODEL.
#pragma once

#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "tests/testing/process.h"

namespace gyre::testing {

struct Ended {
  int code = -1;     // 128 + signal where one ended it; -1: it did not end
  std::string text;  // stdout and stderr
};

inline Ended RunToEnd(std::vector<std::string> command) {
  Process p(std::move(command));
  const auto code = p.Wait(std::chrono::seconds(60));
  return {code.value_or(-1), p.output()};
}

// environment: NAME=VALUE.
inline Ended Gyre(const std::vector<std::string>& words, const std::vector<std::string>& environment = {}) {
  std::vector<std::string> command{"/usr/bin/env"};
  command.insert(command.end(), environment.begin(), environment.end());
  command.emplace_back(GYRE_BINARY);
  command.insert(command.end(), words.begin(), words.end());
  return RunToEnd(std::move(command));
}

// In a script "$gyre" is the program and "$model" the demo model.
inline Ended Shell(const std::string& script) {
  return RunToEnd({"/usr/bin/env", std::string("gyre=") + GYRE_BINARY, std::string("model=") + GYRE_DEMO_MODEL,
                   "/bin/bash", "-c", script});
}

class TextFile {
 public:
  explicit TextFile(const std::string& text) {
    char path[] = "/tmp/gyre-file-XXXXXX";
    close(mkstemp(path));
    path_ = path;
    std::ofstream(path_) << text;
  }
  ~TextFile() { unlink(path_.c_str()); }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace gyre::testing
