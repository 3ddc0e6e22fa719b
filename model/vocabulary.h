// The common part of all tokenizers: pieces, their types, and the special tokens at which text is split.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"
#include "model/special_trie.h"
#include "model/tokenizer.h"
#include "model/word_cache.h"

namespace gyre {

// How a special or user-defined token is found in text, beyond its spelling (the fields of tokenizer.json's
// added_tokens).
struct FindRule {
  bool strip_left = false, strip_right = false;  // it takes the white space beside it
  bool whole_word = false;                       // not inside a word
  bool normalized = false;                       // searched, in its normalized spelling, in the normalized text
  bool plain() const { return !strip_left && !strip_right && !whole_word && !normalized; }
};

struct Vocabulary {
  std::string text;               // all pieces, one after the other
  std::vector<uint32_t> offsets;  // [size + 1] into text
  std::vector<TokenType> types;
  std::vector<float> scores;  // [size], or empty: the tokenizer has none
  TokenId bos = -1, eos = -1;
  std::vector<TokenId> end_ids;  // ids that end a generation
  bool add_bos = true, add_eos = false;
  // What is put before and after a text if special tokens are added; both empty: bos where add_bos, eos where add_eos.
  std::vector<TokenId> prefix, suffix;
  bool finds_unknown = false;         // the unknown token is found in text as control tokens are
  std::map<TokenId, FindRule> rules;  // of the tokens whose rule is not plain
  // User-defined tokens that merging can make too, by the pieces' spelling there.
  std::vector<std::pair<std::string, TokenId>> also;

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
  // The same with other pieces: `respell(piece, type)` gives the text of each.
  template <typename Fn>
  Vocabulary Respelled(Fn respell) const {
    Vocabulary out(*this);
    out.text.clear();
    out.offsets.clear();
    out.types.clear();
    out.Reserve(text.size(), size());
    for (size_t id = 0; id < size(); ++id) out.Add(respell(piece(id), types[id]), types[id]);
    return out;
  }
  // kDataLoss: begin or end token outside the vocabulary, or no tokens at all.
  Status Validate() const;
  // kDataLoss: a piece of more than 1,024 bytes. For tokenizers that search pieces in a trie at each byte of a text.
  Status CheckLengths() const;
};

// Gyre's own GGUF key: all ids that end a generation, where there are more than GGUF has keys for.
inline constexpr const char* kEndsKey = "gyre.tokenizer.end_token_ids";
// Further ones, arrays of ids: the tokens with such a rule, and those put before and after a text.
inline constexpr const char* kStripLeftKey = "gyre.tokenizer.strip_left";
inline constexpr const char* kStripRightKey = "gyre.tokenizer.strip_right";
inline constexpr const char* kWholeWordKey = "gyre.tokenizer.whole_word";
inline constexpr const char* kPrefixKey = "gyre.tokenizer.prefix";
inline constexpr const char* kSuffixKey = "gyre.tokenizer.suffix";

// Whether a control token of known vocabularies with this name ends a turn or a text.
bool EndsByName(std::string_view piece);
// Adds the control and user-defined tokens that end a turn by their names to end_ids. If turns have several messages
// ("<|return|>" and "<|call|>" end them, as in gpt-oss), "<|end|>" ends a message alone.
void AddEndsByName(Vocabulary* v);

// Reads tokenizer.ggml.tokens, token_type, scores if its kind has any, the special ids and Gyre's own keys; `add_bos`
// is the default.
StatusOr<Vocabulary> VocabularyFromGguf(const Gguf& gguf, bool add_bos);

// Splits the text at special tokens and passes the spans between them to EncodePlain.
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
  // A span between special tokens after the normalizers; the result lives as long as the scratch or the span.
  virtual std::string_view Normal(std::string_view span, EncodeScratch*) const { return span; }
  // Adds the tokens whose rule is `normalized`; a constructor calls it once Normal can be called.
  void AddNormalizedTokens();
  // Encodes a non-empty normalized span without special tokens, which lives as long as the scratch. `first`: nothing
  // is before it.
  virtual void EncodePlain(std::string_view text, bool first, EncodeScratch* scratch,
                           std::vector<TokenId>* out) const = 0;

  Vocabulary v_;  // immutable after the constructor

 private:
  // Special tokens by where they are searched.
  struct Specials {
    SpecialTrie user_defined;  // recognised always
    SpecialTrie all;           // these and the control tokens
    bool empty = true;
    void Add(std::string_view text, TokenId id, TokenType type);
    const SpecialTrie& trie(bool parse_special) const { return parse_special ? all : user_defined; }
  };
  const FindRule* Rule(TokenId id) const;
  // Puts out the tokens of `trie` that are in the text, and calls span(begin, end) for the text between them.
  template <typename Fn>
  void SplitAt(const SpecialTrie& trie, std::string_view text, std::vector<TokenId>* out, Fn span) const;

  Specials raw_, normalized_;
};

}  // namespace gyre
