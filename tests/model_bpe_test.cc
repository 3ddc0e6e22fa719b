// Byte-level BPE on small vocabularies: merging, the spans of a text, and Unicode's normal forms.
#include "model/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <random>

#include "model/presplit.h"
#include "model/tokenizer.h"
#include "model/unicode_form.h"
#include "model/utf8.h"
#include "tests/testing/cpu_time.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using Ids = std::vector<TokenId>;

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

TEST(BpeTest, LowestRankMergesFirstInsideASpan) {
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
      EXPECT_EQ(t->Decode(t->Encode(text, {})), !made->steps.empty() ? NormalizeNfc(text) : text) << pre;
    }
  }
}

std::vector<std::string> PartsOf(const PreSplit& split, const std::string& text) {
  std::vector<TextSpan> spans;
  split.Split(text, &spans);
  std::vector<std::string> parts;
  for (const TextSpan& s : spans) parts.push_back(text.substr(s.begin, s.end - s.begin));
  return parts;
}

TEST(PreSplitTest, KimiKeepsChineseApart) {
  const auto split = PreSplit::Compile(PreTokenizerByName("kimi-k2")->patterns);
  ASSERT_TRUE(split.ok()) << split.status();
  const std::string text = "Hello世界abc it's 12345 かな漢字 x";
  EXPECT_EQ(PartsOf(*split, text),
            (std::vector<std::string>{"Hello", "世界", "abc", " it's", " ", "123", "45", " かな", "漢字", " x"}));
}

// Spans in which a pattern's first bytes do not occur are passed over; PCRE2 told not to look for them says the
// same.
TEST(PreSplitTest, PassingOverChangesNothing) {
  std::mt19937 random(9);
  const std::string letters = "aZ 7\n\r\t.,'[<-";
  for (const char* pre :
       {"gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o", "falcon", "starcoder", "deepseek-llm", "deepseek-coder",
        "deepseek-v3", "bloom", "viking", "bailingmoe", "seed-coder", "chameleon", "kimi-k2"}) {
    const auto patterns = PreTokenizerByName(pre)->patterns;
    std::vector<SplitStep> slow;
    for (const SplitStep& p : patterns) slow.emplace_back("(*NO_START_OPT)" + p.pattern);
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
      ASSERT_EQ(PartsOf(*split, text), PartsOf(*reference, text)) << pre << ::testing::PrintToString(text);
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
  EXPECT_THAT(Message(PreSplit::Compile({SplitStep("(a")}).status()), ::testing::HasSubstr("(a"));
  EXPECT_TRUE(PreSplit::Compile({SplitStep("a*")}).ok());
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

}  // namespace
}  // namespace gyre
