// Hugging Face's folders: the same model as GGUF and as safetensors, logits compared; conversions, and errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "model/hf/folder.h"
#include "runtime/runtime.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/hf_folder.h"
#include "tests/testing/prompt_logits.h"

namespace gyre {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Case = testing::HfCase;

class HfTest : public testing::HfFolderTest {
 protected:
  static std::vector<float> Logits(const std::string& path) {
    RuntimeOptions o;
    o.model = path;
    o.threads = 1;
    o.kv_type = "f32";
    o.quiet = true;
    o.isa = "avx2";
    std::vector<TokenId> ids;
    for (TokenId i = 0; i < 24; ++i) ids.push_back(3 + i * 7 % 90);
    std::vector<float> out;
    for (const auto& row : testing::PromptLogits(o, ids)) out.insert(out.end(), row.begin(), row.end());
    return out;
  }
  static double Difference(const std::vector<float>& a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    EXPECT_FALSE(a.empty());
    double max = 0;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      max = std::max(max, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    return max;
  }
};

TEST_F(HfTest, EveryArchitectureGivesTheLogitsOfItsGguf) {
  if (!IsaMissing(Isa::kAvx2).empty()) GTEST_SKIP() << IsaMissing(Isa::kAvx2);
  int shards = 1;
  for (const Case& c : {Case{"llama", "llama"},
                        {"mistral", "mistral"},
                        {"qwen2", "qwen2"},
                        {"qwen2moe", "qwen2_moe"},
                        {"qwen3", "qwen3"},
                        {"qwen3moe", "qwen3_moe"},
                        {"gemma2", "gemma2"},
                        {"gemma3", "gemma3_text"},
                        {"phi3", "phi3"},
                        {"glm4moe", "glm4_moe"},
                        {"minimax-m2", "minimax_m2"},
                        {"mistral3", "ministral3"},
                        {"smollm3", "smollm3"},
                        {"olmo2", "olmo3"},
                        {"granite", "granite"},
                        {"seed_oss", "seed_oss"}}) {
    SCOPED_TRACE(c.arch);
    testing::TinyOptions o;
    o.arch = c.arch;
    o.layers = o.arch == "gemma3" ? 7 : o.arch == "smollm3" || o.arch == "olmo2" ? 5 : 2;
    const auto bytes = testing::BuildTinyModel(o);
    Write(Path("model.gguf"), std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    MakeFolder(c, bytes, shards);
    const auto expected = Logits(Path("model.gguf"));
    EXPECT_LT(Difference(Logits(folder_), expected), 2e-5);
    const auto folder = OpenHfFolder(folder_);
    ASSERT_TRUE(folder.ok()) << folder.status();
    const Status converted = ConvertToGguf(**folder, Path("converted.gguf"), {.overwrite = true}).status();
    ASSERT_TRUE(converted.ok()) << converted;
    EXPECT_LT(Difference(Logits(Path("converted.gguf")), expected), 2e-5);
    shards = shards == 1 ? 3 : 1;
    for (const char* file : {"model.safetensors", "model.safetensors.index.json"}) fs::remove(Path(file));
  }
}

TEST_F(HfTest, AConversionOverwritesNoFileOfTheFolder) {
  MakeFolder({"llama", "llama"}, testing::BuildTinyModel({}), 1);
  const auto folder = OpenHfFolder(folder_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  fs::create_hard_link(Path("model.safetensors"), Path("link.gguf"));
  for (const char* own : {"model.safetensors", "link.gguf", "config.json"}) {
    const auto size = fs::file_size(Path(own));
    EXPECT_THAT(Message(ConvertToGguf(**folder, Path(own), {.overwrite = true}).status()),
                HasSubstr("this is the source"));
    EXPECT_EQ(fs::file_size(Path(own)), size);
  }
  ASSERT_TRUE(ConvertToGguf(**folder, Path("new.gguf"), {}).ok());
  EXPECT_THAT(Message(ConvertToGguf(**folder, Path("new.gguf"), {}).status()), HasSubstr("--force overwrites it"));
}

TEST_F(HfTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(Message(OpenModel(folder_).status()), HasSubstr("the folder has no config.json"));
  const auto bytes = testing::BuildTinyModel({});
  MakeFolder({"llama", "llama"}, bytes, 2);
  fs::remove(Path("part1.safetensors"));
  EXPECT_THAT(Message(OpenModel(folder_).status()), HasSubstr("missing: part1.safetensors"));
  Write(Path("config.json"), R"({"model_type": "mamba"})");
  EXPECT_THAT(Message(OpenModel(folder_).status()), HasSubstr("\"mamba\" is not known; known are llama"));
  Write(Path("config.json"), R"({"model_type": "llama", "num_hidden_layers": "two"})");
  EXPECT_THAT(Message(OpenModel(folder_).status()), HasSubstr("num_hidden_layers is \"two\", expected a whole number"));
  Write(Path("config.json"), "[");
  EXPECT_THAT(Message(OpenModel(folder_).status()), HasSubstr("no JSON object"));
}

}  // namespace
}  // namespace gyre
