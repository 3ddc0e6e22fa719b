// Unigram tokenizers: the best cut against other ways to find it, unknown characters, normalization, files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "absl/strings/escaping.h"
#include "model/hf/json.h"
#include "model/hf/tokenizer_json.h"
#include "model/piece_trie.h"
#include "model/unigram.h"
#include "model/utf8.h"
#include "model/weights.h"
#include "tests/testing/charsmap_writer.h"
#include "tests/testing/cpu_time.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/sanitized.h"

namespace gyre {
namespace {

using Ids = std::vector<TokenId>;
using ::testing::HasSubstr;

const std::string kSpaceMark = "\xE2\x96\x81";

// 0 <unk>, 1 </s>, then what the tests ask for.
class Builder {
 public:
  explicit Builder(bool bytes = false) {
    Add("<unk>", 0, TokenType::kUnknown);
    Add("</s>", 0, TokenType::kControl);
    v_.eos = 1;
    v_.add_bos = false;
    options_.prefix = UnigramOptions::Prefix::kNone;
    for (int b = 0; bytes && b < 256; ++b) Add(fmt::format("<0x{:02X}>", b), 0, TokenType::kByte);
  }
  TokenId Add(const std::string& piece, float score, TokenType type = TokenType::kNormal) {
    v_.Add(piece, type);
    v_.scores.push_back(score);
    return static_cast<TokenId>(v_.size()) - 1;
  }
  std::unique_ptr<Tokenizer> Make() const { return *MakeUnigramTokenizer(v_, options_); }
  Vocabulary v_;
  UnigramOptions options_;
};

TEST(UnigramTest, TheBestSumWinsNotTheLongestPiece) {
  Builder b;
  const TokenId a = b.Add("a", -1), abc = b.Add("abc", -9), bc = b.Add("bc", -2);
  const TokenId ab = b.Add("ab", -1.5f), c = b.Add("c", -1.2f), d = b.Add("d", -3);
  b.Add("b", -4);
  const auto t = b.Make();
  EXPECT_EQ(t->kind(), "unigram");
  EXPECT_EQ(t->Encode("abc", {}), (Ids{ab, c}));  // -2.7; a bc: -3; abc: -9
  EXPECT_EQ(t->Encode("abcd", {}), (Ids{ab, c, d}));
  EXPECT_EQ(t->Encode("aab", {}), (Ids{a, ab}));
  EXPECT_EQ(t->Encode("bca", {}), (Ids{bc, a}));
  EXPECT_EQ(t->Encode("", {.add_special = true}), (Ids{}));
  EXPECT_EQ(t->Decode({ab, c, abc, 0, 1}), "abcabc");
}

TEST(UnigramTest, OfEqualSumsTheLongerLastPiece) {
  Builder b;
  const TokenId a = b.Add("a", -1), aa = b.Add("aa", -2);
  const auto t = b.Make();
  EXPECT_EQ(t->Encode("aa", {}), (Ids{aa}));
  EXPECT_EQ(t->Encode("aaa", {}), (Ids{a, aa}));
}

TEST(UnigramTest, UnknownCharactersInARowAreOneToken) {
  Builder b;
  const TokenId a = b.Add("a", -1), x = b.Add("xyz", -1);
  const auto t = b.Make();
  EXPECT_EQ(t->Encode("a\xE2\x82\xAC\xC3\xA9"
                      "a\xFF",
                      {}),
            (Ids{a, 0, a, 0}));
  EXPECT_EQ(t->Encode("xyzxy", {}), (Ids{x, 0}));  // two characters that only a longer piece has
  EXPECT_EQ(t->Piece(0), "");
  b.options_.split_words = true;  // each word is cut by itself
  EXPECT_EQ(b.Make()->Encode("?? ?", {}), (Ids{0, 0}));
}

TEST(UnigramTest, UnknownIsTenBelowTheWorstPiece) {
  for (const float rest : {-1.9f, -2.1f}) {
    Builder b;
    const TokenId ab = b.Add("ab", -12), cd = b.Add("cd", -12), bcd = b.Add("bcd", rest);
    // -12 - 12, or an unknown character at -12 - 10 and what follows it.
    EXPECT_EQ(b.Make()->Encode("abcd", {}), rest > -2 ? (Ids{0, bcd}) : (Ids{ab, cd}));
  }
}

TEST(UnigramTest, BytesWhereTheVocabularyHasThem) {
  Builder b(true);
  const TokenId a = b.Add("a", -1);
  b.Add(kSpaceMark, -1);
  const auto t = b.Make();
  EXPECT_EQ(t->Encode("a\xC3\xA9\xFF", {}), (Ids{a, 2 + 0xC3, 2 + 0xA9, 2 + 0xFF}));
  std::string all;
  for (int i = 1; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(t->Decode(t->Encode(all, {})), all);
  // Text can't spell a byte token or a control token.
  EXPECT_EQ(t->Encode("<0x41>", {}).size(), 6u);
  EXPECT_EQ(t->Encode("</s>", {}).size(), 4u);
  EXPECT_EQ(t->Encode("</s>", {.parse_special = true}), (Ids{1}));
}

TEST(UnigramTest, SpacesArePutAndDropped) {
  Builder b(true);
  const TokenId space = b.Add(kSpaceMark, -3), word = b.Add(kSpaceMark + "a", -1), a = b.Add("a", -2);
  const TokenId two = b.Add(kSpaceMark + "a" + kSpaceMark + "a", -1.5f);
  b.options_.prefix = UnigramOptions::Prefix::kSpace;
  EXPECT_EQ(b.Make()->Encode("a", {}), (Ids{word}));
  EXPECT_EQ(b.Make()->Encode(" a", {}), (Ids{space, word}));
  EXPECT_EQ(b.Make()->Encode("a a", {}), (Ids{two}));
  EXPECT_EQ(b.Make()->Encode("", {}), (Ids{}));
  for (const char* text : {"a", " a", "  a a", "a a a ", " "})
    EXPECT_EQ(b.Make()->Decode(b.Make()->Encode(text, {})), text);
  b.options_.split_words = true;
  EXPECT_EQ(b.Make()->Encode("a aa", {}), (Ids{word, word, a}));
  b.options_.prefix = UnigramOptions::Prefix::kSpaceUnlessThere;
  EXPECT_EQ(b.Make()->Encode(" a", {}), (Ids{word}));
  EXPECT_EQ(b.Make()->Encode("a", {}), (Ids{word}));
  EXPECT_EQ(b.Make()->Encode("  a", {}), (Ids{space, word}));
  b.options_.steps = {{.kind = NormalizerStep::Kind::kCollapseSpaces}};
  EXPECT_EQ(b.Make()->Encode("  a   a ", {}), (Ids{word, word}));
  EXPECT_EQ(b.Make()->Encode("   ", {}), (Ids{}));
}

TEST(UnigramTest, VocabulariesThatCannotBeSaySo) {
  Builder b;
  b.Add("a", -1);
  b.v_.scores.back() = -std::numeric_limits<float>::infinity();
  EXPECT_THAT(Message(MakeUnigramTokenizer(b.v_, {}).status()), HasSubstr("the score of token 2 is -inf"));
  b.v_.scores.pop_back();
  EXPECT_THAT(Message(MakeUnigramTokenizer(b.v_, {}).status()), HasSubstr("2 scores for 3 tokens"));
  Builder c;
  c.Add(std::string(1025, 'a'), -1);
  EXPECT_THAT(Message(MakeUnigramTokenizer(c.v_, {}).status()),
              HasSubstr("token 2 has 1025 bytes, expected at most 1024"));
}

// The oracle: what the paper says, with nothing of how the tokenizer does it. Characters and pieces are strings; the
// score of a text is that of its best first piece and the best of the rest.
class Oracle {
 public:
  explicit Oracle(const Vocabulary& v) : v_(v) {
    for (size_t id = 0; id < v.size(); ++id) {
      if (v.types[id] == TokenType::kNormal) worst_ = std::min(worst_, static_cast<double>(v.scores[id]));
    }
  }
  // All ways to cut `characters`, each with its sum.
  void ForEachCut(const std::vector<std::string>& characters, size_t from, double sum, Ids* ids,
                  const std::function<void(double, const Ids&)>& fn) const {
    if (from == characters.size()) return fn(sum, *ids);
    for (const auto& [id, score, length] : At(characters, from)) {
      ids->push_back(id);
      ForEachCut(characters, from + length, sum + score, ids, fn);
      ids->pop_back();
    }
  }
  // From the end: best_[i] is that of the characters from i on.
  double Best(const std::vector<std::string>& characters) const {
    std::vector<double> best(characters.size() + 1, -std::numeric_limits<double>::infinity());
    best.back() = 0;
    for (size_t i = characters.size(); i-- > 0;) {
      for (const auto& [id, score, length] : At(characters, i)) best[i] = std::max(best[i], score + best[i + length]);
    }
    return best[0];
  }
  double Score(TokenId id) const {
    return id == 0 ? worst_ - 10 : static_cast<double>(v_.scores[static_cast<size_t>(id)]);
  }

 private:
  struct Choice {
    TokenId id;
    double score;
    size_t length;  // in characters
  };
  std::vector<Choice> At(const std::vector<std::string>& characters, size_t from) const {
    std::vector<Choice> out;
    bool single = false;
    for (size_t id = 0; id < v_.size(); ++id) {
      if (v_.types[id] != TokenType::kNormal) continue;
      std::string spelled;
      for (size_t n = 0; from + n < characters.size() && spelled.size() < v_.piece(id).size();) {
        spelled += characters[from + n++];
        if (spelled != v_.piece(id)) continue;
        out.push_back({static_cast<TokenId>(id), Score(static_cast<TokenId>(id)), n});
        single = single || n == 1;
      }
    }
    if (!single) out.push_back({0, Score(0), 1});
    return out;
  }
  const Vocabulary& v_;
  double worst_ = std::numeric_limits<double>::infinity();
};

std::string Join(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& p : parts) out += p;
  return out;
}

// Unknown ones in a row are one token.
Ids Fused(const Ids& ids) {
  Ids out;
  for (TokenId id : ids) {
    if (id != 0 || out.empty() || out.back() != 0) out.push_back(id);
  }
  return out;
}

TEST(UnigramTest, EveryCutOfRandomTextsIsWeighed) {
  std::mt19937 random(3);
  const std::vector<std::string> alphabet{"a", "b", "\xC3\xA9", kSpaceMark, "\xF0\x9F\x98\x80", "z"};
  int unique = 0, unknown = 0;
  for (int round = 0; round < 600; ++round) {
    Builder b;
    const size_t letters = 1 + random() % 5;
    for (size_t n = 2 + random() % 12; n > 0; --n) {
      std::string piece;
      for (size_t k = 1 + random() % 4; k > 0; --k) piece += alphabet[random() % letters];
      bool there = false;
      for (size_t id = 0; id < b.v_.size(); ++id) there = there || b.v_.piece(id) == piece;
      if (!there) b.Add(piece, -static_cast<float>(random() % 100000) / 7777.0f);
    }
    const auto t = b.Make();
    const Oracle oracle(b.v_);
    for (int i = 0; i < 10; ++i) {
      std::vector<std::string> characters;
      for (size_t k = random() % 9; k > 0; --k) characters.push_back(alphabet[random() % (letters + 1)]);
      double best = -std::numeric_limits<double>::infinity(), second = best;
      Ids best_ids, stack;
      oracle.ForEachCut(characters, 0, 0, &stack, [&](double sum, const Ids& ids) {
        if (sum > best) {
          second = best;
          best = sum;
          best_ids = ids;
        } else {
          second = std::max(second, sum);
        }
      });
      ASSERT_NEAR(best, characters.empty() ? 0 : oracle.Best(characters), 1e-9);
      if (best - second < 1e-9) continue;
      ASSERT_EQ(t->Encode(Join(characters), {}), Fused(best_ids)) << Join(characters);
      unique += characters.size() > 3 ? 1 : 0;
      for (TokenId id : best_ids) unknown += id == 0 ? 1 : 0;
    }
  }
  EXPECT_GT(unique, 2000);
  EXPECT_GT(unknown, 1000);
}

TEST(UnigramTest, LongTextsHaveTheBestSum) {
  std::mt19937 random(4);
  for (int round = 0; round < 20; ++round) {
    Builder b;
    const std::vector<std::string> alphabet{"a", "b", "c", kSpaceMark, "\xC3\xA9"};
    for (const std::string& letter : alphabet) b.Add(letter, -5 - static_cast<float>(random() % 1000) / 300.0f);
    for (int n = 0; n < 60; ++n) {
      std::string piece;
      for (size_t k = 2 + random() % 6; k > 0; --k) piece += alphabet[random() % alphabet.size()];
      bool there = false;
      for (size_t id = 0; id < b.v_.size(); ++id) there = there || b.v_.piece(id) == piece;
      if (!there) b.Add(piece, -static_cast<float>(random() % 100000) / 9999.0f - 2);
    }
    const auto t = b.Make();
    const Oracle oracle(b.v_);
    std::vector<std::string> characters;
    for (int k = 0; k < 400; ++k) characters.push_back(alphabet[random() % alphabet.size()]);
    const Ids ids = t->Encode(Join(characters), {});
    double sum = 0;
    std::string spelled;
    for (TokenId id : ids) {
      ASSERT_NE(id, 0);
      sum += oracle.Score(id);
      spelled += t->Text(id);
    }
    EXPECT_EQ(spelled, Join(characters));
    EXPECT_NEAR(sum, oracle.Best(characters), 1e-6);
  }
}

TEST(UnigramTest, LongTextsTakeTimeInProportion) {
  Builder b;
  std::string letters = "a", spaces = kSpaceMark;
  for (int i = 0; i < 5; ++i) {
    b.Add(letters, -1);
    b.Add(spaces, -1);
    letters += letters;
    spaces += spaces;
  }
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {
    std::string piece;
    for (size_t k = 1 + random() % 8; k > 0; --k) piece += static_cast<char>('a' + random() % 26);
    b.Add(piece, -static_cast<float>(random() % 1000) / 100.0f - 5);
  }
  const auto t = b.Make();
  const size_t n = size_t{1} << 20;
  std::string word;
  for (size_t i = 0; i < n; ++i) word += static_cast<char>('a' + random() % 26);
  for (const std::string& text : {std::string(n, 'a'), std::string(n, ' '), std::string(n, '\xFF'), word}) {
    const double begin = testing::ThreadSeconds();
    EXPECT_FALSE(t->Encode(text, {}).empty());
    EXPECT_LT(testing::ThreadSeconds() - begin, testing::kSanitized ? 20 : 3) << text[0];
  }
  EXPECT_EQ(t->Encode(std::string(n, 'a'), {}).size(), n / 16);
}

TEST(PieceTrieTest, FindsWhatASearchThroughAllFinds) {
  std::mt19937 random(6);
  for (const unsigned letters : {1u, 2u, 3u, 40u, 256u}) {
    std::vector<std::string> pieces;
    for (int i = 0; i < 400; ++i) {
      std::string piece;
      for (size_t k = 1 + random() % 6; k > 0; --k) piece += static_cast<char>(random() % letters);
      pieces.push_back(piece);
    }
    std::vector<std::pair<std::string_view, TokenId>> list{{"", 1000}};
    for (size_t i = 0; i < pieces.size(); ++i) list.emplace_back(pieces[i], static_cast<TokenId>(i));
    const PieceTrie trie(list);
    for (int round = 0; round < 500; ++round) {
      std::string text;
      for (size_t k = random() % 8; k > 0; --k) text += static_cast<char>(random() % letters);
      std::vector<std::pair<size_t, TokenId>> expected, got;
      for (size_t length = 1; length <= text.size(); ++length) {
        const auto it = std::find(pieces.begin(), pieces.end(), text.substr(0, length));
        if (it != pieces.end()) expected.emplace_back(length, static_cast<TokenId>(it - pieces.begin()));
      }
      trie.ForEachPrefix(text, [&](size_t length, TokenId id) { got.emplace_back(length, id); });
      ASSERT_EQ(got, expected);
    }
  }
  int found = 0;
  PieceTrie().ForEachPrefix("abc", [&](size_t, TokenId) { ++found; });
  EXPECT_EQ(found, 0);
}

TEST(CharsmapTest, TheLongestStringIsReplaced) {
  const std::map<std::string, std::string> map{{"\xEF\xBC\xA1", "A"},  {"e\xCC\x81", "\xC3\xA9"}, {"\t", " "},
                                               {"\xEF\xAC\x81", "fi"}, {"\xC2\xAD", ""},          {"ab", "1"},
                                               {"abcd", "2"}};
  const std::string bytes = testing::BuildCharsmap(map);
  const auto charsmap = Charsmap::Parse(bytes);
  ASSERT_TRUE(charsmap.ok()) << charsmap.status();
  EXPECT_EQ(charsmap->Apply("\xEF\xBC\xA1x\t"), "Ax ");
  EXPECT_EQ(charsmap->Apply("e\xCC\x81"
                            "e\xCC"),
            "\xC3\xA9"
            "e\xCC");
  EXPECT_EQ(charsmap->Apply("abcabcdab\xC2\xAD"), "1c21");
  EXPECT_EQ(charsmap->Apply(std::string("a\0b\xFF", 4)), std::string("a\0b\xFF", 4));
  EXPECT_EQ(charsmap->Bytes(), bytes);
  EXPECT_EQ(Charsmap::Parse("")->Apply("x"), "x");
  EXPECT_TRUE(Charsmap::Parse("")->empty());
}

TEST(CharsmapTest, RandomMapsAgainstASearchThroughAll) {
  std::mt19937 random(7);
  const std::vector<std::string> alphabet{"a", "b", "\xC3\xA9", "\xE2\x82\xAC", "\xFF"};
  for (int round = 0; round < 50; ++round) {
    std::map<std::string, std::string> map;
    for (int i = 0; i < 8; ++i) {
      std::string from;
      for (size_t k = 1 + random() % 3; k > 0; --k) from += alphabet[random() % 4];
      map[from] = std::string(random() % 4, static_cast<char>('0' + i));
    }
    const auto charsmap = Charsmap::Parse(testing::BuildCharsmap(map));
    ASSERT_TRUE(charsmap.ok()) << charsmap.status();
    for (int i = 0; i < 20; ++i) {
      std::string text, expected;
      for (size_t k = random() % 12; k > 0; --k) text += alphabet[random() % alphabet.size()];
      for (size_t at = 0; at < text.size();) {
        size_t longest = 0;
        for (const auto& [from, to] : map) {
          if (from.size() > longest && text.compare(at, from.size(), from) == 0) longest = from.size();
        }
        expected += longest > 0 ? map[text.substr(at, longest)] : text.substr(at, Utf8Length(text, at));
        at += longest > 0 ? longest : Utf8Length(text, at);
      }
      ASSERT_EQ(charsmap->Apply(text), expected);
    }
  }
}

TEST(CharsmapTest, DamagedOnesAreErrorsOrMaps) {
  auto error = [](std::string_view bytes) { return Message(Charsmap::Parse(bytes).status()); };
  const std::string good = testing::BuildCharsmap({{"a", "b"}, {"cd", "ef"}});
  EXPECT_THAT(error("abc"), HasSubstr("3 bytes, expected a size of 4"));
  EXPECT_THAT(error(std::string("\x08\0\0\0xxxx", 8)), HasSubstr("the trie takes 8 bytes of 8"));
  EXPECT_THAT(error(good.substr(0, good.size() - 1)), HasSubstr("no end"));
  EXPECT_THAT(error(testing::BuildCharsmap({{"a", std::string(257, 'b')}})),
              HasSubstr("257 bytes, expected at most 256"));
  for (size_t bit = 0; bit < good.size() * 8; bit += bit < 4096 * 2 ? 1 : 7) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    const auto map = Charsmap::Parse(bad);
    if (map.ok()) EXPECT_LE(map->Apply("a cd\xFFx").size(), 7u * 256);
  }
}

TEST(NormalizerTest, StepsDoWhatTheirNamesSay) {
  using Kind = NormalizerStep::Kind;
  auto run = [](std::string_view text, NormalizerStep step) { return Normalize(text, std::vector{std::move(step)}); };
  EXPECT_EQ(run("``a''", {.kind = Kind::kReplace, .from = "``", .to = "\""}), "\"a''");
  EXPECT_EQ(run("a  b   c d", {.kind = Kind::kReplaceSpaces, .to = "_"}), "a_b_c d");
  EXPECT_EQ(run("   ", {.kind = Kind::kReplaceSpaces, .to = "_"}), "_");
  EXPECT_EQ(run("a", {.kind = Kind::kPrepend, .to = "_"}), "_a");
  EXPECT_EQ(run("", {.kind = Kind::kPrepend, .to = "_"}), "");
  EXPECT_EQ(run("\xEF\xAC\x81", {.kind = Kind::kForm, .form = UnicodeForm::kNfkc}), "fi");
  EXPECT_EQ(run("A\xC3\x89\xC4\xB0\xFFz", {.kind = Kind::kLowercase}), "a\xC3\xA9i\xCC\x87\xFFz");
  EXPECT_EQ(run("e\xCC\x81\xFFx", {.kind = Kind::kStripAccents}), "e\xFFx");
  EXPECT_EQ(run("\xE3\x80\x80 a b\t\n", {.kind = Kind::kStrip, .left = true, .right = true}), "a b");
  EXPECT_EQ(run(" a ", {.kind = Kind::kStrip, .left = false, .right = true}), " a");
  EXPECT_EQ(run("  ", {.kind = Kind::kStrip, .left = false, .right = true}), "");
  EXPECT_EQ(run("  a \n b  ", {.kind = Kind::kCollapseSpaces}), "a \n b");
  EXPECT_EQ(run("  a \n\xE3\x80\x80 b  ", {.kind = Kind::kCollapseWhiteSpace}), "a b");
}

// A vocabulary like that of T5's files.
std::vector<std::byte> T5(const std::string& charsmap, bool is_signed, bool collapse, bool prefix) {
  testing::GgufWriter w;
  w.String("tokenizer.ggml.model", "t5");
  w.Strings("tokenizer.ggml.tokens",
            {"<pad>", "</s>", "<unk>", kSpaceMark, kSpaceMark + "he", "he", "l", "lo", "\xC3\xA9", "<x>"});
  w.Numbers<float>("tokenizer.ggml.scores", 6, {0, 0, 0, -2, -3, -4, -5, -6, -7, 0});
  w.Numbers<int32_t>("tokenizer.ggml.token_type", 5, {3, 3, 2, 1, 1, 1, 1, 1, 1, 4});
  w.Uint("tokenizer.ggml.eos_token_id", 1);
  w.Uint("tokenizer.ggml.unknown_token_id", 2);
  w.Bool("tokenizer.ggml.add_space_prefix", prefix);
  w.Bool("tokenizer.ggml.remove_extra_whitespaces", collapse);
  std::vector<uint8_t> bytes(charsmap.begin(), charsmap.end());
  if (!bytes.empty()) w.Numbers("tokenizer.ggml.precompiled_charsmap", is_signed ? 1 : 0, bytes);
  return w.Finish();
}

TEST(UnigramGgufTest, KeysMeanWhatTheySay) {
  const std::string map = testing::BuildCharsmap({{"e\xCC\x81", "\xC3\xA9"}, {"\n", " "}, {"H", "h"}});
  for (const bool is_signed : {false, true}) {
    const auto bytes = T5(map, is_signed, true, true);
    const auto t = TokenizerFromBytes(bytes);
    ASSERT_TRUE(t.ok()) << t.status();
    EXPECT_EQ((*t)->kind(), "unigram");
    EXPECT_EQ((*t)->Encode("Hello", {.add_special = true}), (Ids{4, 6, 7, 1}));
    EXPECT_EQ((*t)->Encode(" \nHe  he\n", {}), (Ids{4, 4}));
    EXPECT_EQ((*t)->Encode("e\xCC\x81?!", {}), (Ids{3, 8, 2}));
    EXPECT_EQ((*t)->Encode("he<x>he", {}), (Ids{4, 9, 4}));
    EXPECT_EQ((*t)->Decode({4, 6, 7, 4}), "hello he");
  }
  const auto plain = TokenizerFromBytes(T5("", false, false, false));
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ((*plain)->Encode("he  he", {}), (Ids{5, 3, 4}));
}

TEST(UnigramGgufTest, BadFilesSayWhatIsWrong) {
  auto error = [](const std::vector<std::byte>& bytes) { return Message(TokenizerFromBytes(bytes).status()); };
  EXPECT_THAT(error(T5("ab", false, true, true)), HasSubstr("tokenizer.ggml.precompiled_charsmap: 2 bytes"));
  testing::GgufWriter w;
  w.String("tokenizer.ggml.model", "t5");
  w.Strings("tokenizer.ggml.tokens", {"a"});
  EXPECT_THAT(error(w.Finish()), HasSubstr("tokenizer.ggml.scores is missing"));
  w.Numbers<float>("tokenizer.ggml.scores", 6, {0});
  w.Uint("tokenizer.ggml.unknown_token_id", 1);
  EXPECT_THAT(error(w.Finish()), HasSubstr("unknown_token_id"));
  testing::GgufWriter x;
  x.String("tokenizer.ggml.model", "t5");
  x.Strings("tokenizer.ggml.tokens", {"a"});
  x.Numbers<float>("tokenizer.ggml.scores", 6, {0});
  x.String("tokenizer.ggml.precompiled_charsmap", "text");
  EXPECT_THAT(error(x.Finish()), HasSubstr("precompiled_charsmap"));
  testing::GgufWriter y;
  y.String("tokenizer.ggml.model", "wordpiece");
  EXPECT_THAT(error(y.Finish()), HasSubstr("\"wordpiece\", known are \"llama\", \"gemma4\", \"gpt2\" and \"t5\""));
}

std::string Json(const std::string& normalizer, const std::string& pre, const std::string& extra = "") {
  return R"({"normalizer": )" + normalizer + R"(, "pre_tokenizer": )" + pre + R"(,
    "added_tokens": [{"id": 1, "content": "</s>", "special": true}, {"id": 2, "content": "<unk>", "special": true},
                     {"id": 10, "content": "<x>", "special": false}],
    "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}]},
    "model": {"type": "Unigram", "unk_id": 2)" +
         extra + R"(, "vocab": [["<pad>", 0], ["</s>", 0], ["<unk>", 0], ["▁", -2],
      ["▁he", -3], ["he", -4.5], ["l", -5], ["lo", -6], ["é", -7], ["▁he▁he", -1]]}})";
}

