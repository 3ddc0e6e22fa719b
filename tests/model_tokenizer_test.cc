// SentencePiece-style BPE on a small vocabulary: merging, bytes, special tokens, pieces.
#include <gtest/gtest.h>

#include <chrono>

#include "model/special_trie.h"
#include "model/spm.h"

namespace gyre {
namespace {

using Ids = std::vector<TokenId>;

constexpr const char* kSpace = "\xE2\x96\x81";

// 0 <unk>, 1 <s>, 2 </s>, 3..258 bytes, then what the tests ask for.
class VocabularyBuilder {
 public:
  explicit VocabularyBuilder(bool bytes = true) {
    v_.Add("<unk>", 0, TokenType::kUnknown);
    v_.Add("<s>", 0, TokenType::kControl);
    v_.Add("</s>", 0, TokenType::kControl);
    v_.bos = 1;
    v_.eos = 2;
    v_.end_ids = {2};
    for (int b = 0; bytes && b < 256; ++b) v_.Add(fmt::format("<0x{:02X}>", b), 0, TokenType::kByte);
  }
  TokenId Add(const std::string& piece, float score, TokenType type = TokenType::kNormal) {
    v_.Add(piece, score, type);
    return static_cast<TokenId>(v_.size()) - 1;
  }
  std::unique_ptr<Tokenizer> Make() { return *MakeSpmTokenizer(std::move(v_)); }
  SpmVocabulary v_;
};

TEST(SpmTest, BestScoreMergesFirstAndTiesGoLeft) {
  VocabularyBuilder b;
  b.v_.add_space_prefix = false;
  const TokenId a = b.Add("a", -10), ab = b.Add("ab", -2), bc = b.Add("bc", -1), aa = b.Add("aa", -3);
  b.Add("b", -10);
  const TokenId c = b.Add("c", -10);
  const auto t = b.Make();
  EXPECT_EQ(t->Encode("abc", {}), (Ids{a, bc}));
  EXPECT_EQ(t->Encode("abab", {}), (Ids{ab, ab}));
  EXPECT_EQ(t->Encode("aaa", {}), (Ids{aa, a}));
  EXPECT_EQ(t->Encode("aaaaa", {}), (Ids{aa, aa, a}));
  EXPECT_EQ(t->Encode("cc", {}), (Ids{c, c}));
}

TEST(SpmTest, SpacePrefixIsPutAndDropped) {
  VocabularyBuilder b;
  const TokenId space = b.Add(kSpace, -1), a = b.Add("a", -2), space_a = b.Add(std::string(kSpace) + "a", -3);
  const auto t = b.Make();
  EXPECT_EQ(t->Encode("a", {}), (Ids{space_a}));
  EXPECT_EQ(t->Encode(" a", {}), (Ids{space, space_a}));
  EXPECT_EQ(t->Encode("", {.add_special = true}), (Ids{1}));
  EXPECT_EQ(t->Encode("aa", {.add_special = true}), (Ids{1, space_a, a}));
  EXPECT_EQ(t->Piece(space_a), " a");
  EXPECT_EQ(t->Piece(space_a, true), "a");
  for (const char* text : {"a", " a", "  a a", "a \n", " "}) {
    EXPECT_EQ(t->Decode(t->Encode(text, {.add_special = true})), text);
    EXPECT_EQ(t->Decode(t->Encode(text, {})), text);
  }
}

TEST(SpmTest, AnyBytesRoundTrip) {
  VocabularyBuilder b;
  b.v_.add_space_prefix = false;
  const TokenId e = b.Add("\xC3\xA9", -1);
  b.Add(kSpace, -1);
  const auto t = b.Make();
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  for (const std::string& text : {all, std::string("\xC3"), std::string("\xC3\xA9\xC3"), std::string("\xED\xA0\x80"),
                                  std::string("\xF4\x90\x80\x80"), std::string("\xC0\x80\0x", 4)}) {
    EXPECT_EQ(t->Decode(t->Encode(text, {})), text);
  }
  EXPECT_EQ(t->Encode("\xC3\xA9", {}), (Ids{e}));
  EXPECT_EQ(t->Encode("\xC3", {}), (Ids{3 + 0xC3}));
}

TEST(SpmTest, WithoutByteTokensTheUnknownTokenStandsForACharacter) {
  VocabularyBuilder b(false);
  b.v_.add_space_prefix = false;
  const TokenId a = b.Add("a", -1);
  const auto t = b.Make();
  EXPECT_EQ(t->Encode("a\xE2\x82\xAC"
                      "a",
                      {}),
            (Ids{a, 0, a}));
  EXPECT_EQ(t->Piece(0), "");
}

TEST(SpmTest, SpecialTokensOnlyWhenAskedForAndLongestFirst) {
  VocabularyBuilder b;
  b.v_.add_space_prefix = false;
  const TokenId user = b.Add("<u>", 0, TokenType::kUserDefined), longer = b.Add("<u><v>", 0, TokenType::kUserDefined);
  const TokenId control = b.Add("<u><v><c>", 0, TokenType::kControl);
  const TokenId x = b.Add("x", -1);
  const auto t = b.Make();
  EXPECT_EQ(t->Encode("x<u>x", {}), (Ids{x, user, x}));
  EXPECT_EQ(t->Encode("<u><v>x", {}), (Ids{longer, x}));
  EXPECT_EQ(t->Encode("<u><v><c>", {.add_special = false, .parse_special = true}), (Ids{control}));
  EXPECT_EQ(t->Encode("<u><v><c>", {})[0], longer);
  EXPECT_EQ(t->Encode("</s>", {.add_special = false, .parse_special = true}), (Ids{2}));
  EXPECT_EQ(t->Encode("</s>", {}).size(), 4u);
  EXPECT_EQ(t->Piece(control), "");
  EXPECT_EQ(t->Piece(user), "<u>");
  EXPECT_EQ(t->Piece(-1), "");
  EXPECT_EQ(t->Piece(1 << 30), "");
}

// Pieces whose parts spell a control token must not merge into it.
TEST(SpmTest, MergingNeverMakesAControlToken) {
  VocabularyBuilder b;
  b.v_.add_space_prefix = false;
  b.Add("<", -1);
  b.Add("s", -1);
  b.Add(">", -1);
  b.Add("s>", -1);
  b.Add("<s", -1);
  const auto t = b.Make();
  for (TokenId id : t->Encode("<s>", {})) EXPECT_NE(id, 1);
}

TEST(SpmTest, LongTextsTakeTimeInProportion) {
  VocabularyBuilder b;
  b.v_.add_space_prefix = false;
  std::string piece = "a";
  for (int i = 0; i < 8; ++i, piece += piece) b.Add(piece, static_cast<float>(i));
  // Thousands of special tokens with the same beginning, as Gemma has.
  for (int i = 0; i < 6000; ++i) b.Add(fmt::format("<unused{}>", i), 0, TokenType::kUserDefined);
  const auto t = b.Make();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(t->Encode(std::string(1 << 20, 'a'), {}).size(), size_t{1} << 13);
  EXPECT_FALSE(t->Encode(std::string(1 << 19, '<'), {}).empty());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST(SpecialTrieTest, FindsTheLongestAtAPlace) {
  SpecialTrie trie;
  trie.Add("", 9);
  trie.Add("ab", 1);
  trie.Add("abcd", 2);
  trie.Add("ab", 3);
  EXPECT_EQ(trie.LongestAt("abc", 0), 1);
  EXPECT_EQ(trie.LongestAt("abcd", 0), 2);
  EXPECT_EQ(trie.LongestAt("xabcd", 1), 2);
  EXPECT_EQ(trie.LongestAt("a", 0), -1);
  EXPECT_EQ(trie.LongestAt("", 0), -1);
}

}  // namespace
}  // namespace gyre
