// gyre quantize, convert, inspect, tokenize and template as a user starts them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "kernels/quant.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/process.h"

namespace gyre {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class ModelCommandsTest : public ::testing::Test {
 protected:
  struct Ended {
    int code = -1;
    std::string output;
  };

  void SetUp() override {
    char folder[] = "/tmp/gyre-commands-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    Write("in.gguf", testing::BuildTinyModel({}));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Write(const std::string& name, const std::vector<std::byte>& bytes) const {
    std::ofstream(Path(name), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  Ended Run(std::vector<std::string> words) const {
    words.insert(words.begin(), GYRE_BINARY);
    testing::Process process(std::move(words));
    return {process.Wait(seconds(120)).value_or(-1), process.output()};
  }
  std::string folder_;
};

TEST_F(ModelCommandsTest, QuantizeKeepsWhatIsThere) {
  const Ended own = Run({"quantize", Path("in.gguf"), Path("in.gguf"), "Q8_0", "--force"});
  EXPECT_EQ(own.code, 1);
  EXPECT_THAT(own.output, HasSubstr("this is the source itself"));
  EXPECT_EQ(Run({"quantize", Path("in.gguf"), Path("out.gguf"), "q8_0", "-q"}).output, "");
  EXPECT_EQ(Run({"quantize", Path("in.gguf"), Path("out.gguf"), "Q8_0"}).code, 1);
  EXPECT_EQ(Run({"quantize", Path("in.gguf"), Path("out.gguf"), "Q8_0", "--force"}).code, 0);
  EXPECT_EQ(Files(), (std::vector<std::string>{"in.gguf", "out.gguf"}));
}

TEST_F(ModelCommandsTest, QuantizeSaysInOneLineWhatTookAnotherType) {
  testing::TinyOptions narrow;
  narrow.ffn = 64;
  Write("narrow.gguf", testing::BuildTinyModel(narrow));
  const Ended loud = Run({"quantize", Path("narrow.gguf"), Path("a.gguf"), "Q4_K_M"});
  EXPECT_EQ(loud.code, 0);
  EXPECT_THAT(loud.output,
              ::testing::ContainsRegex("^[0-9]+ tensors stored as Q5_0.*: row length not divisible by 256\n"));
  EXPECT_EQ(std::count(loud.output.begin(), loud.output.end(), '\n'), 2) << loud.output;
  EXPECT_EQ(Run({"quantize", Path("narrow.gguf"), Path("b.gguf"), "Q4_K_M", "-q"}).output, "");
}

TEST_F(ModelCommandsTest, QuantizeThatIsStoppedLeavesNothingBehind) {
  testing::TinyOptions large;  // so that writing it in another type takes seconds
  large.dim = 1024;
  large.ffn = 4096;
  large.layers = 8;
  large.type = DType::kF16;
  Write("large.gguf", testing::BuildTinyModel(large));
  for (const int signal : {SIGINT, SIGTERM}) {
    testing::Process process({GYRE_BINARY, "quantize", Path("large.gguf"), Path("out.gguf"), "Q4_K_M", "-t", "1"});
    const auto end = std::chrono::steady_clock::now() + seconds(60);
    while (Files().size() < 3 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_EQ(Files().size(), 3u);
    process.Kill(signal);
    EXPECT_EQ(process.Wait(seconds(120)), 130);
    EXPECT_THAT(process.output(), HasSubstr(signal == SIGINT ? "gyre: stopped by Ctrl-C" : "gyre: stopped by SIGTERM"));
    EXPECT_EQ(Files(), (std::vector<std::string>{"in.gguf", "large.gguf"}));
  }
}

TEST_F(ModelCommandsTest, ConvertSaysWhatIsMissing) {
  const Ended missing = Run({"convert", Path("missing"), Path("out.gguf")});
  EXPECT_EQ(missing.code, 1);
  EXPECT_EQ(missing.output, "gyre: " + Path("missing") + ": no such folder\n");
  EXPECT_THAT(Run({"convert", Path("in.gguf"), Path("out.gguf")}).output, HasSubstr("a file, expected a folder"));
  EXPECT_THAT(Run({"convert", folder_, Path("out.gguf")}).output, HasSubstr("the folder has no config.json"));
}

TEST_F(ModelCommandsTest, WhatIsNoModelIsNamed) {
  std::ofstream(Path("page.gguf")) << "<!doctype html><html><body>Not found</body></html>";
  std::ofstream(Path("empty.gguf")) << "";
  std::ofstream(Path("noise.gguf")) << "\xFF\xD8\xFF\xE0 thirty bytes that begin as an image does \x01";
  for (const std::string command : {"inspect", "tokenize", "template"}) {
    const Ended page = Run({command, Path("page.gguf")});
    EXPECT_EQ(page.code, 1);
    EXPECT_EQ(page.output,
              "gyre: " + Path("page.gguf") + ": looks like an HTML page, not a model file: download it again\n")
        << command;
    EXPECT_THAT(Run({command, Path("empty.gguf")}).output, HasSubstr("the file is empty")) << command;
    EXPECT_THAT(Run({command, Path("noise.gguf")}).output, HasSubstr("not a GGUF file")) << command;
  }
  EXPECT_THAT(Run({"quantize", Path("page.gguf"), Path("out.gguf"), "Q8_0"}).output,
              HasSubstr("looks like an HTML page"));
}

}  // namespace
}  // namespace gyre
