// A temporary folder, and a fixture of tests that write and read files in one.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace gyre::testing {

class TempFolder {
 public:
  TempFolder() {
    char path[] = "/tmp/gyre-test-XXXXXX";
    path_ = mkdtemp(path);
  }
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class FolderTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
  }
  void Write(const std::string& name, const std::vector<std::byte>& bytes) const {
    Write(name, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  std::string Read(const std::string& name) const {
    std::ostringstream out;
    out << std::ifstream(Path(name), std::ios::binary).rdbuf();
    return out.str();
  }

  const TempFolder folder_;
};

}  // namespace gyre::testing
