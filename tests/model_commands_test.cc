// gyre quantize, convert, inspect, tokenize and template as a user starts them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "kernels/quant.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/process.h"
#include "tests/testing/safetensors_writer.h"

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
  // "folder": a Llama of one layer as safetensors, without a tokenizer.
  void WriteFolder() const {
    std::filesystem::create_directory(Path("folder"));
    std::ofstream(Path("folder/config.json"))
        << R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
               "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 8, "rms_norm_eps": 1e-5,
               "max_position_embeddings": 64, "rope_theta": 10000, "tie_word_embeddings": true})";
    testing::Shard shard;
    auto add = [&, n = 0](const std::string& name, const std::vector<uint64_t>& shape) mutable {
      std::vector<float> values(shape[0] * (shape.size() > 1 ? shape[1] : 1));
      for (float& v : values) v = static_cast<float>(++n * 7919 % 1000 - 500) / 1000;
      shard.AddFloats("model." + name + ".weight", shape, values);
    };
    add("embed_tokens", {8, 32});
    add("norm", {32});
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) add("layers.0." + std::string(norm), {32});
    for (const auto& [name, n, k] : {std::tuple<std::string, uint64_t, uint64_t>{"self_attn.q_proj", 32, 32},
                                     {"self_attn.k_proj", 16, 32},
                                     {"self_attn.v_proj", 16, 32},
                                     {"self_attn.o_proj", 32, 32},
                                     {"mlp.gate_proj", 64, 32},
                                     {"mlp.up_proj", 64, 32},
                                     {"mlp.down_proj", 32, 64}}) {
      add("layers.0." + name, {n, k});
    }
    std::ofstream(Path("folder/model.safetensors"), std::ios::binary) << shard.Bytes();
  }
  std::string Read(const std::string& name) const {
    std::ifstream in(Path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
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

// As by convert and quantize one after the other.
TEST_F(ModelCommandsTest, QuantizeTakesAFolder) {
  WriteFolder();
  const Ended both = Run({"quantize", Path("folder"), Path("both.gguf"), "Q8_0", "-q"});
  EXPECT_EQ(both.code, 0) << both.output;
  EXPECT_EQ(Files(), (std::vector<std::string>{"both.gguf", "folder", "in.gguf"}));
  EXPECT_EQ(Run({"convert", Path("folder"), Path("converted.gguf"), "-q"}).code, 0);
  EXPECT_EQ(Run({"quantize", Path("converted.gguf"), Path("one.gguf"), "Q8_0", "-q"}).code, 0);
  EXPECT_GT(Read("both.gguf").size(), 1000u);
  EXPECT_EQ(Read("both.gguf"), Read("one.gguf"));
  EXPECT_THAT(Run({"quantize", Path("folder"), Path("both.gguf"), "Q8_0"}).output, HasSubstr("--force"));
  EXPECT_THAT(Run({"quantize", folder_, Path("x.gguf"), "Q8_0"}).output, HasSubstr("the folder has no config.json"));
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
