// RWKV's World tokenizer: the longest piece, pieces of bytes, and how a file spells them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "model/chat_template.h"
#include "model/rwkv_tokenizer.h"
#include "model/weights.h"
#include "tests/testing/calling_model.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/tiny_model.h"

namespace gyre {
namespace {

using Tokens = std::vector<TokenId>;
using ::testing::HasSubstr;

StatusOr<std::unique_ptr<Tokenizer>> OpenWorld(std::vector<std::string> pieces) {
  testing::GgufWriter w;
  w.String("tokenizer.ggml.model", "rwkv");
  w.Strings("tokenizer.ggml.tokens", pieces);
  std::vector<uint32_t> types(pieces.size(), 1);
  types[0] = 3;
  w.Numbers("tokenizer.ggml.token_type", 5, types);
  w.Uint("tokenizer.ggml.eos_token_id", 0);
  w.Uint("tokenizer.ggml.eot_token_id", 1);
  const auto bytes = w.Finish();
  return RwkvTokenizerFromGguf(*Gguf::Parse(bytes));
}

const std::vector<std::string> kPieces = {"<s>",        "\\n\\n", "\\n",  "a",         "ab",    "abcd",
                                          "c",          "b",      "\\'",  "\\\\",      "\\xc3", "\\xa4",
                                          "\\xc3\\xa4", "\\t",    "\\\"", "\\xf0\\x9f"};

TEST(RwkvTokenizerTest, TheLongestPieceFromLeftToRight) {
  const auto t = OpenWorld(kPieces);
  ASSERT_TRUE(t.ok()) << t.status();
  EXPECT_EQ((*t)->kind(), "rwkv");
  EXPECT_EQ((*t)->Encode("abcabcd", {}), (Tokens{4, 6, 5}));
  EXPECT_EQ((*t)->Encode("a\n\n\nb", {}), (Tokens{3, 1, 2, 7}));
  EXPECT_EQ((*t)->Encode("'\\\t\"", {}), (Tokens{8, 9, 13, 14}));
  EXPECT_EQ((*t)->Encode("\xC3\xA4", {}), (Tokens{12}));
  EXPECT_EQ((*t)->Encode("\xA4\xC3", {}), (Tokens{11, 10}));
  // A byte without a piece is left out.
  EXPECT_EQ((*t)->Encode("azb", {}), (Tokens{3, 7}));
  EXPECT_EQ((*t)->Encode("", {.add_special = true}), (Tokens{}));
}

TEST(RwkvTokenizerTest, PiecesAreBytes) {
  const auto t = OpenWorld(kPieces);
  ASSERT_TRUE(t.ok()) << t.status();
  EXPECT_EQ((*t)->Decode({4, 12, 1, 8}), "ab\xC3\xA4\n\n'");
  EXPECT_EQ((*t)->Piece(15), "\xF0\x9F");
  EXPECT_EQ((*t)->Piece(0), "");
  EXPECT_TRUE((*t)->IsEndOfGeneration(0));
  EXPECT_TRUE((*t)->IsEndOfGeneration(1));
  EXPECT_FALSE((*t)->IsEndOfGeneration(2));
}

// A file has the template's name in its place.
TEST(RwkvTokenizerTest, ConversationsAsTheAuthorsWriteThem) {
  const testing::TinyModelFile file(testing::ScriptedModel({.chat_template = "rwkv-world"}));
  const auto model = OpenModel(file.path());
  ASSERT_TRUE(model.ok()) << model.status();
  const auto chat = ChatTemplate::ForModel(**model);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->name(), "rwkv-world");
  Conversation c;
  c.messages = boost::json::parse(R"([{"role": "system", "content": "Be kind."}, {"role": "user", "content": " Hi\n"},
                                      {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Who?"}])")
                   .as_array();
  EXPECT_EQ(*chat->Render(c), "System: Be kind.\n\nUser: Hi\n\nAssistant: Hello!\n\nUser: Who?\n\nAssistant:");
}

TEST(RwkvTokenizerTest, SpellingsThatMeanNothingAreRefused) {
  for (const char* piece : {"\\", "\\x", "\\x4", "\\xg0", "\\q", "a\\"}) {
    const auto t = OpenWorld({"<s>", "a", piece});
    EXPECT_THAT(std::string(t.status().message()), HasSubstr("has a backslash that means nothing")) << piece;
  }
  EXPECT_THAT(std::string(OpenWorld({"<s>", "b", std::string(1025, 'a')}).status().message()),
              HasSubstr("1025 bytes, expected at most 1024"));
}

}  // namespace
}  // namespace gyre
