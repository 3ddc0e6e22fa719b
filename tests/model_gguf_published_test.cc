// GGUF files as other programs write and users name them: what is not used may be of any type, and content comes before
// names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "model/split_file.h"
#include "model/tokenizer.h"
#include "model/weights.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/weights_fixture.h"

namespace gyre {
namespace {

using testing::GgufWriter;
using ::testing::HasSubstr;

const std::vector<std::string> kTokens = {"a", "b", "ab", "<|im_start|>", "<|im_end|>", "<|endoftext|>"};

// A byte-level BPE; `more` adds to it, `types` are those of the tokens.
std::vector<std::byte> Bpe(const std::function<void(GgufWriter&)>& more) {
  GgufWriter w;
  w.String("tokenizer.ggml.model", "gpt2");
  w.String("tokenizer.ggml.pre", "gpt-2");
  w.Strings("tokenizer.ggml.tokens", kTokens);
  w.Strings("tokenizer.ggml.merges", {"a b"});
  w.Uint("tokenizer.ggml.eos_token_id", 5);
  more(w);
  return w.Finish();
}

TEST(PublishedGgufTest, ScoresThatMergesDoNotNeedMayBeOfAnyType) {
  const std::vector<std::byte> files[] = {
      Bpe([](GgufWriter& w) { w.Numbers("tokenizer.ggml.scores", 5, std::vector<int32_t>(kTokens.size(), 0)); }),
      Bpe([](GgufWriter& w) { w.Numbers("tokenizer.ggml.scores", 6, std::vector<float>()); }),
      Bpe([](GgufWriter& w) { w.String("tokenizer.ggml.scores", "none"); }),
  };
  for (const auto& bytes : files) {
    const auto tokenizer = TokenizerFromBytes(bytes);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->Encode("ab", {}), std::vector<TokenId>{2});
  }
  GgufWriter w;
  w.String("tokenizer.ggml.model", "llama");
  w.Strings("tokenizer.ggml.tokens", {"<unk>", "a"});
  w.Numbers("tokenizer.ggml.scores", 5, std::vector<int32_t>{0, 0});
  const auto bytes = w.Finish();
  EXPECT_THAT(Message(TokenizerFromBytes(bytes).status()), HasSubstr("tokenizer.ggml.scores is no array of f32"));
}

TEST(PublishedGgufTest, TypesOfTokensMayBeAnyIntegers) {
  const std::vector<std::byte> files[] = {
      Bpe([](GgufWriter& w) {
        w.Numbers("tokenizer.ggml.token_type", 5, std::vector<int32_t>{1, 1, 1, 3, 3, 3});
      }),
      Bpe([](GgufWriter& w) {
        w.Numbers("tokenizer.ggml.token_type", 4, std::vector<uint32_t>{1, 1, 1, 3, 3, 3});
      }),
      Bpe([](GgufWriter& w) {
        w.Numbers("tokenizer.ggml.token_type", 0, std::vector<uint8_t>{1, 1, 1, 3, 3, 3});
      }),
  };
  for (const auto& bytes : files) {
    const auto tokenizer = TokenizerFromBytes(bytes);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->type(3), TokenType::kControl);
    EXPECT_EQ((*tokenizer)->type(2), TokenType::kNormal);
  }
  const auto empty = Bpe([](GgufWriter& w) { w.Numbers("tokenizer.ggml.token_type", 5, std::vector<int32_t>()); });
  EXPECT_TRUE(TokenizerFromBytes(empty).ok());
  const auto seven = Bpe([](GgufWriter& w) { w.Numbers("tokenizer.ggml.token_type", 5, std::vector<int32_t>(6, 7)); });
  EXPECT_THAT(Message(TokenizerFromBytes(seven).status()), HasSubstr("value 0 is no integer from 1 to 6"));
}

