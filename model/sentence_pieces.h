// The base of tokenizers with SentencePiece vocabularies: U+2581 for a space, bytes for characters without a piece.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "model/vocabulary.h"

namespace gyre {

// Gyre's own GGUF key: a space is put before a text, not after special tokens (tokenizer.json's prepend_scheme
// "first").
inline constexpr const char* kPrefixFirstOnlyKey = "gyre.tokenizer.prefix_first_only";
// Gyre's own too: no space is put before a text that begins with one; no piece reaches over the beginning of a word.
inline constexpr const char* kPrefixUnlessThereKey = "gyre.tokenizer.prefix_unless_there";
inline constexpr const char* kSplitWordsKey = "gyre.tokenizer.split_words";
inline constexpr std::string_view kMetaSpace = "\xE2\x96\x81";  // U+2581

// Replaces every `from` in the text, left to right, by `to`. REQUIRES: from is not empty.
std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to);

class SentencePieceTokenizer : public VocabularyTokenizer {
 public:
  // `meta_space`: pieces have U+2581 for a space. `space_first`: Decode drops a space at the beginning of a text, as
  // Encode puts one there; `after_special`: after special tokens too.
  SentencePieceTokenizer(Vocabulary v, bool meta_space, bool space_first, bool after_special);

  bool starts_after_special() const override { return after_special_; }

  std::string Piece(TokenId id, bool at_start) const override;

 protected:
  TokenId unknown() const { return unknown_; }
  // Whether every byte of a character has a token, so that it need not be unknown.
  bool HasBytes(std::string_view character) const;
  // Appends the byte tokens of a character; for bytes without one the unknown token, once.
  void EmitBytes(std::string_view character, std::vector<TokenId>* out) const;

  const bool meta_space_, space_first_, after_special_;

 private:
  std::array<TokenId, 256> bytes_;  // -1 = none
  TokenId unknown_ = -1;
};

}  // namespace gyre
