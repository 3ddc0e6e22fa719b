// Tokenizers on small vocabularies: merging, bytes, cutting, special tokens, pieces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <boost/json.hpp>
#include <cstring>
#include <fstream>

#include <map>
#include <random>
#include <unordered_set>

#include "model/bpe.h"
#include "model/gguf.h"
#include "model/mapped_file.h"
#include "model/merge.h"
#include "model/presplit.h"
#include "model/special_trie.h"
#include "model/spm.h"
#include "model/tokenizer.h"
#include "model/unicode_form.h"
#include "model/utf8.h"
#include "model/weights.h"
#include "tests/testing/cpu_time.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/shared_data.h"

namespace gyre {
namespace {

using Ids = std::vector<TokenId>;

constexpr const char* kSpace = "\xE2\x96\x81";

// 0 <unk>, 1 <s>, 2 </s>, 3..258 bytes, then what the tests ask for.
class VocabularyBuilder {
 public:
  explicit VocabularyBuilder(bool bytes = true) {
    Add("<unk>", 0, TokenType::kUnknown);
    Add("<s>", 0, TokenType::kControl);
    Add("</s>", 0, TokenType::kControl);
    v_.bos = 1;
    v_.eos = 2;
    v_.end_ids = {2};
    for (int b = 0; bytes && b < 256; ++b) Add(fmt::format("<0x{:02X}>", b), 0, TokenType::kByte);
  }
  TokenId Add(const std::string& piece, float score, TokenType type = TokenType::kNormal) {
    v_.Add(piece, type);
    v_.scores.push_back(score);
    return static_cast<TokenId>(v_.size()) - 1;
  }
  std::unique_ptr<Tokenizer> Make() { return *MakeSpmTokenizer(std::move(v_), options_); }
  Vocabulary v_;
  SpmOptions options_;
};

TEST(SpmTest, BestScoreMergesFirstAndTiesGoLeft) {
  VocabularyBuilder b;
  b.options_.add_space_prefix = false;
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

TEST(SpmTest, ThePrefixMayBeThatOfTheTextAlone) {
  for (const bool first_only : {false, true}) {
    VocabularyBuilder b;
    b.options_.prefix_first_only = first_only;
    const TokenId a = b.Add("a", -3), space_a = b.Add(
                                          "\xE2\x96\x81"
                                          "a",
                                          -1);
    b.Add("\xE2\x96\x81", -2);
    const auto t = b.Make();
    EXPECT_EQ(t->Encode("a<s>a", {.parse_special = true}), (Ids{space_a, 1, first_only ? a : space_a}));
  }
}

TEST(SpmTest, AnyBytesRoundTrip) {
  VocabularyBuilder b;
  b.options_.add_space_prefix = false;
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
  b.options_.add_space_prefix = false;
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
  b.options_.add_space_prefix = false;
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
  b.options_.add_space_prefix = false;
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
  b.options_.add_space_prefix = false;
  std::string piece = "a";
  for (int i = 0; i < 8; ++i, piece += piece) b.Add(piece, static_cast<float>(i));
  // Thousands of special tokens with the same beginning, as Gemma has.
  for (int i = 0; i < 6000; ++i) b.Add(fmt::format("<unused{}>", i), 0, TokenType::kUserDefined);
  const auto t = b.Make();
  const size_t n = size_t{1} << (testing::kSanitized ? 18 : 20);
  std::string word;
  for (size_t i = 0; i < n; ++i) word += static_cast<char>('a' + i * i / 3 % 26);
  for (const std::string& text : {std::string(n, 'a'), std::string(n, ' '), std::string(n, '<'), word}) {
    const double begin = testing::ThreadSeconds();
    EXPECT_FALSE(t->Encode(text, {}).empty());
    EXPECT_LT(testing::ThreadSeconds() - begin, testing::kSanitized ? 20 : 3) << text.substr(0, 8);
  }
  EXPECT_EQ(t->Encode(std::string(n, 'a'), {}).size(), n >> 7);
}

TEST(SpecialTrieTest, FindsTheLongestAtAPlace) {
  SpecialTrie trie;
  trie.Add("", 9);
  trie.Add("ab", 1);
  trie.Add("abcd", 2);
  trie.Add("ab", 3);
  EXPECT_EQ(trie.LongestAt("abc", 0).id, 1);
  EXPECT_EQ(trie.LongestAt("abc", 0).length, 2u);
  EXPECT_EQ(trie.LongestAt("abcd", 0).id, 2);
  EXPECT_EQ(trie.LongestAt("xabcd", 1).id, 2);
  EXPECT_EQ(trie.LongestAt("xabcd", 0).id, -1);
  EXPECT_EQ(trie.LongestAt("a", 0).id, -1);
  EXPECT_EQ(trie.LongestAt("", 0).id, -1);
}

// Both ways of merging against one that looks at every pair each time.
TEST(MergeTest, EveryWayGivesTheSame) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::map<std::pair<TokenId, TokenId>, PairRank> ranks;
    const int kinds = 2 + static_cast<int>(random() % 4);
    for (TokenId id = kinds, n = kinds + static_cast<int>(random() % 30); id < n; ++id) {
      const auto pair = std::pair(static_cast<TokenId>(random() % static_cast<uint32_t>(id)),
                                  static_cast<TokenId>(random() % static_cast<uint32_t>(id)));
      ranks.emplace(pair, PairRank{static_cast<float>(random() % 12), id});
    }
    auto find = [&](const MergeSymbol& l, const MergeSymbol& r) {
      const auto it = ranks.find({l.id, r.id});
      return it == ranks.end() ? PairRank{} : it->second;
    };
    std::vector<MergeSymbol> plain;
    for (size_t i = 0, n = random() % kMergeBySearch; i < n; ++i) {
      plain.push_back({.begin = i, .length = 1, .id = static_cast<TokenId>(random() % static_cast<uint32_t>(kinds))});
    }
    auto by_search = plain, by_heap = plain;
    MergePairs(&by_search, find);
    MergePairs(&by_heap, find, 0);
    for (;;) {
      size_t best = plain.size();
      for (size_t i = 0; i + 1 < plain.size(); ++i) {
        if (find(plain[i], plain[i + 1]).id < 0) continue;
        if (best == plain.size() || find(plain[i], plain[i + 1]).rank < find(plain[best], plain[best + 1]).rank)
          best = i;
      }
      if (best == plain.size()) break;
      plain[best].id = find(plain[best], plain[best + 1]).id;
      plain[best].length += plain[best + 1].length;
      plain.erase(plain.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    ASSERT_EQ(by_search.size(), plain.size());
    ASSERT_EQ(by_heap.size(), plain.size());
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(by_search[i].id, plain[i].id);
      EXPECT_EQ(by_heap[i].id, plain[i].id);
      EXPECT_EQ(by_heap[i].begin, plain[i].begin);
      EXPECT_EQ(by_heap[i].length, plain[i].length);
    }
  }
}

// 0..255 the bytes, then pieces, each the merge of two that are there.
class BpeBuilder {
 public:
  BpeBuilder() {
    for (int b = 0; b < 256; ++b) v_.Add(std::string(1, static_cast<char>(b)), TokenType::kNormal);
  }
  TokenId Merge(TokenId left, TokenId right) {
    const std::string piece =
        std::string(v_.piece(static_cast<size_t>(left))) + std::string(v_.piece(static_cast<size_t>(right)));
    const TokenId id = Add(piece);
    merges_.push_back({left, right, id});
    return id;
  }
  TokenId Add(const std::string& piece, TokenType type = TokenType::kNormal) {
    v_.Add(piece, type);
    return static_cast<TokenId>(v_.size()) - 1;
  }
  std::unique_ptr<Tokenizer> Make(const char* pre) {
    return *MakeBpeTokenizer(std::move(v_), merges_, *PreTokenizerByName(pre));
  }
  Vocabulary v_;
  std::vector<BpeMerge> merges_;
};

TEST(BpeTest, LowestRankMergesFirstInsideAStretch) {
  BpeBuilder b;
  const TokenId bc = b.Merge('b', 'c'), ab = b.Merge('a', 'b'), abc = b.Merge('a', bc);
  const auto t = b.Make("gpt-2");
  EXPECT_EQ(t->kind(), "bpe");
  EXPECT_EQ(t->Encode("abc", {}), (Ids{abc}));
  EXPECT_EQ(t->Encode("ab", {}), (Ids{ab}));
  EXPECT_EQ(t->Encode("ab c", {}), (Ids{ab, ' ', 'c'}));
  EXPECT_EQ(t->Encode("a1bc", {}), (Ids{'a', '1', bc}));
  EXPECT_EQ(t->Piece(abc), "abc");
}

TEST(BpeTest, AWholeTokenIsTakenWhereMergesAreIgnored) {
  BpeBuilder b;
  b.Merge('b', 'c');
  const TokenId whole = b.Add("abcd");
  const std::string text = "abcd";
  BpeBuilder same = b;
  EXPECT_EQ(b.Make("llama-bpe")->Encode(text, {}), (Ids{whole}));
  EXPECT_EQ(same.Make("qwen2")->Encode(text, {}).size(), 3u);
}

TEST(BpeTest, AnyBytesRoundTripUnderEveryPreTokenizer) {
  std::mt19937 random(2);
  std::vector<std::string> texts{"", "\xFF\xFE", "a\xC3", "\xED\xA0\x80 x", std::string("\0\0 ", 3)};
  for (int i = 0; i < 40; ++i) {
    std::string bytes, characters;
    for (int n = 0; n < 60; ++n) bytes.push_back(static_cast<char>(random()));
    for (int n = 0; n < 40; ++n) {
      char32_t c = random() % (n % 3 == 0 ? 0x80 : n % 3 == 1 ? 0x3000 : 0x20000);
      if (c >= 0xD800 && c < 0xE000) c = ' ';
      AppendUtf8(c, &characters);
    }
    texts.push_back(bytes);
    texts.push_back(characters);
  }
  for (const char* pre :
       {"gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o", "falcon", "starcoder", "deepseek-llm", "deepseek-coder",
        "deepseek-v3", "bloom", "viking", "bailingmoe", "seed-coder", "chameleon", "kimi-k2"}) {
    BpeBuilder b;
    b.Merge('a', 'b');
    const auto made = PreTokenizerByName(pre);
    ASSERT_TRUE(made.ok()) << made.status();
    const auto t = b.Make(pre);
    for (const std::string& text : texts) {
      EXPECT_EQ(t->Decode(t->Encode(text, {})), made->nfc ? NormalizeNfc(text) : text) << pre;
    }
  }
}

TEST(PreSplitTest, KimiKeepsChineseApart) {
  const auto split = PreSplit::Compile(PreTokenizerByName("kimi-k2")->patterns);
  ASSERT_TRUE(split.ok()) << split.status();
  const std::string text = "Hello世界abc it's 12345 かな漢字 x";
  std::vector<size_t> ends;
  split->Split(text, &ends);
  std::vector<std::string> parts;
  size_t begin = 0;
  for (const size_t end : ends) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  EXPECT_EQ(parts,
            (std::vector<std::string>{"Hello", "世界", "abc", " it's", " ", "123", "45", " かな", "漢字", " x"}));
}

// Stretches in which a pattern's first bytes do not occur are passed over; PCRE2 told not to look for them says the
// same.
TEST(PreSplitTest, PassingOverChangesNothing) {
  std::mt19937 random(9);
  const std::string letters = "aZ 7\n\r\t.,'[<-";
  for (const char* pre :
       {"gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o", "falcon", "starcoder", "deepseek-llm", "deepseek-coder",
        "deepseek-v3", "bloom", "viking", "bailingmoe", "seed-coder", "chameleon", "kimi-k2"}) {
    const auto patterns = PreTokenizerByName(pre)->patterns;
    std::vector<std::string> slow;
    for (const std::string& p : patterns) slow.push_back("(*NO_START_OPT)" + p);
    const auto split = PreSplit::Compile(patterns), reference = PreSplit::Compile(slow);
    ASSERT_TRUE(split.ok() && reference.ok()) << reference.status();
    for (int round = 0; round < 300; ++round) {
      std::string text;
      for (size_t n = random() % 20; n > 0; --n) {
        if (random() % 4 != 0) {
          text += letters[random() % letters.size()];
        } else {
          AppendUtf8(0x80 + random() % 0x4F80, &text);
        }
      }
      std::vector<size_t> got, expected;
      split->Split(text, &got);
      reference->Split(text, &expected);
      ASSERT_EQ(got, expected) << pre << ::testing::PrintToString(text);
    }
  }
}

TEST(BpeTest, FilesThatDoNotFitSaySo) {
  EXPECT_THAT(Message(PreTokenizerByName("nobody's").status()), ::testing::HasSubstr("known are gpt-2"));
  BpeBuilder b;
  MergeReader reader(b.v_);
  EXPECT_TRUE(absl::IsDataLoss(reader.Add("ab")));
  EXPECT_TRUE(absl::IsDataLoss(reader.Add("a ")));
  EXPECT_THAT(Message(reader.Add("a b")), ::testing::HasSubstr("the token \"ab\""));
  EXPECT_TRUE(absl::IsDataLoss(MakeBpeTokenizer(b.v_, {{1, 2, 300}}, {}).status()));
  EXPECT_THAT(Message(PreSplit::Compile({"(a"}).status()), ::testing::HasSubstr("(a"));
  EXPECT_TRUE(PreSplit::Compile({"a*"}).ok());
}

TEST(BpeTest, SpellingOfBytesIsReversible) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(BytesOfSpelling(SpellingOfBytes(all)), all);
  EXPECT_EQ(SpellingOfBytes(" a\n"),
            "\xC4\xA0"
            "a\xC4\x8A");
}

TEST(BpeTest, LongTextsTakeTimeInProportion) {
  BpeBuilder b;
  TokenId a = 'a', space = ' ';
  for (int i = 0; i < 8; ++i) {
    a = b.Merge(a, a);
    space = b.Merge(space, space);
  }
  const auto t = b.Make("llama-bpe");
  std::string marks, mixed = "x";
  for (int i = 0; i < (1 << 18); ++i) {
    AppendUtf8(i % 2 == 0 ? 0x301 : 0x323, &marks);
    mixed += static_cast<char>('a' + i * 7 % 26);
  }
  BpeBuilder c;
  c.Merge('a', 'b');
  const auto qwen = c.Make("qwen2");
  const double begin = testing::ThreadSeconds();
  const size_t n = size_t{1} << (testing::kSanitized ? 18 : 20);
  EXPECT_EQ(t->Encode(std::string(n, 'a'), {}).size(), n >> 8);
  EXPECT_EQ(t->Encode(std::string(n, ' '), {}).size(), n >> 8);
  EXPECT_GT(t->Encode(std::string(n, ' ') + "b", {}).size(), n >> 8);
  EXPECT_GT(t->Encode(std::string(n, '\n'), {}).size(), 1u);
  EXPECT_EQ(t->Encode(std::string(n, '1'), {}).size(), n);
  EXPECT_EQ(t->Encode(mixed, {}).size(), mixed.size());
  EXPECT_FALSE(qwen->Encode(marks, {}).empty());
  EXPECT_LT(testing::ThreadSeconds() - begin, testing::kSanitized ? 60 : 20)
      << "seven texts, a second each on a core that nobody shares";
}

TEST(NfcTest, ComposesWhatIsValid) {
  EXPECT_EQ(NormalizeNfc("e\xCC\x81"), "\xC3\xA9");
  EXPECT_EQ(NormalizeNfc("\xFF"
                         "e\xCC\x81\xFF"),
            "\xFF\xC3\xA9\xFF");
  EXPECT_EQ(NormalizeNfc("plain \xC3\xA9"), "plain \xC3\xA9");
  std::string marks = "e";
  for (int i = 0; i < 5000; ++i) marks += "\xCC\x81";
  EXPECT_EQ(NormalizeNfc("e\xCC\x81" + marks + "x e\xCC\x81"), "\xC3\xA9" + marks + "x \xC3\xA9");
}

TEST(NfcTest, OtherFormsAreTheirs) {
  EXPECT_EQ(Normalize("\xC3\xA9\xEF\xAC\x81", UnicodeForm::kNfd), "e\xCC\x81\xEF\xAC\x81");
  EXPECT_EQ(Normalize("\xC3\xA9\xEF\xAC\x81", UnicodeForm::kNfkd),
            "e\xCC\x81"
            "fi");
  EXPECT_EQ(Normalize("e\xCC\x81\xEF\xAC\x81\xFF\xEF\xBC\xA1", UnicodeForm::kNfkc),
            "\xC3\xA9"
            "fi\xFF"
            "A");
}

// Runs that nothing changes are left out; the whole text at once says the same.
TEST(NfcTest, CutsChangeNothing) {
  std::mt19937 random(8);
  const std::vector<std::pair<char32_t, char32_t>> blocks{
      {0x20, 0x7F},     {0xA0, 0x180},      {0x300, 0x370},     {0x370, 0x600},    {0x900, 0xE00},   {0xE00, 0x1000},
      {0x1100, 0x1200}, {0x1B00, 0x2100},   {0x2126, 0x2130},   {0x2ADC, 0x2ADD},  {0x3040, 0x3100}, {0xAC00, 0xAC60},
      {0xF900, 0xFB50}, {0x11080, 0x11140}, {0x1D15E, 0x1D166}, {0x2F800, 0x2FA20}};
  int changed = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (size_t n = 1 + random() % 8; n > 0; --n) {
      const auto [from, to] = blocks[random() % (n % 2 == 0 ? blocks.size() : 3)];
      AppendUtf8(from + random() % (to - from), &text);
    }
    for (const UnicodeForm form : {UnicodeForm::kNfc, UnicodeForm::kNfd, UnicodeForm::kNfkc, UnicodeForm::kNfkd}) {
      int options = UTF8PROC_STABLE;
      options |= form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
      if (form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd) options |= UTF8PROC_COMPAT;
      utf8proc_uint8_t* whole = nullptr;
      const auto n =
          utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(text.size()), &whole, static_cast<utf8proc_option_t>(options));
      ASSERT_GE(n, 0);
      const std::string expected(reinterpret_cast<const char*>(whole), static_cast<size_t>(n));
      std::free(whole);
      ASSERT_EQ(Normalize(text, form), expected) << ::testing::PrintToString(text);
      changed += expected != text ? 1 : 0;
    }
  }
  EXPECT_GT(changed, 10000);
  EXPECT_EQ(NormalizeNfc("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8"), "\xEA\xB0\x81");  // three letters, one syllable
}