StatusOr<HfTokenizer> Read(const std::string& text) {
  boost::system::error_code error;
  const auto value = boost::json::parse(text, error);
  EXPECT_FALSE(error) << error.message() << text;
  return ReadTokenizerJson(value.as_object(), boost::json::object{{"eos_token", "</s>"}}, 0);
}

std::string Charsmap64(const std::map<std::string, std::string>& map) {
  const std::string bytes = testing::BuildCharsmap(map);
  return R"({"type": "Precompiled", "precompiled_charsmap": ")" +
         std::string(absl::Base64Escape(absl::string_view(bytes.data(), bytes.size()))) + "\"}";
}

constexpr const char* kMetaspace =
    R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})";

TEST(UnigramJsonTest, T5sTwoFormsGiveTheSameAndSurviveConversion) {
  const std::string map = Charsmap64({{"\n", " "}, {"\t", " "}, {"H", "h"}});
  const std::string old_form = Json(
      map, std::string(R"({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, )") + kMetaspace + "]}");
  const std::string new_form = Json(
      R"({"type": "Sequence", "normalizers": [)" + map +
          R"(, {"type": "Strip", "strip_left": false, "strip_right": true}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}]})",
      kMetaspace);
  const std::vector<std::pair<std::string, Ids>> cases{
      {"Hello", {4, 6, 7}}, {" he  he", {4, 4}},   {"\n\nhe he\t", {4, 4}}, {"", {}},
      {"  ", {}},           {"he?!he", {4, 2, 5}}, {"he<x>he", {4, 10, 4}}, {"l\xC3\xA9", {3, 6, 8}}};
  for (const std::string& text : {old_form, new_form}) {
    const auto read = Read(text);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(read->vocabulary.add_eos);
    const auto t = MakeTokenizer(*read);
    ASSERT_TRUE(t.ok()) << t.status();
    Metadata metadata;
    const Status written = WriteTokenizer(*read, &metadata);
    ASSERT_TRUE(written.ok()) << written;
    const auto converted = UnigramFromGguf(Gguf::FromParts(metadata.values(), TensorTable()));
    ASSERT_TRUE(converted.ok()) << converted.status();
    for (const auto& [said, ids] : cases) {
      EXPECT_EQ((*t)->Encode(said, {}), ids) << said;
      EXPECT_EQ((*converted)->Encode(said, {}), ids) << said;
    }
    EXPECT_EQ((*t)->Encode("he", {.add_special = true}), (Ids{4, 1}));
    EXPECT_EQ((*converted)->Encode("he", {.add_special = true}), (Ids{4, 1}));
  }
}

