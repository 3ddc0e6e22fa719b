// Tests of Hugging Face's folders: a GGUF model, written as one.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace gyre::testing {

struct HfCase {
  const char* arch;  // as GGUF has it
  const char* model_type;
};

// Each test has an empty folder.
class HfFolderTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  static void Write(const std::string& path, const std::string& text);
  // The GGUF model as such a folder, in `shards` files.
  void MakeFolder(const HfCase& c, const std::vector<std::byte>& gguf_bytes, int shards) const;

  std::string folder_;
};

}  // namespace gyre::testing