// A letter that comes apart into two marks: half a million marks whose order is wrong.
TEST(NfcTest, LettersThatAreMarksInsideTakeTimeInProportion) {
  std::string text = "\xE0\xBD\x80";
  for (int i = 0; i < 250000; ++i) text += "\xE0\xBD\xB3";
  const double begin = testing::ThreadSeconds();
  EXPECT_EQ(NormalizeNfc(text), text);
  EXPECT_LT(testing::ThreadSeconds() - begin, testing::kSanitized ? 10 : 1);
}

// Gemma 3's vocabulary written as Gemma 4's files have theirs: merges in place of scores.
TEST(TokenizerTest, MergesInPlaceOfScoresGiveTheSameIds) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: the vocabularies are not there";
  if (testing::kSanitized) GTEST_SKIP() << "sanitized: a vocabulary of megabytes, slowly";
  const std::string path = testing::SharedData("tokenizers/gemma3");
  const auto file = MappedFile::Open(path + ".vocab.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto gguf = Gguf::Parse((*file)->bytes());
  const auto reference = OpenTokenizer(path + ".vocab.gguf");
  ASSERT_TRUE(reference.ok()) << reference.status();
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::unordered_set<std::string> pieces;
  std::vector<std::pair<float, std::string>> ranked;
  const GgufValue* scores = *gguf->Array("tokenizer.ggml.scores", GgufType::kF32);
  ForEachString(**gguf->Array("tokenizer.ggml.tokens", GgufType::kString), [&](uint64_t i, std::string_view piece) {
    const TokenType type = (*reference)->type(static_cast<TokenId>(i));
    tokens.emplace_back(piece);
    types.push_back(static_cast<int32_t>(type));
    std::string spelled(piece);
    for (size_t at = 0; (at = spelled.find(' ', at)) != std::string::npos;) spelled.replace(at, 1, "\xE2\x96\x81");
    if (type == TokenType::kNormal || type == TokenType::kUserDefined) pieces.insert(spelled);
    float score = 0;
    std::memcpy(&score, scores->bytes.data() + 4 * i, 4);
    if (type == TokenType::kNormal) ranked.emplace_back(score, spelled);
  });
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> merges;
  for (const auto& [score, piece] : ranked) {
    for (size_t cut = 1; cut < piece.size(); ++cut) {
      if (pieces.count(piece.substr(0, cut)) == 0 || pieces.count(piece.substr(cut)) == 0) continue;
      merges.push_back(piece.substr(0, cut) + " " + piece.substr(cut));
      break;
    }
  }
  testing::GgufWriter w;
  w.String("tokenizer.ggml.model", "gemma4");
  w.Strings("tokenizer.ggml.tokens", tokens);
  w.Numbers("tokenizer.ggml.token_type", 5, types);
  w.Strings("tokenizer.ggml.merges", merges);
  w.Uint("tokenizer.ggml.bos_token_id", 2);
  const auto bytes = w.Finish();
  const auto merged = TokenizerFromBytes(bytes);
  ASSERT_TRUE(merged.ok()) << merged.status();
  std::ifstream in(path + ".cases.jsonl");
  int wrong = 0, cases = 0;
  for (std::string line; std::getline(in, line) && cases < 600; ++cases) {
    const auto object = boost::json::parse(line).as_object();
    const std::string text(object.at("text").as_string().data(), object.at("text").as_string().size());
    const EncodeOptions options{.parse_special = object.at("parse_special").as_bool()};
    if ((*merged)->Encode(text, options) != (*reference)->Encode(text, options) && ++wrong <= 3) ADD_FAILURE() << line;
  }
  EXPECT_GT(cases, 20);
  EXPECT_EQ(wrong, 0);
}