// Some files of ChatML models call the end of a turn a user's token, and another one the end of the text.
TEST(PublishedGgufTest, AnEndOfATurnEndsItThoughItIsAUsersToken) {
  const auto bytes = Bpe([](GgufWriter& w) {
    w.Numbers("tokenizer.ggml.token_type", 5, std::vector<int32_t>{1, 1, 1, 4, 4, 3});
  });
  const auto tokenizer = TokenizerFromBytes(bytes);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_TRUE((*tokenizer)->IsEndOfGeneration(4));
  EXPECT_TRUE((*tokenizer)->IsEndOfGeneration(5));
  EXPECT_FALSE((*tokenizer)->IsEndOfGeneration(3));
  // Like the end of a text it is not found in a user's text.
  EXPECT_EQ((*tokenizer)->type(4), TokenType::kControl);
  EXPECT_EQ((*tokenizer)->Encode("<|im_end|>", {.parse_special = true}), std::vector<TokenId>{4});
  const auto normal = Bpe([](GgufWriter& w) {
    w.Numbers("tokenizer.ggml.token_type", 5, std::vector<int32_t>{1, 1, 1, 1, 1, 3});
  });
  EXPECT_FALSE((*TokenizerFromBytes(normal))->IsEndOfGeneration(4));
}

TEST(PublishedGgufTest, ATagOfHtmlEndsNothing) {
  GgufWriter w;
  w.String("tokenizer.ggml.model", "gpt2");
  w.String("tokenizer.ggml.pre", "gpt-2");
  w.Strings("tokenizer.ggml.tokens", {"a", "</s>"});
  w.Strings("tokenizer.ggml.merges", {});
  w.Numbers("tokenizer.ggml.token_type", 5, std::vector<int32_t>{1, 4});
  const auto bytes = w.Finish();
  const auto tokenizer = TokenizerFromBytes(bytes);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_FALSE((*tokenizer)->IsEndOfGeneration(1));
  EXPECT_EQ((*tokenizer)->Encode("a</s>", {}), (std::vector<TokenId>{0, 1}));
}

TEST(PublishedGgufTest, AListOfEndsIsReadWhole) {
  const auto bytes = Bpe([](GgufWriter& w) {
    w.Numbers("gyre.tokenizer.end_token_ids", 5, std::vector<int32_t>{0, 1, 5});
  });
  const auto tokenizer = TokenizerFromBytes(bytes);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const TokenId id : {0, 1, 5}) EXPECT_TRUE((*tokenizer)->IsEndOfGeneration(id)) << id;
  const auto outside =
      Bpe([](GgufWriter& w) { w.Numbers("gyre.tokenizer.end_token_ids", 5, std::vector<int32_t>{6}); });
  EXPECT_THAT(Message(TokenizerFromBytes(outside).status()), HasSubstr("has the id 6, expected 0 to 5"));
}

TEST(PublishedGgufTest, ATitleOfAnotherTypeIsNone) {
  testing::TinyOptions o;
  o.more = [](GgufWriter& w) { w.Numbers("general.name", 5, std::vector<int32_t>{1}); };
  const auto bytes = testing::BuildTinyModel(o);
  const auto model = OpenModelFromBytes(bytes);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->spec().name, "");
}

TEST(PublishedGgufTest, AWholeFileIsNoPartWhateverItsName) {
  const testing::TempFolder folder;
  const std::string path = folder.path() + "/m-00001-of-00002.gguf";
  const auto write = [&](const std::vector<std::byte>& bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  };
  write(testing::BuildTinyModel({}));
  const auto model = OpenModel(path);
  EXPECT_TRUE(model.ok()) << model.status();
  testing::TinyOptions o;
  o.more = [](GgufWriter& w) { w.Uint("split.count", 1); };
  write(testing::BuildTinyModel(o));
  EXPECT_TRUE(OpenModel(path).ok());
  o.more = [](GgufWriter& w) { w.Uint("split.count", 2); };
  write(testing::BuildTinyModel(o));
  EXPECT_THAT(Message(OpenModel(path).status()), HasSubstr("m-00002-of-00002.gguf"));
}

}  // namespace
}  // namespace gyre
