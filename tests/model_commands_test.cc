// gyre quantize, convert, inspect, tokenize and template as a user starts them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "kernels/quant.h"
#include "model/tokenizer.h"
#include "model/weights.h"
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
  void WriteTokenizer() const {
    std::ofstream(Path("folder/tokenizer.json"))
        << R"({"added_tokens": [{"id": 3, "content": "<|user|>", "special": true}, {"id": 4, "content": "<|observation|>",
               "special": true}, {"id": 5, "content": "<|endoftext|>", "special": true}, {"id": 6, "content": "<|stop|>",
               "special": true}, {"id": 7, "content": "<|go|>", "special": true}], "pre_tokenizer": {"type": "ByteLevel",
               "add_prefix_space": false, "use_regex": true}, "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE",
               "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";
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

// By whatever name or link, and whatever the user says.
TEST_F(ModelCommandsTest, NoCommandReplacesItsSource) {
  namespace fs = std::filesystem;
  WriteFolder();
  std::ofstream(Path("folder/special_tokens_map.json")) << "{}";
  fs::create_symlink("folder/model.safetensors", Path("symbolic.gguf"));
  fs::create_hard_link(Path("folder/model.safetensors"), Path("hard.gguf"));
  std::ofstream(Path("ids.txt")) << "1 2 3\n";
  const std::string model = Read("folder/model.safetensors"), config = Read("folder/config.json");
  for (const std::string out : {"folder/model.safetensors", "folder/config.json", "folder/special_tokens_map.json",
                                "symbolic.gguf", "hard.gguf"}) {
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"quantize", Path("folder"), Path(out), "Q8_0", "--force"},
          {"convert", Path("folder"), Path(out), "--force"},
          {"logits", Path("folder"), "--ids", Path("ids.txt"), "--out", Path(out), "--force"}}) {
      const Ended ended = Run(words);
      EXPECT_EQ(ended.code, 1) << words[0] << " " << out;
      EXPECT_THAT(ended.output, HasSubstr("this is the source itself")) << words[0] << " " << out;
    }
  }
  EXPECT_THAT(Run({"logits", Path("in.gguf"), "--ids", Path("ids.txt"), "--out", Path("ids.txt")}).output,
              HasSubstr("this is the source itself"));
  EXPECT_THAT(Run({"logits", Path("in.gguf"), "--ids", Path("ids.txt"), "--out", Path("in.gguf")}).output,
              HasSubstr("this is the source itself"));
  EXPECT_EQ(Read("folder/model.safetensors"), model);
  EXPECT_EQ(Read("folder/config.json"), config);
  EXPECT_EQ(Read("folder/special_tokens_map.json"), "{}");
  EXPECT_EQ(Read("ids.txt"), "1 2 3\n");
  // What was made before is replaced, also beside the source.
  EXPECT_EQ(Run({"quantize", Path("folder"), Path("folder/q8.gguf"), "Q8_0", "-q"}).code, 0);
  EXPECT_EQ(Run({"quantize", Path("folder"), Path("folder/q8.gguf"), "Q8_0", "-q", "--force"}).code, 0);
  std::ofstream(Path("out.f32")) << "somebody's text";
  std::vector<std::string> logits{"logits", Path("folder"), "--ids", Path("ids.txt"), "--out", Path("out.f32"), "-q"};
  const Ended refused = Run(logits);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.output, HasSubstr("out.f32: the file exists already; --force overwrites it"));
  EXPECT_EQ(Read("out.f32"), "somebody's text");
  logits.push_back("--force");
  const Ended written = Run(logits);
  EXPECT_EQ(written.code, 0) << written.output;
  EXPECT_EQ(Read("out.f32").size(), 3 * 8 * sizeof(float));
  EXPECT_EQ(Run({"logits", Path("folder"), "--ids", Path("ids.txt"), "--out", "/dev/null", "-q"}).code, 0);
}