// "<|end|>" ends a turn, except where a turn has several messages.
TEST(TokenizerTest, EndsOfTurnsByTheirNames) {
  auto ends = [](const std::vector<std::string>& tokens) {
    testing::GgufWriter w;
    w.String("tokenizer.ggml.model", "llama");
    w.Strings("tokenizer.ggml.tokens", tokens);
    w.Numbers("tokenizer.ggml.token_type", 5, std::vector<int32_t>(tokens.size(), 3));
    w.Numbers("tokenizer.ggml.scores", 6, std::vector<float>(tokens.size(), 0.0f));
    const auto bytes = w.Finish();
    const auto tokenizer = TokenizerFromBytes(bytes);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    std::vector<std::string> out;
    for (size_t i = 0; tokenizer.ok() && i < tokens.size(); ++i) {
      if ((*tokenizer)->IsEndOfGeneration(static_cast<TokenId>(i))) out.push_back(tokens[i]);
    }
    return out;
  };
  EXPECT_EQ(ends({"<s>", "<|end|>", "<|endoftext|>"}), (std::vector<std::string>{"<|end|>", "<|endoftext|>"}));
  EXPECT_EQ(ends({"<|end|>", "<|return|>", "<|message|>", "<|call|>"}),
            (std::vector<std::string>{"<|return|>", "<|call|>"}));
  EXPECT_EQ(ends({"<|turn>", "<turn|>"}), std::vector<std::string>{"<turn|>"});
}

TEST(TokenizerTest, AMergeWithoutItsTokenIsNamed) {
  testing::GgufWriter w;
  w.String("tokenizer.ggml.model", "gemma4");
  w.Strings("tokenizer.ggml.tokens", {"<unk>", "a", "b", "ab"});
  w.Numbers("tokenizer.ggml.token_type", 5, std::vector<int32_t>{2, 1, 1, 1});
  w.Strings("tokenizer.ggml.merges", {"a b", "b a"});
  const auto bytes = w.Finish();
  EXPECT_NE(Message(TokenizerFromBytes(bytes).status()).find("\"b a\" gives the token \"ba\""), std::string::npos)
      << TokenizerFromBytes(bytes).status();
}

}  // namespace
}  // namespace gyre
