// Any text through tokenizers of all kinds: it comes back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "model/bpe.h"
#include "model/spm.h"
#include "model/unigram.h"
#include "tests/testing/charsmap_writer.h"

namespace gyre {
namespace {

std::unique_ptr<Tokenizer> Bpe(const char* pre) {
  Vocabulary v;
  for (int b = 0; b < 256; ++b) v.Add(std::string(1, static_cast<char>(b)), TokenType::kNormal);
  std::vector<BpeMerge> merges;
  auto merge = [&](TokenId left, TokenId right) {
    v.Add(std::string(v.piece(static_cast<size_t>(left))) + std::string(v.piece(static_cast<size_t>(right))),
          TokenType::kNormal);
    merges.push_back({left, right, static_cast<TokenId>(v.size()) - 1});
    return merges.back().merged;
  };
  merge('a', 'b'), merge(merge('a', 'a'), 'a'), merge(merge(0xE2, 0x82), 0xAC), merge(merge(' ', ' '), ' ');
  v.Add("<|x|>", TokenType::kControl);
  v.Add("<u>", TokenType::kUserDefined);
  return *MakeBpeTokenizer(std::move(v), merges, *PreTokenizerByName(pre));
}

std::unique_ptr<Tokenizer> Spm() {
  Vocabulary v;
  for (int b = 0; b < 256; ++b) v.Add(fmt::format("<0x{:02X}>", b), TokenType::kByte);
  for (const char* piece : {"a", "aa", "aaaa", "\xE2\x96\x81",
                            "\xE2\x96\x81"
                            "a",
                            "\xC3\xA9"})
    v.Add(piece, TokenType::kNormal);
  for (size_t i = 0; i < v.size(); ++i) v.scores.push_back(-static_cast<float>(i));
  return *MakeSpmTokenizer(std::move(v), {.add_space_prefix = false});
}

// `normalizes`: with a map, spaces collapsed and words apart.
std::unique_ptr<Tokenizer> Unigram(bool normalizes) {
  Vocabulary v;
  for (int b = 0; b < 256; ++b) v.Add(fmt::format("<0x{:02X}>", b), TokenType::kByte);
  for (const char* piece :
       {"a", "aa", "ab", "bca", "aaaaaaaa", "\xE2\x96\x81", "\xE2\x96\x81\xE2\x96\x81", "a\xE2\x96\x81", "\xC3\xA9"})
    v.Add(piece, TokenType::kNormal);
  v.Add("<u>", TokenType::kUserDefined);
  for (size_t i = 0; i < v.size(); ++i) v.scores.push_back(-static_cast<float>(i % 7));
  UnigramOptions options;
  if (normalizes) {
    options.split_words = true;
    const auto map = Charsmap::Parse(
        testing::BuildCharsmap({{"\xEF\xBC\xA1", "A"}, {"ab", " "}, {"\n", " "}, {"a\xCC\x81", "\xC3\xA1"}}));
    options.steps = {{.kind = NormalizerStep::Kind::kCharsmap, .charsmap = std::make_shared<const Charsmap>(*map)},
                     {.kind = NormalizerStep::Kind::kForm, .form = UnicodeForm::kNfkd},
                     {.kind = NormalizerStep::Kind::kLowercase},
                     {.kind = NormalizerStep::Kind::kCollapseWhiteSpace}};
  }
  return *MakeUnigramTokenizer(std::move(v), std::move(options));
}

}  // namespace
}  // namespace gyre

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gyre;
  static const std::unique_ptr<Tokenizer> tokenizers[] = {
      Bpe("gpt-2"), Bpe("llama-bpe"), Bpe("deepseek-llm"), Bpe("qwen2"), Spm(), Unigram(false), Unigram(true)};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto& t : tokenizers) {
    const std::string back = t->Decode(t->Encode(text, {}));
    // NFC, U+2581 and normalizers change the text, and nothing else does.
    const bool changes = t.get() == tokenizers[3].get() ||
                         (t->kind() != "bpe" && text.find("\xE2\x96\x81") != text.npos) ||
                         t.get() == tokenizers[6].get();
    if (!changes && back != text) std::abort();
    (void)t->Encode(text, {.parse_special = true, .guard = "b"});
  }
  (void)Charsmap::Parse(text);
  return 0;
}
