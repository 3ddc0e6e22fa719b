// Unigram tokenizers from files: normalization, GGUF's keys and tokenizer.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/escaping.h"
#include "model/hf/json.h"
#include "model/hf/tokenizer_json.h"
#include "model/unigram.h"
#include "model/utf8.h"
#include "model/weights.h"
#include "tests/testing/charsmap_writer.h"
#include "tests/testing/gguf_writer.h"

namespace gyre {
namespace {

using Ids = std::vector<TokenId>;
using ::testing::HasSubstr;

const std::string kSpacePiece = "\xE2\x96\x81";

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
            {"<pad>", "</s>", "<unk>", kSpacePiece, kSpacePiece + "he", "he", "l", "lo", "\xC3\xA9", "<x>"});
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
  EXPECT_THAT(error(y.Finish()),
              HasSubstr("\"wordpiece\", known are \"llama\", \"gemma4\", \"gpt2\", \"t5\", \"bert\" and \"rwkv\""));
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
  EXPECT_THAT(error(Json(R"({"type": "New"})", "null")),
              HasSubstr("normalizer: the type \"New\" is not known, known are Precompiled"));
  EXPECT_THAT(error(Json("null", R"({"type": "Punctuation"})")),
              HasSubstr("pre_tokenizer: the type \"Punctuation\" is not known"));
  EXPECT_THAT(error(Json("null", R"({"type": "Metaspace", "replacement": "_"})")), HasSubstr("a Metaspace of \"_\""));
  EXPECT_THAT(error(Json(R"({"type": "Precompiled", "precompiled_charsmap": "?"})", "null")), HasSubstr("no base64"));
  EXPECT_THAT(error(Json(R"({"type": "Precompiled", "precompiled_charsmap": "AAAA"})", "null")), HasSubstr("3 bytes"));
  EXPECT_THAT(error(Json(R"({"type": "Replace", "pattern": {"String": ""}, "content": "x"})", "null")),
              HasSubstr("has no pattern"));
  EXPECT_THAT(error(Json(R"({"type": "Replace", "pattern": {"Regex": "a*"}, "content": "x"})", "null")),
              HasSubstr("a*"));
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