// A file has as many ends as its folder, though GGUF has keys for three.
TEST_F(ModelCommandsTest, ConvertKeepsAllEnds) {
  WriteFolder();
  WriteTokenizer();
  std::ofstream(Path("folder/generation_config.json")) << R"({"eos_token_id": [5, 3, 4, 6]})";
  const Ended converted = Run({"convert", Path("folder"), Path("out.gguf"), "-q"});
  ASSERT_EQ(converted.code, 0) << converted.output;
  EXPECT_EQ(Run({"quantize", Path("out.gguf"), Path("q8.gguf"), "Q8_0", "-q"}).code, 0);
  for (const std::string path : {"folder", "out.gguf", "q8.gguf"}) {
    const auto model = OpenModel(Path(path));
    ASSERT_TRUE(model.ok()) << model.status();
    std::vector<TokenId> ends;
    for (TokenId id = 0; id < 8; ++id) {
      if ((*model)->tokenizer()->IsEndOfGeneration(id)) ends.push_back(id);
    }
    EXPECT_EQ(ends, (std::vector<TokenId>{3, 4, 5, 6})) << path;
  }
  // Other programs find the first two of those that they don't know by name.
  const std::string metadata = Run({"inspect", Path("out.gguf")}).output;
  EXPECT_THAT(metadata, HasSubstr("tokenizer.ggml.eos_token_id = 5"));
  EXPECT_THAT(metadata, HasSubstr("tokenizer.ggml.eot_token_id = 3"));
  EXPECT_THAT(metadata, HasSubstr("tokenizer.ggml.eom_token_id = 4"));
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

// The demo model's activations decide where the bits of a smaller one go.
TEST_F(ModelCommandsTest, ImatrixWritesWhatQuantizeReads) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "The quick brown fox jumps over the lazy dog, and the dog does not care. ";
  std::ofstream(Path("text.txt")) << text;
  const std::string demo = GYRE_DEMO_MODEL;
  const Ended made = Run({"imatrix", demo, Path("text.txt"), "-o", Path("matrix"), "--chunk", "64"});
  EXPECT_EQ(made.code, 0) << made.output;
  EXPECT_THAT(made.output, ::testing::ContainsRegex("[0-9]+ tensors over [0-9]+ chunks of 64 tokens"));
  EXPECT_EQ(Run({"imatrix", demo, Path("text.txt"), "-o", Path("matrix"), "--chunk", "64"}).code, 1) << "no --force";
  EXPECT_THAT(Run({"imatrix", demo, Path("text.txt"), "-o", Path("other"), "--chunk", "100000"}).output,
              HasSubstr("a longer text, or a smaller --chunk"));
  const std::vector<std::string> quantize = {"quantize", demo, Path("out.gguf"), "Q4_0", "--requantize", "--force"};
  std::vector<std::string> with = quantize;
  with.insert(with.end(), {"--imatrix", Path("matrix"), "--tensor-type", "ffn_down=IQ4_NL"});
  const Ended quantized = Run(with);
  EXPECT_EQ(quantized.code, 0) << quantized.output;
  EXPECT_THAT(quantized.output,
              ::testing::ContainsRegex("[1-9][0-9]* tensors of the importance matrix have weights here"));
  const auto model = OpenModel(Path("out.gguf"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->Layer(0)->matrix(Slot::kDown).type, DType::kIQ4_NL);
  with = quantize;
  with.insert(with.end(), {"--imatrix", Path("text.txt")});
  EXPECT_THAT(Run(with).output, HasSubstr("neither GGUF nor .dat"));
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

TEST_F(ModelCommandsTest, AFolderWithoutATokenizerTokenizesNothing) {
  WriteFolder();
  const Ended none = Run({"tokenize", Path("folder")});
  EXPECT_EQ(none.code, 1) << none.output;
  EXPECT_THAT(none.output, HasSubstr("the folder has no tokenizer.json"));
}

// Older folders have the template in a file of its own, inside JSON.
TEST_F(ModelCommandsTest, TheTemplateOfChatTemplateJsonIsRead) {
  WriteFolder();
  WriteTokenizer();
  std::ofstream(Path("folder/chat_template.json"))
      << R"({"chat_template": "{% for m in messages %}a{{ m.content }}b{% endfor %}"})";
  const Ended shown = Run({"template", Path("folder")});
  EXPECT_EQ(shown.code, 0) << shown.output;
  EXPECT_THAT(shown.output, HasSubstr("a{{ m.content }}b"));
}

// A chat_template is a text, texts by name, or a list of them; further files may hold those for tools.
TEST_F(ModelCommandsTest, OfSeveralTemplatesTheDefaultIsForChats) {
  WriteFolder();
  WriteTokenizer();
  const auto shows = [&](const char* settings, const char* text) {
    std::ofstream(Path("folder/chat_template.json")) << settings;
    const Ended shown = Run({"template", Path("folder")});
    EXPECT_EQ(shown.code, 0) << shown.output;
    EXPECT_THAT(shown.output, HasSubstr(text)) << settings;
  };
  shows(
      R"({"chat_template": [{"name": "tool_use", "template": "{{ messages }}T"}, {"name": "default", "template": "{{ messages }}D"}]})",
      "{{ messages }}D");
  shows(R"({"chat_template": {"tool_use": "{{ messages }}T", "default": "{{ messages }}O"}})", "{{ messages }}O");
  shows(R"({"chat_template": {"rag": "{{ messages }}R"}})", "{{ messages }}R");

  std::ofstream(Path("folder/chat_template.json"))
      << R"({"chat_template": {"rag": "{{ messages }}R", "tool_use": "{{ messages }}T"}})";
  EXPECT_THAT(Run({"template", Path("folder")}).output,
              HasSubstr("the model has the chat templates rag, tool_use, and none is the default"));
  std::ofstream(Path("folder/chat_template.json")) << R"({"chat_template": [{"name": "default"}]})";
  EXPECT_THAT(Run({"template", Path("folder")}).output, HasSubstr("an item of the list has no name or no template"));
  std::ofstream(Path("folder/chat_template.json")) << R"({"chat_template": {"default": 7}})";
  EXPECT_THAT(Run({"template", Path("folder")}).output, HasSubstr("\"default\" is no text"));

  std::ofstream(Path("folder/chat_template.jinja")) << "{{ messages }}J";
  std::filesystem::create_directory(Path("folder/additional_chat_templates"));
  std::ofstream(Path("folder/additional_chat_templates/tool_use.jinja")) << "{{ messages }}{{ tools }}U";
  EXPECT_THAT(Run({"template", Path("folder")}).output, HasSubstr("{{ messages }}J"));
}

// No other format takes its place.
TEST_F(ModelCommandsTest, ATemplateThatCantBeParsedIsNamedWithItsLine) {
  WriteFolder();
  WriteTokenizer();
  std::ofstream(Path("folder/chat_template.jinja")) << "{% for m in messages %}\n{{ m.content }";
  const Ended shown = Run({"template", Path("folder")});
  EXPECT_EQ(shown.code, 1) << shown.output;
  EXPECT_THAT(shown.output, HasSubstr("the model's chat template: line 2"));
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