TEST(UnigramJsonTest, ASpaceBeforeTheTextAloneSurvivesConversion) {
  const std::string normalizers =
      R"({"type": "Sequence", "normalizers": [)" + Charsmap64({{"\n", " "}}) +
      R"(, {"type": "Strip", "strip_left": false, "strip_right": true}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}]})";
  const auto read =
      Read(Json(normalizers, R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true})"));
  ASSERT_TRUE(read.ok()) << read.status();
  Metadata metadata;
  ASSERT_TRUE(WriteTokenizer(*read, &metadata).ok());
  const auto t = MakeTokenizer(*read), converted = UnigramFromGguf(Gguf::FromParts(metadata.values(), TensorTable()));
  ASSERT_TRUE(t.ok() && converted.ok()) << t.status() << converted.status();
  for (const auto* tokenizer : {&*t, &*converted}) {
    EXPECT_EQ((*tokenizer)->Encode("he", {}), (Ids{4}));
    EXPECT_EQ((*tokenizer)->Encode("he<x>he", {}), (Ids{4, 10, 5}));  // "always" gives 4, 10, 4
  }
}

TEST(UnigramJsonTest, NormalizersOfOtherFamilies) {
  // Lower case, no accents, other quotes; no cut at words.
  const auto albert = Read(Json(
      R"({"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "``"}, "content": "l"},
         {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
         {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]})",
      R"({"type": "Metaspace", "replacement": "▁", "add_prefix_space": true, "split": false})"));
  ASSERT_TRUE(albert.ok()) << albert.status();
  EXPECT_EQ((*MakeTokenizer(*albert))->Encode("H\xC3\x89  h\xC3\xA9``", {}), (Ids{9, 6}));
  Metadata metadata;
  EXPECT_THAT(Message(WriteTokenizer(*albert, &metadata)), HasSubstr("more than GGUF has keys for"));
  // A space by hand, as in Llama's.
  const auto llama = Read(Json(R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})",
                               "null"));
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ((*MakeTokenizer(*llama))->Encode("he he", {}), (Ids{9}));
  EXPECT_EQ((*MakeTokenizer(*llama))->Encode(" he", {}), (Ids{3, 4}));
  EXPECT_EQ((*MakeTokenizer(*llama))->Decode({9}), "he he");
  EXPECT_TRUE(WriteTokenizer(*llama, &metadata).ok());
}

