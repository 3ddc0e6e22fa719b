// Any text through tokenizers of both kinds: it comes back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "model/bpe.h"
#include "model/spm.h"

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

}  // namespace
}  // namespace gyre

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gyre;
  static const std::unique_ptr<Tokenizer> tokenizers[] = {Bpe("gpt-2"), Bpe("llama-bpe"), Bpe("deepseek-llm"),
                                                          Bpe("qwen2"), Spm()};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto& t : tokenizers) {
    const std::string back = t->Decode(t->Encode(text, {}));
    // NFC and U+2581 change the text, and nothing else does.
    if (t.get() != tokenizers[3].get() && t.get() != tokenizers[4].get() && back != text) std::abort();
    (void)t->Encode(text, {.parse_special = true, .guard = "b"});
  }
  return 0;
}
