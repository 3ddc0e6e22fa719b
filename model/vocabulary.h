// The common part of all tokenizers: pieces, their types, and the special tokens at which text is split.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"
#include "model/special_trie.h"
#include "model/tokenizer.h"
#include "model/word_cache.h"

namespace gyre {

struct Vocabulary {
  std::string text;               // all pieces, one after the other
  std::vector<uint32_t> offsets;  // [size + 1] into text
  std::vector<TokenType> types;
  std::vector<float> scores;  // [size], or empty: the tokenizer has none
  TokenId bos = -1, eos = -1;
  std::vector<TokenId> end_ids;  // ids that end a generation
  bool add_bos = true, add_eos = false;

  size_t size() const { return types.size(); }
  std::string_view piece(size_t id) const {
    return std::string_view(text).substr(offsets[id], offsets[id + 1] - offsets[id]);
  }
  // Reserves memory in proportion to the file's size.
  void Reserve(size_t text_bytes, size_t pieces) {
    text.reserve(text_bytes);
    offsets.reserve(pieces + 1);
    types.reserve(pieces);
  }
  void Add(std::string_view piece, TokenType type) {
    if (offsets.empty()) offsets.push_back(0);
    text += piece;
    offsets.push_back(static_cast<uint32_t>(text.size()));
    types.push_back(type);
  }
  // kDataLoss: begin or end token outside the vocabulary, or no tokens at all.
  Status Validate() const;
};

// Whether a control token of known vocabularies with this name ends a turn or a text.
bool EndsByName(std::string_view piece);
// Adds the control tokens that end a turn by their names to end_ids. If turns have several messages ("<|return|>"
// and
// "<|call|>" end them, as in gpt-oss), "<|end|>" ends a message alone.
void AddEndsByName(Vocabulary* v);

// Reads tokenizer.ggml.tokens, token_type, scores if there are any, and the special ids; `add_bos` is the default.
StatusOr<Vocabulary> VocabularyFromGguf(const Gguf& gguf, bool add_bos);

// Splits the text at special tokens and passes the stretches between them to EncodePlain.
class VocabularyTokenizer : public Tokenizer {
 public:
  explicit VocabularyTokenizer(Vocabulary v);

  int size() const override { return static_cast<int>(v_.size()); }
  TokenType type(TokenId id) const override {
    return Known(id) ? v_.types[static_cast<size_t>(id)] : TokenType::kUnused;
  }
  TokenId bos() const override { return v_.bos; }
  TokenId eos() const override { return v_.eos; }
  bool add_bos() const override { return v_.add_bos && v_.bos >= 0; }
  bool add_eos() const override { return v_.add_eos && v_.eos >= 0; }
  std::string Text(TokenId id) const override {
    return Known(id) ? std::string(v_.piece(static_cast<size_t>(id))) : "";
  }
  bool IsEndOfGeneration(TokenId id) const override;
  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options) const override;

 protected:
  bool Known(TokenId id) const { return id >= 0 && static_cast<size_t>(id) < v_.size(); }
  // The text in which special tokens are searched.
  virtual std::string Prepare(std::string_view text) const { return std::string(text); }
  // Encodes a non-empty stretch without special tokens, which lives as long as the scratch. `first`: none is before it.
  virtual void EncodePlain(std::string_view text, bool first, EncodeScratch* scratch,
                           std::vector<TokenId>* out) const = 0;

  Vocabulary v_;  // immutable after the constructor

 private:
  SpecialTrie user_defined_;  // recognised always
  SpecialTrie specials_;      // these and the control tokens
};

}  // namespace gyre
