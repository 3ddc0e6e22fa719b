// WordPiece tokenizers: by the examples of BERT's authors, and what is no word of any piece.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/word_piece.h"
#include "tests/testing/gguf_writer.h"

namespace gyre {
namespace {

using Ids = std::vector<TokenId>;
using ::testing::HasSubstr;

const std::string kWord = "\xE2\x96\x81";  // before a piece that begins a word

// As llama.cpp's converter writes BERT's vocabulary: "##ing" is "ing", and other words have U+2581 before them.
std::vector<std::string> Pieces(bool capitals) {
  std::vector<std::string> out{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  for (const char* word : {"want", "the", "un", "runn", ",", "low", "2", "a", "hello", "\xE4\xB8\xAD", "\xE6\x96\x87"})
    out.push_back(kWord + word);
  for (const char* part : {"want", "ed", "wa", "ing", "aff", "able", "est", "er", "a"}) out.emplace_back(part);
  if (capitals) out.push_back(kWord + "The");
  return out;
}

std::unique_ptr<Tokenizer> Open(bool capitals = false, bool by_keys = true) {
  testing::GgufWriter w;
  w.String("tokenizer.ggml.model", "bert");
  const std::vector<std::string> pieces = Pieces(capitals);
  w.Strings("tokenizer.ggml.tokens", pieces);
  std::vector<uint32_t> types(pieces.size(), 1);
  for (size_t i = 0; i < 5; ++i) types[i] = 3;
  w.Numbers("tokenizer.ggml.token_type", 5, types);
  if (by_keys) {
    w.Uint("tokenizer.ggml.unknown_token_id", 1);
    w.Uint("tokenizer.ggml.cls_token_id", 2);
    w.Uint("tokenizer.ggml.seperator_token_id", 3);
  }
  const auto bytes = w.Finish();
  auto tokenizer = WordPieceFromGguf(*Gguf::Parse(bytes));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::string Text(const Tokenizer& t, const Ids& ids) {
  std::string out;
  for (const TokenId id : ids) out += (out.empty() ? "" : "|") + t.Text(id);
  return out;
}

// google-research/bert, tokenization_test.py.
TEST(WordPieceTest, AuthorsExamples) {
  const auto t = Open();
  EXPECT_EQ(t->kind(), "wordpiece");
  const auto text = [&](std::string_view from) { return Text(*t, t->Encode(from, {})); };
  EXPECT_EQ(text(""), "");
  EXPECT_EQ(text("unwanted running"), kWord + "un|want|ed|" + kWord + "runn|ing");
  EXPECT_EQ(text("unwantedX running"), "[UNK]|" + kWord + "runn|ing");
  EXPECT_EQ(text("UNwant\xC3\x89"
                 "d,running"),
            kWord + "un|want|ed|" + kWord + ",|" + kWord + "runn|ing");
  EXPECT_EQ(text(" \tHeLLo \n hello, a  "), kWord + "hello|" + kWord + "hello|" + kWord + ",|" + kWord + "a");
  EXPECT_EQ(text("H\xC3\xA9llo"), kWord + "hello");
  EXPECT_EQ(text("lowest"), kWord + "low|est");
}

TEST(WordPieceTest, WordsEndAtChineseCharactersAndPunctuation) {
  const auto t = Open();
  const auto text = [&](std::string_view from) { return Text(*t, t->Encode(from, {})); };
  EXPECT_EQ(text("low\xE4\xB8\xAD\xE6\x96\x87the"),
            kWord + "low|" + kWord + "\xE4\xB8\xAD|" + kWord + "\xE6\x96\x87|" + kWord + "the");
  EXPECT_EQ(text("2$2"), kWord + "2|[UNK]|" + kWord + "2");  // an ASCII symbol
  EXPECT_EQ(text("2\xE2\x82\xAC"
                 "2"),
            "[UNK]");  // another symbol is part of its word
  EXPECT_EQ(text("a\xE2\x80\x94"
                 "a"),
            kWord + "a|[UNK]|" + kWord + "a");  // a dash
  EXPECT_EQ(text("lo\x01w\xE2\x80\x8B"
                 "er"),
            kWord + "low|er");  // control and format characters
  EXPECT_EQ(text("lo\xFFw\xEF\xBF\xBD"
                 "er"),
            kWord + "low|er");  // no UTF-8, and U+FFFD
  EXPECT_EQ(text("a\xC2\xA0"
                 "a"),
            kWord + "a|" + kWord + "a");  // a space of another kind
}

TEST(WordPieceTest, AWordHasAtMostAHundredCharacters) {
  const auto t = Open();
  EXPECT_EQ(t->Encode(std::string(100, 'a'), {}).size(), 100u);
  EXPECT_EQ(t->Encode(std::string(101, 'a'), {}), (Ids{1}));
}

TEST(WordPieceTest, SpecialTokensStandAtTheEnds) {
  for (const bool by_keys : {true, false}) {
    const auto t = Open(false, by_keys);
    EXPECT_EQ(Text(*t, t->Encode("the", {.add_special = true})), "[CLS]|" + kWord + "the|[SEP]");
    EXPECT_EQ(t->Encode("", {.add_special = true}), (Ids{2, 3}));
    EXPECT_EQ(Text(*t, t->Encode("[SEP]", {})), "[UNK]|[UNK]|[UNK]");
    EXPECT_EQ(Text(*t, t->Encode("the[SEP]the", {.parse_special = true})), kWord + "the|[SEP]|" + kWord + "the");
    EXPECT_EQ(t->Decode(t->Encode("unwanted, the", {.add_special = true})), "unwanted , the");
  }
}

TEST(WordPieceTest, CapitalsStayIfPiecesHaveSome) {
  const auto t = Open(true);
  EXPECT_EQ(Text(*t, t->Encode("The the", {})), kWord + "The|" + kWord + "the");
  EXPECT_EQ(Text(*t, t->Encode("Hello", {})), "[UNK]");
}

TEST(WordPieceTest, BadVocabularies) {
  testing::GgufWriter w;
  w.String("tokenizer.ggml.model", "bert");
  w.Strings("tokenizer.ggml.tokens", {kWord + "a", "b"});
  const auto bytes = w.Finish();
  EXPECT_THAT(Message(WordPieceFromGguf(*Gguf::Parse(bytes)).status()), HasSubstr("no unknown token"));
  Vocabulary v;
  v.Add(std::string(1025, 'x'), TokenType::kNormal);
  EXPECT_THAT(Message(MakeWordPieceTokenizer(v, 0, true).status()), HasSubstr("expected at most 1024"));
  EXPECT_THAT(Message(MakeWordPieceTokenizer(v, 1, true).status()), HasSubstr("the unknown token is 1"));
}

}  // namespace
}  // namespace gyre
