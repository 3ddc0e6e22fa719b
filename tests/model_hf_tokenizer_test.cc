// Hugging Face's tokenizer.json against GGUF's vocabulary.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstring>
#include <fstream>
#include <set>

#include "model/gguf.h"
#include "model/hf/tokenizer_json.h"
#include "model/mapped_file.h"
#include "model/tokenizer.h"
#include "model/weights.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/shared_data.h"

namespace gyre {
namespace {

namespace json = boost::json;

// A vocabulary of the shared data written as tokenizer.json gives the same ids.
TEST(HfTokenizerTest, TokenizerJsonGivesTheIdsOfTheVocabulary) {
  if (!testing::HaveSharedData()) GTEST_SKIP() << "no ../shared beside the checkout: the vocabularies are not there";
  for (const char* name : {"gpt-2", "qwen2", "llama3", "gemma3"}) {
    if (testing::kSanitized && name != std::string("gpt-2")) continue;  // JSON of megabytes, slowly
    SCOPED_TRACE(name);
    const std::string path = testing::SharedData(std::string("tokenizers/") + name);
    const auto file = MappedFile::Open(path + ".vocab.gguf");
    const auto gguf = Gguf::Parse((*file)->bytes());
    const auto reference = OpenTokenizer(path + ".vocab.gguf");
    ASSERT_TRUE(reference.ok()) << reference.status();
    const bool spm = std::string(name) == "gemma3";
    json::object vocab;
    json::array added, merges;
    std::vector<std::pair<float, std::string>> ranked;
    const GgufValue* tokens = *gguf->Array("tokenizer.ggml.tokens", GgufType::kString);
    const GgufValue* scores = spm ? *gguf->Array("tokenizer.ggml.scores", GgufType::kF32) : nullptr;
    std::set<std::string> pieces;
    ForEachString(*tokens, [&](uint64_t i, std::string_view piece) {
      const auto id = static_cast<TokenId>(i);
      const TokenType type = (*reference)->type(id);
      if (type == TokenType::kControl || type == TokenType::kUserDefined || type == TokenType::kUnknown) {
        // Runs of white space are added tokens of Gemma that merges go through.
        std::string spelled(piece);
        for (size_t at = 0; (at = spelled.find(' ', at)) != std::string::npos;) spelled.replace(at, 1, "\xE2\x96\x81");
        if (type == TokenType::kUserDefined) pieces.insert(spelled);
        added.push_back({{"id", static_cast<int64_t>(i)},
                         {"content", std::string(piece)},
                         {"special", type == TokenType::kControl}});
      } else if (type != TokenType::kUnused) {
        vocab[std::string(piece)] = static_cast<int64_t>(i);
        if (type == TokenType::kNormal) pieces.insert(std::string(piece));
        float score = 0;
        if (spm && type == TokenType::kNormal) std::memcpy(&score, scores->bytes.data() + 4 * i, 4);
        if (spm && type == TokenType::kNormal) ranked.emplace_back(score, std::string(piece));
      }
    });
    json::object root{{"added_tokens", added}};
    if (spm) {
      // Any cut of a piece into two pieces will do: its rank is what counts.
      std::sort(ranked.begin(), ranked.end(), std::greater<>());
      for (const auto& [score, piece] : ranked) {
        for (size_t cut = 1; cut < piece.size(); ++cut) {
          if (pieces.count(piece.substr(0, cut)) == 0 || pieces.count(piece.substr(cut)) == 0) continue;
          merges.push_back(json::array{json::string(piece.substr(0, cut)), json::string(piece.substr(cut))});
          break;
        }
      }
      root["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xE2\x96\x81"}};
      root["model"] = {
          {"type", "BPE"}, {"byte_fallback", true}, {"unk_token", "<unk>"}, {"vocab", vocab}, {"merges", merges}};
    } else {
      ForEachString(**gguf->Array("tokenizer.ggml.merges", GgufType::kString),
                    [&](uint64_t, std::string_view m) { merges.push_back(json::string(m)); });
      const auto pre = *PreTokenizerByName(*gguf->String("tokenizer.ggml.pre").value());
      json::array steps;
      for (const SplitStep& p : pre.patterns)
        steps.push_back(
            {{"type", "Split"}, {"pattern", {{"Regex", p.pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
      steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
      root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
      if (!pre.steps.empty()) root["normalizer"] = {{"type", "NFC"}};
      root["model"] = {{"type", "BPE"}, {"ignore_merges", pre.ignore_merges}, {"vocab", vocab}, {"merges", merges}};
    }
    const auto read = ReadTokenizerJson(root, {}, 0);
    ASSERT_TRUE(read.ok()) << read.status();
    if (!spm)
      EXPECT_EQ(read->pre_name, *gguf->String("tokenizer.ggml.pre").value() == std::string("llama-bpe")
                                    ? "llama-bpe"
                                    : *gguf->String("tokenizer.ggml.pre").value());
    const auto tokenizer = MakeTokenizer(*read);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    std::ifstream in(path + ".cases.jsonl");
    int wrong = 0, cases = 0;
    for (std::string line; std::getline(in, line) && cases < 400; ++cases) {
      const auto object = json::parse(line).as_object();
      const std::string text(object.at("text").as_string().data(), object.at("text").as_string().size());
      // In a GGUF file U+2581 in a text counts as a space, and tokens of spaces are spelled so; the library takes it as
      // it is.
      if (spm && text.find("\xE2\x96\x81") != std::string::npos) continue;
      const EncodeOptions options{.parse_special = object.at("parse_special").as_bool()};
      const auto got = (*tokenizer)->Encode(text, options), expected = (*reference)->Encode(text, options);
      if (got != expected && ++wrong <= 3) {
        ADD_FAILURE() << line.substr(0, 300) << "\n got " << ::testing::PrintToString(got) << "\n expected "
                      << ::testing::PrintToString(expected);
      }
    }
    EXPECT_GT(cases, 20);
    EXPECT_EQ(wrong, 0);
  }
}

}  // namespace
}  // namespace gyre