TEST(UnigramJsonTest, BadOnesSayWhy) {
  auto error = [](const std::string& text) { return Message(Read(text).status()); };
  EXPECT_THAT(error(Json(R"({"type": "Nmt"})", "null")),
              HasSubstr("normalizer: the type \"Nmt\" is not known, known are Precompiled"));
  EXPECT_THAT(error(Json("null", R"({"type": "Punctuation"})")),
              HasSubstr("pre_tokenizer: the type \"Punctuation\" is not known"));
  EXPECT_THAT(error(Json("null", R"({"type": "Metaspace", "replacement": "_"})")), HasSubstr("a Metaspace of \"_\""));
  EXPECT_THAT(error(Json(R"({"type": "Precompiled", "precompiled_charsmap": "?"})", "null")), HasSubstr("no base64"));
  EXPECT_THAT(error(Json(R"({"type": "Precompiled", "precompiled_charsmap": "AAAA"})", "null")), HasSubstr("3 bytes"));
  EXPECT_THAT(error(Json(R"({"type": "Replace", "pattern": {"String": ""}, "content": "x"})", "null")),
              HasSubstr("empty pattern"));
  EXPECT_THAT(error(Json(R"({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "x"})", "null")),
              HasSubstr("\"a+\""));
  EXPECT_THAT(error(Json(R"({"type": "Replace", "pattern": {"String": "a"}})", "null")),
              HasSubstr("a Replace has no content"));
  EXPECT_THAT(error(Json(R"({"type": "Prepend", "prepend": ")" + std::string(257, 'x') + "\"}", "null")),
              HasSubstr("257 bytes"));
  EXPECT_THAT(error(R"({"model": {"type": "Unigram", "unk_id": 0}})"), HasSubstr("model.vocab is missing"));
  EXPECT_THAT(error(R"({"model": {"type": "Unigram", "vocab": [["a", 0], ["b"]]}})"),
              HasSubstr("entry 1 is [\\x22b\\x22], expected a piece and its score"));
  EXPECT_THAT(error(R"({"model": {"type": "Unigram", "unk_id": 7, "vocab": [["a", 0]]}})"),
              HasSubstr("model.unk_id is 7, of 1 pieces"));
}

}  // namespace
}  // namespace gyre
