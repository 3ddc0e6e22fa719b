// Every part of a tokenizer.json that changes ids, against the ids of the tokenizers library (version 0.23.2), and what
// is refused. tests/cases/tokenizer_json.jsonl has a line for each kind: what is changed in one of two small
// tokenizers, and texts with their ids.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>

#include "model/bpe.h"
#include "model/gguf.h"
#include "model/hf/added_tokens.h"
#include "model/hf/tokenizer_json.h"
#include "model/hf/tokenizer_keys.h"
#include "model/spm.h"
#include "model/tokenizer.h"

namespace gyre {
namespace {

namespace json = boost::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json::object SpecialToken(int id, const char* content) { return {{"id", id}, {"content", content}, {"special", true}}; }

// 256 bytes, six merges, <s> and </s>.
json::object ByteRoot() {
  json::object vocab;
  for (int b = 0; b < 256; ++b) vocab[SpellingOfBytes(std::string(1, static_cast<char>(b)))] = b;
  json::array merges;
  for (const auto& [left, right] :
       {std::pair("h", "i"), {"l", "l"}, {"\xC4\xA0", "hi"}, {"1", "2"}, {".", "."}, {"w", "o"}}) {
    vocab[std::string(left) + right] = static_cast<int64_t>(vocab.size());
    merges.push_back({left, right});
  }
  return {{"added_tokens", {SpecialToken(262, "<s>"), SpecialToken(263, "</s>")}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

// Like Llama's: bytes, nine pieces, four merges.
json::object PieceRoot() {
  json::object vocab{{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int b = 0; b < 256; ++b) vocab[fmt::format("<0x{:02X}>", b)] = static_cast<int64_t>(vocab.size());
  for (const char* piece : {"\u2581", "h", "i", "hi", "\u2581hi", "\u2581\u2581", "a",
                            "\u2581"
                            "a",
                            "b"})
    vocab[piece] = static_cast<int64_t>(vocab.size());
  json::array merges;
  for (const auto& [left, right] : {std::pair("h", "i"), {"\u2581", "hi"}, {"\u2581", "\u2581"}, {"\u2581", "a"}})
    merges.push_back({left, right});
  return json::object{{"added_tokens", {SpecialToken(0, "<unk>"), SpecialToken(1, "<s>"), SpecialToken(2, "</s>")}},
                      {"normalizer",
                       {{"type", "Sequence"},
                        {"normalizers",
                         {{{"type", "Prepend"}, {"prepend", "\u2581"}},
                          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}}},
                      {"model",
                       {{"type", "BPE"},
                        {"unk_token", "<unk>"},
                        {"fuse_unk", true},
                        {"byte_fallback", true},
                        {"vocab", vocab},
                        {"merges", merges}}}};
}

void PatchWith(const json::object& with, json::object* o) {
  for (const auto& item : with) (*o)[item.key()] = item.value();
}
json::object ChangedRoot(json::object root, const char* patch, const char* model = "{}") {
  PatchWith(json::parse(patch).as_object(), &root);
  PatchWith(json::parse(model).as_object(), &root["model"].as_object());
  return root;
}

StatusOr<std::unique_ptr<Tokenizer>> MakeFrom(const json::object& root, const json::object& settings = {}) {
  GYRE_ASSIGN_OR_RETURN(HfTokenizer t, ReadTokenizerJson(root, settings, 0));
  return MakeTokenizer(std::move(t));
}
std::vector<TokenId> PartIds(const Tokenizer& t, std::string_view text, bool add = false) {
  return t.Encode(text, {.add_special = add, .parse_special = true});
}

TEST(TokenizerPartsTest, EveryPartGivesTheLibrarysIds) {
  std::ifstream in(GYRE_TEST_CASES "/tokenizer_json.jsonl");
  int cases = 0;
  for (std::string line; std::getline(in, line);) {
    const json::object row = json::parse(line).as_object();
    SCOPED_TRACE(std::string(row.at("name").as_string()));
    json::object root = row.at("kind").as_string() == "bytes" ? ByteRoot() : PieceRoot();
    PatchWith(row.at("patch").as_object(), &root);
    for (const json::value& added : row.at("added").as_array()) root["added_tokens"].as_array().push_back(added);
    if (const json::value* model = row.if_contains("model")) PatchWith(model->as_object(), &root["model"].as_object());
    const auto t = MakeFrom(root);
    ASSERT_TRUE(t.ok()) << t.status();
    for (const json::value& c : row.at("cases").as_array()) {
      const std::string text(c.at(0).as_string());
      EXPECT_EQ(PartIds(**t, text, c.at(1).as_bool()), json::value_to<std::vector<TokenId>>(c.at(2))) << text;
      ++cases;
    }
  }
  EXPECT_GT(cases, 700);
}

TEST(TokenizerPartsTest, SettingsThatNobodyKnowsAreNamed) {
  EXPECT_THAT(UnknownTokenizerSettings({{"model_max_length", 4096},
                                        {"image_token", "<i>"},
                                        {"image_token_id", 7},
                                        {"chat_template", "x"},
                                        {"split_special_tokens", false},
                                        {"letters", nullptr},
                                        {"reverse_text", true}}),
              ElementsAre("reverse_text"));
}

TEST(TokenizerPartsTest, WhatIsNotKnownIsRefusedByItsName) {
  const auto refusal = [](const json::object& root, const json::object& settings = {}) {
    const auto t = MakeFrom(root, settings);
    EXPECT_TRUE(absl::IsUnimplemented(t.status())) << t.status();
    return Message(t.status());
  };
  for (const char* type : {"BertNormalizer", "ByteLevel", "New"}) {
    const std::string patch = fmt::format(R"({{"normalizer": {{"type": "{}"}}}})", type);
    EXPECT_THAT(refusal(ChangedRoot(ByteRoot(), patch.c_str())),
                HasSubstr(fmt::format("normalizer: the type \"{}\"", type)));
  }
  EXPECT_THAT(refusal(ChangedRoot(PieceRoot(), R"({"pre_tokenizer": {"type": "UnicodeScripts"}})")),
              HasSubstr("pre_tokenizer: the type \"UnicodeScripts\""));
  EXPECT_THAT(refusal(ChangedRoot(ByteRoot(), R"({"post_processor": {"type": "New"}})")),
              HasSubstr("post_processor: the type \"New\""));
  EXPECT_THAT(refusal(ChangedRoot(ByteRoot(), R"({"decoder": {"type": "WordPiece"}})")),
              HasSubstr("decoder: the type \"WordPiece\""));
  EXPECT_THAT(refusal(ChangedRoot(PieceRoot(), R"({"decoder": {"type": "CTC"}})")),
              HasSubstr("decoder: the type \"CTC\""));
  EXPECT_THAT(
      refusal(ChangedRoot(PieceRoot(), R"({"decoder": {"type": "Strip", "content": " ", "start": 0, "stop": 1}})")),
      HasSubstr("Strip"));
  EXPECT_THAT(refusal(ChangedRoot(ByteRoot(), "{}", R"({"dropout": 0.1})")), HasSubstr("dropout"));
  EXPECT_THAT(refusal(ChangedRoot(ByteRoot(), "{}", R"({"end_of_word_suffix": "</w>"})")),
              HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(refusal(ChangedRoot(ByteRoot(), "{}", R"({"continuing_subword_prefix": "##"})")),
              HasSubstr("continuing_subword_prefix"));
  EXPECT_THAT(refusal(ChangedRoot(ByteRoot(), "{}", R"({"type": "WordPiece"})")), HasSubstr("\"WordPiece\""));
  EXPECT_THAT(refusal(ByteRoot(), {{"split_special_tokens", true}}), HasSubstr("split_special_tokens"));
  const std::string split = R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split",
    "pattern": {"Regex": "EXPRESSION"}, "behavior": "BEHAVIOR", "invert": false}, {"type": "ByteLevel"}]}})";
  const auto with = [&](std::string expression, std::string behavior) {
    std::string s = split;
    s.replace(s.find("EXPRESSION"), 10, expression);
    s.replace(s.find("BEHAVIOR"), 8, behavior);
    return s;
  };
  EXPECT_THAT(refusal(ChangedRoot(ByteRoot(), with("a", "Merged").c_str())), HasSubstr("\"Merged\""));
  EXPECT_THAT(refusal(ChangedRoot(ByteRoot(), with("a*", "Isolated").c_str())), HasSubstr("no character"));
  EXPECT_THAT(refusal(ChangedRoot(ByteRoot(), with("\\\\ba", "Isolated").c_str())), HasSubstr("\\b"));
  // A key of a later version may change the ids.
  for (const auto& [patch, says] :
       {std::pair(R"({"post_normalizer": {"type": "NFC"}})", "tokenizer.json.post_normalizer is {"),
        {R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC", "form": 2}]}})",
         "normalizer: NFC.form is 2"},
        {R"({"pre_tokenizer": {"type": "ByteLevel", "keep_case": false}})",
         "pre_tokenizer: ByteLevel.keep_case is false"},
        {R"({"post_processor": {"type": "ByteLevel", "twice": true}})", "post_processor: ByteLevel.twice is true"},
        {R"({"decoder": {"type": "ByteLevel", "strict": 1}})", "decoder: ByteLevel.strict is 1"}}) {
    EXPECT_THAT(refusal(ChangedRoot(ByteRoot(), patch)), HasSubstr(says));
  }
  EXPECT_THAT(refusal(ChangedRoot(ByteRoot(), "{}", R"({"max_piece": 4})")), HasSubstr("model.max_piece is 4"));
  json::object odd = ByteRoot();
  odd["added_tokens"].as_array()[0].as_object()["case_sensitive"] = false;
  EXPECT_THAT(refusal(odd), HasSubstr("added_tokens.case_sensitive is false"));
  // A key with an empty value is ignored.
  EXPECT_TRUE(MakeFrom(ChangedRoot(ByteRoot(), R"({"post_normalizer": null})")).ok());
  // A message could otherwise spell the token in other letters.
  json::object lower = ChangedRoot(ByteRoot(), R"({"normalizer": {"type": "Lowercase"}})");
  lower["added_tokens"].as_array().push_back(
      {{"id", 264}, {"content", "<X>"}, {"special", true}, {"normalized", true}});
  EXPECT_THAT(refusal(lower), HasSubstr("<X>"));
}

TEST(TokenizerPartsTest, TokensStandInOtherFilesToo) {
  // added_tokens_decoder adds tokens, and its flags hold.
  json::object settings{{"bos_token", "<s>"},
                        {"added_tokens_decoder",
                         {{"264", {{"content", "<new>"}, {"special", true}}},
                          {"263", {{"content", "</s>"}, {"special", true}, {"rstrip", true}}}}}};
  auto t = MakeFrom(ByteRoot(), settings);
  ASSERT_TRUE(t.ok()) << t.status();
  EXPECT_THAT(PartIds(**t, "<new></s>  hi"), ElementsAre(264, 263, 256));
  settings["added_tokens_decoder"] = {{"262", {{"content", "<new>"}}}};
  EXPECT_THAT(Message(MakeFrom(ByteRoot(), settings).status()),
              HasSubstr("<new> has the id 262, which is that of <s>"));
  settings["added_tokens_decoder"] = {{"-1", {{"content", "<new>"}}}};
  EXPECT_TRUE(absl::IsDataLoss(MakeFrom(ByteRoot(), settings).status()));

  // The older files count where there is no added_tokens_decoder.
  settings = {{"eos_token", "<s>"}};
  MergeOldFiles(ByteRoot(), {{"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}}, {{"<a>", 264}, {"</s>", 900}},
                &settings);
  t = MakeFrom(ByteRoot(), settings);
  ASSERT_TRUE(t.ok()) << t.status();
  EXPECT_EQ((*t)->bos(), 262);
  EXPECT_EQ((*t)->eos(), 263);
  EXPECT_THAT(PartIds(**t, "<a>hi"), ElementsAre(264, 256));
  EXPECT_EQ((*t)->type(264), TokenType::kUserDefined);

  // A special token that only the vocabulary has is found as one; a mark that texts have stays a mark.
  t = MakeFrom(ByteRoot(), {{"pad_token", "hi"}, {"mask_token", "h"}});
  ASSERT_TRUE(t.ok()) << t.status();
  EXPECT_EQ((*t)->type(256), TokenType::kControl);
  EXPECT_EQ((*t)->type('h'), TokenType::kNormal);
}

TEST(TokenizerPartsTest, AnEndThatIsNoTokenIsNamed) {
  const auto told = [](const json::object& settings) {
    ::testing::internal::CaptureStderr();
    const auto t = MakeFrom(ByteRoot(), settings);
    const std::string text = ::testing::internal::GetCapturedStderr();
    return t.ok() ? text : Message(t.status());
  };
  EXPECT_THAT(told({{"eos_token_id", 50256}}),
              HasSubstr("eos_token_id names the token 50256, the vocabulary has 0-263"));
  EXPECT_THAT(told({{"eos_token_id", {263, 999}}}), HasSubstr("the token 999"));
  EXPECT_THAT(told({{"eos_token_id", "</s>"}}), HasSubstr("eos_token_id is \"</s>\", expected the id of a token"));
  EXPECT_THAT(told({{"eos_token_id", -7}}), HasSubstr("eos_token_id is -7"));
  EXPECT_THAT(told({{"eos_token", "<end>"}}), HasSubstr("eos_token is <end>, which is no token of the vocabulary"));
  EXPECT_EQ(told({{"eos_token_id", -1}}), "");
  EXPECT_EQ(told({{"eos_token_id", nullptr}}), "");
  EXPECT_EQ(told({{"eos_token_id", 263}, {"eos_token", "</s>"}}), "");
}

TEST(TokenizerPartsTest, TheTokensAroundATextFollowThePostProcessorAndTheSettings) {
  const json::object root = ChangedRoot(ByteRoot(), R"({"post_processor": {"type": "TemplateProcessing", "single": [
    {"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"tokens": ["<s>"]}}}})");
  const auto ids = [&](const json::object& settings) {
    const auto t = MakeFrom(root, settings);
    EXPECT_TRUE(t.ok()) << t.status();
    return PartIds(**t, "hi", true);
  };
  EXPECT_THAT(ids({}), ElementsAre(262, 256));  // no tokenizer_config.json
  EXPECT_THAT(ids({{"bos_token", "<s>"}}), ElementsAre(262, 256));
  EXPECT_THAT(ids({{"bos_token", "<s>"}, {"add_bos_token", false}}), ElementsAre(256));
  EXPECT_THAT(ids({{"eos_token", "</s>"}, {"add_eos_token", true}}), ElementsAre(262, 256, 263));
  EXPECT_THAT(
      PartIds(**MakeFrom(ByteRoot(), {{"bos_token", "<s>"}, {"tokenizer_class", "LlamaTokenizer"}}), "hi", true),
      ElementsAre(262, 256));
  const auto gone = MakeFrom(ChangedRoot(
      ByteRoot(), R"({"post_processor": {"type": "BertProcessing", "cls": ["<c>", 1], "sep": ["</s>", 263]}})"));
  EXPECT_THAT(Message(gone.status()), HasSubstr("the token <c> is not in the vocabulary"));
}

// What GGUF has no keys for is written with Gyre's own.
TEST(TokenizerPartsTest, AGgufFileKeepsTheRules) {
  for (const bool bytes : {true, false}) {
    json::object root = bytes ? ByteRoot() : PieceRoot();
    const int64_t next = bytes ? 264 : 268;
    json::array& added = root["added_tokens"].as_array();
    added.push_back({{"id", next}, {"content", "<x>"}, {"special", true}, {"rstrip", true}});
    added.push_back(
        {{"id", next + 1}, {"content", "aha"}, {"single_word", true}, {"lstrip", true}, {"normalized", false}});
    root["post_processor"] = json::parse(R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}},
      {"SpecialToken": {"id": "<x>"}}, {"Sequence": {"id": "A"}}]})");
    const auto read = ReadTokenizerJson(root, {}, 0);
    ASSERT_TRUE(read.ok()) << read.status();
    Metadata metadata;
    ASSERT_TRUE(WriteTokenizer(*read, &metadata).ok());
    const Gguf gguf = Gguf::FromParts(metadata.values(), {});
    const auto direct = MakeTokenizer(*read), file = bytes ? BpeFromGguf(gguf) : SpmFromGguf(gguf);
    ASSERT_TRUE(direct.ok() && file.ok()) << file.status();
    for (const char* text : {"<x>  hi", "a  aha", "ahaha aha", "<x> a"})
      EXPECT_EQ(PartIds(**file, text, true), PartIds(**direct, text, true)) << text;
    EXPECT_THAT(PartIds(**file, "<x>  aha", true), ElementsAre(bytes ? 262 : 1, next, next, next + 1));
  }
}

}  // namespace
}  // namespace gyre
